package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// errNoList is returned by handshakes before there is a List to ask.
var errNoList = errors.New("this node is not in a fleet yet")

// StreamTLS is how a protocol with a port of its own, alpn, proves both of its
// ends to be nodes of the fleet: with the certificates of the streams that this
// package opens. Every handshake asks list, which may give nil for as long as
// there is none, and looks at the key ring of that moment, so a rotation needs
// nothing done here. Connections that stand are not ended when a key is removed.
//
// With the operator's certificates the other end must be named by one that is
// good for the name or the address of a member.
func StreamTLS(list func() *List, alpn string) *tls.Config {
	config := func(usage x509.ExtKeyUsage) (*tls.Config, error) {
		l := list()
		if l == nil {
			return nil, errNoList
		}
		c := l.secure.base(l.ring.identity.Load())
		c.NextProtos = []string{alpn}
		c.VerifyPeerCertificate = l.verifyMember(usage)
		return c, nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		NextProtos: []string{alpn},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := config(x509.ExtKeyUsageClientAuth)
			if err != nil {
				return nil, err
			}
			c.ClientAuth = tls.RequireAnyClientCert // and verified by VerifyPeerCertificate
			return c, nil
		},
		GetClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := config(x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return nil, err
			case c.GetClientCertificate != nil:
				return c.GetClientCertificate(r)
			}
			return &c.Certificates[0], nil // New has seen to it that there is one
		},
		InsecureSkipVerify: true, // names are not what these certificates prove: see verifyMember
		VerifyPeerCertificate: func(raw [][]byte, chains [][]*x509.Certificate) error {
			c, err := config(x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			return c.VerifyPeerCertificate(raw, chains)
		},
	}
}

// verifyMember returns the check that a certificate is one of the fleet's.
func (l *List) verifyMember(usage x509.ExtKeyUsage) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		proof := l.secure.newProof(l.ring.identity.Load())
		if err := l.secure.verify(proof, usage)(raw, nil); err != nil {
			return err
		}
		if l.secure.operator == nil {
			return nil
		}
		self := l.Self()
		if l.secure.ofMember(proof, &self) {
			return nil
		}
		members := l.Members()
		for i := range members {
			if l.secure.ofMember(proof, &members[i].Info) {
				return nil
			}
		}
		return fmt.Errorf("the certificate of %q is none of a member's", clean(proof.cert.Subject.CommonName, maxName))
	}
}

// ofMember reports whether the operator's certificate is good for a member.
func (s *secure) ofMember(proof *peerProof, m *Info) bool {
	host, _, err := net.SplitHostPort(m.Addr)
	return err == nil && s.named(proof, m.Name, host) == nil
}

// OwnAddress is the address of this machine that the other nodes would dial if a
// port is bound on all of them: the one that leads to the first seed, else a
// private one of an interface. It needs no Start.
func (l *List) OwnAddress(ctx context.Context) (netip.Addr, error) {
	return l.ownAddress(ctx)
}

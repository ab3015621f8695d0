package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
)

// By ALPN. A new version gets another name and is offered beside the old one for one release.
const (
	alpnKnowledge = "grapevine-knowledge/1"
	alpnKeys      = "grapevine-keys/1"
	alpnHello     = "grapevine-hello/1" // hello only
)

func ownProtocol(alpn string) bool {
	return alpn == alpnKnowledge || alpn == alpnKeys || alpn == alpnHello
}

type peerProof struct {
	cert *x509.Certificate
	// key signed the peer's certificate, own this node's; sni is the ClientHello's.
	key, own, sni Fingerprint
}

type secure struct {
	ring     *ring
	operator *tls.Config // nil: derived
}

func checkOperator(c *tls.Config) error {
	if c == nil {
		return nil
	}
	if len(c.Certificates) == 0 && (c.GetCertificate == nil || c.GetClientCertificate == nil) {
		return errors.New("gossip TLS: no certificate")
	}
	if c.RootCAs == nil {
		return errors.New("gossip TLS: no authority to check other nodes by; give --gossip-ca")
	}
	return nil
}

// Resumed sessions would outlive the removal of their key.
func (s *secure) base(id *identity) *tls.Config {
	c := &tls.Config{}
	if s.operator != nil {
		c = s.operator.Clone()
	} else {
		c.Certificates = []tls.Certificate{id.leaf}
	}
	c.MinVersion, c.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	c.SessionTicketsDisabled = true
	c.ClientSessionCache = nil
	c.GetConfigForClient = nil
	return c
}

func (s *secure) client(ctx context.Context, raw net.Conn, addr, alpn string) (*tls.Conn, *peerProof, error) {
	id := s.ring.identity.Load()
	proof := s.newProof(id)
	c := s.base(id)
	c.NextProtos = []string{alpn}
	c.InsecureSkipVerify = true // verify checks the certificate
	c.VerifyPeerCertificate = s.verify(proof, x509.ExtKeyUsageServerAuth)
	if s.operator == nil {
		c.ServerName = id.primary().String() + sniSuffix
	} else if c.ServerName == "" {
		if host, _, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host) == nil {
			c.ServerName = host
		}
	}
	conn := tls.Client(raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, s.explain(err, addr, proof)
	}
	// A server without ALPN accepts any protocol.
	if conn.ConnectionState().NegotiatedProtocol != alpn {
		return nil, nil, fmt.Errorf("%s does not speak %s: is a node of a fleet there?", addr, alpn)
	}
	return conn, proof, nil
}

func (s *secure) newProof(id *identity) *peerProof {
	if s.operator != nil {
		return &peerProof{}
	}
	return &peerProof{own: id.primary()}
}

func (s *secure) server(ctx context.Context, raw net.Conn, addr string, protocols []string) (*tls.Conn, *peerProof, error) {
	id := s.ring.identity.Load()
	proof := s.newProof(id)
	c := s.base(id)
	c.NextProtos = protocols
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyPeerCertificate = s.verify(proof, x509.ExtKeyUsageClientAuth)
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if text, ok := strings.CutSuffix(h.ServerName, sniSuffix); ok {
			proof.sni, _ = ParseFingerprint(text)
		}
		return nil, nil
	}
	conn := tls.Server(raw, c)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, s.explain(err, addr, proof)
	}
	if conn.ConnectionState().NegotiatedProtocol == "" {
		return nil, nil, fmt.Errorf("%s names no protocol", addr)
	}
	return conn, proof, nil
}

// The ring is read at the check, so that a key removed meanwhile does not count.
func (s *secure) verify(proof *peerProof, usage x509.ExtKeyUsage) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		var err error
		if s.operator == nil {
			proof.cert, proof.key, err = s.ring.identity.Load().verify(raw, usage)
			return err
		}
		proof.cert, err = s.verifyOperator(raw, usage)
		return err
	}
}

func (s *secure) verifyOperator(raw [][]byte, usage x509.ExtKeyUsage) (*x509.Certificate, error) {
	if len(raw) == 0 || len(raw) > maxChain {
		return nil, fmt.Errorf("a chain of %d certificates", len(raw))
	}
	chain := make([]*x509.Certificate, len(raw))
	between := x509.NewCertPool()
	for i, der := range raw {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("malformed certificate: %w", err)
		}
		if chain[i] = cert; i > 0 {
			between.AddCert(cert)
		}
	}
	roots := s.operator.RootCAs
	if usage == x509.ExtKeyUsageClientAuth && s.operator.ClientCAs != nil {
		roots = s.operator.ClientCAs
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return nil, fmt.Errorf("certificate of %q: %w (see --gossip-ca)", clean(chain[0].Subject.CommonName, 64), err)
	}
	return chain[0], nil
}

// host is where the fleet reaches the node, not the source of a connection.
func (s *secure) named(proof *peerProof, name, host string) error {
	if s.operator == nil {
		if cn := proof.cert.Subject.CommonName; cn != name {
			return fmt.Errorf("the node calls itself %q, its certificate %q", name, clean(cn, maxName))
		}
		return nil
	}
	if want := s.operator.ServerName; want != "" {
		return proof.cert.VerifyHostname(want)
	}
	if proof.cert.VerifyHostname(host) == nil {
		return nil
	}
	if err := proof.cert.VerifyHostname(name); err != nil {
		return fmt.Errorf("the certificate of %q is neither for the node's name %q nor for its address %s: %w",
			clean(proof.cert.Subject.CommonName, maxName), name, host, err)
	}
	return nil
}

// explain also takes a client's first read, where TLS 1.3 reports a rejected certificate.
func (s *secure) explain(err error, addr string, proof *peerProof) error {
	mine := s.ring.identity.Load()
	mismatch := &MismatchError{Field: FieldGossipKey, Mine: keyText(mine.primary()), Peer: addr}
	if s.operator == nil {
		if foreign, ok := errors.AsType[*keyError](err); ok {
			mismatch.Theirs = foreign.theirs
			return mismatch
		}
		if proof.sni != (Fingerprint{}) && mine.roots[proof.sni] == nil {
			mismatch.Theirs = keyText(proof.sni)
			return mismatch
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		if s.operator != nil {
			return fmt.Errorf("%s refuses this node's certificate: %w: check --gossip-cert and the --gossip-ca there", addr, err)
		}
		// crypto/tls does not export its type of alerts (RFC 8446, 6.2).
		if text := op.Err.Error(); strings.Contains(text, "certificate") || strings.Contains(text, "access denied") {
			mismatch.Theirs = "not on the ring"
			if proof.key != (Fingerprint{}) {
				mismatch.Theirs = keyText(proof.key)
			}
			return mismatch
		}
	}
	return fmt.Errorf("%s: %w", addr, err)
}

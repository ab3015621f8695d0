package node

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
)

const maxKeyFile = 1 << 20

func loadKeyPair(certFile, keyFile string) (*tls.Certificate, error) {
	chain, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := member.ReadSecret(keyFile, maxKeyFile)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	return &cert, nil
}

func (n *Node) readCertificate() (*tls.Certificate, error) {
	if n.cfg.TLSCert == "" {
		return nil, nil
	}
	cert, err := loadKeyPair(n.cfg.TLSCert, n.cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("tls_cert: %w", err)
	}
	return cert, nil
}

func (n *Node) useCertificate(cert *tls.Certificate) {
	if cert != nil {
		n.noteCertificate("tls_cert", cert, nil)
		n.cert.Store(cert)
	}
}

func certificateProblem(leaf *x509.Certificate, at time.Time) string {
	switch {
	case at.After(leaf.NotAfter):
		return "expired at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case at.Before(leaf.NotBefore):
		return "not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return ""
}

func (n *Node) certificateStatus(at time.Time) *admin.CertificateStatus {
	cert := n.cert.Load()
	if cert == nil {
		return nil
	}
	return &admin.CertificateStatus{NotBefore: cert.Leaf.NotBefore, NotAfter: cert.Leaf.NotAfter, Problem: certificateProblem(cert.Leaf, at)}
}

// noteCertificate exports a setting's expiry and warns of a certificate that is invalid now, unless
// it equals before.
func (n *Node) noteCertificate(setting string, cert, before *tls.Certificate) {
	if before != nil && bytes.Equal(cert.Leaf.Raw, before.Leaf.Raw) {
		return
	}
	n.metrics.Certificates.WithLabelValues(setting).Set(float64(cert.Leaf.NotAfter.Unix()))
	if problem := certificateProblem(cert.Leaf, time.Now()); problem != "" {
		n.log.Warn().Str("component", "tls").Str("event", EventCertificate).Str("problem", problem).Msg(setting + ": the other side will refuse this certificate: replace it")
	}
}

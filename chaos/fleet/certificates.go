package fleet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority issues a fleet's certificates. Safe for concurrent use.
type authority struct {
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// CertificateLife is how long a certificate is valid unless a fault shortens it.
const CertificateLife = 24 * time.Hour

func newAuthority(dir string) (*authority, error) {
	a := &authority{file: filepath.Join(dir, "ca.pem")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * CertificateLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return a, a.sign(a.file, a.cert, a.key)
}

func (a *authority) sign(file string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writePEM(file, "CERTIFICATE", der)
}

// certificate is not safe for concurrent use.
type certificate struct {
	by         *authority
	file       string
	key        *ecdsa.PrivateKey
	name, host string
}

func (a *authority) issue(dir, name, addr string) (*certificate, map[string]any, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, nil, err
	}
	c := &certificate{by: a, file: filepath.Join(dir, name+".crt"), name: name, host: host}
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return nil, nil, err
	}
	keyFile := filepath.Join(dir, name+".crt.key")
	settings := map[string]any{"gossip_cert": c.file, "gossip_cert_key": keyFile, "gossip_ca": a.file}
	return c, settings, errors.Join(writePEM(keyFile, "PRIVATE KEY", der), c.renew(CertificateLife))
}

func (c *certificate) renew(good time.Duration) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: c.name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(good),
		DNSNames: []string{c.name}, IPAddresses: []net.IP{net.ParseIP(c.host)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return c.by.sign(c.file, template, c.key)
}

// writePEM is atomic, because nodes read the file at any time.
func writePEM(path, kind string, der []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// IssueCertificate replaces the node's certificate, by an expired one if valid is negative. Nodes
// check new connections only. Needs Config.Certificates.
func (n *Node) IssueCertificate(valid time.Duration) error {
	if n.cert == nil {
		return n.named(errors.New("has no certificate of its own"))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.named(n.cert.renew(valid))
}

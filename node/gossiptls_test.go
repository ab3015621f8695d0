package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grapevine.example/node/config"
)

type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	der := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, a.key)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file("ca"), "CERTIFICATE", der)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) sign(c *x509.Certificate, parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	a.last++
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.last), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *authority) issue(name string) *big.Int {
	key := a.newKey()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	writePEM(a.t, a.file(name), "CERTIFICATE", a.sign(c, a.cert, key))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writePEM(a.t, a.file(name+"-key"), "PRIVATE KEY", der)
	return c.SerialNumber
}

func (a *authority) configure(cfg *config.Config) {
	cfg.GossipCert, cfg.GossipCertKey, cfg.GossipCA = a.file(cfg.NodeName), a.file(cfg.NodeName+"-key"), a.file("ca")
}

// TestOperatorCertificates: one authority admits nodes, another does not, and renewals are used.
func TestOperatorCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	ca.issue("one")
	ca.issue("two")
	first := fleetConfig("one", nil)
	ca.configure(&first)
	one := startNode(t, first)
	second := fleetConfig("two", []string{one.GossipAddr()})
	ca.configure(&second)
	awaitFleet(t, one, startNode(t, second))

	other := newAuthority(t, "theirs")
	other.issue("three")
	third := fleetConfig("three", []string{one.GossipAddr()})
	other.configure(&third)
	stranger, err := New(third)
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("a node of another authority: %v", err)
	}

	c, err := one.gossipTLS()
	if err != nil {
		t.Fatal(err)
	}
	serial := func() *big.Int {
		cert, err := c.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf.SerialNumber
	}
	renewed := ca.issue("one")
	if got := serial(); got.Cmp(renewed) != 0 {
		t.Errorf("certificate %v is shown, %v is in the file", got, renewed)
	}
	if err := os.WriteFile(ca.file("one"), []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got.Cmp(renewed) != 0 {
		t.Errorf("certificate %v is shown while the file is being written, the last good one is %v", got, renewed)
	}
}

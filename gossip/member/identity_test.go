package member

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// All releases must derive these values.
func TestDerivation(t *testing.T) {
	id, err := newIdentity("a", [][]byte{key(1), bytes.Repeat([]byte{2}, 16)})
	if err != nil {
		t.Fatal(err)
	}
	again, err := newIdentity("b", [][]byte{key(1)})
	if err != nil {
		t.Fatal(err)
	}
	root := id.roots[id.primary()]
	if !bytes.Equal(root.Raw, again.roots[id.primary()].Raw) {
		t.Error("two nodes derive different authorities from one key")
	}
	public := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	got := id.prints[0].String() + " " + id.prints[1].String() + " " + noKeyPrint.String() + " " + hex.EncodeToString(public[:8])
	const want = "1c8bc4675d3ac9c1 e7cfe85e19814b09 17854603a9321193 dde3117bc5be4f7e"
	if got != want {
		t.Errorf("derived %s, want %s: nodes of two releases would refuse each other", got, want)
	}
	if bytes.Equal(id.leaf.Certificate[0], again.leaf.Certificate[0]) || id.leaf.Leaf.PublicKey == nil {
		t.Error("leaves are shared")
	}
}

func TestVerify(t *testing.T) {
	one, _ := newIdentity("one", [][]byte{key(1)})
	two, _ := newIdentity("two", [][]byte{key(2), key(1)})
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		leaf, print, err := two.verify(one.leaf.Certificate, usage)
		if err != nil || leaf.Subject.CommonName != "one" || print != FingerprintOf(key(1)) {
			t.Error(leaf, print, err)
		}
	}
	var foreign *keyError
	if _, _, err := one.verify(two.leaf.Certificate, x509.ExtKeyUsageServerAuth); !errors.As(err, &foreign) || foreign.theirs != FingerprintOf(key(2)).String() {
		t.Error(err)
	}
	// Signed by a false authority with the right name.
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	claim := *one.roots[one.primary()]
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "one"}, NotBefore: validFrom, NotAfter: validTo,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &x509.Certificate{Subject: claim.Subject}, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := one.verify([][]byte{der}, x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a claim is enough")
	}
	for _, raw := range [][][]byte{nil, {{}}, {{1, 2, 3}}, {one.leaf.Certificate[0], one.leaf.Certificate[0]}, {one.roots[one.primary()].Raw}} {
		if _, _, err := one.verify(raw, x509.ExtKeyUsageServerAuth); err == nil {
			t.Errorf("%d certificates pass", len(raw))
		}
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestAuthority(t *testing.T) *authority {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, k}
}

func (a *authority) config(t *testing.T, name string, trusted *authority) *tls.Config {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	} else {
		tmpl.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, k.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(trusted.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k}}, RootCAs: roots}
}

func TestOperatorTLS(t *testing.T) {
	ca := newTestAuthority(t)
	nodes := fleet(t, 2, func(i int, cfg *Config) {
		patient(i, cfg)
		cfg.TLS = ca.config(t, []string{"node-0", "127.0.0.1"}[i], ca)
	})
	if err := say(dialed(t, nodes[0], nodes[1]), "by address"); err != nil {
		t.Error(err)
	}
	if err := say(dialed(t, nodes[1], nodes[0]), "by name"); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		name string
		edit func(cfg *Config)
		says string
	}{
		{"another authority", func(cfg *Config) { o := newTestAuthority(t); cfg.TLS = o.config(t, "late", o) }, "gossip-ca"},
		{"not trusted there", func(cfg *Config) { cfg.TLS = newTestAuthority(t).config(t, "late", ca) }, "refuses this node's certificate"},
		{"another's certificate", func(cfg *Config) { cfg.TLS = ca.config(t, "node-7", ca) }, "neither for the node's name"},
		{"derived", func(*Config) {}, "not derived from a key"},
		{"another key", func(cfg *Config) { cfg.TLS = ca.config(t, "late", ca); cfg.Keys = [][]byte{key(2)} }, "another gossip key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig("late")
			cfg.Join = []string{nodes[0].Self().Addr}
			tc.edit(&cfg)
			late := start(t, cfg)
			eventually(t, tc.says, func() bool {
				e := late.JoinErrors()
				return len(e) == 1 && e[0].Err != nil && strings.Contains(e[0].Err.Error(), tc.says)
			}, func() any { return late.JoinErrors() })
		})
	}
	if nodes[0].state("late") != "" {
		t.Error(nodes[0].Members())
	}
}

// All certificates carry one shared name.
func TestOperatorServerName(t *testing.T) {
	ca := newTestAuthority(t)
	shared := func(name string) *tls.Config {
		c := ca.config(t, name, ca)
		c.ServerName = "fleet.test"
		return c
	}
	nodes := fleet(t, 2, func(_ int, cfg *Config) { cfg.TLS = shared("fleet.test") })
	cfg := testConfig("late")
	cfg.TLS = shared("late")
	late := start(t, cfg)
	if _, err := late.probe(context.Background(), nodes[0].Self().Addr); err == nil {
		t.Error("a certificate without the name is taken")
	}
	if _, err := nodes[0].probe(context.Background(), late.Self().Addr); err == nil {
		t.Error("a certificate without the name is taken")
	}
}

func TestOperatorTLSAddressOfAnother(t *testing.T) {
	ca := newTestAuthority(t)
	cfg := testConfig("a")
	cfg.TLS = ca.config(t, "127.0.0.1", ca)
	n := start(t, cfg)
	r, err := newRing("b", [][]byte{key(1)}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		addr    string
		welcome bool
	}{{"10.9.9.9:7946", false}, {"127.0.0.1:9", true}} {
		s := &secure{ring: r, operator: ca.config(t, "127.0.0.1", ca)}
		if _, v := guest(t, n, s, alpnKnowledge, stranger(n, "b", tc.addr)); (v.Refusal == "") != tc.welcome {
			t.Errorf("%s: %+v", tc.addr, v)
		}
	}
}

// A foreign server with a trusted certificate is no member.
func TestNoProtocolNoStream(t *testing.T) {
	r, err := newRing("a", [][]byte{key(1)}, "")
	if err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	go func() {
		c := (&secure{ring: r}).base(r.identity.Load())
		c.ClientAuth = tls.RequireAnyClientCert
		s := tls.Server(b, c)
		_ = s.Handshake()
		_, _ = io.Copy(io.Discard, s)
	}()
	if _, _, err := (&secure{ring: r}).client(context.Background(), a, "10.0.0.1:7946", alpnKeys); err == nil {
		t.Error("a stream without a protocol")
	}
}

package member

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// Fingerprint identifies a key publicly.
type Fingerprint [8]byte

func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

func (f *Fingerprint) UnmarshalText(text []byte) (err error) {
	*f, err = ParseFingerprint(string(text))
	return err
}

// ParseFingerprint decodes String's result.
func ParseFingerprint(s string) (Fingerprint, error) {
	var f Fingerprint
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(f) {
		return Fingerprint(b), nil
	}
	return f, errors.New("a fingerprint has 16 hexadecimal digits")
}

// FingerprintOf returns the fingerprint of key.
func FingerprintOf(key []byte) Fingerprint {
	return Fingerprint(derive(key, "fingerprint", len(Fingerprint{})))
}

const (
	derivation   = "grapevine gossip identity 1" // salt; nodes with different ones cannot communicate
	noKey        = "grapevine: no key"           // real keys never have 17 bytes
	issuerPrefix = "grapevine gossip "
	// sniSuffix follows the client's primary fingerprint, so that a server without the key can
	// report it.
	sniSuffix = ".gossip.grapevine"
	maxChain  = 8
)

// Certificates are checked at a fixed time: clocks do not matter.
var (
	validFrom = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	validAt   = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	validTo   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280, 4.1.2.5
)

// identity derives from one state of the ring. Immutable.
type identity struct {
	keys   [][]byte      // primary first; empty without keys
	prints []Fingerprint // in the order of keys; without keys, of noKey
	leaf   tls.Certificate
	roots  map[Fingerprint]*x509.Certificate
}

func (id *identity) primary() Fingerprint { return id.prints[0] }

// HKDF (RFC 5869).
func derive(key []byte, label string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, []byte(derivation), label, n)
	if err != nil {
		panic(err)
	}
	return out
}

func newIdentity(name string, keys [][]byte) (*identity, error) {
	id := &identity{keys: keys, roots: make(map[Fingerprint]*x509.Certificate)}
	secrets := keys
	if len(keys) == 0 {
		secrets = [][]byte{[]byte(noKey)}
	}
	for i, key := range secrets {
		print := FingerprintOf(key)
		signer := ed25519.NewKeyFromSeed(derive(key, "ca ed25519", ed25519.SeedSize))
		root, err := newAuthority(print, signer)
		if err != nil {
			return nil, err
		}
		id.prints = append(id.prints, print)
		id.roots[print] = root
		if i == 0 {
			if id.leaf, err = newLeaf(name, root, signer); err != nil {
				return nil, err
			}
		}
	}
	return id, nil
}

// The bytes are the same on every node.
func newAuthority(print Fingerprint, signer ed25519.PrivateKey) (*x509.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: issuerPrefix + print.String()},
		NotBefore:             validFrom,
		NotAfter:              validTo,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, signer.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("gossip authority: %w", err)
	}
	return x509.ParseCertificate(der)
}

// The private key is fresh and never stored.
func newLeaf(name string, root *x509.Certificate, signer ed25519.PrivateKey) (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             validFrom,
		NotAfter:              validTo,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, root, public, signer)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("gossip certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, nil
}

type keyError struct {
	theirs string
}

func (e *keyError) Error() string { return "certificate under another gossip key (" + e.theirs + ")" }

// verify also returns the key that signed the leaf.
func (id *identity) verify(raw [][]byte, usage x509.ExtKeyUsage) (*x509.Certificate, Fingerprint, error) {
	var print Fingerprint
	if len(raw) != 1 {
		return nil, print, fmt.Errorf("%d certificates where one is expected", len(raw))
	}
	leaf, err := x509.ParseCertificate(raw[0])
	if err != nil {
		return nil, print, fmt.Errorf("malformed certificate: %w", err)
	}
	if leaf.IsCA {
		return nil, print, errors.New("an authority where a node is expected")
	}
	issuer := leaf.Issuer.CommonName
	text, derived := strings.CutPrefix(issuer, issuerPrefix)
	print, err = ParseFingerprint(text)
	if !derived || err != nil {
		return nil, print, &keyError{theirs: fmt.Sprintf("certificate of %q, not derived from a key", clean(issuer, 64))}
	}
	root := id.roots[print]
	if root == nil {
		return nil, print, &keyError{theirs: keyText(print)}
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: validAt,
		KeyUsages:   []x509.ExtKeyUsage{usage},
	}); err != nil {
		return nil, print, fmt.Errorf("certificate: %w", err)
	}
	return leaf, print, nil
}

var noKeyPrint = FingerprintOf([]byte(noKey))

func keyText(f Fingerprint) string {
	if f == noKeyPrint {
		return "no key"
	}
	return f.String()
}

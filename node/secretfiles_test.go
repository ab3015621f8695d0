package node

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine.example/node/config"
)

func TestSecretFilesAreGuarded(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	key, err := x509.MarshalPKCS8PrivateKey(secure.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, file := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "secret")
	writePEM(t, cert, "CERTIFICATE", secure.Certificate().Raw)
	word, gossipKey := []byte("a-word-of-more-than-16-bytes"), []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n")
	for what, tc := range map[string]struct {
		text []byte
		set  func(*config.Config)
	}{
		"secret_file":      {word, func(c *config.Config) { c.SecretFile = file }},
		"admin_token_file": {word, func(c *config.Config) { c.AdminTokenFile = file }},
		"api_key_file":     {word, func(c *config.Config) { c.Backends = []config.Backend{{URL: "http://127.0.0.3:1", APIKeyFile: file}} }},
		"tls_cert":         {nil, func(c *config.Config) { c.TLSCert, c.TLSKey = cert, file }},
		"gossip keys":      {gossipKey, func(c *config.Config) { c.Gossip, c.GossipKeyFile, c.Secret = "127.0.0.1:0", file, string(word) }},
		"gossip_cert": {nil, func(c *config.Config) {
			c.Gossip, c.GossipCert, c.GossipCertKey, c.GossipCA, c.Secret = "127.0.0.1:0", cert, file, cert, string(word)
		}},
	} {
		if tc.text == nil {
			writePEM(t, file, "PRIVATE KEY", key)
		} else if err := os.WriteFile(file, tc.text, 0o600); err != nil {
			t.Fatal(err)
		}
		for mode, good := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o660: false, 0o602: false} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			cfg := testConfig()
			tc.set(&cfg)
			_, err := New(cfg)
			if good && err != nil || !good && (err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "chmod 600")) {
				t.Errorf("%s, mode %o: %v", what, mode, err)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfigWithSecretIsGuarded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.yaml")
	for text, secret := range map[string]bool{
		"backends: [{url: 'http://h', api_key: k}]\n":       true,
		"listen: ':1'\nsecret: 0123456789abcdef\n":          true,
		"backends: [{url: 'http://h', api_key_file: /k}]\n": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for mode, guarded := range map[os.FileMode]bool{0o640: false, 0o644: true, 0o660: true} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			_, _, err := config.Load(path)
			if refused := err != nil && strings.Contains(err.Error(), path+":") && strings.Contains(err.Error(), "_file"); refused != (secret && guarded) {
				t.Errorf("%q, mode %o: %v", text, mode, err)
			}
		}
	}
}

func TestAPIKeyFile(t *testing.T) {
	t.Parallel()
	got := make(chan string, 16)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case got <- r.Header.Get("Authorization"):
		default:
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "key")
	cfg := testConfig()
	cfg.Backends = []config.Backend{{URL: s.URL, APIKeyFile: file}}
	for _, text := range []string{"", "two words\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "want one word") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(file, []byte("the-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cfg)
	chat(t, n, chatBody("m", "hello"))
	eventually(t, "the key at the engine", func() bool { return <-got == "Bearer the-key" })
	cfg.Backends[0].APIKey = "another"
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "keep one") {
		t.Errorf("both forms: %v", err)
	}
}

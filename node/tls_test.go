package node

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine.example/node/config"
)

func TestTLS(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	secure := httptest.NewTLSServer(e.Config.Handler)
	defer secure.Close()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", secure.Certificate().Raw)
	key, err := x509.MarshalPKCS8PrivateKey(secure.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", key)

	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey = certFile, keyFile
	cfg.Backends = []config.Backend{{URL: secure.URL, CAFile: certFile}}
	n := startNode(t, cfg)
	eventually(t, "the engine is asked over TLS", func() bool { return len(n.router.View().Models()) == 1 })

	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("https://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "hello")))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if _, err := http.Get("http://" + n.Addr() + "/readyz"); err == nil {
		t.Error("the data port answers without TLS")
	}
}

func newSecureEngine(t *testing.T, model string) (*httptest.Server, *fakeEngine) {
	t.Helper()
	e := newFakeEngine(t, model)
	secure := httptest.NewUnstartedServer(e.Config.Handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail as intended
	secure.StartTLS()
	t.Cleanup(secure.Close)
	return secure, e
}

func TestUntrustedBackend(t *testing.T) {
	leakCheck(t)
	secure, e := newSecureEngine(t, "m")
	n := startNode(t, testConfig(secure.URL))
	if status, _, _ := chat(t, n, chatBody("m", "hello")); status != 502 && status != 503 {
		t.Errorf("status %d", status)
	}
	if e.requests.Load() != 0 {
		t.Error("the request reached it")
	}
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

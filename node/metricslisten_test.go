package node

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMetricsListen(t *testing.T) {
	leakCheck(t)
	cfg := testConfig("http://127.0.0.3:1")
	cfg.MetricsListen, cfg.AdminTokenFile = "127.0.0.1:0", filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(cfg.AdminTokenFile, []byte("a-token-for-operators"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cfg)
	ask := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+n.MetricsAddr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	for path, want := range map[string]string{"/metrics": "grapevine_ready 1", "/healthz": "ok", "/readyz": "ready"} {
		if status, text := ask("GET", path); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %.200s", path, status, text)
		}
		if status, _ := ask("POST", path); status != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, status)
		}
	}
	for path := range n.adminServer().Routes() {
		method, path, _ := strings.Cut(path, " ")
		if path = strings.ReplaceAll(path, "{name...}", "x"); path == "/metrics" || path == "/healthz" || path == "/readyz" {
			continue
		}
		if status, text := ask(method, path); status != http.StatusNotFound {
			t.Errorf("%s %s: %d %s", method, path, status, text)
		}
	}
}

package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"grapevine.example/node/config"
)

// TestDataPortIsClosedByDefault: each setting opens only what it names.
func TestDataPortIsClosedByDefault(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]string{}
	bodies := map[string]string{}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen[r.URL.Path], bodies[r.URL.Path] = r.Header.Get("Authorization"), string(body)
		mu.Unlock()
		_, _ = io.WriteString(w, `{"choices":[]}`)
	}))
	defer engine.Close()
	ask := func(n *Node, path string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.Addr()+path, strings.NewReader(`{"kv_transfer_params":{},"messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer client")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	check := func(path, key, part string, has bool) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if got, ok := seen[path]; !ok || got != key || strings.Contains(bodies[path], part) != has {
			t.Errorf("%s: engine got %q with %q", path, bodies[path], got)
		}
	}
	cfg := testConfig()
	cfg.Backends = []config.Backend{{URL: engine.URL, Name: "e", Models: []string{"m"}, APIKey: "routerkey"}}
	cfg.ResponseHeaders = config.Default().ResponseHeaders
	n := startNode(t, cfg)
	if status := ask(n, "/sleep").StatusCode; status != http.StatusNotFound {
		t.Errorf("/sleep: %d", status)
	}
	mu.Lock()
	if _, reached := seen["/sleep"]; reached {
		t.Error("/sleep reached the engine")
	}
	mu.Unlock()
	chat := ask(n, "/v1/chat/completions")
	for name := range chat.Header {
		if strings.HasPrefix(name, "X-Grapevine") {
			t.Errorf("tells %s", name)
		}
	}
	check("/v1/chat/completions", "Bearer routerkey", "kv_transfer_params", false)

	cfg.PassPaths, cfg.AllowEngineControl, cfg.ResponseHeaders = []string{"/sleep"}, true, "route"
	open := startNode(t, cfg)
	ask(open, "/sleep")
	check("/sleep", "Bearer client", "kv_transfer_params", true)
	if h := ask(open, "/v1/chat/completions").Header; h.Get("X-Grapevine-Route") == "" || h.Get("X-Grapevine-Backend") != "" {
		t.Errorf("route: %v", h)
	}
	check("/v1/chat/completions", "Bearer routerkey", "kv_transfer_params", true)

	cfg.Tenant = "credential"
	ask(startNode(t, cfg), "/v1/chat/completions")
	check("/v1/chat/completions", "Bearer routerkey", "cache_salt", true)

	bad := testConfig()
	bad.PassPaths, bad.ResponseHeaders, bad.Tenant = []string{"/a/../b"}, "some", "header:Host"
	if _, err := New(bad); err == nil || !strings.Contains(err.Error(), "pass_paths") || !strings.Contains(err.Error(), "response_headers") || !strings.Contains(err.Error(), "tenant") {
		t.Errorf("%v", err)
	}
}

package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

const adminOfChild = "GRAPEVINE_TEST_ADMIN_OF_CHILD"

// The client is a child process, since Go reads the proxy environment once.
func TestClientAsksDirectly(t *testing.T) {
	if addr := os.Getenv(adminOfChild); addr != "" {
		if _, err := NewClient(addr).WithToken("a-token-for-operators", "").Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := NewClient(addr).WithToken("a-token-for-operators", "").Rules(t.Context()); err == nil || !strings.Contains(err.Error(), "307") {
			t.Fatalf("a redirection was followed: %v", err)
		}
		return
	}
	t.Parallel()
	var shown, elsewhere atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		t.Errorf("another host was asked for %s, with token %v", r.URL, r.Header.Get("Authorization") != "")
	}))
	defer proxy.Close()
	router := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer a-token-for-operators" {
			shown.Add(1)
		}
		if r.URL.Path == "/rules" {
			http.Redirect(w, r, proxy.URL, http.StatusTemporaryRedirect)
			return
		}
		_ = json.NewEncoder(w).Encode(&Status{})
	}))
	defer router.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(router.URL, "http://"), ":")
	// Go never uses a proxy for loopback addresses; 0.0.0.0 reaches loopback without being one.
	for _, addr := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port} {
		child := exec.CommandContext(t.Context(), self, "-test.run=^TestClientAsksDirectly$", "-test.count=1", "-test.v")
		child.Env = append(os.Environ(), adminOfChild+"="+addr, "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "ALL_PROXY="+proxy.URL, "NO_PROXY=", "no_proxy=")
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestClientAsksDirectly") {
			t.Errorf("%s: %v\n%s", addr, err, out)
		}
	}
	if shown.Load() != 4 || elsewhere.Load() != 0 {
		t.Errorf("the router was shown the token %d times, others were asked %d times", shown.Load(), elsewhere.Load())
	}
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"grapevine.example/raftstore"
)

func TestChangesFromElsewhere(t *testing.T) {
	passed := false
	h := new(Server).Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true }))
	for _, tc := range []struct {
		method, path, from, host string
		want                     bool
		header                   string
	}{
		{"GET", "/backends", "10.0.0.9:5", "router:8081", true, ""},
		{"GET", "/backends?surprise=1", "10.0.0.9:5", "router:8081", true, ""},
		{"POST", "/explain", "127.0.0.1:5", "127.0.0.1:8081", true, ""},
		{"POST", "/explain", "10.0.0.9:5", "router:8081", false, ""}, // would reveal other clients' prompts
		{"POST", "/explain", "127.0.0.1:5", "127.0.0.1:8081", false, "X-Forwarded-For"},
		{"GET", "/backends?consistent", "10.0.0.9:5", "10.0.0.1:8081", false, ""},
		{"GET", "/backends?consistent=true", "127.0.0.1:5", "127.0.0.1:8081", true, ""},
		{"GET", "/gossip?facts=1", "10.0.0.9:5", "10.0.0.1:8081", false, ""},
		{"GET", "/gossip", "10.0.0.9:5", "10.0.0.1:8081", true, ""},
		{"GET", "/keys", "10.0.0.9:5", "10.0.0.1:8081", false, ""},
		{"GET", "/prefixes", "10.0.0.9:5", "10.0.0.1:8081", true, ""},
		{"POST", "/backends", "127.0.0.1:5", "127.0.0.1:8081", true, ""},
		{"DELETE", "/backends", "[::1]:5", "localhost:8081", true, ""},
		{"POST", "/backends", "10.0.0.9:5", "10.0.0.1:8081", false, ""},
		{"PUT", "/rules", "[fd00::9]:5", "10.0.0.1:8081", false, ""},
		{"PATCH", "/backends/x", "somewhere", "10.0.0.1:8081", false, ""},
		{"POST", "/keys/install", "10.0.0.9:5", "10.0.0.1:8081", false, ""},
		{"PATCH", "/backends", "127.0.0.1:5", "rebound.example:8081", false, ""}, // DNS rebinding
		{"GET", "/status", "127.0.0.1:5", "rebound.example:8081", false, ""},
		{"POST", "/explain", "127.0.0.1:5", "rebound.example:8081", false, ""},
		{"GET", "/metrics", "127.0.0.1:5", "rebound.example:8081", true, ""},
		{"GET", "/status", "127.0.0.1:5", "LOCALHOST", true, ""},
		{"GET", "/debug/pprof/cmdline", "127.0.0.1:5", "127.0.0.1:8081", true, ""},
		{"GET", "/debug/pprof/cmdline", "10.0.0.9:5", "10.0.0.1:8081", false, ""}, // contains the api_key of --backend
		{"GET", "/status", "127.0.0.1:5", "127.0.0.1:8081", true, "X-Forwarded-For"},
		{"DELETE", "/backends", "127.0.0.1:5", "127.0.0.1:8081", false, "X-Forwarded-For"},
		{"DELETE", "/backends", "127.0.0.1:5", "127.0.0.1:8081", false, "Forwarded"},
		{"PUT", "/rules", "127.0.0.1:5", "127.0.0.1:8081", false, "Via"},
		{"PUT", "/rules", "127.0.0.1:5", "127.0.0.1:8081", false, "X-Forwarded-Proto"}, // Envoy's only header by default
		{"PUT", "/rules", "127.0.0.1:5", "127.0.0.1:8081", false, "X-Real-Ip"},
	} {
		r := httptest.NewRequest(tc.method, tc.path, strings.NewReader("{}"))
		r.RemoteAddr, r.Host = tc.from, tc.host
		if tc.header != "" {
			r.Header.Set(tc.header, "10.0.0.9")
		}
		passed = false
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if passed != tc.want || !tc.want && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "remedy")) {
			t.Errorf("%+v: %v, %d %s", tc, passed, w.Code, w.Body)
		}
	}
}

func TestDifference(t *testing.T) {
	for _, tc := range []struct{ from, to, want string }{
		{"", "", ""},
		{"a\n", "a\n", ""},
		{"", "a\nb\n", "+a\n+b\n"},
		{"a\n", "", "-a\n"},
		{"a\nb\nc\n", "a\nc\n", " a\n-b\n c\n"},
		{"a\nb\nc\nd\n", "a\nx\nc\ny\nd\n", " a\n-b\n+x\n c\n+y\n d\n"},
		{"a", "a\n\n", " a\n+\n"},
		{strings.Repeat("x\n", 3000) + "end\n", strings.Repeat("y\n", 3000) + "end\n", strings.Repeat("-x\n", 3000) + strings.Repeat("+y\n", 3000) + " end\n"},
	} {
		if got := difference(tc.from, tc.to); got != tc.want {
			t.Errorf("%.40q to %.40q: %.200q", tc.from, tc.to, got)
		}
	}
}

func TestRefusals(t *testing.T) {
	for err, want := range map[error]int{
		raftstore.ErrInvalid: 400, raftstore.ErrNotFound: 404, raftstore.ErrExists: 409, raftstore.ErrConflict: 409, raftstore.ErrTooMany: 409,
		raftstore.ErrNoLeader: 503, raftstore.ErrStopped: 503, ErrNotStarted: 503,
		raftstore.ErrUncertain: 504, context.DeadlineExceeded: 504, fmt.Errorf("%w: %w", raftstore.ErrNoLeader, context.DeadlineExceeded): 503,
		errors.New("odd"): 500,
	} {
		r := RefusalOf(fmt.Errorf("wrapped: %w", err))
		if r.Status != want || strings.Contains(r.Remedy, "nothing was changed") != (want == 503 && errors.Is(err, raftstore.ErrNoLeader)) {
			t.Errorf("%v: %d %+v", err, r.Status, r)
		}
	}
}

package node

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
)

func explain(t *testing.T, n *Node, path string, headers map[string]string, body string) (*admin.Receipt, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return admin.NewClient(n.AdminAddr()).Explain(ctx, path, headers, []byte(body))
}

const longText = "The same long beginning of a prompt, over and over. "

func TestExplain(t *testing.T) {
	leakCheck(t)
	a, b := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	n := startNode(t, testConfig(a.URL, b.URL))
	body := chatBody("m", strings.Repeat(longText, 100))

	before, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil {
		t.Fatal(err)
	}
	if before.Model != "m" || before.Blocks < 9 || before.PredictedTokens != 0 || before.Eligible != 2 || before.Strategy != "prefix" {
		t.Fatalf("before: %+v", before)
	}
	status, served, _ := chat(t, n, body)
	if status != 200 {
		t.Fatal(status)
	}
	eventually(t, "the request has ended", func() bool { return n.proxy.InFlight() == 0 })
	after, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil {
		t.Fatal(err)
	}
	if after.Blocks != before.Blocks || len(after.Candidates) == 0 || after.Candidates[0].Backend != after.Backend {
		t.Fatalf("after: %+v", after)
	}
	_ = served // the fake engine reports nothing cached, so the placement may be retracted
}

func TestExplainLeavesNoTrace(t *testing.T) {
	leakCheck(t)
	a, b := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	for _, strategy := range []string{"prefix", "round-robin", "least-request", "weighted"} {
		cfg := testConfig(a.URL, b.URL)
		cfg.Strategy = strategy
		n := startNode(t, cfg)
		body := chatBody("m", strings.Repeat(longText, 100))
		stats, tree := n.router.Stats(), n.tree.Stats()
		first, err := explain(t, n, "/v1/chat/completions", nil, body)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			again, err := explain(t, n, "/v1/chat/completions", nil, body)
			if err != nil {
				t.Fatal(err)
			}
			if again.Backend != first.Backend {
				t.Errorf("%s: asked twice, two answers: %s and %s", strategy, first.Backend, again.Backend)
			}
		}
		if got := n.router.Stats(); !reflect.DeepEqual(got, stats) {
			t.Errorf("%s: policy counters moved: %+v, were %+v", strategy, got, stats)
		}
		if got := n.tree.Stats(); got != tree {
			t.Errorf("%s: the tree changed: %+v, was %+v", strategy, got, tree)
		}
	}
	if total := a.requests.Load() + b.requests.Load(); total != 0 {
		t.Errorf("%d requests were dispatched", total)
	}
}

func TestExplainRulesAndHeaders(t *testing.T) {
	leakCheck(t)
	cfg := testConfig(newFakeEngine(t, "m").URL, newFakeEngine(t, "m").URL)
	cfg.Rules = []config.Rule{
		{Path: "/v1/embeddings", Strategy: "least-request"},
		{Header: "x-tenant", HeaderValue: "batch", Strategy: "round-robin"},
	}
	n := startNode(t, cfg)
	for _, tc := range []struct {
		path    string
		headers map[string]string
		want    string
	}{
		{"/v1/chat/completions", nil, "prefix"},
		{"/v1/embeddings", nil, "least-request"},
		{"/v1/chat/completions", map[string]string{"X-Tenant": "batch"}, "round-robin"},
		{"/v1/chat/completions", map[string]string{"X-Tenant": "other"}, "prefix"},
	} {
		r, err := explain(t, n, tc.path, tc.headers, chatBody("m", "hello"))
		if err != nil || r.Strategy != tc.want {
			t.Errorf("%s %v: %+v %v, want %s", tc.path, tc.headers, r, err, tc.want)
			continue
		}
		if c := r.Candidates[0]; (r.Why != "") != (tc.want == "prefix") || (c.LaterS > 0) != (tc.want == "prefix") {
			t.Errorf("%s: why %q, %+v", tc.want, r.Why, c)
		}
	}
}

func TestWhy(t *testing.T) {
	chosen := policy.Considered{Name: "a", HeldTokens: 8000, Cost: 1, Wait: 0.5, Compute: 0.2, Later: 0.3}
	less := policy.Considered{Name: "b", Cost: 3.1, Wait: 0.1, Compute: 1, Later: 2}
	more := policy.Considered{Name: "c", HeldTokens: 12_000, Cost: 6.05, Wait: 6, Compute: 0.02, Later: 0.03}
	slow := policy.Considered{Name: "s", Cost: 4, Wait: 1, Compute: 1, Later: 2}
	alike := policy.Considered{Name: "d", HeldTokens: 8000, Cost: 1.5, Wait: 1, Compute: 0.2, Later: 0.3}
	cheaper := policy.Considered{Name: "e", Cost: 0.9, Wait: 0, Compute: 0.3, Later: 0.6}
	const (
		lessText  = "compared with b, which holds 0 tokens, it saves 0.8 s of prefill and 1.7 s of other requests' time for 0.4 s of waiting"
		moreText  = "compared with c, which holds 12000 tokens, it saves 5.5 s of waiting for 0.2 s of prefill and 0.3 s of other requests' time"
		alikeText = "the caches of these backends save the same: the wait decides"
	)
	for _, tc := range []struct {
		others []policy.Considered
		want   string
	}{
		{nil, alikeText},
		{[]policy.Considered{alike}, alikeText},
		{[]policy.Considered{alike, less}, lessText},
		{[]policy.Considered{slow}, "compared with s, which holds 0 tokens, it saves 0.5 s of waiting, 0.8 s of prefill and 1.7 s of other requests' time"},
		{[]policy.Considered{alike, less, more}, moreText},
		{[]policy.Considered{cheaper, less}, lessText + "; e looks cheaper, but it is not its turn for new work, or it has many active requests"},
	} {
		if got := why(append([]policy.Considered{chosen}, tc.others...)); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

func TestExplainErrors(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.MaxBody = 4096
	cfg.Backends = []config.Backend{{URL: "http://127.0.0.1:1", Models: []string{"m"}}}
	n := startNode(t, cfg)
	for _, tc := range []struct {
		query, body string
		status      int
		want        string
	}{
		{"", chatBody("m", "hello"), 200, `"backend":"127.0.0.1:1"`},
		{"", "{", 200, "refused with 400"},
		{"", chatBody("x", "hello"), 404, "model"},
		{"?path=nonsense", chatBody("m", "hello"), 400, "does not begin with /"},
		{"", chatBody("m", strings.Repeat("x", 5000)), 413, "max_body, 4KiB"},
	} {
		resp, err := http.Post("http://"+n.AdminAddr()+"/explain"+tc.query, "application/json", strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tc.status || !strings.Contains(string(text), tc.want) {
			t.Errorf("%s %.30s: %d %s %v", tc.query, tc.body, resp.StatusCode, text, err)
		}
	}
	if status, _ := get(t, "http://"+n.AdminAddr()+"/explain"); status != http.StatusMethodNotAllowed {
		t.Errorf("GET /explain: %d", status)
	}
	none := startNode(t, testConfig())
	if _, err := explain(t, none, "/v1/chat/completions", nil, chatBody("m", "hello")); err == nil || !strings.Contains(err.Error(), "no backend can take") {
		t.Errorf("without backends: %v", err)
	}
}

// TestChangeWithoutAnswer: the error says that the change may have been made.
func TestChangeWithoutAnswer(t *testing.T) {
	deaf := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
	}))
	defer deaf.Close()
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(`{"version":`))
	}))
	defer half.Close()
	for _, url := range []string{deaf.URL, half.URL} {
		if _, err := admin.NewClient(url).RemoveBackends(t.Context(), []string{"a"}); err == nil || !strings.Contains(err.Error(), "outcome unknown") {
			t.Errorf("a change: %v", err)
		}
		if _, err := admin.NewClient(url).Raft(t.Context()); err == nil || strings.Contains(err.Error(), "outcome unknown") {
			t.Errorf("a look: %v", err)
		}
		if _, err := admin.NewClient(url).Explain(t.Context(), "/", nil, nil); err == nil || strings.Contains(err.Error(), "outcome unknown") {
			t.Errorf("explain: %v", err)
		}
	}
	if _, err := admin.NewClient("127.0.0.1:1").RemoveBackends(t.Context(), []string{"a"}); err == nil || strings.Contains(err.Error(), "outcome unknown") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestClientErrors(t *testing.T) {
	leakCheck(t)
	if _, err := admin.NewClient("127.0.0.1:1").Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is the router running") {
		t.Errorf("nobody there: %v", err)
	}
	e := newFakeEngine(t)
	if _, err := admin.NewClient(e.URL).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("somebody else there: %v", err)
	}
}

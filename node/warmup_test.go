package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
	"grapevine/raftstore"
)

// TestHeirsAreWarmed: an engine computes a hot prefix before it takes over from a drained one; a
// dead engine does not block the drain.
func TestHeirsAreWarmed(t *testing.T) {
	for _, tenant := range []string{"none", "credential"} {
		t.Run(tenant, func(t *testing.T) { testHeirsAreWarmed(t, tenant) })
	}
}

func testHeirsAreWarmed(t *testing.T, tenant string) {
	leakCheck(t)
	var urls []string
	engines := map[string]*fakeEngine{}
	for range 4 {
		e := newFakeEngine(t, "m")
		urls = append(urls, e.URL)
		engines[strings.TrimPrefix(e.URL, "http://")] = e
	}
	cfg := testConfig(urls...)
	cfg.HotWarmUp, cfg.Tenant = true, tenant
	n := startAgreed(t, cfg)
	body := hotBody(0)
	anchor := hotAnchor(t, n)
	hot := raftstore.HotChange{Anchor: uint64(anchor), Depth: 1536, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}
	if _, err := n.change(t.Context(), raftstore.SetHot{Changes: []raftstore.HotChange{hot}}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if status, _, _ := chat(t, n, hotBody(i)); status != 200 {
			t.Fatal(status)
		}
	}
	pool, ok := poolOf(anchor, n.hot.work(time.Now()))
	if !ok {
		t.Fatal("nobody tells of the prefix's work")
	}
	p := policy.HotPrefix{Anchor: anchor, Replicas: 3}
	order := n.router.HotSet(pool, p, "")
	eventually(t, "the prompt is kept", func() bool {
		n.warmer.mu.Lock()
		defer n.warmer.mu.Unlock()
		return len(n.warmer.kept) == 1
	})
	before := engines[order[2]].requests.Load()
	if _, err := admin(n).SetBackendState(t.Context(), order[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	if got := engines[order[2]].requests.Load() - before; got != 1 {
		t.Errorf("%d requests to %s, which takes over", got, order[2])
	}
	r, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.Backend == order[2] })
	if at < 0 || r.Candidates[at].MatchedBlocks < 10 {
		t.Errorf("it is not known to hold the prefix: %+v", r.Candidates)
	}
	if m := scrape(t, n); m[`grapevine_hot_warm_ups_total{outcome="warmed"}`] != 1 {
		t.Errorf("%v are counted", m[`grapevine_hot_warm_ups_total{outcome="warmed"}`])
	}
	if _, err := admin(n).SetBackendState(t.Context(), order[:1], "resume", ""); err != nil {
		t.Fatal(err)
	}
	engines[order[2]].Close()
	if _, err := admin(n).SetBackendState(t.Context(), order[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	n.warmer.warm(t.Context(), 1, order[:2])
	n.warmer.warm(t.Context(), anchor, []string{"nobody"})
	if f := n.warmer.figures(); f["failed"] != 2 || f["unknown"] != 2 || f["warmed"] != 1 {
		t.Errorf("%v", f)
	}
}

func TestKeptPromptsAreBounded(t *testing.T) {
	n := &Node{}
	w := newWarmer(n, nil)
	see := func(anchor int, status, size int, kind prompt.Kind) {
		w.observe(&proxy.Record{
			Path: []byte("/v1/completions"), Kind: kind, Status: status, Body: [][]byte{make([]byte, size)}, RequestBytes: size,
			Decision: &policy.Decision{Hot: prefixtree.Hash(anchor), Replicas: min(anchor, 1)},
		})
	}
	for i := range 5 * keptPrompts {
		see(i+1, 200, 10, prompt.Completion)
	}
	if len(w.kept) != keptPrompts {
		t.Errorf("%d are kept, want %d", len(w.kept), keptPrompts)
	}
	if _, ok := w.kept[prefixtree.Hash(5*keptPrompts)]; !ok {
		t.Error("the latest is not among them")
	}
	clear(w.kept)
	see(0, 200, 10, prompt.Completion)
	see(1, 500, 10, prompt.Completion)
	see(2, 200, keptBytes+1, prompt.Completion)
	see(3, 200, 10, prompt.Messages)
	if len(w.kept) != 0 {
		t.Errorf("kept %v", w.kept)
	}
	see(4, http.StatusOK, 10, prompt.Chat)
	first := w.kept[4]
	see(4, http.StatusOK, 20, prompt.Chat)
	if len(first.body) != 10 || len(w.kept[4].body) != 10 {
		t.Error("replaced within a minute")
	}
}

func TestForOneToken(t *testing.T) {
	got, err := forOneToken([]byte(`{"prompt":[1,2.50],"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":7,"n":3,"store":true,"metadata":{"user":"u"},"x":{"a":1e2}}`))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(got, &fields); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(len(fields), string(fields["prompt"]), string(fields["max_tokens"]), string(fields["x"])); s != `3[1,2.50]1{"a":1e2}` {
		t.Errorf("%s: %s", s, got)
	}
	if _, err := forOneToken([]byte(`[1]`)); err == nil {
		t.Error("a list is a request")
	}
}

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine/node/admin"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

func hotBody(i int) string {
	return chatBody("m", strings.Repeat(longText, 120)+strings.Repeat(fmt.Sprintf("And this is prompt %d. ", i), 100))
}

// serveHot sends so many requests that the prefix is popular.
func serveHot(t *testing.T, n *Node) {
	t.Helper()
	for i := range 12 {
		if status, _, _ := chat(t, n, hotBody(i)); status != 200 {
			t.Fatal(status)
		}
	}
}

func hotAnchor(t *testing.T, n *Node) prefixtree.Hash {
	t.Helper()
	var q [2]policy.Request
	for i := range q {
		if err := n.proxy.Describe([]byte("/v1/chat/completions"), func(string) []byte { return nil }, []byte(hotBody(i)), &q[i]); err != nil || len(q[i].Hashes) < 14 {
			t.Fatalf("%d blocks: %v", len(q[i].Hashes), err)
		}
	}
	at := 0
	for q[0].Hashes[at+1] == q[1].Hashes[at+1] {
		at++
	}
	return q[0].Hashes[at]
}

func TestPrefixesOfANode(t *testing.T) {
	leakCheck(t)
	var urls []string
	for range 6 {
		urls = append(urls, newFakeEngine(t, "m").URL)
	}
	n := startAgreed(t, testConfig(urls...))
	body := hotBody(0)
	anchor := hotAnchor(t, n)
	if _, err := n.change(t.Context(), raftstore.SetHot{Changes: []raftstore.HotChange{{Anchor: uint64(anchor), Depth: 1536, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}}}); err != nil {
		t.Fatal(err)
	}
	r, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil || r.Rung != "hot" || r.Replicas != 2 || r.Hot != fmt.Sprintf("%016x", uint64(anchor)) {
		t.Fatalf("receipt %+v: %v", r, err)
	}
	serveHot(t, n)
	if m := scrape(t, n); m["grapevine_hot_prefixes"] != 1 || m["grapevine_hot_prefix_replicas"] != 2 {
		t.Errorf("the metrics say %v prefixes, %v replicas", m["grapevine_hot_prefixes"], m["grapevine_hot_prefix_replicas"])
	}
	list, err := client(n).Prefixes(t.Context())
	if err != nil || !list.Enabled || len(list.Prefixes) != 1 {
		t.Fatalf("%+v: %v", list, err)
	}
	p := list.Prefixes[0]
	if p.Anchor != r.Hot || p.Tokens != 1536 || p.Replicas != 2 || p.Share <= 0 || len(p.Backends) != 2 || !slices.Contains(p.Backends, r.Backend) || !strings.Contains(p.Why, "% of the requests") {
		t.Errorf("%+v", p)
	}
	if _, err := client(n).SetBackendState(t.Context(), p.Backends[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	after, err := client(n).Prefixes(t.Context())
	if err != nil || len(after.Prefixes) != 1 {
		t.Fatalf("%+v: %v", after, err)
	}
	if b := after.Prefixes[0].Backends; len(b) != 2 || b[0] != p.Backends[1] || slices.Contains(b, p.Backends[0]) {
		t.Errorf("after the drain of %s it is on %v, before on %v", p.Backends[0], b, p.Backends)
	}
	if _, err := client(n).SwitchPrefixes(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if r, err := explain(t, n, "/v1/chat/completions", nil, body); err != nil || r.Replicas != 0 || r.Rung == "hot" {
		t.Errorf("switched off: %+v: %v", r, err)
	}
	if m := scrape(t, n); m["grapevine_hot_prefixes"] != 0 {
		t.Error("the metrics say that it is in force")
	}
}

// TestHeirsAreWarmed: an engine computes a hot prefix before it takes over; a dead one does not
// block the drain.
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
	cfg.HotWarmUp, cfg.Tenant, cfg.SlowStart = true, tenant, 0 // explain shows all engines
	n := startAgreed(t, cfg)
	body := hotBody(0)
	anchor := hotAnchor(t, n)
	hot := raftstore.HotChange{Anchor: uint64(anchor), Depth: 1536, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}
	if _, err := n.change(t.Context(), raftstore.SetHot{Changes: []raftstore.HotChange{hot}}); err != nil {
		t.Fatal(err)
	}
	serveHot(t, n)
	state, err := n.agreement()
	if err != nil {
		t.Fatal(err)
	}
	sets := n.hot.Sets(state.State(), time.Now())
	if len(sets) != 1 || len(sets[0].Backends) != 2 {
		t.Fatalf("sets %+v", sets)
	}
	all := *state.State()
	all.Hot = slices.Clone(all.Hot)
	all.Hot[0].R = 3
	order := n.hot.Sets(&all, time.Now())[0].Backends
	before := engines[order[2]].requests.Load()
	if _, err := client(n).SetBackendState(t.Context(), order[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	if got := engines[order[2]].requests.Load() - before; got != 1 {
		t.Errorf("%d requests to %s, which takes over", got, order[2])
	}
	r, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(r.Candidates, func(c admin.Candidate) bool { return c.Backend == order[2] })
	if at < 0 || r.Candidates[at].MatchedBlocks < 10 {
		t.Errorf("it is not known to hold the prefix: %+v", r.Candidates)
	}
	if m := scrape(t, n); m[`grapevine_hot_warm_ups_total{outcome="warmed"}`] != 1 {
		t.Errorf("%v are counted", m[`grapevine_hot_warm_ups_total{outcome="warmed"}`])
	}
	if _, err := client(n).SetBackendState(t.Context(), order[:1], "resume", ""); err != nil {
		t.Fatal(err)
	}
	engines[order[2]].Close()
	if _, err := client(n).SetBackendState(t.Context(), order[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	m := scrape(t, n)
	for outcome, want := range map[string]float64{"warmed": 1, "failed": 1, "unknown": 0} {
		if got := m[fmt.Sprintf("grapevine_hot_warm_ups_total{outcome=%q}", outcome)]; got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
}

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
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

package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The tree has what prompts share, the engines that hold it, and no text.
func TestPrefixTree(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, "m")
	n := startNode(t, testConfig(engine.URL))
	eventually(t, "the engine's models", func() bool { return len(n.BackendList().Backends) == 1 && len(n.BackendList().Backends[0].Models) == 1 })
	if tree := n.PrefixTree(); tree.Pools == nil || len(tree.Pools) > 0 {
		t.Fatalf("before any request: %+v", tree)
	}
	const requests, marker = 12, "a-marker-in-the-text"
	shared := marker + strings.Repeat(longText, 40)
	for i := range requests {
		if status, _, body := chat(t, n, chatBody("m", fmt.Sprintf("%s and then question %d %s", shared, i, strings.Repeat("x", 2000)))); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	tree := n.PrefixTree()
	if len(tree.Pools) != 1 || tree.Node != n.name || tree.Pools[0].Model != "m" || tree.Pools[0].Requests != requests || len(tree.Pools[0].Prefixes) != 1 {
		t.Fatalf("%+v", tree)
	}
	p, of := tree.Pools[0].Prefixes[0], float64(requests-1)/requests // the first request found no engine that holds anything
	blocks := float64(len(shared) / n.cfg.BlockBytes)
	if p.Share < of-1e-9 || p.Continued != requests-1 || p.Above != "" || p.Holders != 1 || len(p.Backends) != 1 || p.Backends[0] != n.cfg.Backends[0].Name || p.Hot {
		t.Errorf("%+v", p)
	}
	if perBlock := p.Tokens / blocks; perBlock < 32 || perBlock > 512 {
		t.Errorf("%v tokens for %v bytes", p.Tokens, len(shared))
	}
	text, err := json.Marshal(tree)
	if err != nil || strings.Contains(string(text), marker) {
		t.Errorf("%s, %v", text, err)
	}
}

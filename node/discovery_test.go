package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
)

func TestDiscoveryRoutesByModel(t *testing.T) {
	leakCheck(t)
	a, b := newFakeEngine(t, "llama"), newFakeEngine(t, "qwen")
	n := startNode(t, testConfig(a.URL, b.URL))
	eventually(t, "both engines are asked", func() bool {
		return slices.Equal(n.router.View().Models(), []string{"llama", "qwen"})
	})
	for range 4 {
		chat(t, n, chatBody("qwen", "hello"))
	}
	if a.requests.Load() != 0 || b.requests.Load() != 4 {
		t.Fatalf("%d and %d requests, want 0 and 4", a.requests.Load(), b.requests.Load())
	}
	// An unlisted model may have been loaded since: the engine must judge.
	if status, _, _ := chat(t, n, chatBody("mistral", "hello")); status != 200 {
		t.Fatalf("a model that nobody listed: %d", status)
	}
	if total := a.requests.Load() + b.requests.Load(); total != 5 {
		t.Fatalf("%d requests, want 5", total)
	}
}

func TestDiscoveryFollowsChanges(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "base")
	cfg := testConfig(e.URL)
	cfg.ModelsInterval = 20 * time.Millisecond
	n := startNode(t, cfg)
	eventually(t, "the first list", func() bool { return slices.Equal(n.router.View().Models(), []string{"base"}) })
	e.setModels("base", "adapter")
	eventually(t, "a loaded adapter", func() bool { return slices.Equal(n.router.View().Models(), []string{"adapter", "base"}) })
	view := n.router.View()
	asked := e.asked.Load()
	eventually(t, "two more rounds", func() bool { return e.asked.Load() >= asked+2 })
	if n.router.View() != view {
		t.Error("an unchanged answer made a new view")
	}
	e.Close()
	eventually(t, "the failure is known", func() bool { return n.BackendList().Backends[0].ModelsError != "" })
	if !slices.Equal(n.router.View().Models(), []string{"adapter", "base"}) {
		t.Error("an engine that does not answer was forgotten")
	}
}

func TestConfiguredModels(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "something", "else")
	cfg := testConfig()
	cfg.ModelsInterval = 5 * time.Millisecond
	cfg.Backends = []config.Backend{{URL: e.URL, Models: []string{"m"}}}
	n := startNode(t, cfg)
	if status, _, _ := chat(t, n, chatBody("m", "hello")); status != 200 {
		t.Fatal(status)
	}
	if status, _, text := chat(t, n, chatBody("x", "hello")); status != 404 || !strings.Contains(text, "model") {
		t.Fatalf("an unknown model: %d %s", status, text)
	}
	if e.asked.Load() != 0 {
		t.Error("a configured engine was asked for its models")
	}
}

func TestDiscoveryOff(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	cfg := testConfig(e.URL)
	cfg.ModelsInterval = 0
	n := startNode(t, cfg)
	if status, _, _ := chat(t, n, chatBody("whatever", "hello")); status != 200 {
		t.Fatal(status)
	}
	if e.asked.Load() != 0 {
		t.Error("an engine was asked for its models")
	}
}

// TestEngineMetrics: an engine's cache size is learned unless configured.
func TestEngineMetrics(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	e.setMetrics("vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 2\n" +
		"vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n")
	cfg := testConfig()
	cfg.MetricsInterval = 10 * time.Millisecond
	cfg.Backends = []config.Backend{{URL: e.URL, Name: "asked"}, {URL: e.alias(), Name: "told", KVTokens: 5}}
	n := startNode(t, cfg)
	eventually(t, "both were asked", func() bool {
		l := n.BackendList().Backends
		return l[0].Engine != nil && l[1].Engine != nil
	})
	l := n.BackendList().Backends
	if got := *l[0].Engine; got.Running != 3 || got.Waiting != 2 || got.KVUsage != 0.25 {
		t.Errorf("%+v", got)
	}
	if l[0].KVTokens != 16000 || l[1].KVTokens != 5 {
		t.Errorf("caches of %d and %d tokens, want 16000 as the engine says and 5 as configured", l[0].KVTokens, l[1].KVTokens)
	}
	if b, _ := n.router.View().Backend(0); b.KVTokens != 16000 {
		t.Errorf("the policy knows of %d", b.KVTokens)
	}
	asked := n.backends.Roster().Named("asked").ID
	before := n.tree.Horizon(asked)
	for i := range 100 {
		n.tree.Record(asked, chain(i, 100), now()+prefixtree.Time(i*10), nil)
	}
	if after := n.tree.Horizon(asked); after >= before {
		t.Errorf("10,000 blocks in a cache of 16,000 tokens leave the horizon at %v", after)
	}
	for _, page := range []string{"", "vllm:num_requests_running 1\n"} { // omitted values stay known
		e.setMetrics(page)
		scraped := e.scraped.Load()
		eventually(t, "two more rounds", func() bool { return e.scraped.Load() >= scraped+6 })
	}
	if got := n.BackendList().Backends[0].KVTokens; got != 16000 {
		t.Errorf("%d tokens after an empty page", got)
	}
}

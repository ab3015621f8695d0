package fleet_test

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"grapevine/chaos/engine"
	"grapevine/chaos/fleet"
	"grapevine/chaos/replay"
	"grapevine/chaos/workload"
	"grapevine/node"
)

// hotEngine computes prompts as fast as two current accelerators, so that this machine can play sixteen of them.
func hotEngine(cfg *fleet.Config) {
	cfg.Engines = 16
	cfg.Engine = engine.ServerConfig{
		Config: engine.Config{
			KVTokens: 1_500_000, BlockTokens: 64, MaxRunning: 64, PrefillRate: 20_000, ChunkTokens: 1024, DecodeStep: 10 * time.Millisecond,
		},
		Models: []string{model}, MaxModelLen: 200_000, TokensPerChunk: 8,
	}
}

// hotTraffic is single requests, half of which begin with one of two prefixes of 8k tokens.
func hotTraffic(rate float64, length time.Duration, share float64) *workload.Sessions {
	return &workload.Sessions{
		Label: "hot", Rate: rate, MaxTurns: 1, SharedTokens: 8192, Pool: 2, SharedShare: share, Suffix: 64, BlockTokens: 64, Duration: length,
		Prompt: workload.CDF{{V: 8448, P: 0}, {V: 10_240, P: 1}}, Output: workload.CDF{{V: 8, P: 0}, {V: 32, P: 1}},
	}
}

// playHot runs requests through the balancer and returns their times to the first token.
func playHot(ctx context.Context, t *testing.T, f *fleet.Fleet, w *workload.Sessions, seed uint64) []time.Duration {
	t.Helper()
	src, err := w.Source(workload.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	var first []time.Duration
	result, err := replay.Run(ctx, replay.Config{
		Targets: []string{f.URL()}, Model: model, Seed: 7, Timeout: time.Minute, Backends: f.EngineNames(), Nodes: len(f.Nodes()),
		NewConnections: true, Retries: 2, Observe: func(e replay.Ended) {
			if !e.Failed {
				first = append(first, e.TTFT)
			}
		},
	}, src)
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil && len(result.Live.Errors) > 0 {
		t.Errorf("errors: %v, e.g. %v", result.Live.Errors, result.Live.Sample)
	}
	return first
}

// prefixesAt are the hot prefixes by a router's word, those of 8k tokens alone.
func prefixesAt(ctx context.Context, n *fleet.Node) (list []node.PrefixStatus) {
	var all node.PrefixList
	if n.Ask(ctx, http.MethodGet, "/prefixes", nil, &all) != nil {
		return nil
	}
	for _, p := range all.Prefixes {
		if p.Tokens > 7500 && p.Tokens < 8800 {
			list = append(list, p)
		}
	}
	return list
}

// TestLiveHotPrefix has half of all requests begin with one of two prefixes. Both get backends of their own, the same at every router, which stay
// as they are; and are given up when nobody asks for them any more.
func TestLiveHotPrefix(t *testing.T) {
	full := live(t)
	f := liveFleet(t, hotEngine)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	rate := whenFull(full, 12.0, 8)
	client := node.NewClient(f.Nodes()[0].AdminAddr())
	if full {
		if _, err := client.SwitchPrefixes(ctx, false); err != nil {
			t.Fatal(err)
		}
		off := playHot(ctx, t, f, hotTraffic(rate, time.Minute, 0.5), 3)
		shown(t, "first token without, median", quantile(off, 0.5).Seconds(), "s")
		shown(t, "first token without, p99", quantile(off, 0.99).Seconds(), "s")
		if _, err := client.SwitchPrefixes(ctx, true); err != nil {
			t.Fatal(err)
		}
	}
	var found atomic.Int64
	began := time.Now()
	watched := make(chan struct{})
	ahead, stop := context.WithCancel(ctx)
	go func() {
		defer close(watched)
		for {
			all := true
			for _, n := range f.Nodes() {
				all = all && len(prefixesAt(ahead, n)) == 2
			}
			if all {
				found.Store(int64(time.Since(began)))
				return
			}
			if sleep(ahead, 200*time.Millisecond) != nil {
				return
			}
		}
	}()
	on := playHot(ctx, t, f, hotTraffic(rate, whenFull(full, 90*time.Second, time.Minute), 0.5), 4)
	stop()
	<-watched
	shown(t, "first token with, median", quantile(on, 0.5).Seconds(), "s")
	shown(t, "first token with, p99", quantile(on, 0.99).Seconds(), "s")
	if found.Load() == 0 {
		t.Fatalf("not every router has two hot prefixes: %+v", prefixesAt(ctx, f.Nodes()[0]))
	}
	atMost(t, "until every router had both", time.Duration(found.Load()).Seconds(), whenFull(full, 30.0, 60), "s")
	compareSets(ctx, t, f)
	if !full {
		return
	}
	var changes float64
	for _, n := range f.Nodes() {
		m, err := n.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		made, err := m.Get("grapevine_hot_prefix_changes_total")
		if err != nil {
			t.Fatal(err)
		}
		changes += made
	}
	shown(t, "changes of two prefixes in 90 s", changes, "")
	playHot(ctx, t, f, hotTraffic(rate, 100*time.Second, 1e-9), 5)
	if left := prefixesAt(ctx, f.Nodes()[0]); len(left) > 0 {
		t.Errorf("nobody has asked for them for 100 s, and there are %+v", left)
	}
}

// compareSets holds all routers to name the same backends for the same prefixes.
func compareSets(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	want := prefixesAt(ctx, f.Nodes()[0])
	for _, p := range want {
		t.Logf("%s: %d tokens on %d: %v; %s", p.Anchor, p.Tokens, p.Replicas, p.Backends, p.Why)
		if int(p.Replicas) != len(p.Backends) {
			t.Errorf("%d replicas on %v", p.Replicas, p.Backends)
		}
	}
	for _, n := range f.Nodes()[1:] {
		same := slices.EqualFunc(prefixesAt(ctx, n), want, func(a, b node.PrefixStatus) bool {
			return a.Anchor == b.Anchor && a.Replicas == b.Replicas && slices.Equal(a.Backends, b.Backends)
		})
		if !same {
			t.Errorf("%s has %+v, %s %+v", n.Name(), prefixesAt(ctx, n), f.Nodes()[0].Name(), want)
		}
	}
}

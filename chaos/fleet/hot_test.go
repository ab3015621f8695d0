package fleet_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
	"grapevine.example/node/admin"
)

// hotEngine prefills fast enough for this machine to emulate sixteen.
func hotEngine(cfg *fleet.Config) {
	cfg.Engines = 16
	cfg.Engine = engine.ServerConfig{
		Config: engine.Config{
			KVTokens: 1_500_000, BlockTokens: 64, MaxRunning: 64, PrefillRate: 20_000, ChunkTokens: 1024, DecodeStep: 10 * time.Millisecond,
		},
		Models: []string{model}, MaxModelLen: 200_000, TokensPerChunk: 8,
	}
}

func hotTraffic(rate float64, length time.Duration, share float64) *workload.Sessions {
	return &workload.Sessions{
		Label: "hot", Rate: rate, MaxTurns: 1, SharedTokens: 8192, Pool: 2, SharedShare: share, Suffix: 64, BlockTokens: 64, Duration: length,
		Prompt: workload.CDF{{V: 8448, P: 0}, {V: 10_240, P: 1}}, Output: workload.CDF{{V: 8, P: 0}, {V: 32, P: 1}},
	}
}

func playHot(ctx context.Context, t *testing.T, f *fleet.Fleet, w *workload.Sessions, seed uint64) *replay.Result {
	t.Helper()
	src, err := w.Source(workload.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	result, err := replay.Run(ctx, replay.Config{
		Targets: []string{f.URL()}, Model: model, Seed: 7, Timeout: time.Minute, Backends: f.EngineNames(), Nodes: len(f.Nodes()),
		NewConnections: true, Retries: 2,
	}, src)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Live.Errors) > 0 {
		t.Errorf("errors: %v, e.g. %v", result.Live.Errors, result.Live.Sample)
	}
	return &result
}

func prefixesAt(ctx context.Context, n *fleet.Node) (list []admin.PrefixStatus) {
	all, err := n.Prefixes(ctx)
	if err != nil {
		return nil
	}
	for _, p := range all.Prefixes {
		if p.Tokens > 7500 && p.Tokens < 8800 {
			list = append(list, p)
		}
	}
	return list
}

type hotWatch struct {
	began   time.Time
	found   time.Duration
	changes map[string][]time.Duration
	stop    func()
}

func watchHot(ctx context.Context, t *testing.T, f *fleet.Fleet) *hotWatch {
	ctx, cancel := context.WithCancel(ctx)
	w, done := &hotWatch{began: time.Now(), changes: map[string][]time.Duration{}}, make(chan struct{})
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	go func() {
		defer close(done)
		last := map[string]uint16{}
		for sleep(ctx, 200*time.Millisecond) == nil {
			now := prefixesAt(ctx, f.Nodes()[0])
			for _, p := range now {
				if last[p.Anchor] != p.Replicas {
					last[p.Anchor] = p.Replicas
					w.changes[p.Anchor] = append(w.changes[p.Anchor], time.Since(w.began))
				}
			}
			if w.found > 0 {
				continue
			}
			all := true
			for _, n := range f.Nodes() {
				all = all && len(prefixesAt(ctx, n)) == 2
			}
			if all {
				w.found = time.Since(w.began)
			}
		}
	}()
	return w
}

func TestLiveHotPrefix(t *testing.T) {
	full := live(t)
	f := liveFleet(t, hotEngine)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	rate, length := whenFull(full, 12.0, 8), whenFull(full, 100*time.Second, time.Minute)
	show := func(what string, r *replay.Result) {
		shown(t, "first token "+what+", mean", r.TTFT.Mean/1000, "s")
		shown(t, "first token "+what+", p99", r.TTFT.P99/1000, "s")
		shown(t, "prompt tokens from cache "+what, 100*r.HitRate, "%")
	}
	watch := watchHot(ctx, t, f)
	show("with", playHot(ctx, t, f, hotTraffic(rate, length, 0.5), 4))
	watch.stop()
	if watch.found == 0 {
		t.Fatalf("not every router has two hot prefixes: %+v", prefixesAt(ctx, f.Nodes()[0]))
	}
	atMost(t, "until every router had both", watch.found.Seconds(), whenFull(full, 30.0, 60), "s")
	compareSets(ctx, t, f)
	if !full {
		return
	}
	for _, times := range watch.changes {
		late := 0
		for _, at := range times {
			if at > 30*time.Second {
				late++
			}
		}
		t.Logf("changed at %v", times)
		atMost(t, "changes of a set in 70 s, once it has its size", float64(late), 2, "")
	}
	// A set lives two minutes from its last renewal, and work is measured over ten seconds, so that it may be renewed once the requests have
	// ended; decisions are five seconds apart.
	const ends = 140 * time.Second
	client, idle := f.Nodes()[0], time.Now()
	playHot(ctx, t, f, hotTraffic(rate, 100*time.Second, 1e-9), 5)
	for len(prefixesAt(ctx, client)) > 0 && time.Since(idle) < ends {
		if err := sleep(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	atMost(t, "until no set was left, after the last request", time.Since(idle).Seconds(), ends.Seconds(), "s")
	if _, err := client.SwitchPrefixes(ctx, false); err != nil {
		t.Fatal(err)
	}
	show("without", playHot(ctx, t, f, hotTraffic(rate, length, 0.5), 3))
}

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
		same := slices.EqualFunc(prefixesAt(ctx, n), want, func(a, b admin.PrefixStatus) bool {
			return a.Anchor == b.Anchor && a.Replicas == b.Replicas && slices.Equal(a.Backends, b.Backends)
		})
		if !same {
			t.Errorf("%s has %+v, %s %+v", n.Name(), prefixesAt(ctx, n), f.Nodes()[0].Name(), want)
		}
	}
}

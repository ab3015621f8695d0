package fleetsim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"grapevine.example/chaos/demo"
	"grapevine.example/chaos/workload"
	"grapevine.example/node/history"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
)

// estimator does what nodes do to estimate the hit rate of round robin, as node.keepHistory and node.picker do.
type estimator struct {
	counts  history.Counts
	history *history.History
	nodes   []*history.Baseline
	ticks   time.Duration

	warmup         time.Duration
	prompt, cached int       // tokens, after the warm-up
	estimates      []float64 // of each tick after it
}

var midnight = time.Unix(1_800_000_000, 0)

func (e *estimator) sent(f *fleet, fl *flight) {
	if e.history == nil {
		e.history = history.New(&e.counts)
		for range f.nodes {
			e.nodes = append(e.nodes, history.NewBaseline(&e.counts, midnight))
		}
	}
	for e.ticks+history.Fine <= f.now {
		e.ticks += history.Fine
		e.history.Tick(midnight.Add(e.ticks), 0, -1)
		hitRate, random := e.history.HitRates()
		for i, b := range e.nodes {
			var sum time.Duration
			for id := range f.engines.models {
				sum += f.nodes[i].tree.Horizon(prefixtree.Backend(id))
			}
			b.Keep(history.Horizon(sum/time.Duration(len(f.engines.models)), hitRate, random), midnight.Add(e.ticks))
		}
		if last := e.history.Span(false, midnight.Add(e.ticks-1)).Columns[history.Names[history.Random]]; e.ticks > e.warmup {
			e.estimates = append(e.estimates, float64(last[0]))
		}
	}
	e.nodes[fl.node].Visit(fl.hashes, len(f.engines.models), len(f.nodes), midnight.Add(f.now))
}

func (e *estimator) answered(f *fleet, fl *flight) {
	e.counts.Observe(&proxy.Record{Status: 200, PromptTokens: fl.request.PromptTokens, CachedTokens: fl.job.Cached, Decision: &policy.Decision{}}, 1)
	if f.now > e.warmup {
		e.prompt, e.cached = e.prompt+fl.request.PromptTokens, e.cached+fl.job.Cached
	}
}

// TestEstimateOfRoundRobin compares the hit rate that routers estimate for round robin, while they follow caches, with that of round
// robin on the same sessions. Engines keep an unused block for one to three seconds, which is less than the time between two ticks.
func TestEstimateOfRoundRobin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, tc := range []struct {
		load     float64 // of the demo's
		kvTokens int
	}{{1, 50_000}, {1, 100_000}, {0.75, 100_000}} {
		t.Run(fmt.Sprintf("load=%v/kv=%d", tc.load, tc.kvTokens), func(t *testing.T) {
			t.Parallel()
			var affinity, rotation estimator
			for policy, e := range map[string]*estimator{"prefix": &affinity, "round-robin": &rotation} {
				e.warmup = 20 * time.Second
				w, card := demo.Workload(4, time.Minute), demo.EngineConfig()
				w.Rate *= tc.load
				card.KVTokens = tc.kvTokens
				run(t, Config{
					Workload: w, Options: workload.Options{Seed: seed}, Policies: []string{policy}, Nodes: []int{3}, Backends: w.Backends,
					Engine: card, Tree: smallTree, sent: e.sent, answered: e.answered,
				})
			}
			sum := 0.0
			for _, v := range affinity.estimates {
				sum += v
			}
			estimate, truth := sum/float64(len(affinity.estimates)), float64(rotation.cached)/float64(rotation.prompt)
			t.Logf("hit rate %.3f, estimated %.3f", truth, estimate)
			if math.Abs(estimate-truth) > 0.08 {
				t.Errorf("the estimate is more than 8 points off")
			}
		})
	}
}

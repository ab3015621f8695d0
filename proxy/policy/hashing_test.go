package policy

import (
	"math"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"

	"pgregory.net/rapid"
)

func TestRendezvousDisruptsLeast(t *testing.T) {
	backends := fleetOf(20)
	for _, weighted := range []bool{false, true} {
		if weighted {
			for i := range backends {
				backends[i].Weight = float64(1 + i%3)
			}
		}
		r, _ := newRouter(t, Config{Strategy: PrefixHash}, backends)
		r.tuning.Load().strategies[PrefixHash].Strategy.(*prefixHash).bound = 1e9
		home := make([]prefixtree.Backend, 2000)
		for i := range home {
			home[i] = serve(t, r, ask(prompt(uint64(i), 0, 16, 16)), t0).Backend
		}
		setView(t, r, append(backends[:7:7], backends[8:]...))
		moved, gone := 0, 0
		for i := range home {
			now := serve(t, r, ask(prompt(uint64(i), 0, 16, 16)), t0).Backend
			if home[i] == 7 {
				gone++
			} else if now != home[i] {
				moved++
			}
		}
		if moved != 0 || gone == 0 {
			t.Errorf("weighted %v: %d keys of other backends moved when one of 20 left (it had %d)", weighted, moved, gone)
		}
	}
}

func TestPrefixHashKeepsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "backends")
		bound := rapid.Float64Range(1, 3).Draw(t, "bound")
		backends := fleetOf(n)
		var weights float64
		for i := range backends {
			backends[i].Weight = float64(rapid.IntRange(1, 3).Draw(t, "weight"))
			weights += backends[i].Weight
		}
		tree, err := prefixtree.New(prefixtree.Config{Budget: 16 << 20, MaxBackends: 16})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRouter(Config{Strategy: PrefixHash, BlockBytes: testBlock}, tree)
		if err != nil {
			t.Fatal(err)
		}
		r.tuning.Load().strategies[PrefixHash].Strategy.(*prefixHash).bound = bound
		v, err := NewView(backends, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetView(v)
		total := rapid.IntRange(1, 80).Draw(t, "requests")
		families := rapid.IntRange(1, 4).Draw(t, "families") // few: the first choice saturates
		var open []*Attempt
		for i := range total {
			a := new(Attempt)
			if err := r.Pick(ask(prompt(uint64(i%families), 0, 16, 16)), t0, a); err != nil {
				t.Fatal(err)
			}
			open = append(open, a)
			w := backends[a.Decision().Backend].Weight
			limit := math.Ceil(bound * float64(i+1) * w / weights)
			if _, active := r.Load(a.Decision().Backend); float64(active) > limit {
				t.Fatalf("%d active on backend %d, bound %v of %d requests: %v", active, a.Decision().Backend, bound, i+1, limit)
			}
		}
		for _, a := range open {
			a.End(unknown(), t0)
		}
	})
}

func TestPrefixHashKeysOnTheStart(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: PrefixHash, HashBlocks: 8}, fleetOf(32))
	home := serve(t, r, ask(prompt(1, 1, 8, 9)), t0)
	if home.Rung != Hash {
		t.Errorf("rung %v", home.Rung)
	}
	for own := range uint64(50) {
		if d := serve(t, r, ask(prompt(1, own, 8, 20)), t0); d.Backend != home.Backend {
			t.Fatalf("equal start, other backend: %d and %d", d.Backend, home.Backend)
		}
	}
}

func entryOf(i int) *entry {
	return &entry{engine: new(books.Engine), weight: 1, key: mix(uint64(i + 1))}
}

func TestMoreMatchNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "backends")
		tokens := rapid.IntRange(100, 50_000).Draw(t, "prompt")
		scene := &Scene{Request: &Request{}, Nodes: rapid.IntRange(1, 3).Draw(t, "nodes"), Branch: prefixtree.Hash(rapid.Uint64Min(1).Draw(t, "branch")),
			PromptTokens: tokens, FleetRate: 10_000, pool: &pool{history: new(history)}, peek: true, Now: t0,
			size: n, Staleness: rapid.Int64Range(0, maxStaleness).Draw(t, "staleness"), rand: rapid.Uint64().Draw(t, "rand")}
		rand := scene.rand
		scene.CommonTokens = rapid.Float64Range(0, float64(tokens)).Draw(t, "common")
		for range rapid.IntRange(0, 100).Draw(t, "seen") {
			whole := rapid.Float64Range(0.01, 5).Draw(t, "whole")
			scene.pool.traffic.Count(demand.Prefill{Whole: whole, Uncached: rapid.Float64Range(0.01, 5).Draw(t, "uncached")}, 0, scene.Now)
		}
		for i := range n {
			held := rapid.Float64Range(0, float64(tokens)).Draw(t, "held")
			queued := rapid.Float64Range(0, 60_000).Draw(t, "queued")
			scene.Candidates = append(scene.Candidates, Candidate{OwnQueued: queued, Queued: queued,
				Held: held, Uncached: max(float64(tokens)-held, 1), Rate: 10_000, entry: entryOf(i)})
		}
		p := prefix{}
		i, _ := p.Choose(scene)
		c := &scene.Candidates[i]
		c.Held = rapid.Float64Range(c.Held, float64(tokens)).Draw(t, "deeper")
		c.Uncached = max(float64(tokens)-c.Held, 1)
		scene.rand = rand
		if j, _ := p.Choose(scene); j != i {
			t.Fatalf("backend %d was chosen; with a deeper match %d is", i, j)
		}
	})
}

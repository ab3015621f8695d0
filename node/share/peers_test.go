package share

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

// TestNoClaimOutweighsAll: one node's claims are clamped to plausible evidence and values.
func TestNoClaimOutweighsAll(t *testing.T) {
	k := newKnower(t, "a")
	key := prefixtree.BackendKey("a")
	mean := func() (lruDistance, rate Measure) {
		sum := k.peers.sums[key]
		return sum.lruDistance.mean(), sum.rate.mean()
	}
	for i, c := range []Claim{
		{key, Measure{1000, 64}, Measure{10_000, 30}},
		{key, Measure{1e14, 1e14}, Measure{1e14, 1e14}},
	} {
		k.receive(t, string(rune('a'+i)), appendClaims([]byte{version}, []Claim{c, c}))
	}
	if d, r := mean(); d.Weight > 130 || r.Weight > 130 || d.Mean > maxLRUDistance || r.Mean > maxRate {
		t.Errorf("%+v, %+v", d, r)
	}
	if r := k.router.Rate(0); r > maxRate {
		t.Errorf("the engine computes %v tokens/s", r)
	}
	k.DropPeer("b")
	if d, r := mean(); math.Abs(d.Mean-1000) > 1 || math.Abs(r.Mean-10_000) > 10 || math.Abs(r.Weight-30) > .1 {
		t.Errorf("plausible claims were changed: %+v, %+v", d, r)
	}
}

// TestMeansAreOfTheLivingPeers: the means cover every peer's last claims, whatever came before.
func TestMeansAreOfTheLivingPeers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const backends = 5
	var got [backends][2]Measure
	p := peers{learn: func(key uint32, lruDistance, rate Measure) { got[key] = [2]Measure{lruDistance, rate} }}
	alive := map[string]*State{}
	for range 2000 {
		name := string(rune('a' + rnd.IntN(4)))
		if rnd.IntN(4) == 0 {
			delete(alive, name)
			p.set(name, nil)
		} else {
			s := new(State)
			for b := range uint32(backends) {
				if rnd.IntN(2) == 0 {
					s.Claims = append(s.Claims, Claim{b, Measure{rnd.Float64() * 1e6, math.Exp2(float64(rnd.IntN(16) - 10))}, Measure{rnd.Float64() * 1e5, float64(rnd.IntN(3))}})
				}
			}
			alive[name] = s
			p.set(name, s)
		}
		var want [backends][2]Measure
		for _, s := range alive {
			for _, c := range s.Claims {
				for i, m := range []Measure{c.LRUDistance, c.Rate} {
					want[c.Key][i].Mean += m.Mean * m.Weight
					want[c.Key][i].Weight += m.Weight
				}
			}
		}
		for b := range want {
			for i := range want[b] {
				w, g := &want[b][i], got[b][i]
				if w.Weight > 0 {
					w.Mean /= w.Weight
				}
				if math.Abs(g.Mean-w.Mean) > 1e-9*w.Mean+0.1 || g.Weight != w.Weight {
					t.Fatalf("backend %d: %+v, want %+v", b, got[b], want[b])
				}
			}
		}
	}
	if len(alive) == 0 != (len(p.sums) == 0) {
		t.Errorf("%d peers, %d sums", len(alive), len(p.sums))
	}
}

func TestSumsDoNotOverflow(t *testing.T) {
	var s weightedSum
	for range 2048 {
		s.add(Measure{maxLRUDistance, maxWeight}, 1)
	}
	if m := s.mean(); m != (Measure{maxLRUDistance, 2048 * maxWeight}) {
		t.Errorf("%+v", m)
	}
}

// TestPopularityIsSmall: the popularity of one node takes less than 1 kB, and 11 bytes for each prefix that prompts left.
func TestPopularityIsSmall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 0))
	h := somePopularity(rnd)
	h.Works = h.Works[:9] // of one pool
	prefixes := 0
	for _, p := range h.Traffic {
		prefixes += len(p.Prefixes)
	}
	if n := len(appendPopularity(nil, h)) - 11*prefixes; n > 1000 {
		t.Errorf("%d bytes and %d prefixes", n, prefixes)
	}
}

func TestCountsOfPrefixesAreSummed(t *testing.T) {
	p := peers{learn: func(uint32, Measure, Measure) {}}
	of := func(pool uint64, counts ...demand.Count) *State {
		return &State{Popularity: Popularity{Traffic: []demand.Report{{Pool: pool, Prefixes: counts}}}}
	}
	a := of(1, demand.Count{Requests: 10, Left: 1}, demand.Count{Anchor: 5, Requests: 2, Left: 1}, demand.Count{Anchor: 6, Requests: 3, Left: 2})
	p.set("a", a)
	p.set("b", of(1, demand.Count{Requests: 20, Left: 1}, demand.Count{Anchor: 6, Requests: 4, Left: 3}))
	p.set("c", of(2, demand.Count{Anchor: 6, Requests: 100, Left: 100}))
	for range 2 { // the states stay what they are
		sum, _ := p.traffic()
		want := []demand.Count{{Requests: 30, Left: 2}, {Anchor: 5, Requests: 2, Left: 1}, {Anchor: 6, Requests: 7, Left: 5}}
		if got := sum[1].Prefixes; !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		p.set("c", nil)
	}
	if got := a.Popularity.Traffic[0].Prefixes[2]; got.Left != 2 {
		t.Errorf("a's state has changed to %+v", got)
	}
}

func TestTrafficIsSummedOnChanges(t *testing.T) {
	p := peers{learn: func(uint32, Measure, Measure) {}}
	check := func(what string, wantSum, wantChanged bool) {
		t.Helper()
		if sum, changed := p.traffic(); (sum != nil) != wantSum || changed != wantChanged {
			t.Errorf("%s: a sum %v, changed %v", what, sum != nil, changed)
		}
	}
	check("alone", false, false)
	p.set("a", &State{Popularity: Popularity{Traffic: []demand.Report{{Pool: 1, Rate: 2}}}})
	check("a peer", true, true)
	check("the same peer", false, false)
	p.set("unknown", nil)
	check("another peer that left", false, false)
	p.set("a", nil)
	check("no peer", false, true)
	p.set("a", &State{Popularity: Popularity{Traffic: []demand.Report{{Pool: 1, Rate: 2, Whole: 8, Prefill: 1}, {Pool: 2, Rate: 16}}}})
	p.set("b", &State{Popularity: Popularity{Traffic: []demand.Report{{Pool: 1, Rate: 3, Whole: 1, Prefill: 0.5}}}})
	sum, _ := p.traffic()
	if got := sum[1]; len(sum) != 2 || got.Pool != 1 || got.Rate != 5 || got.Whole != 9 || got.Prefill != 1.5 || sum[2].Rate != 16 {
		t.Errorf("two peers: %+v", sum)
	}
}

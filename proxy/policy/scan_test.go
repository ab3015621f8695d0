package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"grapevine/prefixtree"
)

// A scan and Choose make the same choice.
func TestScanChoosesAsChooseDoes(t *testing.T) {
	const n = weighAll + 50
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	scanned := map[string]int{}
	for round := range 8 {
		list := fleetOf(n)
		for i := range list {
			if round%2 == 1 {
				list[i].Weight = float64(1 + rng.IntN(3))
			}
		}
		r, _ := newRouter(t, Config{Seed: uint64(round)}, list)
		var loads []PeerLoad
		for i := range list {
			if round > 1 {
				loads = append(loads, PeerLoad{prefixtree.Backend(i), 100, int64(rng.IntN(4))})
			}
			if round > 3 && rng.IntN(4) == 0 {
				fail(t, r, prefixtree.Backend(i), Connect, 1, t0)
			}
		}
		r.SetPeerLoad("other", loads)
		for i := range 30 {
			q := ask(prompt(uint64(i), 1, 4, 4*(i%3)))
			if i%2 == 0 {
				q.Session = fmt.Append(nil, "session", i)
			}
			if round > 5 {
				q.Exclude = []prefixtree.Backend{prefixtree.Backend(rng.IntN(n)), prefixtree.Backend(rng.IntN(n))}
			}
			for name, strategy := range r.strategies {
				by, ok := strategy.Strategy.(scanner)
				if !ok {
					continue
				}
				s := &Scene{model: r.models.of(nil), peek: true}
				r.open(s, q, r.table.Load().all, t0+1)
				at, rung := by.scan(s)
				if at < 0 {
					continue
				}
				scanned[name]++
				s = &Scene{model: r.models.of(nil), peek: true}
				r.open(s, q, r.table.Load().all, t0+1)
				s.stage()
				r.match(s)
				r.assign(s)
				if want, because := strategy.Choose(s); s.Candidates[want].at != int32(at) || because != rung {
					t.Fatalf("round %d, %s: a scan takes %d by %v, Choose %d by %v", round, name, at, rung, s.Candidates[want].at, because)
				}
			}
		}
	}
	for _, name := range []string{Session, RoundRobin, Random, LeastRequest, PrefixHash} {
		if scanned[name] < 30 {
			t.Errorf("%s: %d scans", name, scanned[name])
		}
	}
}

func TestScanDecides(t *testing.T) {
	const n = weighAll + 10
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(n))
	used := map[prefixtree.Backend]int{}
	for i := range 2 * n {
		d := serve(t, r, ask(prompt(uint64(i), 1, 4, 4)), t0+prefixtree.Time(i))
		if used[d.Backend]++; d.Rung != Rotate || d.Eligible != n || len(d.Candidates) != 1 || d.Candidates[0].Backend != d.Backend {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
	for b, times := range used {
		if times != 2 {
			t.Errorf("%d was used %d times in two turns", b, times)
		}
	}
}

func TestScanExplains(t *testing.T) {
	const n = weighAll + 10
	for _, strategy := range []string{Session, RoundRobin, Random, LeastRequest, PrefixHash} {
		r, _ := newRouter(t, Config{Strategy: strategy, SlowStart: -1}, fleetOf(n))
		for b := range prefixtree.Backend(3) {
			fail(t, r, b, Connect, n, t0) // back-off until t0 + backoffMin
			r.SetReported(n-1-b, true, t0)
		}
		r.SetPeerLoad("other", []PeerLoad{{n / 2, 100, 3}})
		var open []*Attempt
		for i := range 120 {
			q, now := ask(prompt(uint64(i), 1, 4, 4)), t0+1+prefixtree.Time(i/10)
			if q.Session = fmt.Append(nil, i); i%3 == 0 {
				q.Exclude = []prefixtree.Backend{prefixtree.Backend(3 + i%50)}
			}
			want := n - 6 - len(q.Exclude)
			if i >= 60 {
				now += backoffMin
				want = 0
			}
			var d Decision
			if err := r.Explain(q, now, &d); err != nil {
				t.Fatal(err)
			}
			a := pick(t, r, q, now)
			open = append(open, a)
			if got := a.Decision(); got.Backend != d.Backend || got.Rung != d.Rung || got.Eligible != d.Eligible || want > 0 && d.Eligible != want {
				t.Fatalf("%s, request %d: explained %d of %d by %v, decided %d of %d by %v; want one of %d", strategy, i,
					d.Backend, d.Eligible, d.Rung, got.Backend, got.Eligible, got.Rung, want)
			}
		}
		for _, a := range open {
			a.End(unknown(), t0+10_000)
		}
	}
}

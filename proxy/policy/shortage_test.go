package policy

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func TestLargePoolOfFew(t *testing.T) {
	const n = 400
	for _, shared := range []time.Duration{200 * time.Millisecond, never} {
		r := among(t, 8, shared, fleetOf(n))[0]
		well := []prefixtree.Backend{7, 123, 399}
		for i := range n {
			if b := prefixtree.Backend(i); !slices.Contains(well, b) {
				r.SetReported(b, true, t0)
			}
		}
		used := map[prefixtree.Backend]int{}
		for i := range 640 {
			d := serve(t, r, ask(prompt(uint64(i), 0, 4, 4)), t0+prefixtree.Time(i))
			if used[d.Backend]++; !slices.Contains(well, d.Backend) || d.LastResort {
				t.Fatalf("request %d went to %d, last resort %v", i, d.Backend, d.LastResort)
			}
		}
		for _, b := range well {
			if used[b] < 64 {
				t.Errorf("%d has %d of %d requests", b, used[b], 640)
			}
		}
	}
}

// A returning rack gets about its share, though most of a sample without a queue is of it; others
// wait only where the sample holds none of the few that are free.
func TestLargePoolOfManyCold(t *testing.T) {
	const n, cold, free = 600, 200, 20
	list := fleetOf(n)
	for i := range cold {
		list[i].Since = t0
	}
	r, _ := newRouter(t, Config{}, list)
	var loads []books.PeerLoad
	for i := cold; i < n-free; i++ {
		loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(i), PrefillTokens: 50_000, Active: 4})
	}
	r.SetPeerLoad("others", loads, t0)
	const requests = 2000
	atCold, waits := 0, 0
	for i := range requests {
		switch d := serve(t, r, ask(prompt(uint64(i), 0, 4, 4)), t0+1+prefixtree.Time(i%500)); {
		case d.Backend < cold:
			atCold++
		case d.Backend < n-free:
			waits++
		}
	}
	share := requests * coldShare * cold / (n - cold + coldShare*cold)
	if got := float64(atCold); got < share/3 || got > 1.3*share {
		t.Errorf("%d of %d requests at the %d cold ones, their share is %.0f", atCold, requests, cold, share)
	}
	missed := requests * math.Pow(1-float64(free)/n, sampleSize)
	if got := float64(waits); got > 1.3*missed {
		t.Errorf("%d of %d requests wait, of which %.0f found none that is free", waits, requests, missed)
	}
}

func TestLargePoolLooksBehindDeadHolders(t *testing.T) {
	const n, away = 300, selectHolders + 8
	for _, nodes := range []int{1, 8} {
		r, tree := newRouter(t, Config{Nodes: nodes}, fleetOf(n))
		chain := prompt(1, 1, 0, 64)
		var tr prefixtree.TouchHistory
		for i := range away {
			tree.Record(prefixtree.Backend(i), chain, t0, &tr)
		}
		tree.Record(away, chain[:56], t0, &tr)
		q := ask(chain)
		for i := range away {
			if b := prefixtree.Backend(i); i%2 == 0 {
				r.SetReported(b, true, t0)
			} else {
				q.Exclude = append(q.Exclude, b)
			}
		}
		if d := serve(t, r, q, t0+100); d.Backend != away || d.Rung != Cache {
			t.Errorf("%d nodes: went to %d by %v, and %d holds it", nodes, d.Backend, d.Rung, away)
		}
	}
}

// A request reaches every backend before it is refused, avoided ones last.
func TestRetriesFindEverybody(t *testing.T) {
	rng := rand.New(rand.NewPCG(virtual.Seed(t), 0))
	list := fleetOf(weighAll + 60)
	for i := range list {
		list[i].Models = []string{"large"}
		if i < 3 {
			list[i].Models = append(list[i].Models, "small")
		}
		if i == 40 {
			list[i].Models = append(list[i].Models, "one")
		}
	}
	for _, nodes := range []int{1, 8} {
		for _, strategy := range builtin {
			r, _ := newRouter(t, Config{Nodes: nodes, Strategy: strategy}, list)
			r.SetHotPrefixes([]HotPrefix{theHotPrefix(10)})
			for round := range 6 {
				now := t0 + prefixtree.Time(200*round)
				drained := prefixtree.Backend(rng.IntN(40))
				view := slices.Clone(list)
				view[drained].State = Draining
				setView(t, r, view)
				for _, model := range []string{"large", "small", "one"} {
					q := ask(hotPrompt(rng.Uint64N(4)))
					q.Model = []byte(model)
					var left []prefixtree.Backend
					for _, b := range view {
						switch {
						case b.State != Active || !slices.Contains(b.Models, model):
						case model == "large" && rng.IntN(50) > 0:
							q.Exclude = append(q.Exclude, b.ID)
						default:
							left = append(left, b.ID)
							r.SetReported(b.ID, round%2 == 1 && rng.IntN(2) == 0, now)
						}
					}
					avoided := false
					for range left {
						d := serve(t, r, q, now)
						_, avoids := r.Avoided(d.Backend, now)
						if !slices.Contains(left, d.Backend) || slices.Contains(q.Exclude, d.Backend) || avoided && !avoids || avoids != d.LastResort {
							t.Fatalf("%s, %d nodes, round %d: went to %d (avoided %v, last resort %v) of %v, tried %v", strategy, nodes, round, d.Backend, avoids, d.LastResort, left, q.Exclude)
						}
						avoided = avoids
						q.Exclude = append(q.Exclude, d.Backend)
					}
					if err := r.Pick(q, now, new(Attempt)); !errors.Is(err, ErrNoBackend) {
						t.Fatalf("%s, %d nodes, round %d: all of %v were tried, and then: %v", strategy, nodes, round, left, err)
					}
				}
			}
		}
	}
}

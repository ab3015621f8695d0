package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/rules"
)

func TestViewIndexesModels(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		list := make([]Backend, rng.IntN(20))
		for i := range list {
			list[i] = Backend{ID: prefixtree.Backend(i), Name: fmt.Sprint(i)}
			for range rng.IntN(4) {
				list[i].Models = append(list[i].Models, fmt.Sprint(rng.IntN(5)))
			}
		}
		v, err := NewView(list, nil)
		if err != nil {
			t.Fatal(err)
		}
		for m := range 6 {
			name := fmt.Sprint(m)
			var want []int32
			declared := false
			for i, b := range list {
				declares := slices.Contains(b.Models, name)
				declared = declared || declares
				if declares || len(b.Models) == 0 {
					want = append(want, int32(i))
				}
			}
			if got, there := v.byModel[name]; there != declared || declared && !slices.Equal(got, want) {
				t.Fatalf("model %s of %+v: %v, want %v", name, list, got, want)
			}
		}
	}
}

func BenchmarkView(b *testing.B) {
	for _, models := range []int{1, 16, 200} {
		b.Run(fmt.Sprintf("backends=2000/models=%d", models), func(b *testing.B) {
			list := make([]Backend, 2000)
			for i := range list {
				list[i] = Backend{ID: prefixtree.Backend(i), Name: fmt.Sprintf("gpu-%04d:8000", i)}
				for m := range models {
					list[i].Models = append(list[i].Models, fmt.Sprintf("meta/adapter-%d", m))
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := NewView(list, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecide is one of 100 nodes; goal: at 2,000 backends at most twice the cost at 64.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{64, 2000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			r, _ := newRouter(b, Config{Nodes: 100}, fleetOf(n))
			r.SetFleet(100, 200*time.Millisecond)
			for peer := range 99 {
				var loads []books.PeerLoad
				for i := peer; i < n; i += 7 {
					loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(i), PrefillTokens: int64(1000 * (peer%5 + 1)), Active: int64(peer % 3)})
				}
				r.SetPeerLoad(fmt.Sprint("node-", peer), loads, t0)
			}
			for i := range 4 * n {
				serve(b, r, ask(prompt(1, uint64(i), 12, 24)), t0+prefixtree.Time(i))
			}
			q := ask(prompt(7, 7, 256, 256))
			for range 4 {
				d := *q
				serve(b, r, by(r, Random, &d), t0+90_000)
			}
			a, now := new(Attempt), t0+100_000
			b.ReportAllocs()
			for b.Loop() {
				now++
				if err := r.Pick(q, now, a); err != nil {
					b.Fatal(err)
				}
				a.End(unknown(), now)
			}
		})
	}
}

// BenchmarkSetView is a change of 2,000 backends that all serve 200 models, with rules for 20 sets of labels that half of them have.
func BenchmarkSetView(b *testing.B) {
	list := make([]Backend, 2000)
	var routing []rules.Rule
	for i := range list {
		list[i] = Backend{ID: prefixtree.Backend(i), Generation: 1, Name: fmt.Sprintf("gpu-%04d:8000", i)}
		for m := range 200 {
			list[i].Models = append(list[i].Models, fmt.Sprintf("meta/adapter-%d", m))
		}
		for l := range 20 {
			if (i>>(l%8))%2 == 0 {
				list[i].Labels = append(list[i].Labels, fmt.Sprintf("tier=%d", l))
			}
		}
	}
	for l := range 20 {
		routing = append(routing, rules.Rule{Model: fmt.Sprintf("meta/adapter-%d", l), Pool: fmt.Sprintf("tier=%d", l)})
	}
	r, _ := newRouter(b, Config{}, list[:1])
	v, err := NewView(list, routing)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.SetView(v)
	}
}

package policy

import (
	"slices"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func busy(r *Router, names []string) {
	var loads []books.PeerLoad
	for _, b := range r.View().Backends {
		if slices.Contains(names, b.Name) {
			loads = append(loads, books.PeerLoad{Backend: b.ID, PrefillTokens: 400_000, Active: 8})
		}
	}
	r.SetPeerLoad("others", loads, t0)
}

func TestLargePoolReplacesTheHotSet(t *testing.T) {
	const n, replicas = 300, 8
	for _, nodes := range []int{1, 5} {
		for _, shrunk := range []bool{false, true} {
			r := among(t, nodes, 200*time.Millisecond, fleetOf(n))[0]
			now := t0
			if shrunk {
				r.SetHotPrefixes([]HotPrefix{theHotPrefix(120)})
				serve(t, r, ask(hotPrompt(0)), now)
			}
			r.SetHotPrefixes([]HotPrefix{theHotPrefix(replicas)})
			order := r.HotSet(poolAll, theHotPrefix(n))
			goes := func(what string, set []string) {
				t.Helper()
				now += 200
				used := map[string]bool{}
				for i := range 10 * len(set) {
					now++
					d := serve(t, r, ask(hotPrompt(uint64(now))), now)
					if used[d.Name] = true; !slices.Contains(set, d.Name) {
						t.Fatalf("%d nodes, shrunk %v, %s: request %d went to %s by %v, number %d of the order", nodes, shrunk, what, i, d.Name, d.Rung, slices.Index(order, d.Name))
					}
				}
				if len(used) < len(set)/2 {
					t.Errorf("%d nodes, shrunk %v, %s: only %v were used", nodes, shrunk, what, used)
				}
			}
			goes("all well", order[:replicas])
			busy(r, order[:3])
			goes("three busy", order[3:][:replicas])
			r.SetPeerLoad("others", nil, t0)
			for _, b := range r.View().Backends {
				if slices.Contains(order[:replicas], b.Name) {
					r.SetReported(b.ID, true, now)
				}
			}
			goes("all away", order[replicas:][:replicas])
			busy(r, order[replicas:100])
			used := map[prefixtree.Backend]bool{}
			for i := range 20 {
				now += 10
				d := serve(t, r, ask(hotPrompt(uint64(now))), now)
				if used[d.Backend] = true; slices.Contains(order[:100], d.Name) {
					t.Fatalf("%d nodes, shrunk %v: request %d went to %s, which has a long queue, by %v", nodes, shrunk, i, d.Name, d.Rung)
				}
			}
			if len(used) < 2 {
				t.Errorf("%d nodes: only %v of the 200 that are free were used", nodes, used)
			}
		}
	}
}

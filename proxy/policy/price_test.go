package policy

import (
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

// later returns the price of a second of prefill in a pool of 4 engines with 4 requests/s, where new
// work waits for so many seconds and so many engines are busy with what caches do not save.
func later(backlog, prefill float64) float64 {
	s := &Scene{PromptTokens: 10_000, FleetRate: 10_000, pool: &pool{engines: engines{entries: make([]entry, 4)}}, traffic: demand.Rates{Mean: 1, Own: 4, Prefill: prefill}}
	for i := range 4 {
		s.Candidates = append(s.Candidates, Candidate{entry: entryOf(i), Rate: 10_000, Uncached: 10_000, wait: backlog + float64(i)})
	}
	s.price()
	return s.later
}

func TestPriceGrows(t *testing.T) {
	if got := later(0, 3); got != eviction {
		t.Errorf("where nothing waits a second of prefill costs %v, want %v", got, eviction)
	}
	for _, prefill := range []float64{0, 2, 3.9} {
		for backlog := 0.0; backlog < 10; backlog++ {
			if now, next := later(backlog, prefill), later(backlog+1, prefill); next <= now {
				t.Errorf("%v engines busy: %v behind %v s and %v behind one more", prefill, now, backlog, next)
			}
		}
	}
	for prefill := 0.0; prefill < 2; prefill += 0.5 {
		if now, next := later(2, prefill), later(2, prefill+0.5); next <= now {
			t.Errorf("%v with %v engines busy and %v with half an engine more", now, prefill, next)
		}
	}
	if most := later(2, 1e9); most > later(2, 0)/leastIdle {
		t.Errorf("the price in a saturated pool is %v", most)
	}
}

// An engine holds a prompt of one second and a longer queue than the others have. Prompts leave it
// while the pool is idle; they stay while recomputing would delay others.
func TestHolderIsKeptInABusyPool(t *testing.T) {
	const home, second = 2, 10_000
	for _, c := range []struct {
		name              string
		others, more, use float64 // the others' queue and how much longer the holder's is, in seconds; busy share of the pool
		stays             bool
	}{
		{"idle, short queue", 0, 2, 0, true},
		{"idle, long queue", 0, 5, 0, false},
		{"busy, short queues", 0, 5, 0.9, false},
		{"queues, but caches save nearly all", 2, 8, 0, false},
		{"queues", 2, 8, 0.7, true},
		{"long queues", 6, 8, 0, true},
		{"long queues, far longer at the holder", 6, 50, 0.9, false},
	} {
		r, tree := newRouter(t, Config{}, fleetOf(4))
		chain := prompt(1, 1, 0, 80)
		tree.Record(home, chain[:78], t0-100, nil)
		for i := range 4 * 60 {
			r.table.Load().all.traffic.Count(demand.Prefill{Whole: 1, Uncached: c.use}, 0, t0-60_000+prefixtree.Time(250*i))
		}
		var loads []books.PeerLoad
		for b := range prefixtree.Backend(4) {
			queue := c.others
			if b == home {
				queue += c.more
			}
			loads = append(loads, books.PeerLoad{Backend: b, PrefillTokens: int64(queue * second), Active: 1})
		}
		r.SetPeerLoad("others", loads, t0)
		var d Decision
		if err := r.Explain(ask(chain), t0, &d); err != nil {
			t.Fatal(err)
		}
		if stays := d.Backend == home; stays != c.stays {
			t.Errorf("%s: stays %v: %v", c.name, stays, &d)
		}
	}
}

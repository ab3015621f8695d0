package prefixtree

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
)

func TestReadersAndWriters(t *testing.T) {
	const (
		backends = 40
		stable   = Backend(0)
		deepest  = 90
		blocks   = 120
	)
	seed := virtual.Seed(t)
	tree := newTree(t, Config{Horizon: time.Hour, MaxBackends: backends, Budget: 4 << 20})
	chains := make([][]Hash, 8)
	for i := range chains {
		chains[i] = chainOf(t, uint64(i+1), blocks)
		tree.Record(stable, chains[i], start, nil)
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for now := start; !done.Load(); now++ {
				writeSomething(tree, r, chains, backends, deepest, now)
			}
		})
	}
	var readers sync.WaitGroup
	for w := range 2 {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+w)))
			var m Matches
			for range 3000 {
				chain := chains[r.IntN(len(chains))]
				tree.Match(&m, chain, start+1000)
				whole := false
				for _, h := range m.Holders() {
					if h.Backend == stable {
						whole = h.Blocks == blocks && h.Fresh == blocks
					} else if h.Blocks > deepest || h.Fresh > h.Blocks {
						t.Errorf("nobody wrote %+v", h)
					}
				}
				if !whole {
					t.Errorf("lost the stable chain: %+v", m.Holders())
					return
				}
				if r.IntN(50) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	readers.Wait()
	done.Store(true)
	wg.Wait()
	checkShards(t, tree)
}

func TestNoTouchIsLost(t *testing.T) {
	const touchers, churners, rounds, blocks = 3, 2, 150, 100
	const step = Time(defaultHorizon/time.Millisecond)/grainsPerHorizon + 1
	seed := virtual.Seed(t)
	tree := newTree(t, Config{MaxBackends: 64, Budget: 1 << 20})
	chains := make([][]Hash, touchers)
	for i := range chains {
		chains[i] = chainOf(t, uint64(i+1), blocks)
	}
	for round := range Time(rounds) {
		now := start + 2*round*step
		var wg sync.WaitGroup
		for w := range touchers {
			wg.Go(func() {
				b := Backend(w)
				for _, chain := range [][]Hash{chains[0], chains[w]} {
					var tr TouchHistory
					tree.Record(b, chain, now, &tr)
					tree.Learn(b, chain, &tr, -1, now+step)
				}
			})
		}
		for w := range churners {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(round)<<8|uint64(w)))
				b := Backend(touchers + w)
				unique := make([]Hash, blocks)
				for i := range unique {
					unique[i] = Hash(r.Uint64() | 1)
				}
				for range 4 {
					tree.Record(b, unique, now, nil)
					tree.Record(b, chains[r.IntN(touchers)], now, nil)
					tree.Drop(b, chains[r.IntN(touchers)], r.IntN(blocks), maxTime)
					tree.Drop(b, unique, r.IntN(blocks), maxTime)
				}
			})
		}
		wg.Wait()
		for w := range touchers {
			for _, chain := range [][]Hash{chains[0], chains[w]} {
				for i, h := range chain {
					var a prefetch
					a.look(tree, Backend(w), []Hash{h})
					if at := entryTime(a.places[0].entry); at != now+step {
						t.Fatalf("round %d, backend %d, block %d: touched at %d, want %d", round, w, i, at-start, now+step-start)
					}
				}
			}
		}
		checkShards(t, tree)
	}
}

func writeSomething(tree *Tree, r *rand.Rand, chains [][]Hash, backends, deepest int, now Time) {
	b := Backend(1 + r.IntN(backends-1))
	chain := chains[r.IntN(len(chains))][:1+r.IntN(deepest)]
	var tr TouchHistory
	switch r.IntN(10) {
	case 0:
		tree.Drop(b, chain, r.IntN(len(chain)), maxTime)
	case 1:
		tree.Forget(b, now)
	case 2:
		tree.SetGeneration(b, uint32(now-start), now)
	case 3:
		for _, f := range tree.AppendFacts(nil, b, chain, now) {
			tree.Apply(f)
		}
	case 4:
		tree.Record(b, chain, now, &tr)
		tree.Learn(b, chain, &tr, r.IntN(len(chain)+1), now+5)
	case 5:
		tree.Record(b, chain, now, &tr)
		tree.Revert(b, chain, &tr)
	case 6:
		tree.Drop(b, chain, r.IntN(len(chain)), now)
		tree.Stats()
	default: // tables grow and are rebuilt under the readers
		if tree.Stats().Facts > 30_000 {
			return // eviction would remove what the readers look for
		}
		var unique [20]Hash
		for i := range unique {
			unique[i] = Hash(r.Uint64() | 1)
		}
		tree.Record(b, unique[:], now, nil)
	}
}

func TestReaderWaitsOutAStalledWriter(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 1)
	tree.Record(1, chain, start, nil)
	s := tree.shard(uint64(chain[0]))
	s.mu.Lock()
	tb := s.tab.Load()
	tb.beginMove()
	got := make(chan int32)
	go func() {
		h, _ := holderOf(tree, 1, chain, start)
		got <- h.Blocks
	}()
	select {
	case <-got:
		t.Error("read through a move in progress")
	case <-time.After(20 * time.Millisecond):
	}
	tb.endMove()
	s.mu.Unlock()
	if n := <-got; n != 1 {
		t.Errorf("matched %d blocks", n)
	}
}

// One holder per chain, since touches may race with arena moves.
func TestTreesConvergeUnderConcurrency(t *testing.T) {
	const steps, step, blocks = 100, 20, 45
	seed := virtual.Seed(t)
	var trees [2]*Tree
	var outs [2]*Outbox
	for i := range trees {
		outs[i] = NewOutbox(0)
		trees[i] = newTree(t, Config{Horizon: time.Second, Budget: 8 << 20, MaxBackends: 8, Changed: outs[i].Add})
	}
	var chains [6][]Hash
	for i := range chains {
		chains[i] = chainOf(t, uint64(i+1), blocks)
	}
	const end = start + step*steps + 500
	exchange := func(from, to int) (records int) {
		payload, records := outs[from].Drain(nil, 4<<10, oneToOne{})
		if records > 0 {
			if _, err := trees[to].ApplyDelta(payload, oneToOne{}, 0, end); err != nil {
				t.Error(err)
			}
		}
		return records
	}
	var writers, couriers sync.WaitGroup
	var done atomic.Bool
	for w := range 4 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			tree := trees[w%2]
			for i := range Time(steps) {
				var tr TouchHistory
				b := r.IntN(len(chains))
				chain := chains[b][:1+r.IntN(blocks)]
				tree.Record(Backend(b), chain, start+step*i, &tr)
				tree.Learn(Backend(b), chain, &tr, -1, start+step*(i+Time(r.IntN(3))))
			}
		})
	}
	for from := range trees {
		couriers.Go(func() {
			for !done.Load() {
				if exchange(from, 1-from) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	writers.Wait()
	done.Store(true)
	couriers.Wait()
	for exchange(0, 1)+exchange(1, 0) > 0 {
	}
	a, b := heldBy(trees[0], end), heldBy(trees[1], end)
	if !maps.Equal(a, b) || len(a) == 0 {
		t.Errorf("%d and %d anchors: %s", len(a), len(b), difference(a, b))
	}
	for _, tree := range trees {
		checkShards(t, tree)
	}
}

package history

import (
	"container/list"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/prefixtree"
)

// lru is an engine's cache of blocks.
type lru struct {
	order *list.List
	at    map[prefixtree.Hash]*list.Element
	most  int
}

func newLRU(most int) *lru {
	return &lru{list.New(), make(map[prefixtree.Hash]*list.Element), most}
}

// take returns how many leading blocks it held.
func (c *lru) take(hashes []prefixtree.Hash) (held int) {
	for held < len(hashes) && c.at[hashes[held]] != nil {
		held++
	}
	for i := len(hashes) - 1; i >= 0; i-- { // leaves are evicted before what they continue
		if e := c.at[hashes[i]]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.at[hashes[i]] = c.order.PushFront(hashes[i])
		if len(c.at) > c.most {
			delete(c.at, c.order.Remove(c.order.Back()).(prefixtree.Hash))
		}
	}
	return held
}

// TestBaselineAgainstRoundRobin plays conversations with shared beginnings on engines with LRU caches in
// turn, and compares their hits with what nodes estimate, each of which sees a part of the requests.
func TestBaselineAgainstRoundRobin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, tc := range []struct{ engines, nodes, capacity, shared int }{{4, 1, 10_000, 8}, {4, 3, 10_000, 1}, {64, 3, 10_000, 8}, {64, 3, 10_000, 1}, {16, 8, 2000, 2}} {
		t.Run(fmt.Sprintf("engines=%d/nodes=%d/blocks=%d/shared=%d", tc.engines, tc.nodes, tc.capacity, tc.shared), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			counts, at := new(Counts), time.Unix(1_800_000_000, 0)
			common := make([]uint64, 32*tc.shared)
			for i := range common {
				common[i] = rng.Uint64()
			}
			var nodes []*Baseline
			for range tc.nodes {
				nodes = append(nodes, NewBaseline(counts, at))
			}
			var engines []*lru
			for range tc.engines {
				engines = append(engines, newLRU(tc.capacity))
			}
			const begun, requests = 2000, 8000
			var talks [200][]prefixtree.Hash
			blocks, hits, inserted := 0, 0, 0
			for i := range requests {
				at = at.Add(time.Millisecond)
				talk := &talks[rng.IntN(len(talks))]
				if len(*talk) == 0 || rng.IntN(5) == 0 { // a new one, with one of a few shared beginnings
					*talk = nil
					shared := rng.IntN(tc.shared)
					for b := range 32 {
						*talk = append(*talk, prefixtree.Hash(common[shared*32+b]))
					}
				}
				for range 10 {
					*talk = append(*talk, prefixtree.Hash(rng.Uint64()))
				}
				held := engines[i%tc.engines].take(*talk)
				inserted += len(*talk) - held
				if i >= begun {
					blocks, hits = blocks+len(*talk), hits+held
				} else {
					counts[randomBlocks].Store(0)
					counts[randomHits].Store(0)
				}
				nodes[rng.IntN(tc.nodes)].Visit(*talk, tc.engines, tc.nodes, at)
				if i%100 == 99 { // an engine keeps a block until that many others were computed
					keep := time.Duration(float64(tc.capacity*tc.engines) / float64(inserted) * float64(i+1) * float64(time.Millisecond))
					for _, b := range nodes {
						b.Keep(keep, at)
					}
				}
			}
			truth := float64(hits) / float64(blocks)
			estimate := float64(counts[randomHits].Load()) / float64(counts[randomBlocks].Load())
			t.Logf("hit rate %.3f, estimated %.3f", truth, estimate)
			if math.Abs(estimate-truth) > 0.05 {
				t.Errorf("the estimate is more than 5 points off")
			}
			for _, b := range nodes {
				if len(b.visits) > maxBlocks {
					t.Errorf("%d blocks", len(b.visits))
				}
			}
		})
	}
}

func TestBaselineIsBounded(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	counts := new(Counts)
	b := NewBaseline(counts, at)
	rng := rand.New(rand.NewPCG(1, 2))
	hashes := make([]prefixtree.Hash, 1000)
	for range 2000 {
		for i := range hashes {
			hashes[i] = prefixtree.Hash(rng.Uint64())
		}
		if b.Visit(hashes, 8, 1, at); len(b.visits) > maxBlocks {
			t.Fatalf("%d blocks", len(b.visits))
		}
	}
	few := b.below
	for range 30 {
		at = at.Add(firstWindow)
		b.Keep(firstWindow, at)
	}
	if len(b.visits) != 0 || b.below < few*4 {
		t.Errorf("without requests %d blocks are kept, and hashes below %x are counted, before %x", len(b.visits), b.below, few)
	}
	if hits, blocks := counts[randomHits].Load(), counts[randomBlocks].Load(); hits*20 > blocks {
		t.Errorf("%d of %d new blocks are hits", hits, blocks)
	}
	b.Visit(hashes, 0, 1, at) // no engine
}

func TestHorizonFollowsMisses(t *testing.T) {
	if got := Horizon(time.Minute, 0.8, 0.4); got.Round(time.Millisecond) != 20*time.Second {
		t.Errorf("three times the misses leave %v of a minute", got)
	}
	if got := Horizon(time.Minute, math.NaN(), 0.4); got != time.Minute {
		t.Errorf("%v without a hit rate", got)
	}
}

func BenchmarkVisit(b *testing.B) {
	hashes := make([]prefixtree.Hash, 250) // 32 k tokens
	for i := range hashes {
		hashes[i] = prefixtree.Hash(uint64(i) * 0x9e3779b97f4a7c15 * 31)
	}
	base := NewBaseline(new(Counts), time.Now())
	at := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		base.Visit(hashes, 16, 3, at)
	}
}

package prefixtree

import (
	"math"
	"testing"
	"time"
)

const perBlock = 100

func pourInto(t *testing.T, tree *Tree, now Time, blocks int) Time {
	for range blocks / 10 {
		now += 10 * perBlock
		tree.Record(1, chainOf(t, uint64(now), 10), now, nil)
	}
	return now
}

// evict teaches the tree that backend 1 evicts after that many blocks.
func evict(t *testing.T, tree *Tree, now Time, after int) Time {
	chain := chainOf(t, uint64(now)<<1|1, 4)
	tree.Record(1, chain, now, nil)
	now = pourInto(t, tree, now, after)
	visit(tree, 1, chain, 0, now, 0)
	return now
}

func TestLRUDistanceIsOwnEvidence(t *testing.T) {
	tree := newTree(t, Config{})
	if blocks, evidence := tree.LRUDistance(1); blocks != 0 || evidence != 0 {
		t.Errorf("at first: %v, %v", blocks, evidence)
	}
	tree.SetCapacity(1, 500)
	tree.SetPeerLRUDistance(1, 2_000, 10)
	if blocks, evidence := tree.LRUDistance(1); blocks != 0 || evidence != 0 {
		t.Errorf("configuration and hearsay are told as evidence: %v, %v", blocks, evidence)
	}
	now := evict(t, tree, start, 1_000)
	blocks, evidence := tree.LRUDistance(1)
	if math.Abs(blocks-1_000) > 100 || evidence <= .9 || evidence > 1 {
		t.Errorf("after one eviction: %v, %v", blocks, evidence)
	}
	for range 20 {
		tree.SetPeerLRUDistance(1, 9_000, 1_000)
		if again, _ := tree.LRUDistance(1); again != blocks {
			t.Fatalf("what others say has changed its own distance from %v to %v", blocks, again)
		}
	}
	tree.advance(now + evidenceHalfLife)
	if _, half := tree.LRUDistance(1); math.Abs(half-evidence/2) > .02 {
		t.Errorf("evidence %v, after a half-life %v", evidence, half)
	}
	for range 3 * MaxEvidence {
		tree.ledgers[1].usage.evicted(1, 1, 2)
	}
	if _, evidence := tree.LRUDistance(1); math.Abs(evidence-MaxEvidence/2) > 1 { // it does not grow beyond the bound
		t.Errorf("evidence %v after %d observations", evidence, 3*MaxEvidence)
	}
}

func TestLRUDistanceIsCombined(t *testing.T) {
	fresh := func() (*Tree, Time) {
		tree := newTree(t, Config{Horizon: 5 * time.Minute})
		now := evict(t, tree, start, 1_000)
		return tree, pourInto(t, tree, now, 4_000)
	}
	tree, _ := fresh()
	own, evidence := tree.LRUDistance(1)
	wantHorizon(t, tree, 1, time.Duration(own)*perBlock*time.Millisecond, 15*time.Second)
	tree.SetPeerLRUDistance(1, 3_000, 3*evidence)
	wantHorizon(t, tree, 1, time.Duration(own/4+3_000*3/4)*perBlock*time.Millisecond, 25*time.Second)
	tree.SetPeerLRUDistance(1, 0, 0)
	wantHorizon(t, tree, 1, time.Duration(own)*perBlock*time.Millisecond, 15*time.Second)

	blank := newTree(t, Config{})
	blank.SetCapacity(1, 1_100)
	blank.SetPeerLRUDistance(1, 2_500, .1)
	pourInto(t, blank, start, 6_000)
	wantHorizon(t, blank, 1, 2_500*perBlock*time.Millisecond, 25*time.Second)

	before := blank.Horizon(1)
	for _, v := range [][2]float64{{math.NaN(), 1}, {1, math.NaN()}, {-1, 1}, {1, -1}} {
		blank.SetPeerLRUDistance(1, v[0], v[1])
	}
	blank.SetPeerLRUDistance(defaultMaxBackends, 1, 1)
	if blank.Horizon(1) != before {
		t.Errorf("horizon %v, was %v", blank.Horizon(1), before)
	}
	blank.SetPeerLRUDistance(1, math.Inf(1), math.Inf(1))
	if h := blank.Horizon(1); h < before || h > maxHorizon {
		t.Errorf("horizon %v by an infinite LRU distance", h)
	}
}

func TestLRUDistancesAgree(t *testing.T) {
	var trees [3]*Tree
	for i := range trees {
		trees[i] = newTree(t, Config{Horizon: 7 * time.Minute})
		now := start
		for range i + 1 {
			now = evict(t, trees[i], now, 1_200*(i+1))
		}
		pourInto(t, trees[i], now, 7_000)
	}
	for range 10 {
		for i, tree := range trees {
			sum, weight := 0.0, 0.0
			for j, other := range trees {
				if blocks, evidence := other.LRUDistance(1); i != j {
					sum, weight = sum+blocks*evidence, weight+evidence
				}
			}
			tree.SetPeerLRUDistance(1, sum/weight, weight)
		}
	}
	first := trees[0].ledgers[1].usage.believed
	for i, tree := range trees {
		believed := tree.ledgers[1].usage.believed
		if math.Abs(believed/first-1) > .02 || believed < 2_000 || believed > 3_200 {
			t.Errorf("node %d goes by %v, the first by %v", i, believed, first)
		}
	}
}

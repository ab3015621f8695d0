package prefixtree

import (
	"container/list"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
)

func visit(tree *Tree, b Backend, chain []Hash, cached int, at, stay Time) Lesson {
	var tr TouchHistory
	tree.Record(b, chain, at, &tr)
	return tree.Learn(b, chain, &tr, cached, at+stay)
}

func wantHorizon(t *testing.T, tree *Tree, b Backend, want, within time.Duration) {
	t.Helper()
	if got := tree.Horizon(b); got < want-within || got > want+within {
		t.Errorf("horizon %v, want %v within %v", got, want, within)
	}
}

func TestHorizonByAge(t *testing.T) {
	tree := newTree(t, Config{Horizon: 100 * time.Second})
	chain := chainOf(t, 1, 4)
	tree.Record(1, chain, start, nil)
	visit(tree, 1, chain, 0, start+40_000, 0)
	wantHorizon(t, tree, 1, 40*time.Second, 0) // the first eviction sets it
	visit(tree, 1, chain, 0, start+70_000, 0)
	wantHorizon(t, tree, 1, 39*time.Second, 0) // 0.1 of the way to 30 s
	visit(tree, 1, chain, 4, start+178_000, 0)
	wantHorizon(t, tree, 1, 59_700*time.Millisecond, 0) // 0.3 of the way to 108 s
	visit(tree, 1, chain, -1, start+179_000, 0)
	visit(tree, 1, chain, 3, start+180_000, 0) // within the slack of counting
	wantHorizon(t, tree, 1, 59_700*time.Millisecond, 0)
	wantHorizon(t, tree, 2, 100*time.Second, 0)
}

// An eviction sets the LRU distance in blocks; the horizon follows their rate.
func TestHorizonByVolume(t *testing.T) {
	tree := newTree(t, Config{Horizon: 5 * time.Minute})
	chain := chainOf(t, 1, 4)
	tree.Record(1, chain, start, nil)
	now := start
	pour := func(seconds, perSecond int) {
		for range seconds {
			now += 1000
			tree.Record(1, chainOf(t, uint64(now), perSecond), now, nil)
		}
	}
	pour(100, 10)
	visit(tree, 1, chain, 0, now, 0)
	wantHorizon(t, tree, 1, 100*time.Second, 6*time.Second)
	pour(50, 100)
	wantHorizon(t, tree, 1, 10*time.Second, 2*time.Second)
	tree.advance(now + 600_000) // an idle time displaces nothing
	wantHorizon(t, tree, 1, 610*time.Second, 2*time.Second)
	last := chainOf(t, uint64(now), 100)
	if h, _ := holderOf(tree, 1, last, now+600_000); h.Fresh != 100 {
		t.Errorf("stale after an idle time: %+v", h)
	}
}

func TestCapacityGivesTheFirstHorizon(t *testing.T) {
	tree := newTree(t, Config{})
	tree.SetCapacity(1, 500)
	wantHorizon(t, tree, 1, defaultHorizon, 0)
	for i := range 100 {
		tree.Record(1, chainOf(t, uint64(i+1), 10), start+Time(i)*1000, nil)
		if i == 20 { // extrapolated from 200 blocks
			wantHorizon(t, tree, 1, 48*time.Second, 3*time.Second)
		}
	}
	wantHorizon(t, tree, 1, 50*time.Second, 3*time.Second)
}

func TestLearnKeepsThePlacement(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 50)
	tree.Record(1, chain, start, nil)
	lesson := visit(tree, 1, chain, 20, start+60_000, 15_000)
	if lesson != (Lesson{Predicted: 50, Cached: 20}) {
		t.Errorf("%+v", lesson)
	}
	// The request computed and pinned what was missing.
	if h, _ := holderOf(tree, 1, chain, start+75_000); h.Blocks != 50 || h.Age != 0 {
		t.Errorf("%+v", h)
	}
}

// Facts within the grain keep their time, and a restarted engine's first work is not lost.
func TestGrain(t *testing.T) {
	const grain = 1_000
	tree := newTree(t, Config{Horizon: grainsPerHorizon * grain * time.Millisecond})
	chain := chainOf(t, 1, 50)
	age := func(blocks int, now Time) time.Duration {
		h, _ := holderOf(tree, 1, chain[:blocks], now)
		return h.Age
	}
	tree.Record(1, chain[:20], start, nil)
	for i := Time(1); i <= grain; i++ {
		visit(tree, 1, chain, -1, start+i, 0)
	}
	now := start + grain
	if age(20, now) != grain*time.Millisecond || age(50, now) != (grain-1)*time.Millisecond {
		t.Errorf("ages %v and %v", age(20, now), age(50, now))
	}
	if n := tree.ledgers[1].usage.since(start - 1); n != 50 {
		t.Errorf("%v blocks in use", n)
	}
	visit(tree, 1, chain, -1, now+1, 0)
	if age(20, now+1) != 0 || age(50, now+1) != grain*time.Millisecond {
		t.Errorf("ages %v and %v", age(20, now+1), age(50, now+1))
	}
	if n := tree.ledgers[1].usage.since(start - 1); n != 50 {
		t.Errorf("%v blocks in use", n)
	}
	now += 5 * grain
	others := [surpriseLimit][]Hash{chainOf(t, 2, 50), chainOf(t, 3, 50), chainOf(t, 4, 50)}
	for _, chain := range others {
		tree.Record(1, chain, now, nil)
	}
	for i, chain := range others {
		if l := visit(tree, 1, chain, 0, now+grain/2+Time(i), grain/4); l.CacheLost != (i == surpriseLimit-1) {
			t.Fatalf("%+v", l)
		}
	}
	for i, other := range others {
		if h, _ := holderOf(tree, 1, other, now+grain); h.Blocks != 50 {
			t.Errorf("the fence took chain %d, which the restarted engine has computed: %+v", i, h)
		}
	}
	if h, ok := holderOf(tree, 1, chain, now+grain); ok {
		t.Errorf("the fence left %+v", h)
	}
}

func TestLearnNeverCreates(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 50)
	var none TouchHistory
	tree.Learn(1, chain, &none, 50, start)
	var tr TouchHistory
	tree.Record(2, chain, start, &tr)
	tree.Forget(2, start+1)
	tree.Learn(2, chain, &tr, 50, start+2)
	for b := range Backend(3) {
		if h, ok := holderOf(tree, b, chain, start+2); ok {
			t.Errorf("created %+v", h)
		}
	}
}

func TestLostCache(t *testing.T) {
	tree := newTree(t, Config{Horizon: 100 * time.Second})
	var chains [][]Hash
	for i := range 6 {
		chains = append(chains, chainOf(t, uint64(i+1), 30))
		tree.Record(1, chains[i], start, nil)
		tree.Record(2, chains[i], start, nil)
	}
	visit(tree, 1, chains[0], 0, start+8_000, 100)
	visit(tree, 1, chains[1], 0, start+8_500, 100)
	visit(tree, 1, chains[0], 30, start+9_000, 100) // resets the count
	for i := range 3 {
		lesson := visit(tree, 1, chains[1+i], 0, start+12_000+Time(i), 100)
		if lesson.CacheLost != (i == 2) {
			t.Fatalf("surprise %d: %+v", i+1, lesson)
		}
	}
	now := start + 13_000
	for i, chain := range chains {
		h, _ := holderOf(tree, 1, chain, now)
		if want := i >= 1 && i <= 3; (h.Blocks == 30) != want {
			t.Errorf("chain %d: %+v", i, h)
		}
		if h, _ := holderOf(tree, 2, chain, now); h.Blocks != 30 {
			t.Errorf("the other backend, chain %d: %+v", i, h)
		}
	}
	if st := tree.Stats(); st.CachesLost != 1 || st.Surprises != 5 {
		t.Errorf("%+v", st)
	}
	wantHorizon(t, tree, 1, 100*time.Second, 0)
}

// A burst of one new prompt misses because the first request still runs.
func TestUnsettledMissProvesNothing(t *testing.T) {
	tree := newTree(t, Config{})
	chain := chainOf(t, 1, 50)
	for i := range Time(5) {
		if lesson := visit(tree, 1, chain, 0, start+10*i, 5_000); lesson.CacheLost {
			t.Fatal("took a burst for a restart")
		}
		wantHorizon(t, tree, 1, defaultHorizon, 0)
	}
}

func TestTouchHistoryIsBoundedAndConservative(t *testing.T) {
	var tr TouchHistory
	r := rand.New(rand.NewPCG(1, 2))
	at := Time(1_000_000)
	truth := make([]Time, 101)
	for depth := 1; depth <= 100; depth++ {
		if r.IntN(2) == 0 {
			at -= Time(r.IntN(1000))
		}
		truth[depth] = at
		tr.push(depth, at)
	}
	if tr.n > maxTouchSteps || tr.depth() != 100 || tr.at(101) != 0 {
		t.Fatalf("%+v", tr)
	}
	for depth := 1; depth <= 100; depth++ {
		if tr.at(depth) > truth[depth] {
			t.Errorf("block %d: %d is younger than the truth %d", depth, tr.at(depth), truth[depth])
		}
	}
	tr.reset()
	tr.push(3, 50)
	tr.push(9, 70) // the holder of block 9 had blocks 1 to 8 by then
	if tr.at(1) != 70 || tr.at(9) != 70 || tr.n != 1 {
		t.Errorf("%+v", tr)
	}
}

// lruCache evicts the least recently used block, leaves before ancestors.
type lruCache struct {
	capacity int
	order    *list.List
	blocks   map[Hash]*list.Element
}

func (c *lruCache) cached(chain []Hash) int {
	for i, h := range chain {
		if c.blocks[h] == nil {
			return i
		}
	}
	return len(chain)
}

func (c *lruCache) use(chain []Hash) {
	for i := len(chain) - 1; i >= 0; i-- { // the root last, so that it is the youngest
		if e := c.blocks[chain[i]]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.blocks[chain[i]] = c.order.PushFront(chain[i])
		if c.order.Len() > c.capacity {
			delete(c.blocks, c.order.Remove(c.order.Back()).(Hash))
		}
	}
}

func TestPredictsAnLRU(t *testing.T) {
	r := virtual.Rand(virtual.Seed(t), 0)
	tree := newTree(t, Config{})
	engine := &lruCache{capacity: 2000, order: list.New(), blocks: map[Hash]*list.Element{}}
	turns := make([]int, 100)
	var deviation, blocks float64
	for n := range 6000 {
		gap := 200.0
		if n > 4000 {
			gap /= 3
		}
		now := start + Time(float64(min(n, 4000))*200+float64(max(0, n-4000))*gap)
		// Some conversations come often, most rarely; each ends after 20 turns.
		s := int(float64(len(turns)) * math.Pow(r.Float64(), 2))
		turns[s]++
		chain := chainOf(t, uint64(s+1)<<16|uint64(turns[s]/20), 10+2*(turns[s]%20))
		var tr TouchHistory
		held, _ := holderOf(tree, 1, chain, now)
		tree.Record(1, chain, now, &tr)
		cached := engine.cached(chain)
		engine.use(chain)
		tree.Learn(1, chain, &tr, cached, now+Time(gap/2))
		if n > 1500 {
			deviation += math.Abs(float64(held.Expected) - float64(cached))
			blocks += float64(len(chain))
		}
	}
	t.Logf("mean deviation %.1f %% of the prompt, horizon %v", 100*deviation/blocks, tree.Horizon(1))
	if deviation/blocks > .05 {
		t.Errorf("predictions are off by %.1f %% of the prompt", 100*deviation/blocks)
	}
}

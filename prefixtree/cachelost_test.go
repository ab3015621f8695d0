package prefixtree

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"testing"
)

// talks is conversations behind one head, an engine and a tree that learns from it.
type talks struct {
	t          *testing.T
	r          *rand.Rand
	tree       *Tree
	hasher     *Hasher
	engine     *lruCache
	head       []Hash
	turns      []int
	now        Time
	count      func(prompt, cached int) int
	cachesLost int
}

func newTalks(t *testing.T, seed uint64, number, capacity int) *talks {
	return &talks{
		t: t, r: rand.New(rand.NewPCG(seed, 0)), tree: newTree(t, Config{Budget: 16 << 20}), hasher: newHasher(t),
		engine: &lruCache{capacity: capacity, order: list.New(), blocks: map[Hash]*list.Element{}},
		head:   chainOf(t, 1, 12), turns: make([]int, number), now: start,
		count: func(_, cached int) int { return cached },
	}
}

func (s *talks) chain(i int) []Hash {
	keys := make([]uint64, 10+2*(s.turns[i]%20))
	for k := range keys {
		keys[k] = uint64(i+2)<<32 | uint64(s.turns[i]/20)<<16 | uint64(k)
	}
	return FromKeys(slices.Clone(s.head), s.hasher, nil, keys)
}

// run sends requests every 100 ms on average, until the engine loses its cache.
func (s *talks) run(requests int) (done int) {
	for done = range requests {
		s.now += Time(s.r.ExpFloat64() * 100)
		i := s.r.IntN(len(s.turns))
		s.turns[i]++
		if s.ask(s.chain(i)) {
			return done + 1
		}
	}
	return requests
}

func (s *talks) ask(chain []Hash) (lost bool) {
	var tr TouchHistory
	s.tree.Record(1, chain, s.now, &tr)
	count := s.count(len(chain), s.engine.cached(chain))
	s.engine.use(chain)
	lost = s.tree.Learn(1, chain, &tr, count, s.now+20).CacheLost
	if lost {
		s.cachesLost++
	}
	return lost
}

func (s *talks) forget() {
	s.now += 100
	s.engine.order.Init()
	clear(s.engine.blocks)
}

const talkSeeds = 2

func TestLostCacheBehindACommonHead(t *testing.T) {
	for name, block := range map[string]int{"exact": 1, "in twos": 2, "in threes": 3} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(talkSeeds) {
				s := newTalks(t, seed, 40, 1<<20)
				s.count = func(_, cached int) int { return cached - cached%block }
				s.run(1000)
				if s.cachesLost != 0 {
					t.Fatal("one without a cause")
				}
				horizon := s.tree.Horizon(1)
				s.forget()
				before := make([][]Hash, len(s.turns))
				for i := range s.turns {
					before[i] = s.chain(i)
				}
				if n := s.run(200); s.cachesLost != 1 {
					t.Fatalf("seed %d: not seen in %d requests", seed, n)
				}
				for i, chain := range before {
					if h, ok := holderOf(s.tree, 1, chain, s.now+20); ok && int(h.Blocks) > s.engine.cached(chain) {
						t.Errorf("seed %d: conversation %d: %d blocks believed, %d there", seed, i, h.Blocks, s.engine.cached(chain))
					}
				}
				if s.run(500); s.cachesLost != 1 {
					t.Errorf("seed %d: %d cachesLost", seed, s.cachesLost)
				}
				if got := s.tree.Horizon(1); got < horizon/2 {
					t.Errorf("seed %d: horizon %v, was %v", seed, got, horizon)
				}
				s.forget()
				if n := s.run(200); s.cachesLost != 2 {
					t.Errorf("seed %d: the next one is not seen in %d requests", seed, n)
				}
			}
		})
	}
}

// Too few misses to be certain are not learned as evictions either.
func TestFewMissesLeaveTheHorizon(t *testing.T) {
	for seed := range uint64(talkSeeds) {
		s := newTalks(t, seed, 40, 1<<20)
		s.run(1000)
		turns := func(n int) {
			for i := range n {
				s.now += 50
				s.turns[i]++
				s.ask(s.chain(i))
			}
		}
		turns(3)
		horizon := s.tree.Horizon(1)
		s.forget()
		s.engine.use(s.head)
		turns(2)
		if got := s.tree.Horizon(1); got < horizon/2 || s.cachesLost != 0 {
			t.Errorf("seed %d: horizon %v, was %v, %d cachesLost", seed, got, horizon, s.cachesLost)
		}
	}
}

func TestNoLostCacheUnderPressure(t *testing.T) {
	for seed := range uint64(talkSeeds) {
		s := newTalks(t, seed, 100, 1200)
		s.run(2000)
		for _, capacity := range []int{800, 400} {
			for s.engine.capacity = capacity; s.engine.order.Len() > capacity; {
				delete(s.engine.blocks, s.engine.order.Remove(s.engine.order.Back()).(Hash))
			}
			s.run(2000)
		}
		if s.cachesLost != 0 {
			t.Errorf("seed %d: %d cachesLost", seed, s.cachesLost)
		}
		if distance, _ := s.tree.LRUDistance(1); distance < 100 || distance > 800 {
			t.Errorf("seed %d: an LRU distance of %.0f blocks, the engine holds %d", seed, distance, s.engine.capacity)
		}
	}
}

func TestNoLostCacheByLies(t *testing.T) {
	for name, of := range map[string]struct {
		lie  func(s *talks, prompt, cached int) int
		most int
	}{
		"the uncached": {func(_ *talks, prompt, cached int) int { return prompt - cached }, 0},
		"a half":       {func(_ *talks, _, cached int) int { return cached / 2 }, 0},
		"anything":     {func(s *talks, prompt, _ int) int { return s.r.IntN(prompt + 1) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(talkSeeds) {
				s := newTalks(t, seed, 40, 1<<20)
				s.run(1000)
				s.count = func(prompt, cached int) int { return of.lie(s, prompt, cached) }
				for done := 0; done < 1000; {
					done += s.run(1000 - done)
				}
				if s.cachesLost > of.most {
					t.Errorf("seed %d: %d cachesLost", seed, s.cachesLost)
				}
			}
		})
	}
}

func TestNoLostCacheWithoutCounts(t *testing.T) {
	s := newTalks(t, 1, 40, 1<<20)
	s.run(1000)
	horizon := s.tree.Horizon(1)
	s.count = func(int, int) int { return -1 }
	s.forget()
	s.run(1000)
	if got := s.tree.Horizon(1); got < horizon || s.cachesLost != 0 {
		t.Errorf("horizon %v, was %v, %d cachesLost", got, horizon, s.cachesLost)
	}
}

// Requests miss what an earlier one has not computed yet, without consequences.
func TestNoLostCacheByWorkUnderWay(t *testing.T) {
	s := newTalks(t, 1, 40, 1<<20)
	s.run(2000)
	for i := range uint64(20) {
		s.now += 100
		common := slices.Concat(s.head, chainOf(t, 1000+i, 40))
		s.tree.Record(1, common, s.now, nil)
		for j := range uint64(5) {
			s.now += 10
			chain := slices.Concat(common, chainOf(t, 2000+10*i+j, 5))
			for _, stay := range []Time{1, 400} {
				if visit(s.tree, 1, chain, len(s.head), s.now, stay).CacheLost {
					t.Fatal("took it for a lost cache")
				}
			}
		}
		s.engine.use(common)
		if s.ask(common) {
			t.Fatal("took it for a lost cache")
		}
	}
}

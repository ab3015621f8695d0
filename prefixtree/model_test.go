package prefixtree

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the tree as a naive map.
type model struct {
	facts   map[Hash]map[Backend]Time
	floor   map[Backend]Time
	gen     map[Backend]uint32
	gone    map[retracted]map[uint32]Time // by generation, until when placements that arrive later do not count
	newest  map[Backend]Time
	heard   map[Backend]heard
	clock   Time
	horizon time.Duration
}

func newModel(horizon time.Duration) *model {
	return &model{
		facts: map[Hash]map[Backend]Time{}, floor: map[Backend]Time{}, gen: map[Backend]uint32{},
		gone: map[retracted]map[uint32]Time{}, newest: map[Backend]Time{}, heard: map[Backend]heard{}, horizon: horizon,
	}
}

func (m *model) live(b Backend, h Hash, now Time) (Time, bool) {
	at, ok := m.facts[h][b]
	return at, ok && at > m.floor[b] && int64(now-at) <= 3*m.horizon.Milliseconds()
}

func (m *model) put(b Backend, h Hash, at Time) {
	if m.facts[h] == nil {
		m.facts[h] = map[Backend]Time{}
	}
	m.facts[h][b] = max(at, m.facts[h][b])
	m.newest[b] = max(at, m.newest[b])
}

func (m *model) record(b Backend, chain []Hash, now Time) Time {
	m.clock = max(m.clock, now)
	if now <= m.floor[b] {
		now = m.floor[b] + 1
	}
	for _, h := range chain {
		if at, ok := m.live(b, h, now); !ok || int64(now-at) > m.horizon.Milliseconds()/64 {
			m.put(b, h, now)
		}
	}
	m.newest[b] = max(now, m.newest[b])
	return now
}

func (m *model) apply(f Fact) {
	old := f.Generation != 0 && f.Generation < m.gen[f.Backend] || f.Time <= m.floor[f.Backend]
	if !old && int64(m.clock-f.Time) <= 3*m.horizon.Milliseconds() {
		m.put(f.Backend, f.Hash, f.Time)
		for generation, gone := range m.gone[retracted{f.Hash, f.Backend}] {
			if at, ok := m.facts[f.Hash][f.Backend]; ok && f.Generation <= generation && f.Time <= gone && at <= gone {
				delete(m.facts[f.Hash], f.Backend)
			}
		}
		h := m.heard[f.Backend]
		oldest := min(h.oldest, f.Generation)
		if h.generation == 0 {
			oldest = f.Generation
		}
		switch {
		case f.Generation <= m.gen[f.Backend]:
		case f.Generation > h.generation || m.clock-h.at > 60_000:
			m.heard[f.Backend] = heard{f.Generation, oldest, f.Time, m.clock}
		case f.Generation == h.generation:
			m.heard[f.Backend] = heard{f.Generation, oldest, min(h.since, f.Time), h.at}
		default:
			m.heard[f.Backend] = heard{h.generation, oldest, h.since, h.at}
		}
	}
}

func (m *model) setGeneration(b Backend, gen uint32, now Time) {
	m.clock = max(m.clock, now)
	if gen <= m.gen[b] {
		return
	}
	h, unknown := m.heard[b], m.gen[b] == 0
	m.gen[b] = gen
	if h.generation <= gen {
		delete(m.heard, b)
	}
	if unknown && (h.generation == 0 || h.oldest >= gen) {
		return
	}
	fence := m.newest[b]
	if h.generation >= gen && now-h.at <= 60_000 && h.since <= fence {
		fence = h.since - 1
	}
	m.floor[b] = max(m.floor[b], fence)
}

// bounds returns the least and most blocks that Match may report for b.
func (m *model) bounds(b Backend, chain []Hash, now Time) (least, most int) {
	hole := false
	for i, h := range chain {
		_, ok := m.live(b, h, now)
		if ok {
			most = i + 1
			if !hole {
				least = i + 1
			}
		}
		if !ok && isAnchor(i+1, len(chain)) {
			hole = true
		}
	}
	return least, most
}

func (m *model) checkMatch(t *rapid.T, tree *Tree, backends int, chain []Hash, now Time) {
	var got Matches
	tree.Match(&got, chain, now)
	found := map[Backend]bool{}
	for _, h := range got.Holders() {
		if found[h.Backend] {
			t.Fatalf("backend %d reported twice", h.Backend)
		}
		found[h.Backend] = true
		least, most := m.bounds(h.Backend, chain, now)
		if int(h.Blocks) < max(1, least) || int(h.Blocks) > most {
			t.Fatalf("backend %d: %d blocks of %d, want %d to %d", h.Backend, h.Blocks, len(chain), least, most)
		}
		at, ok := m.live(h.Backend, chain[h.Blocks-1], now)
		if !ok || h.Age != time.Duration(max(0, now-at))*time.Millisecond {
			t.Fatalf("backend %d: age %v, want %v", h.Backend, h.Age, time.Duration(now-at)*time.Millisecond)
		}
		if h.Fresh < 0 || h.Fresh > h.Blocks || h.Expected < float32(h.Fresh) || h.Expected > float32(h.Blocks) {
			t.Fatalf("inconsistent %+v", h)
		}
		if h.Fresh > 0 {
			at, ok := m.live(h.Backend, chain[h.Fresh-1], now)
			if !ok || time.Duration(now-at)*time.Millisecond > m.horizon {
				t.Fatalf("backend %d: depth %d is not fresh", h.Backend, h.Fresh)
			}
		}
	}
	for b := range Backend(backends) {
		if least, _ := m.bounds(b, chain, now); least > 0 && !found[b] {
			t.Fatalf("backend %d holds %d blocks and is not reported", b, least)
		}
	}
}

func modelChain(t *rapid.T, h *Hasher) []Hash {
	root := rapid.Uint64Range(1, 2).Draw(t, "root")
	branchAt := rapid.SampledFrom([]int{3, 18, 30, 45}).Draw(t, "branch at")
	branch := rapid.Uint64Range(0, 2).Draw(t, "branch")
	keys := make([]uint64, rapid.IntRange(1, 70).Draw(t, "blocks"))
	for i := range keys {
		keys[i] = root
		if i >= branchAt && branch > 0 {
			keys[i] |= branch<<8 | uint64(branchAt)<<16
		}
	}
	return FromKeys(nil, h, nil, keys)
}

func TestTreeAgainstModel(t *testing.T) {
	const backends = 5
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		horizon := 100 * time.Second
		tree, err := New(Config{Horizon: horizon, MaxBackends: backends, Budget: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(horizon)
		now := start
		backend := func() Backend { return Backend(rapid.IntRange(0, backends-1).Draw(t, "backend")) }
		jitter := func() Time { return now - Time(rapid.IntRange(0, 50).Draw(t, "behind")) }
		t.Repeat(map[string]func(*rapid.T){
			"record": func(t *rapid.T) {
				b, chain, at := backend(), modelChain(t, hasher), jitter()
				var tr TouchHistory
				least, most := m.bounds(b, chain, at)
				if at <= m.floor[b] {
					least, most = 0, len(chain)
				}
				tree.Record(b, chain, at, &tr)
				if tr.depth() < least || tr.depth() > most {
					t.Fatalf("history of %d blocks, want %d to %d", tr.depth(), least, most)
				}
				m.record(b, chain, at)
			},
			"record and revert": func(t *rapid.T) {
				b, chain := backend(), modelChain(t, hasher)
				at := now + 1
				now += 2
				if _, most := m.bounds(b, chain, at); most > 0 {
					return // a revert fills holes; see TestDropAndRevert
				}
				var tr TouchHistory
				tree.Record(b, chain, at, &tr)
				if n := tree.Revert(b, chain, &tr); n != len(chain) {
					t.Fatalf("reverted %d of %d", n, len(chain))
				}
				m.clock = max(m.clock, at)
				m.newest[b] = max(m.newest[b], at)
				for _, h := range chain {
					delete(m.facts[h], b)
				}
			},
			"apply": func(t *rapid.T) {
				b, chain, at := backend(), modelChain(t, hasher), jitter()-Time(rapid.IntRange(0, 400_000).Draw(t, "late"))
				gen := rapid.Uint32Range(0, 3).Draw(t, "generation")
				for _, f := range tree.AppendFacts(nil, b, chain, at) {
					f.Generation = gen
					tree.Apply(f)
					m.apply(f)
				}
			},
			"drop": func(t *rapid.T) {
				b, chain := backend(), modelChain(t, hasher)
				from := rapid.IntRange(-1, len(chain)).Draw(t, "from")
				upTo := max(now, m.clock) + 1
				for _, f := range tree.Drop(b, chain, from, upTo) {
					if m.gone[retracted{f.Hash, b}] == nil {
						m.gone[retracted{f.Hash, b}] = map[uint32]Time{}
					}
					m.gone[retracted{f.Hash, b}][f.Generation] = upTo
				}
				for _, h := range chain[max(0, from):] {
					if m.facts[h][b] <= upTo {
						delete(m.facts[h], b)
					}
				}
			},
			"forget": func(t *rapid.T) {
				b, at := backend(), jitter()
				tree.Forget(b, at)
				m.clock = max(m.clock, at)
				m.floor[b] = max(m.floor[b], at)
			},
			"generation": func(t *rapid.T) {
				b, at, gen := backend(), jitter(), rapid.Uint32Range(0, 3).Draw(t, "generation")
				tree.SetGeneration(b, gen, at)
				m.setGeneration(b, gen, at)
			},
			"wait": func(t *rapid.T) { now += Time(rapid.IntRange(0, 120_000).Draw(t, "wait")) },
			"": func(t *rapid.T) {
				m.checkMatch(t, tree, backends, modelChain(t, hasher), max(now, m.clock))
				checkShards(t, tree)
			},
		})
	})
}

func checkShards(t interface{ Fatalf(string, ...any) }, tree *Tree) {
	for i := range tree.shards {
		if err := checkShard(&tree.shards[i]); err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
	}
}

func checkShard(s *shard) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tb := s.tab.Load()
	keys, facts := 0, 0
	owner := make([]bool, s.top)
	claim := func(off, class int) error {
		for w := off; w < off+classSizes[class]; w++ {
			if w >= s.top || owner[w] {
				return fmt.Errorf("arena word %d claimed twice or past the top %d", w, s.top)
			}
			owner[w] = true
		}
		return nil
	}
	for i := range tb.cap {
		k, v := tb.key(i), tb.value(i)
		if k == 0 {
			continue
		}
		if slot, ok := tb.locate(k, 0); !ok || slot != i {
			return fmt.Errorf("key %x in slot %d is found in %d", k, i, slot)
		}
		keys++
		if v&spanTag == 0 {
			facts++
			continue
		}
		n := spanCount(v)
		if n < 2 || n > classSizes[spanClass(v)] {
			return fmt.Errorf("span of %d in class %d", n, spanClass(v))
		}
		facts += n
		if err := claim(spanOffset(v), spanClass(v)); err != nil {
			return err
		}
		seen := map[Backend]bool{}
		for j := range n {
			b := entryBackend(tb.entry(spanOffset(v), j))
			if seen[b] {
				return fmt.Errorf("backend %d twice under %x", b, k)
			}
			seen[b] = true
		}
	}
	for class, f := range s.free {
		for ; f != 0; f = uint32(tb.entry(int(f-1), 0)) {
			if err := claim(int(f-1), class); err != nil {
				return err
			}
		}
	}
	for w, ok := range owner {
		if !ok {
			return fmt.Errorf("arena word %d leaked", w)
		}
	}
	if keys != s.keys || facts != s.facts || int64(facts) != s.counts.facts.Load() {
		return fmt.Errorf("%d keys and %d facts, counted %d, %d and %d", keys, facts, s.keys, s.facts, s.counts.facts.Load())
	}
	if uint64(keys) >= tb.cap {
		return fmt.Errorf("no empty slot")
	}
	return nil
}

func TestApplyIsALattice(t *testing.T) {
	const backends = 4
	hasher := newHasher(t)
	rapid.Check(t, func(t *rapid.T) {
		var facts []Fact
		chains := [][]Hash{modelChain(t, hasher), modelChain(t, hasher)}
		for range rapid.IntRange(1, 12).Draw(t, "placements") {
			chain := chains[rapid.IntRange(0, 1).Draw(t, "chain")]
			at := start + Time(rapid.IntRange(0, 100).Draw(t, "at"))
			b := Backend(rapid.IntRange(0, backends-1).Draw(t, "backend"))
			n := rapid.IntRange(1, len(chain)).Draw(t, "blocks")
			for d := range n {
				if isAnchor(d+1, n) {
					facts = append(facts, Fact{Hash: chain[d], Backend: b, Time: at})
				}
			}
		}
		left, right := newForApply(t, backends), newForApply(t, backends)
		for _, f := range facts {
			left.Apply(f)
		}
		for _, f := range rapid.Permutation(append(facts, facts[:len(facts)/2]...)).Draw(t, "order") {
			right.Apply(f)
		}
		third, relay := newForApply(t, backends), newForApply(t, backends)
		for i, f := range facts {
			if i%2 == 0 {
				relay.Apply(f)
			} else {
				third.Apply(f)
			}
		}
		relay.Range(start, func(f Fact) bool { third.Apply(f); return true })
		want := factSet(left)
		for name, tree := range map[string]*Tree{"permuted and repeated": right, "relayed": third} {
			got := factSet(tree)
			if len(got) != len(want) {
				t.Fatalf("%s: %d facts, want %d", name, len(got), len(want))
			}
			for f := range want {
				if !got[f] {
					t.Fatalf("%s: lost %+v", name, f)
				}
			}
			for _, f := range facts {
				if tree.Apply(f) {
					t.Fatalf("%s: %+v told something new again", name, f)
				}
			}
		}
	})
}

func newForApply(t *rapid.T, backends int) *Tree {
	tree, err := New(Config{MaxBackends: backends, Budget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func factSet(tree *Tree) map[Fact]bool {
	set := map[Fact]bool{}
	tree.Range(start, func(f Fact) bool { set[f] = true; return true })
	return set
}

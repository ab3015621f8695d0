package prefixtree

import "sync/atomic"

// lookahead is the number of blocks looked up at once: their cache misses overlap, and they fit the
// first-level cache.
const lookahead = 32

// place is where a writer found a block before it took the shard's lock.
type place struct {
	shard *shard
	slot  uint64 // hint; verified under the lock
	index int    // hint for the backend's index among the holders
	entry entry  // the backend's fact; 0: none, or torn
	torn  bool   // a concurrent move made the read unusable

	tab  *table
	seq  uint64
	word *uint64 // address of the entry
}

// touch replaces the entry by a later one without the lock. It returns false if that is uncertain,
// or if the shard is due for a sweep; the caller then makes the change under the lock.
func (p *place) touch(to entry, now Time) bool {
	return p.entry != 0 && int64(now) < p.shard.swept.Load() && p.tab.touch(p.word, p.seq, p.entry, to)
}

// ahead looks up a run of blocks for a writer without locks, because the atomic instructions of
// edits prevent cache misses from overlapping. Most edits then prove unnecessary (grainsPerHorizon)
// or know their slot.
type ahead struct {
	places  [lookahead]place
	index   int    // hint shared by neighbouring blocks
	fetched uint64 // unused; keeps the compiler from removing fetch's reads
}

// look fills places for the first blocks of the chain and returns how many.
func (a *ahead) look(t *Tree, b Backend, chain []Hash) int {
	run := chain[:min(lookahead, len(chain))]
	a.fetch(t, run)
	a.see(b, run, 0)
	return len(run)
}

// see fills the places of fetched blocks, starting at from.
func (a *ahead) see(b Backend, run []Hash, from int) {
	for i, h := range run {
		p := &a.places[(from+i)%lookahead] // the modulo spares a bounds check
		tb := p.shard.tab.Load()
		seq := tb.seq.Load()
		slot, v := tb.find(uint64(h))
		p.tab, p.seq, p.slot, p.entry, p.word = tb, seq, slot, v, &tb.slots[2*slot+1]
		if v&spanTag != 0 {
			p.entry, p.word = tb.peek(v, b, &a.index)
		} else if entryBackend(v) != b {
			p.entry = 0
		}
		p.index = a.index
		if p.torn = seq&1 != 0 || tb.seq.Load() != seq; p.torn {
			p.entry = 0
		}
	}
}

// fetch loads the blocks' slots into the CPU cache. No branch depends on the loads, since a
// misprediction would serialise them.
func (a *ahead) fetch(t *Tree, run []Hash) {
	var any uint64
	for i, h := range run {
		s := t.shard(uint64(h))
		tb := s.tab.Load()
		any ^= tb.key(tb.home(uint64(h)))
		a.places[i].shard = s
	}
	a.fetched = any
}

// peek returns b's entry in a possibly torn span and its address, or 0. It tries index first and
// updates it.
func (tb *table) peek(v span, b Backend, index *int) (entry, *uint64) {
	if spanOffset(v)+spanCount(v) > len(tb.arena) {
		return 0, nil
	}
	i := tb.indexOf(v, b, *index)
	if i < 0 {
		return 0, nil
	}
	*index = i
	word := &tb.arena[spanOffset(v)+i]
	return atomic.LoadUint64(word), word
}

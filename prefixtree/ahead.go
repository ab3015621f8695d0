package prefixtree

import "sync/atomic"

// lookahead is how many blocks a writer looks up at once: enough for the processor to overlap their cache misses, few
// enough to stay in its first-level cache.
const lookahead = 32

// place is where a writer found a block before taking its shard's lock.
type place struct {
	shard *shard
	slot  uint64 // a hint: under the lock, believed only if the key is still there
	index int    // of the backend among the block's holders, likewise
	entry entry  // the backend's fact; 0 if it has none or torn
	torn  bool   // something was moving, so nothing has been seen

	tab  *table
	seq  uint64
	word *uint64 // where the entry was
}

// touch replaces the entry seen by a later one without taking the lock. It reports false if it could not be sure to have, or
// if the shard waits for somebody to sweep: then the change is to be made under the lock.
func (p *place) touch(to entry, now Time) bool {
	return p.entry != 0 && int64(now) < p.shard.swept.Load() && p.tab.touch(p.word, p.seq, p.entry, to)
}

// ahead looks up a run of blocks without locks, for a writer that will edit them on behalf of one backend. The locked
// instructions of edits let no two cache misses overlap, while these lookups do; and most edits turn out to be unnecessary
// (see grainsPerHorizon), or find their slot at once.
type ahead struct {
	places  [lookahead]place
	index   int    // of the backend in the last block seen, which neighbours share
	fetched uint64 // no meaning; keeps the reads of fetch from being optimised away
}

// look fills places for the first blocks of the chain and returns how many.
func (a *ahead) look(t *Tree, b Backend, chain []Hash) int {
	run := chain[:min(lookahead, len(chain))]
	a.fetch(t, run)
	a.see(b, run, 0)
	return len(run)
}

// see fills the places, from the given one on, of blocks that have been fetched.
func (a *ahead) see(b Backend, run []Hash, from int) {
	for i, h := range run {
		p := &a.places[(from+i)%lookahead] // never beyond: it spares the check
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

// fetch brings the blocks' slots into cache. No branch depends on what is read, or a wrongly predicted one would wait for
// its miss before the next could start.
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

// peek returns b's entry in a span that may be torn, and its place; 0 if it is not there. index is tried first, and moved on.
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

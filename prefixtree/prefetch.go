package prefixtree

import "sync/atomic"

const lookahead = 32 // blocks looked up at once, to overlap their cache misses

// place is where a writer found a block, without the lock.
type place struct {
	shard *shard
	slot  uint64 // hint; verified under the lock
	index int
	entry entry // the backend's fact; 0: none, or torn
	torn  bool  // a concurrent move made the read unusable

	tab  *table
	seq  uint64
	word *uint64
}

// touch replaces the entry without the lock. False: the caller must take it.
func (p *place) touch(to entry, now Time) bool {
	return p.entry != 0 && int64(now) < p.shard.swept.Load() && p.tab.touch(p.word, p.seq, p.entry, to)
}

// prefetch reads a run of blocks first, because atomic instructions keep cache misses from
// overlapping.
type prefetch struct {
	places  [lookahead]place
	index   int
	fetched uint64 // unused; keeps the compiler from removing fetch's reads
}

func (a *prefetch) look(t *Tree, b Backend, chain []Hash) int {
	run := chain[:min(lookahead, len(chain))]
	a.fetch(t, run)
	a.see(b, run, 0)
	return len(run)
}

func (a *prefetch) see(b Backend, run []Hash, from int) {
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

// fetch loads slots into the CPU cache without branches, which would serialise the loads.
func (a *prefetch) fetch(t *Tree, run []Hash) {
	var any uint64
	for i, h := range run {
		s := t.shard(uint64(h))
		tb := s.tab.Load()
		any ^= tb.key(tb.home(uint64(h)))
		a.places[i].shard = s
	}
	a.fetched = any
}

// peek returns b's entry in a possibly torn span. It updates index, a hint.
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

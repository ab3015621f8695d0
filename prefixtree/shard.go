package prefixtree

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Each new fact sweeps two slots, to balance insertion; and writers sweep each shard once per
// horizon.
const (
	sweepSlots = 2
	sweepStep  = 8
)

const readSpins = 256 // only a writer that lost its CPU during a move makes so many fail

// shard is a published table, and its writer's state under mu. Lock order: ledger, then one shard.
type shard struct {
	tab atomic.Pointer[table]

	mu    sync.Mutex
	keys  int // occupied slots
	facts int // entries, including dead ones
	top   int // arena words allocated; blocks below it are in use or free-listed
	hand  uint64
	swept atomic.Int64 // when the next step of the sweep is due

	counts counters

	free [classCount]uint32 // first free arena block of each class, offset + 1; linked
	_    [80]byte           // pads to whole cache lines
}

type counters struct {
	facts, bytes                atomic.Int64
	evicted, expired, retracted atomic.Uint64
	refused, rebuilds           atomic.Uint64
}

// read returns a consistent copy, in dst if it fits.
func (s *shard) read(key uint64, dst []entry) []entry {
	for try := range readSpins {
		tb := s.tab.Load()
		seq := tb.seq.Load()
		if seq&1 != 0 {
			if try > readSpins/2 {
				runtime.Gosched()
			}
			continue
		}
		out, ok := tb.copyEntries(key, dst[:0])
		if ok && tb.seq.Load() == seq {
			return out
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out, _ := s.tab.Load().copyEntries(key, dst[:0])
	return out
}

func (tb *table) copyEntries(key uint64, dst []entry) ([]entry, bool) {
	_, v := tb.find(key)
	if v&spanTag == 0 {
		if v == 0 {
			return dst, true
		}
		return append(dst, v), true
	}
	off, n := spanOffset(v), spanCount(v)
	if off+n > len(tb.arena) {
		return dst, false
	}
	if cap(dst) < n {
		dst = make([]entry, 0, n+n/2)
	}
	dst = dst[:n]
	block := tb.arena[off : off+n]
	for i := range block {
		dst[i] = atomic.LoadUint64(&block[i])
	}
	return dst, true
}

// putLocked returns the backend's prior entry, or 0. Without room after eviction it refuses the
// fact.
func (t *Tree) putLocked(p *place, key uint64, e entry, now Time) (prior entry) {
	s := p.shard
	for range 2 {
		prior, done := t.tryPutLocked(p, key, e, now)
		if done {
			return prior
		}
		if _, v := s.tab.Load().find(key); v == 0 {
			t.rebuildLocked(s, 1, 0, now)
		} else {
			t.rebuildLocked(s, 0, holders(v)+1, now)
		}
	}
	s.counts.refused.Add(1)
	return 0
}

func (t *Tree) tryPutLocked(p *place, key uint64, e entry, now Time) (prior entry, done bool) {
	s := p.shard
	tb := s.tab.Load()
	slot, found := tb.locate(key, p.slot)
	if !found {
		if uint64(s.keys+1) > maxKeys(tb.cap) {
			return 0, false
		}
		tb.setSlot(slot, key, e)
		s.keys++
		s.facts++
		return 0, true
	}
	v := tb.value(slot)
	for i := tb.indexOf(v, entryBackend(e), p.index); i >= 0; v = tb.value(slot) {
		prior = tb.holder(v, i)
		if m := mergeEntries(prior, e); m == prior || tb.replace(slot, v, i, prior, m) {
			return prior, true
		}
	}
	n, off, class := 1, 0, -1
	if v&spanTag != 0 {
		n, off, class = spanCount(v), spanOffset(v), spanClass(v)
	} else if t.dead(v, now) && tb.replace(slot, v, 0, v, e) { // take its place
		s.counts.expired.Add(1)
		return 0, true
	}
	if class >= 0 && n < classSizes[class] {
		tb.setEntry(off, n, e)
		tb.setValue(slot, makeSpan(uint32(off), n+1, class))
		s.facts++
		return 0, true
	}
	to, ok := s.allocLocked(tb, class+1)
	if !ok {
		return 0, false
	}
	tb.beginMove() // the arena block may be reused
	for i := range n {
		tb.setEntry(to, i, tb.holder(tb.value(slot), i))
	}
	tb.setEntry(to, n, e)
	tb.setValue(slot, makeSpan(uint32(to), n+1, class+1))
	if class >= 0 {
		s.freeLocked(tb, off, class)
	}
	tb.endMove()
	s.facts++
	return 0, true
}

func (s *shard) allocLocked(tb *table, class int) (offset int, ok bool) {
	if f := s.free[class]; f != 0 {
		offset = int(f - 1)
		s.free[class] = uint32(tb.entry(offset, 0))
		return offset, true
	}
	if s.top+classSizes[class] > len(tb.arena) {
		return 0, false
	}
	offset = s.top
	s.top += classSizes[class]
	return offset, true
}

// freeLocked requires beginMove. The tag keeps a late touch from taking the link for an entry.
func (s *shard) freeLocked(tb *table, offset, class int) {
	tb.setEntry(offset, 0, spanTag|uint64(s.free[class]))
	s.free[class] = uint32(offset + 1)
}

// removeLocked returns true if it deleted the slot; another may have moved there.
func (s *shard) removeLocked(slot uint64, i int) (slotGone bool) {
	tb := s.tab.Load()
	s.facts--
	v := tb.value(slot)
	if v&spanTag == 0 {
		tb.deleteSlot(slot)
		s.keys--
		return true
	}
	off, n, class := spanOffset(v), spanCount(v), spanClass(v)
	tb.beginMove()
	defer tb.endMove()
	tb.setEntry(off, i, tb.entry(off, n-1))
	if n > 2 {
		tb.setValue(slot, makeSpan(uint32(off), n-1, class))
		return false
	}
	tb.setValue(slot, tb.entry(off, 0)) // one holder left: back into the slot
	s.freeLocked(tb, off, class)
	return false
}

func (t *Tree) tendLocked(s *shard, before int, now Time) {
	if s.facts > before {
		t.sweepLocked(s, sweepSlots, now)
	}
	if due := Time(s.swept.Load()); now >= due {
		interval := max(1, t.turn*sweepStep/Time(s.tab.Load().cap))
		s.swept.Store(int64(max(due, now-t.turn) + interval)) // idle time accumulates at most one turn
		t.sweepLocked(s, sweepStep, now)
	}
	if s.facts != before {
		s.counts.facts.Store(int64(s.facts))
	}
}

func (t *Tree) sweepLocked(s *shard, slots int, now Time) {
	tb := s.tab.Load()
	for n := 0; n < slots; {
		if s.hand >= tb.cap {
			s.hand = 0
			if t.shrinkLocked(s, now) {
				return
			}
		}
		if t.sweepSlotLocked(s, tb, s.hand, now) {
			continue
		}
		s.hand++
		n++
	}
}

func (t *Tree) sweepSlotLocked(s *shard, tb *table, slot uint64, now Time) (slotGone bool) {
	v := tb.value(slot)
	if v == 0 {
		return false
	}
	for i := holders(v) - 1; i >= 0; i-- {
		if !t.dead(tb.holder(tb.value(slot), i), now) {
			continue
		}
		s.counts.expired.Add(1)
		if s.removeLocked(slot, i) {
			return true
		}
	}
	return false
}

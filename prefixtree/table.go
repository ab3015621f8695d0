package prefixtree

import (
	"math/bits"
	"sync/atomic"
)

// table is one shard's published state: an open-addressing hash table of slots (key word, value word) and the arena of
// entries of blocks with several holders. No Go pointers inside the arrays, so the collector does not scan them.
//
// One writer at a time (the shard's lock); readers take no lock. Every word is read and written atomically. A change
// that one word publishes (a touched entry, a new slot whose value is stored before its key, an appended entry) needs
// nothing more. A change that moves words readers may be looking at (deletion, reuse of an arena block) is bracketed by
// two increments of seq; a reader retries if seq was odd or has moved. A table that has been replaced is never written
// again, so a reader still on it sees a consistent, slightly old, state.
//
// A touch takes no lock either: it swaps one entry for a later one of the same backend, provided that nothing moves from
// before the entry was found until after the swap (touch). Hence whoever holds the lock changes an entry in place only by
// swap as well, and reads what it is going to move after beginMove or freeze.
type table struct {
	seq   atomic.Uint64 // odd during a move; frozenBit once the table is being replaced
	cap   uint64        // slots; any number, home slots come from the high half of a multiplication
	slots []uint64      // 2*cap words: key, value; key 0 = empty
	arena []uint64
}

func newTable(slots, arenaWords int) *table {
	tb := &table{slots: makeWords(2 * slots)}
	tb.slots = tb.slots[:len(tb.slots)&^1]
	tb.cap = uint64(len(tb.slots) / 2)
	if arenaWords > 0 {
		tb.arena = makeWords(arenaWords)
	}
	return tb
}

// makeWords returns at least n zero words, using up what the allocator's size class would otherwise waste.
func makeWords(n int) []uint64 {
	w := append([]uint64(nil), make([]uint64, n)...)
	return w[:cap(w)]
}

func (tb *table) bytes() int64 { return int64(len(tb.slots)+len(tb.arena)) * 8 }

// home is monotone in the key's high bits; shards are chosen by the low ones.
func (tb *table) home(key uint64) uint64 {
	hi, _ := bits.Mul64(key, tb.cap)
	return hi
}

func (tb *table) key(i uint64) uint64   { return atomic.LoadUint64(&tb.slots[2*i]) }
func (tb *table) value(i uint64) uint64 { return atomic.LoadUint64(&tb.slots[2*i+1]) }

// replaceValue is setValue unless a touch has come in between.
func (tb *table) replaceValue(i, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(&tb.slots[2*i+1], old, v)
}

func (tb *table) setValue(i, v uint64) { atomic.StoreUint64(&tb.slots[2*i+1], v) }

// setSlot publishes a slot: the value first, for a reader trusts the value of any slot whose key it has seen.
func (tb *table) setSlot(i, key, v uint64) {
	atomic.StoreUint64(&tb.slots[2*i+1], v)
	atomic.StoreUint64(&tb.slots[2*i], key)
}

// clearSlot empties a slot; only between beginMove and endMove.
func (tb *table) clearSlot(i uint64) {
	atomic.StoreUint64(&tb.slots[2*i], 0)
	atomic.StoreUint64(&tb.slots[2*i+1], 0)
}

func (tb *table) beginMove() { tb.seq.Add(1) }
func (tb *table) endMove()   { tb.seq.Add(1) }

const frozenBit = 1 << 63

// freeze makes touches go through the lock from now on.
func (tb *table) freeze() { tb.seq.Or(frozenBit) }

// touch swaps the entry in a word of the table for a later one of the same block and backend. seq is what it was before the
// word was found to hold that entry. It reports false if something may have moved since; the swap may then have hit
// an equal entry of another block, which does no harm but to make that look younger, or have been lost.
func (tb *table) touch(word *uint64, seq uint64, from, to entry) bool {
	return seq&(frozenBit|1) == 0 && tb.seq.Load() == seq &&
		atomic.CompareAndSwapUint64(word, from, to) && tb.seq.Load() == seq
}

// find returns the slot of key and the value in it, or the empty slot where the key would go and 0. The bound on the walk
// matters only to a reader racing with deletions; a table always has an empty slot.
func (tb *table) find(key uint64) (slot, v uint64) {
	slots := tb.slots
	i := tb.home(key)
	for range tb.cap {
		k := atomic.LoadUint64(&slots[2*i])
		if k == key {
			return i, atomic.LoadUint64(&slots[2*i+1])
		}
		if k == 0 {
			return i, 0
		}
		if i++; i == tb.cap {
			i = 0
		}
	}
	return 0, 0
}

// locate returns the slot of key, or the empty slot where it would go and false. hint, any number, is tried first. Writer
// only.
func (tb *table) locate(key, hint uint64) (slot uint64, found bool) {
	if hint < tb.cap && tb.key(hint) == key {
		return hint, true
	}
	slot, _ = tb.find(key)
	return slot, tb.key(slot) == key
}

// deleteSlot empties slot i and closes the gap by moving later members of the cluster back, so that there are no
// tombstones. Writer only; brackets itself.
func (tb *table) deleteSlot(i uint64) {
	tb.beginMove()
	defer tb.endMove()
	j := i
	for {
		if j++; j == tb.cap {
			j = 0
		}
		k := tb.key(j)
		if k == 0 {
			break
		}
		// The member at j may move to i if its home is not cyclically inside (i, j].
		if tb.distance(tb.home(k), j) >= tb.distance(i, j) {
			tb.setSlot(i, k, tb.value(j))
			i = j
		}
	}
	tb.clearSlot(i)
}

func (tb *table) distance(from, to uint64) uint64 {
	if to >= from {
		return to - from
	}
	return to + tb.cap - from
}

func (tb *table) entry(offset, i int) entry       { return atomic.LoadUint64(&tb.arena[offset+i]) }
func (tb *table) setEntry(offset, i int, e entry) { atomic.StoreUint64(&tb.arena[offset+i], e) }

// replaceEntry is setEntry unless a touch has come in between.
func (tb *table) replaceEntry(offset, i int, old, e entry) bool {
	return atomic.CompareAndSwapUint64(&tb.arena[offset+i], old, e)
}

// indexOf returns the place of b among the entries of s, or -1. hint is tried first: neighbouring blocks of a chain were
// mostly recorded by the same backends in the same order, which spares the scan of widely held blocks.
func (tb *table) indexOf(s span, b Backend, hint int) int {
	off, n := spanOffset(s), spanCount(s)
	if hint < n && entryBackend(tb.entry(off, hint)) == b {
		return hint
	}
	for i := range n {
		if entryBackend(tb.entry(off, i)) == b {
			return i
		}
	}
	return -1
}

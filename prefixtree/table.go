package prefixtree

import (
	"math/bits"
	"sync/atomic"
)

// table is an open-addressing hash table of slots and the arena of entries of blocks with several
// holders, without pointers for the garbage collector.
//
// One writer holds the shard's lock; readers take none, and all words are atomic. A change that
// moves words increments seq before and after; readers retry if it was odd or changed. A touch
// swaps an entry without the lock, so the writer changes entries in place by swap too, and reads
// what it moves after beginMove or freeze.
type table struct {
	seq   atomic.Uint64 // odd during a move; frozenBit once the table is being replaced
	cap   uint64
	slots []uint64 // 2*cap words: key, value; key 0: empty
	arena []uint64
}

func newTable(slots, arenaWords int) *table {
	tb := &table{slots: makeWords(2 * slots)}
	tb.slots = tb.slots[:len(tb.slots)&^1]
	tb.cap = uint64(len(tb.slots) / 2)
	tb.arena = makeWords(arenaWords)
	return tb
}

func makeWords(n int) []uint64 {
	w := append([]uint64(nil), make([]uint64, n)...)
	return w[:cap(w)]
}

func (tb *table) bytes() int64 { return int64(len(tb.slots)+len(tb.arena)) * 8 }

// home uses the key's high bits; shards use the low ones.
func (tb *table) home(key uint64) uint64 {
	hi, _ := bits.Mul64(key, tb.cap)
	return hi
}

func (tb *table) key(i uint64) uint64   { return atomic.LoadUint64(&tb.slots[2*i]) }
func (tb *table) value(i uint64) uint64 { return atomic.LoadUint64(&tb.slots[2*i+1]) }

func (tb *table) setValue(i, v uint64) { atomic.StoreUint64(&tb.slots[2*i+1], v) }

// setSlot stores the value first: readers trust the value of a key that they see.
func (tb *table) setSlot(i, key, v uint64) {
	atomic.StoreUint64(&tb.slots[2*i+1], v)
	atomic.StoreUint64(&tb.slots[2*i], key)
}

func (tb *table) beginMove() { tb.seq.Add(1) }
func (tb *table) endMove()   { tb.seq.Add(1) }

const frozenBit = 1 << 63

// freeze makes all later touches fail, so that they take the lock.
func (tb *table) freeze() { tb.seq.Or(frozenBit) }

// touch swaps the entry; seq was read before it. False: something may have moved, and the swap was
// lost or hit an equal entry of another block, which only looks younger.
func (tb *table) touch(word *uint64, seq uint64, from, to entry) bool {
	return seq&(frozenBit|1) == 0 && tb.seq.Load() == seq &&
		atomic.CompareAndSwapUint64(word, from, to) && tb.seq.Load() == seq
}

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

// locate returns the slot of key, or the empty slot for it. Writer only.
func (tb *table) locate(key, hint uint64) (slot uint64, found bool) {
	if hint < tb.cap && tb.key(hint) == key {
		return hint, true
	}
	slot, _ = tb.find(key)
	return slot, tb.key(slot) == key
}

// deleteSlot moves later members of the cluster back instead of leaving a tombstone.
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
	atomic.StoreUint64(&tb.slots[2*i], 0)
	tb.setValue(i, 0)
}

func (tb *table) distance(from, to uint64) uint64 {
	if to >= from {
		return to - from
	}
	return to + tb.cap - from
}

func (tb *table) entry(offset, i int) entry       { return atomic.LoadUint64(&tb.arena[offset+i]) }
func (tb *table) setEntry(offset, i int, e entry) { atomic.StoreUint64(&tb.arena[offset+i], e) }

// holders counts the entries of a slot's value, which is one entry or a span.
func holders(v uint64) int {
	if v&spanTag == 0 {
		return 1
	}
	return spanCount(v)
}

func (tb *table) holder(v uint64, i int) entry {
	if v&spanTag == 0 {
		return v
	}
	return tb.entry(spanOffset(v), i)
}

// replace swaps entry i of the slot with value v; false: a touch came first.
func (tb *table) replace(slot, v uint64, i int, old, e entry) bool {
	word := &tb.slots[2*slot+1]
	if v&spanTag != 0 {
		word = &tb.arena[spanOffset(v)+i]
	}
	return atomic.CompareAndSwapUint64(word, old, e)
}

// indexOf returns the index of b's entry, or -1. It tries hint first: neighbouring blocks mostly
// have the same holders.
func (tb *table) indexOf(v uint64, b Backend, hint int) int {
	if v&spanTag == 0 {
		if entryBackend(v) == b {
			return 0
		}
		return -1
	}
	off, n := spanOffset(v), spanCount(v)
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

package ledger

import (
	"math/bits"
	"slices"

	"grapevine.example/proxy/engine/events"
)

// blockID is an index of blocks.entries; root stands before the first block of every prompt.
type blockID uint32

const root blockID = 0

// block takes 16 bytes, and 5 of the index and a bit of there.
type block struct {
	hash   uint64 // the engine's
	parent blockID
	// state: bits 0-19 depth, 1 for the first block of a prompt; 20-24 copies on the GPU; 25-27 in CPU memory; 28-30 on disk;
	// 31 proven.
	state uint32
}

const (
	depthBits = 20
	maxDepth  = 1<<depthBits - 1
	proven    = 1 << 31 // the engine used, stored or removed the block after the stream's last gap
)

var counts = [...]struct{ shift, most uint32 }{
	events.GPU: {depthBits, 31}, events.CPU: {depthBits + 5, 7}, events.Disk: {depthBits + 8, 7},
}

func (b *block) depth() int { return int(b.state & maxDepth) }

// resident reports whether any tier has a copy.
func (b *block) resident() bool { return b.state&^proven > maxDepth }

func (b *block) copies(t events.Tier) uint32 { return b.state >> counts[t].shift & counts[t].most }

// blocks finds an engine's blocks by hash. A block without a copy stays as a tombstone while others name it as their parent, so
// that a chain leads to what is left of it. A sweep frees the other tombstones.
type blocks struct {
	entries []block  // the first one is the root
	there   []uint64 // a bit for each entry with a copy
	index   index    // of entries
	unused  blockID  // first of the freed entries, linked by parent; their depth is 0
	held    int      // entries with a copy
	dead    int      // tombstones
	sweepAt int      // tombstones that make a sweep worth its time
	most    int      // entries
}

const (
	leastBlocks = 1 << 10
	sweepShare  = 16                // a sweep frees about this part of all entries
	mostBlocks  = 1 << (idBits - 1) // and the tombstones
)

func newBlocks(limit int, seed uint64) blocks {
	limit = min(limit, mostBlocks)
	b := blocks{most: limit + 2*limit/sweepShare, entries: make([]block, 1), index: index{seed: seed}}
	b.enlarge(min(leastBlocks, b.most))
	return b
}

func (b block) key() uint64 { return b.hash }

func (b *blocks) find(hash uint64) (id blockID, found bool) {
	i, _, found := seek(&b.index, b.entries, hash)
	return blockID(i), found
}

// findAbove looks at the parent of a block first.
func (b *blocks) findAbove(below blockID, hash uint64) (id blockID, found bool) {
	if int(below) < len(b.entries) {
		if id = b.entries[below].parent; b.entries[id].hash == hash && b.entries[id].depth() > 0 {
			return id, true
		}
	}
	return b.find(hash)
}

func (b *blocks) at(id blockID) *block { return &b.entries[id] }

// resident reports whether a block has a copy, without reading it.
func (b *blocks) resident(id blockID) bool { return b.there[id/64]>>(id%64)&1 != 0 }

// insert adds a tombstone that the index does not have, where the search for it ended. It fails at the limit, and if full.
func (b *blocks) insert(s search, hash uint64, parent blockID, depth int) (id blockID, ok bool) {
	if id = b.unused; id == root {
		id = blockID(len(b.entries))
	}
	if depth > maxDepth || b.full() || !b.index.put(s, uint32(id)) {
		return root, false
	}
	if b.unused == root {
		b.entries = b.entries[:id+1]
	} else {
		b.unused = b.entries[id].parent
	}
	b.entries[id] = block{hash: hash, parent: parent, state: uint32(depth)}
	b.dead++
	return id, true
}

func (b *blocks) setCopies(id blockID, t events.Tier, n uint32) {
	e, c := &b.entries[id], counts[t]
	was := e.resident()
	e.state = e.state&^(c.most<<c.shift) | min(n, c.most)<<c.shift
	switch is := e.resident(); {
	case is && !was:
		b.held, b.dead = b.held+1, b.dead-1
		b.there[id/64] |= 1 << (id % 64)
	case was && !is:
		b.held, b.dead = b.held-1, b.dead+1
		b.there[id/64] &^= 1 << (id % 64)
	}
}

// left returns the deepest block with a copy on the chain down to id, and whether the block below is known to be gone.
func (b *blocks) left(id blockID) (left blockID, sure bool) {
	for sure = true; id != root && !b.entries[id].resident(); id = b.entries[id].parent {
		sure = b.entries[id].state&proven != 0
	}
	return id, sure
}

// above returns the block at that depth of the chain down to id, or the last one below that the chain has.
func (b *blocks) above(id blockID, depth int) blockID {
	for b.entries[id].depth() > depth && b.entries[id].parent != root {
		id = b.entries[id].parent
	}
	if depth == 0 {
		return root
	}
	return id
}

// prove notes that the engine has just used id on its GPU, hence the whole chain.
func (b *blocks) prove(id blockID) {
	for ; id != root; id = b.entries[id].parent {
		e := &b.entries[id]
		if e.state&proven != 0 && e.resident() {
			return // so is the rest of the chain
		}
		e.state |= proven
		if e.copies(events.GPU) == 0 {
			b.setCopies(id, events.GPU, 1)
		}
	}
}

func (b *blocks) doubtAll() {
	for i := range b.entries {
		b.entries[i].state &^= proven
	}
}

// dropDoubted makes tombstones of the blocks that are not proven, for lack of room.
func (b *blocks) dropDoubted() {
	for id := range b.entries {
		if e := &b.entries[id]; e.state&proven == 0 && e.resident() {
			for t := range counts {
				b.setCopies(blockID(id), events.Tier(t), 0)
			}
		}
	}
}

// full reports whether a new block needs more memory or a sweep.
func (b *blocks) full() bool { return b.unused == root && len(b.entries) == cap(b.entries) }

// sweepable reports whether to sweep a full table. The caller then moves its references to blocks that are left.
func (b *blocks) sweepable() bool { return b.dead >= b.sweepAt }

// enlarge makes room for so many entries, at most the limit, and indexes all.
func (b *blocks) enlarge(capacity int) {
	capacity = min(capacity, b.most)
	b.entries = append(make([]block, 0, capacity+1), b.entries...)
	b.there = append(make([]uint64, 0, capacity/64+1), b.there...)[:capacity/64+1]
	b.sweepAt = b.dead + capacity/sweepShare
	b.index.enlarge(capacity, func(yield func(uint64, uint32) bool) {
		for id := range b.entries {
			if e := &b.entries[id]; e.depth() > 0 && !yield(e.hash, uint32(id)) {
				return
			}
		}
	})
}

// sweep frees the tombstones of a full table that are no parent, at any distance, of a block with a copy.
func (b *blocks) sweep() {
	named := slices.Clone(b.there)
	named[0] |= 1 // the root
	for w, set := range b.there {
		for ; set != 0; set &= set - 1 {
			at := b.entries[64*w+bits.TrailingZeros64(set)].parent
			for ; named[at/64]>>(at%64)&1 == 0; at = b.entries[at].parent {
				named[at/64] |= 1 << (at % 64)
			}
		}
	}
	var hashes [64]uint64
	for w, set := range named {
		n := 0
		for free := ^set; free != 0; free &= free - 1 {
			if id := 64*w + bits.TrailingZeros64(free); id < len(b.entries) {
				hashes[n] = b.entries[id].hash
				n++
			}
		}
		b.index.fetch(hashes[:n]...)
		for free := ^set; n > 0; free &= free - 1 {
			id := blockID(64*w + bits.TrailingZeros64(free))
			b.index.remove(b.entries[id].hash, uint32(id))
			b.entries[id] = block{parent: b.unused}
			b.unused = id
			b.dead--
			n--
		}
	}
	b.sweepAt = b.dead + cap(b.entries)/sweepShare
}

// makeRoom reports whether there is room for a new block. A sweep calls keep before.
func (b *blocks) makeRoom(keep func()) bool {
	if b.full() && b.sweepable() {
		keep()
		b.sweep()
	}
	if b.full() && cap(b.entries) <= b.most {
		b.enlarge(cap(b.entries) + cap(b.entries)/4)
	}
	return !b.full()
}

package ledger

import (
	"math/bits"

	"grapevine.example/proxy/engine/events"
)

// blockID is an index of blocks.entries; root stands before the first block of every prompt.
type blockID uint32

const root blockID = 0

// block takes 16 bytes, and 5 of the index.
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
	index   []uint32 // open addressing: a blockID in the lower idBits and a part of its hash above, which spares looks at entries; 0: free
	seed    uint64   // hashes come from outside
	unused  blockID  // first of the freed entries, linked by parent; their depth is 0
	held    int      // entries with a copy
	dead    int      // tombstones
	sweepAt int      // tombstones that make a sweep worth its time
	most    int      // entries
}

const (
	leastBlocks = 1 << 10
	sweepShare  = 16 // a sweep frees about this part of all entries, so it costs a block about 100 ns

	idBits     = 21
	idMask     = 1<<idBits - 1
	mostBlocks = 1 << (idBits - 1) // and the tombstones
)

func newBlocks(limit int, seed uint64) blocks {
	limit = min(limit, mostBlocks)
	b := blocks{seed: seed, most: limit + 2*limit/sweepShare, entries: make([]block, 1)}
	b.enlarge(min(leastBlocks, b.most))
	return b
}

// place returns where the index has a hash, or the free place for it, and the part of the hash that stands there.
func (b *blocks) place(hash uint64) (at int, part uint32) {
	hi, lo := bits.Mul64(hash^b.seed, 0x9e3779b97f4a7c15)
	home, _ := bits.Mul64(hi^lo, uint64(len(b.index)))
	at, part = int(home), uint32(hi^lo)&^idMask
	for e := b.index[at]; e != 0 && (e>>idBits != part>>idBits || b.entries[e&idMask].hash != hash); e = b.index[at] {
		if at++; at == len(b.index) {
			at = 0
		}
	}
	return at, part
}

func (b *blocks) find(hash uint64) (id blockID, found bool) {
	at, _ := b.place(hash)
	id = blockID(b.index[at] & idMask)
	return id, id != root
}

func (b *blocks) at(id blockID) *block { return &b.entries[id] }

// insert adds a tombstone that the index does not have. It fails at the limit, and if full.
func (b *blocks) insert(hash uint64, parent blockID, depth int) (id blockID, ok bool) {
	switch id = b.unused; {
	case depth > maxDepth || b.full():
		return root, false
	case id != root:
		b.unused = b.entries[id].parent
	default:
		id = blockID(len(b.entries))
		b.entries = b.entries[:id+1]
	}
	b.entries[id] = block{hash: hash, parent: parent, state: uint32(depth)}
	b.indexAs(id)
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
	case was && !is:
		b.held, b.dead = b.held-1, b.dead+1
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
	b.index = make([]uint32, capacity+capacity/4+1)
	b.sweepAt = b.dead + capacity/sweepShare
	b.reindex()
}

func (b *blocks) indexAs(id blockID) {
	at, part := b.place(b.entries[id].hash)
	b.index[at] = part | uint32(id)
}

func (b *blocks) reindex() {
	for id := 1; id < len(b.entries); id++ {
		if b.entries[id].depth() > 0 {
			b.indexAs(blockID(id))
		}
	}
}

// sweep frees the tombstones that are no parent, at any distance, of a block with a copy.
func (b *blocks) sweep() {
	named := make([]uint64, len(b.entries)/64+1)
	for id := range b.entries {
		if !b.entries[id].resident() {
			continue
		}
		for at := blockID(id); at != root && named[at/64]>>(at%64)&1 == 0; at = b.entries[at].parent {
			named[at/64] |= 1 << (at % 64)
		}
	}
	for id := 1; id < len(b.entries); id++ {
		if e := &b.entries[id]; e.depth() > 0 && named[id/64]>>(id%64)&1 == 0 {
			*e = block{parent: b.unused}
			b.unused = blockID(id)
			b.dead--
		}
	}
	clear(b.index)
	b.reindex()
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

// Package ledger follows which KV blocks an engine holds, by its stream of cache events, and says how many tokens of a prompt
// that is. It needs no tokenizer: the router stamps its requests, the engine names the stamp with the blocks that the request
// stored, and the ends of prompts and messages become places in the engine's chains of blocks. See DESIGN.md.
//
// It is pure: no clock, goroutine or I/O.
package ledger

import (
	"sync"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

const (
	defaultBlocks = 1 << 17 // 2M tokens in blocks of 16: 3 MB
	leastPoints   = 1 << 12 // and one per block
	mostBlockSize = 1 << 14 // tokens
	movedShare    = 2       // of the points may be ends whose blocks are gone

	// seesAnswers: the share of answers that came back as whole blocks of the next prompt, above which the next one is expected to.
	seesAnswers  = 0.5
	answersSteps = 0.2

	perByteSteps   = 0.2
	prefilledShare = 0.75 // of an estimate, which differs with the text
)

// Prompt is what the router knows of a prompt's text.
type Prompt struct {
	Blocks     []prefixtree.Hash // of its full blocks, root first
	Marks      []prefixtree.Mark // the ends of its messages in order, the last one its own end; at least that
	BlockBytes int
}

func (q *Prompt) bytes() int { return q.Marks[len(q.Marks)-1].Bytes }

// Config configures a Ledger.
type Config struct {
	Stamps     *Stamps
	BlockBytes int    // of a block of text
	Blocks     int    // KV blocks of the engine on all tiers; 0: unknown, 131,072. Blocks beyond are refused.
	Seed       uint64 // of the hash table, since engines choose the hashes
	Links      *Links // that all ledgers of the node share; nil: none
	Engine     prefixtree.Backend
}

// Ledger is the account of one engine rank. It implements events.Sink. Safe for concurrent use.
type Ledger struct {
	cfg Config

	mu      sync.Mutex
	blocks  blocks
	points  points
	trails  trails
	placed  placed
	size    int // tokens per block: the largest seen; 0: none yet
	group   int32
	state   events.State
	lower   bool    // a tier below the GPU was named
	answers float64 // see seesAnswers
	perByte float64 // tokens of a byte of prompt
	// together: the engine stores all blocks of an answer at its end.
	together bool
	// removedLast is the block that an event removed last: engines evict from the ends of chains, and name its parent next.
	removedLast blockID
	touched     []*trail
	knots       []knot  // scratch
	fresh       []point // scratch
	stats       Stats
}

// Stats are totals since New, except Blocks, Points and Early.
type Stats struct {
	Blocks, Points int
	Linked         uint64 // requests whose prompts were placed in a chain of blocks
	Foreign        uint64 // stored events without a stamp of this fleet
	Orphans        uint64 // blocks stored below blocks that are unknown: cached before the stream began, or lost
	Refused        uint64 // blocks beyond the limit
	Agreed         uint64 // answers whose count of cached tokens is the stream's
	Contradicted   uint64 // answers whose count of cached tokens is another
	Corrected      uint64 // chains that the engine did not find although no event removed them: lost events
	Unmatched      uint64 // removals of unknown blocks
	Early          int    // answers since the last batch that came before any event of their request, although it stored blocks
}

var _ events.Sink = (*Ledger)(nil)

// New returns a ledger that knows nothing.
func New(cfg Config) *Ledger {
	if cfg.Blocks <= 0 {
		cfg.Blocks = defaultBlocks
	}
	l := &Ledger{cfg: cfg, state: events.Down, group: -1, answers: 1, trails: newTrails(), points: newPoints(leastPoints+min(cfg.Blocks, mostBlocks), cfg.Seed)}
	l.forgetAll(0)
	return l
}

// forgetAll forgets the blocks. Where texts end and branch is the model's, so the places stay, flagged.
func (l *Ledger) forgetAll(flag uint32) {
	l.blocks = newBlocks(l.cfg.Blocks, l.cfg.Seed)
	for i := range l.points.all {
		if p := &l.points.all[i]; p.is(isEnd | isExact) {
			p.setBlock(root)
			p.want = p.want&^(isText|isTorn) | flag
		} else if p.hash != 0 {
			l.points.drop(i)
		}
	}
	l.trails.forgetBegun()
	l.touched = l.touched[:0]
	l.lower = false
}

// Reset forgets all blocks and places: the engine restarted, or too much of the stream is lost.
func (l *Ledger) Reset(string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetAll(isTorn)
	l.size, l.group = 0, -1
}

// State notes how far the stream can be trusted. Once batches are lost, a block is uncertain until the engine uses it again.
func (l *Ledger) State(s events.State, _ string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == events.Degraded {
		l.keep()
		l.blocks.doubtAll()
		for i := range l.points.all {
			if p := &l.points.all[i]; l.blocks.at(p.block()).depth() < p.depth() {
				p.want |= isTorn
			}
		}
	}
	l.state = s
}

// Stats returns the counters.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.stats
	st.Blocks, st.Points = l.blocks.held, l.points.used()
	return st
}

// Batch applies one batch of events.
func (l *Ledger) Batch(batch []events.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Early = 0
	for i := range batch {
		switch e := &batch[i]; {
		case e.Kind == events.Cleared:
			l.forgetAll(0)
		case l.passesOver(e):
		case e.Kind == events.Stored:
			l.stored(e)
		case e.Kind == events.Removed:
			l.removed(e)
		}
	}
	for _, t := range l.touched {
		t.touched = false
		if t.linked == t.end {
			l.answer(t)
		} else {
			l.link(t)
		}
	}
	clear(l.touched)
	l.touched = l.touched[:0]
}

// passesOver reports whether an event is about a group other than the first one, which holds the same blocks, or about a
// partial block, which no prompt finds.
func (l *Ledger) passesOver(e *events.Event) bool {
	stored := e.Kind == events.Stored && e.Tier == events.GPU // placeholders of lower tiers have no block size
	switch {
	case stored && (e.BlockSize <= 0 || e.BlockSize > mostBlockSize):
		return true
	case stored && l.group < 0:
		l.group = e.Group
	case e.Group != l.group:
		return true
	}
	if stored && e.BlockSize > l.size {
		if l.size != 0 {
			l.forgetAll(isTorn) // the blocks before were partial ones
		}
		l.size = e.BlockSize
	}
	return stored && e.BlockSize < l.size
}

func (l *Ledger) removed(e *events.Event) {
	for _, h := range e.Hashes {
		id, ok := l.blocks.findAbove(l.removedLast, h)
		n := uint32(0)
		if ok {
			l.removedLast = id
			n = l.blocks.at(id).copies(e.Tier)
		}
		if n == 0 {
			l.stats.Unmatched++
			continue
		}
		if l.blocks.setCopies(id, e.Tier, n-1); !l.blocks.at(id).resident() {
			l.blocks.at(id).state |= proven
		}
	}
}

func (l *Ledger) stored(e *events.Event) {
	if len(e.Hashes) == 0 {
		return
	}
	parent, known := root, true
	if e.HasParent {
		parent, known = l.blocks.find(e.Parent)
	}
	if e.Tier != events.GPU {
		l.storedBelow(e, parent, known)
		return
	}
	t := l.trailOf(e.Session)
	if !known {
		l.stats.Orphans += uint64(len(e.Hashes))
		if t != nil && t.from < 0 {
			t.orphan(e)
			l.adopt(t)
		} else if t != nil {
			l.tear(t)
		}
		return
	}
	l.grow(t, parent, e.Hashes)
}

// grow adds blocks that a request computed below parent.
func (l *Ledger) grow(t *trail, parent blockID, hashes []uint64) {
	l.blocks.prove(parent)
	if t != nil && t.from < 0 {
		l.hit(t, parent)
		if t.cached == t.from*l.size {
			t.torn = false // the answer was faster than the events, of which none is lost so far
		}
	}
	l.blocks.index.fetch(hashes...)
	for _, h := range hashes {
		id, ok := l.add(h, parent)
		if !ok {
			l.stats.Refused++
			return
		}
		n := l.blocks.at(id).copies(events.GPU)
		if l.blocks.at(id).state&proven == 0 {
			n = 0 // its removal was perhaps lost
		}
		l.blocks.setCopies(id, events.GPU, n+1)
		l.blocks.prove(id)
		parent = id
	}
	if t != nil {
		l.grown(t, parent, len(hashes))
		l.touch(t)
	}
}

// add returns the block of a hash. A new one needs room, for which its parent is perhaps given up; then, and at the limit, it fails.
func (l *Ledger) add(hash uint64, parent blockID) (id blockID, ok bool) {
	i, s, known := seek(&l.blocks.index, l.blocks.entries, hash)
	if known {
		return blockID(i), true
	}
	if l.blocks.full() {
		if !l.blocks.makeRoom(l.keep) {
			l.blocks.dropDoubted()
			if !l.blocks.makeRoom(l.keep) {
				return root, false
			}
		}
		if parent != root && l.blocks.at(parent).depth() == 0 {
			return root, false
		}
		_, s, _ = seek(&l.blocks.index, l.blocks.entries, hash)
	}
	return l.blocks.insert(s, hash, parent, l.blocks.at(parent).depth()+1)
}

// storedBelow notes copies on a lower tier. They carry no stamp, and often no parent.
func (l *Ledger) storedBelow(e *events.Event, parent blockID, known bool) {
	l.lower = true
	for _, h := range e.Hashes {
		id, ok := l.blocks.find(h)
		if !ok && known && e.HasParent {
			id, ok = l.add(h, parent)
		}
		if !ok {
			l.stats.Orphans++
			known = false
			continue
		}
		l.blocks.setCopies(id, e.Tier, l.blocks.at(id).copies(e.Tier)+1)
		parent = id
	}
}

// keep moves the references to blocks that a sweep may free.
func (l *Ledger) keep() {
	for i := range l.points.all {
		p := &l.points.all[i]
		if l.blocks.resident(p.block()) {
			continue
		}
		left, sure := l.blocks.left(p.block())
		if p.move(left); !sure {
			p.want |= isTorn
		}
	}
	for _, t := range l.trails.byID {
		t.tail, _ = l.blocks.left(t.tail)
	}
}

// left returns what is left of the chain down to a point, and whether that is known. A chain that the engine computed again is
// found by its last block.
func (l *Ledger) left(p *point) (id blockID, sure bool) {
	if l.blocks.at(p.block()).hash != p.engine || p.block() == root {
		if back, ok := l.blocks.find(p.engine); ok && l.blocks.resident(back) {
			p.setBlock(back)
			p.want &^= isTorn
		}
	}
	id, sure = l.blocks.left(p.block())
	return id, sure && !p.is(isTorn)
}

// Gone appends the blocks of texts that the engine no longer holds. It passes over each in the first calls, as many as pass says, lists
// it in so many calls in a row, and then forgets it: the tree keeps placements that are too young to be of before the eviction, and Held
// must know until then that they are gone.
// Its cost grows with the number of places: a tenth of a millisecond for 16,000.
func (l *Ledger) Gone(dst []prefixtree.Hash, pass, calls int) []prefixtree.Hash {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == events.Down {
		return dst
	}
	moved := 0
	for i := range l.points.all {
		p := &l.points.all[i]
		if l.blocks.resident(p.block()) && !p.moved() && !p.is(isTorn) && l.blocks.at(p.block()).depth() >= p.depth() {
			if p.lookedAt() > 0 {
				p.setLooked(0)
			}
			continue
		}
		if p.hash == 0 {
			continue
		}
		var id blockID
		sure := false
		if p.is(isText) {
			id, sure = l.left(p)
		} else { // only how many are gone counts
			id, _ = l.blocks.left(p.block())
		}
		if l.blocks.at(id).depth() >= p.depth() {
			p.setLooked(0)
			continue
		}
		if p.is(isText) {
			if !sure {
				continue
			}
			n := pass + calls // an end has no room for the number of calls
			if !p.is(isEnd) {
				n = p.lookedAt() + 1
			}
			if n > pass {
				dst = append(dst, p.hash)
			}
			if n < pass+calls {
				p.setLooked(n)
				continue
			}
			p.setLooked(0)
			p.want &^= isText
		}
		// The place of an end or a branch in the text stays known, unless too many are.
		if moved++; !p.is(isEnd|isExact) || l.points.moved > l.points.used()/movedShare {
			l.points.drop(i)
			moved--
			l.points.moved--
		}
	}
	l.points.moved = moved
	return dst
}

// Held is what the engine holds of a prompt.
type Held struct {
	Tokens int // of the prompt, from its start
	// Below are the tokens of these that only CPU memory or a disk hold.
	Below [events.Disk + 1]int
	// Known says that the events tell it, to a KV block. Otherwise the other fields are 0.
	Known bool
}

// Held returns what the engine holds of a prompt of which the prefix tree believes it to hold so many blocks.
func (l *Ledger) Held(q *Prompt, blocks int) (h Held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size == 0 || l.state == events.Down {
		return Held{}
	}
	id, known := l.deepest(q, blocks)
	if !known || id != root && l.blocks.at(id).state&proven == 0 {
		return Held{}
	}
	h.Known, h.Tokens = true, l.blocks.at(id).depth()*l.size
	for ; l.lower && id != root && l.blocks.at(id).copies(events.GPU) == 0; id = l.blocks.at(id).parent {
		if l.blocks.at(id).copies(events.CPU) > 0 {
			h.Below[events.CPU] += l.size
		} else {
			h.Below[events.Disk] += l.size
		}
	}
	return h
}

const (
	lookedUp     = 16 // marks and blocks; a prompt's last turns
	unseenBlocks = 4  // between two anchors, which are all that other nodes tell
)

// deepest returns the deepest block that the engine has of a prompt. A point above which blocks are gone tells only what is left
// of one chain: another one of the same text may have come back, which a shallower point tells.
func (l *Ledger) deepest(q *Prompt, blocks int) (id blockID, known bool) {
	whole, seen, unsure := 0, 0, false // bytes up to the deepest point whose blocks are there, or which is known to be gone
	see := func(h prefixtree.Hash, bytes int, text bool) {
		p := l.find(h)
		if p == nil {
			return
		}
		left, sure := l.left(p)
		known, unsure = true, unsure || !sure
		if l.blocks.at(left).depth() >= p.depth() {
			whole, seen = max(whole, bytes), max(seen, bytes)
		} else if text {
			seen = max(seen, bytes)
		}
		at := l.blocks.above(left, l.reach(p, bytes == q.bytes()))
		if l.blocks.at(at).depth() > l.blocks.at(id).depth() {
			id = at
		}
	}
	for i := len(q.Marks) - 1; i >= max(0, len(q.Marks)-lookedUp) && whole == 0; i-- {
		see(q.Marks[i].Hash, q.Marks[i].Bytes, false)
	}
	blocks = min(blocks, len(q.Blocks))
	for i := blocks; i > max(0, blocks-lookedUp) && i*q.BlockBytes > whole; i-- {
		see(q.Blocks[i-1], i*q.BlockBytes, true)
	}
	// What else was placed there is on its way, or its events are lost.
	return id, known && !unsure && seen+unseenBlocks*q.BlockBytes >= blocks*q.BlockBytes
}

// reach returns the depth to which a prompt shares the chain of its deepest known point.
func (l *Ledger) reach(p *point, itself bool) int {
	switch {
	case itself && p.is(isWhole):
		return max(0, p.depth()-1)
	case itself || !p.is(isEnd) || l.answers < seesAnswers:
		return p.depth()
	}
	return maxDepth
}

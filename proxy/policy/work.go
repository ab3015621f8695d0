package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"grapevine/prefixtree"
)

// Work is what one node lately gave the backends of a pool to do for the prompts that begin with a popular prefix, the prefix itself
// not counted: what remains to be done however many backends hold it. A prompt counts for the deepest of its popular
// prefixes. Sums over nodes are lower bounds of the fleet's work. With an anchor of 0 it is all the work of the pool.
type Work struct {
	Pool     uint64
	Anchor   prefixtree.Hash
	Tokens   float64 // of prompt up to the anchor
	Requests float64 // a second
	Fresh    float64 // of these, such as go on with no prompt that is known: the others go where that one is held
	Prefill  float64 // prefill seconds a second
	Active   float64 // requests at once
}

const (
	// workWindow is the memory of the work in seconds: short, so that a prefix that becomes hot has its backends within seconds.
	workWindow = 10.0
	// workStart is the least time in seconds that work is taken to have come in.
	workStart = 1.0
	// workAnchors bounds the prefixes whose work is known, of each pool. No more than twice as many as there are backends can be
	// popular, and few of those are worth a replica set.
	workAnchors = 128
	// workTold bounds those that are told.
	workTold = 64
	// leastWork is the prefill seconds a second below which, and the active requests below which, the work of a prefix is not told.
	leastWork, leastWorkActive = 0.005, 1
)

// workMeter knows the work of one pool by prefix: SpaceSaving by requests, with exponential decay by the time parameter. What
// it says of a prefix is counted since the prefix took its place over, so that it is a lower bound. Safe for concurrent use.
type workMeter struct {
	mu    sync.Mutex
	index map[prefixtree.Hash]*prefixWork
	list  []prefixWork // never moves: requests hold places
	all   decayedWork
	alike beginnings
	told  map[prefixtree.Hash]bool // anchors whose work other nodes tell; not changed in place
}

// hear takes what all nodes together tell of.
func (m *workMeter) hear(anchors map[prefixtree.Hash]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = anchors
}

// prefixWork is what is known of one prefix, under the meter's lock. Its place is taken over by others, but not while requests run.
type prefixWork struct {
	anchor prefixtree.Hash
	tokens float64
	rank   float64   // requests, with those of whoever had the place before
	apart  bool      // found to be where prompts go apart
	latest promptEnd // of the prompts that begin with it
	decayedWork
}

// decayedWork is sums over the past, decayed with workWindow. The first request only starts the clock: of one seen once nobody knows how
// often it comes.
type decayedWork struct {
	since, last prefixtree.Time
	requests    float64
	fresh       float64
	prefill     float64 // seconds
	busy        float64 // request-seconds
	active      int     // requests that have not ended
}

// fade returns what a sum as of last counts now.
func (d *decayedWork) fade(now prefixtree.Time) float64 {
	return math.Exp(-seconds(d.last, now) / workWindow)
}

// pass lets time pass.
func (d *decayedWork) pass(now prefixtree.Time) {
	fade := d.fade(now)
	d.requests *= fade
	d.fresh *= fade
	d.prefill *= fade
	d.busy = d.busy*fade + float64(d.active)*workWindow*(1-fade)
	d.last = max(d.last, now)
}

// begin takes in a request.
func (d *decayedWork) begin(prefill float64, fresh bool, now prefixtree.Time) {
	d.pass(now)
	d.active++
	if d.since == 0 {
		d.since = now
		return
	}
	d.requests++
	d.prefill += prefill
	if fresh {
		d.fresh++
	}
}

// end says that one has ended.
func (d *decayedWork) end(now prefixtree.Time) {
	d.pass(now)
	d.active--
}

// work returns what comes in a second, and how many requests there are at once.
func (d decayedWork) work(now prefixtree.Time) (w Work) {
	if d.since == 0 {
		return w
	}
	d.pass(now)
	over := workWindow * (1 - math.Exp(-(seconds(d.since, d.last)+workStart)/workWindow))
	return Work{Requests: d.requests / over, Fresh: d.fresh / over, Prefill: d.prefill / over, Active: d.busy / over}
}

// count takes in a decision: what the chosen candidate has to compute, and of this for the prompt's deepest popular prefix what
// would remain if the prefix were held. It returns the prefix, nil if there is none.
func (s *Scene) count(c *Candidate) *prefixWork {
	m := &s.pool.work
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.begin(c.Uncached/s.FleetRate, false, s.Now)
	if len(s.Request.Hashes) == 0 {
		return nil
	}
	p, blocks := m.deepest(s.Request.Hashes, s.common, s.Now)
	if p == nil {
		return nil
	}
	tokens := min(float64(blocks)*s.TokensPerBlock, float64(s.PromptTokens))
	p.tokens = tokens
	p.rank = p.rank*p.fade(s.Now) + 1
	goesOn := p.latest.next(s.Request.Hashes)
	if blocks < sketchDepth {
		goesOn = int(s.known) >= blocks+sketchStride // popular prefixes end up to a stride before prompts go apart
	}
	p.begin(max(min(c.Uncached, float64(s.PromptTokens)-tokens), 1)/s.FleetRate, !goesOn, s.Now)
	return p
}

// promptEnd is where a prompt ended. Behind sketchDepth nobody looks how far prompts are common property, so that what is known of one
// does not tell a conversation that goes on from questions about the same text.
type promptEnd struct {
	hash   prefixtree.Hash
	blocks int
}

// next takes in a prompt and returns whether it goes on with the one before.
func (e *promptEnd) next(hashes []prefixtree.Hash) (goesOn bool) {
	goesOn = e.blocks > 0 && e.blocks < len(hashes) && hashes[e.blocks-1] == e.hash
	*e = promptEnd{hashes[len(hashes)-1], len(hashes)}
	return goesOn
}

// end takes in that a request that was counted for a prefix, nil for none, has ended.
func (m *workMeter) end(p *prefixWork, now prefixtree.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.end(now)
	if p != nil {
		p.end(now)
	}
}

// deepest returns the place of the deepest popular prefix of a prompt, of which so many blocks are known to be common property, and its
// own number of blocks; nil if there is none, or no place.
func (m *workMeter) deepest(hashes []prefixtree.Hash, common int, now prefixtree.Time) (p *prefixWork, blocks int) {
	from := max(common, 1)
	f := m.alike.behind(hashes[from-1])
	blocks = f.extent(hashes, from)
	seen := f.seen // f may be another's after the next call
	if from > 1 {
		// Most prefixes are known by their first block, which has been seen longest.
		blocks = max(blocks, m.alike.behind(hashes[0]).extent(hashes, 1))
	}
	if seen < furtherLeast {
		// While the sketch walks down a long prefix, each of its anchors is new here. Where the walk ends is known from those before, or
		// to another node.
		last := min(len(hashes), sketchDepth) - 1
		for i := from - 1; i < last; {
			i = nextAnchor(i, last)
			if q := m.index[hashes[i]]; q != nil && q.apart || m.told[hashes[i]] {
				blocks = max(blocks, i+1)
			}
		}
	}
	if common == 0 && blocks == 1 {
		return nil, 0
	}
	if p = m.place(hashes[blocks-1], now); p != nil && blocks > common {
		p.apart = true
	}
	return p, blocks
}

// place returns the place of an anchor; one that is new takes over the least place, unless all are in use: then nil.
func (m *workMeter) place(anchor prefixtree.Hash, now prefixtree.Time) *prefixWork {
	if p := m.index[anchor]; p != nil {
		return p
	}
	if m.index == nil {
		m.index, m.list = make(map[prefixtree.Hash]*prefixWork, workAnchors), make([]prefixWork, 0, workAnchors)
	}
	if len(m.list) < workAnchors {
		m.list = append(m.list, prefixWork{anchor: anchor})
		p := &m.list[len(m.list)-1]
		m.index[anchor] = p
		return p
	}
	var least *prefixWork
	rank := math.Inf(1)
	for i := range m.list {
		p := &m.list[i]
		if v := p.rank * p.fade(now); v < rank && p.active == 0 {
			least, rank = p, v
		}
	}
	if least == nil {
		return nil
	}
	delete(m.index, least.anchor)
	least.anchor, least.rank, least.apart = anchor, rank, false
	least.decayedWork, least.latest = decayedWork{}, promptEnd{}
	m.index[anchor] = least
	return least
}

// tell appends what is worth telling of a pool: nothing if it has no work, else all of it and then the prefixes, the most work first.
func (m *workMeter) tell(dst []Work, pool uint64, now prefixtree.Time) []Work {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all.work(now)
	if all.Pool = pool; all.Requests < leastRate {
		return dst
	}
	dst = append(dst, all)
	from := len(dst)
	for i := range m.list {
		p := &m.list[i]
		w := p.work(now)
		if w.Pool, w.Anchor, w.Tokens = pool, p.anchor, p.tokens; w.Prefill >= leastWork || w.Active >= leastWorkActive {
			dst = append(dst, w)
		}
	}
	slices.SortFunc(dst[from:], func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(b.Active, a.Active), cmp.Compare(a.Anchor, b.Anchor))
	})
	return dst[:min(len(dst), from+workTold)]
}

// OwnWork returns the work of at most so many pools.
func (r *Router) OwnWork(pools int, now prefixtree.Time) []Work {
	list := r.table.Load().pools()
	slices.SortFunc(list, func(a, b *pool) int { return cmp.Compare(a.key, b.key) })
	var out []Work
	for _, p := range list {
		before := len(out)
		out = p.work.tell(out, p.key, now)
		if len(out) == before {
			continue
		}
		if pools--; pools == 0 {
			break
		}
	}
	return out
}

package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

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
	Prefill  float64 // prefill seconds a second
	Active   float64 // requests at present
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
	list  []*prefixWork
	all   decayedWork
}

// prefixWork is what is known of one prefix. Its places are taken over, but not while requests hold it.
type prefixWork struct {
	active atomic.Int64 // own requests that have not ended

	// Under the meter's lock.
	anchor prefixtree.Hash
	tokens float64
	rank   float64 // requests, with those of whoever had the place before
	end    bool    // found to be where prompts go apart
	decayedWork
	further
}

// further finds out quickly how far prompts go on alike behind an anchor: by how far each does as the one before it. The sketch finds the
// anchors of a long prefix one after the other, each when the one before has been seen often enough, which takes minutes.
type further struct {
	before []prefixtree.Hash     // anchors of the latest prompt, behind the one that this is about
	depths [maxFurther + 1]uint8 // how many prompts had so many anchors in common with the one before
	seen   int                   // their number; all are halved when it is furtherSeen
}

const (
	// maxFurther is the number of anchors up to sketchDepth.
	maxFurther = sketchDense + (sketchDepth-sketchDense)/sketchStride
	// furtherSeen and furtherLeast are the prompts that count, and the least number that say something.
	furtherSeen, furtherLeast = 64, 5
	// alike is the share of prompts that must go on as the one before: that of the most popular continuation is at least as great.
	alike = 0.7
)

// extent takes in a prompt and returns up to which block most prompts go on alike: blocks, or more.
func (f *further) extent(hashes []prefixtree.Hash, blocks int) int {
	last := min(len(hashes), sketchDepth) - 1
	n, same := 0, true
	depth := 0
	for i := blocks - 1; i < last; n++ {
		i = nextAnchor(i, last)
		if n == len(f.before) {
			f.before = append(f.before, 0)
			same = false
		}
		if same = same && f.before[n] == hashes[i]; same {
			depth = n + 1
		}
		f.before[n] = hashes[i]
	}
	f.before = f.before[:n]
	f.depths[min(depth, maxFurther)]++
	if f.seen++; f.seen >= furtherSeen {
		f.seen = 0
		for i := range f.depths {
			f.depths[i] /= 2
			f.seen += int(f.depths[i])
		}
	}
	if f.seen < furtherLeast {
		return blocks
	}
	common, from := 0, maxFurther
	for ; from > 0; from-- {
		if common += int(f.depths[from]); float64(common) >= alike*float64(f.seen) {
			break
		}
	}
	at := blocks - 1
	for range min(from, n) {
		at = nextAnchor(at, last)
	}
	return at + 1
}

// decayedWork is sums over the past, decayed with workWindow.
type decayedWork struct {
	since, last prefixtree.Time
	requests    float64
	prefill     float64 // seconds
}

func (d *decayedWork) fade(now prefixtree.Time) float64 {
	return math.Exp(-seconds(d.last, now) / workWindow)
}

func (d *decayedWork) add(prefill float64, now prefixtree.Time) {
	if d.since == 0 {
		d.since = now
	}
	fade := d.fade(now)
	d.requests = d.requests*fade + 1
	d.prefill = d.prefill*fade + prefill
	d.last = max(d.last, now)
}

// rates returns what comes in a second.
func (d *decayedWork) rates(now prefixtree.Time) (requests, prefill float64) {
	if d.since == 0 {
		return 0, 0
	}
	now = max(now, d.last)
	share := d.fade(now) / (workWindow * (1 - math.Exp(-(seconds(d.since, now)+workStart)/workWindow)))
	return d.requests * share, d.prefill * share
}

// count takes in a decision: what the chosen candidate has to compute, and of this for the prompt's deepest popular prefix what
// would remain if the prefix were held. It returns the prefix, nil if there is none.
func (r *Router) count(s *Scene, c *Candidate) *prefixWork {
	m := &s.pool.work
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.add(c.Uncached/s.FleetRate, s.Now)
	if s.common == 0 {
		return nil
	}
	p, blocks := m.deepest(s.Request.Hashes, s.common, s.Now)
	if p == nil {
		return nil
	}
	tokens := min(float64(blocks)*s.TokensPerBlock, float64(s.PromptTokens))
	p.tokens = tokens
	p.rank = p.rank*p.fade(s.Now) + 1
	p.add(max(min(c.Uncached, float64(s.PromptTokens)-tokens), 1)/s.FleetRate, s.Now)
	p.active.Add(1)
	return p
}

// deepest returns the place of the deepest popular prefix of a prompt, of which so many blocks are common property, and its own
// number of blocks; nil if there is no place.
func (m *workMeter) deepest(hashes []prefixtree.Hash, common int, now prefixtree.Time) (p *prefixWork, blocks int) {
	if p = m.place(hashes[common-1], now); p == nil {
		return nil, 0
	}
	blocks = p.extent(hashes, common)
	if p.seen < furtherLeast {
		// While the sketch walks down a long prefix, each of its anchors is new here. Where the walk ends is known from those before.
		last := min(len(hashes), sketchDepth) - 1
		for i := common - 1; i < last; {
			i = nextAnchor(i, last)
			if q := m.index[hashes[i]]; q != nil && q.end {
				blocks = i + 1
			}
		}
	}
	if blocks > common {
		if p = m.place(hashes[blocks-1], now); p == nil {
			return nil, 0
		}
		p.end = true
	}
	return p, blocks
}

// place returns the place of an anchor; one that is new takes over the least place, unless all are in use: then nil.
func (m *workMeter) place(anchor prefixtree.Hash, now prefixtree.Time) *prefixWork {
	if p := m.index[anchor]; p != nil {
		return p
	}
	if m.index == nil {
		m.index = make(map[prefixtree.Hash]*prefixWork, workAnchors)
	}
	if len(m.list) < workAnchors {
		p := &prefixWork{anchor: anchor}
		m.list = append(m.list, p)
		m.index[anchor] = p
		return p
	}
	var least *prefixWork
	rank := math.Inf(1)
	for _, p := range m.list {
		if v := p.rank * p.fade(now); v < rank && p.active.Load() == 0 {
			least, rank = p, v
		}
	}
	if least == nil {
		return nil
	}
	delete(m.index, least.anchor)
	least.anchor, least.rank, least.end = anchor, rank, false
	least.decayedWork, least.further = decayedWork{}, further{before: least.before[:0]}
	m.index[anchor] = least
	return least
}

// told appends what is worth telling of a pool: nothing if it has no work, else all of it and then the prefixes, the most work first.
func (m *workMeter) told(dst []Work, pool uint64, now prefixtree.Time) []Work {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := Work{Pool: pool}
	if all.Requests, all.Prefill = m.all.rates(now); all.Requests < leastRate {
		return dst
	}
	dst = append(dst, all)
	from := len(dst)
	for _, p := range m.list {
		w := Work{Pool: pool, Anchor: p.anchor, Tokens: p.tokens, Active: float64(p.active.Load())}
		if w.Requests, w.Prefill = p.rates(now); w.Prefill >= leastWork || w.Active >= leastWorkActive {
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
		out = p.work.told(out, p.key, now)
		if len(out) == before {
			continue
		}
		for i := range p.entries {
			out[before].Active += float64(p.entries[i].slot.active.Load())
		}
		if pools--; pools == 0 {
			break
		}
	}
	return out
}

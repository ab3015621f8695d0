package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"grapevine/prefixtree"
)

// Work is the load that one node's recent requests put on a pool, for the prompts that begin with a
// popular prefix. It excludes the prefix itself, so replicas do not reduce it. A prompt counts for
// its deepest popular prefix. Sums over nodes are lower bounds. Anchor 0 stands for all work of the
// pool.
type Work struct {
	Pool     uint64
	Anchor   prefixtree.Hash
	Tokens   float64 // prompt tokens up to the anchor
	Requests float64 // per second
	Fresh    float64 // of these, new conversations; follow-ups go where their conversation is held
	Prefill  float64 // prefill seconds per second
	Active   float64 // mean concurrent requests
}

const (
	// workWindow is in seconds: short, so that a prefix that turns hot gets its replicas within
	// seconds.
	workWindow = 10.0
	// workStart is the least time in seconds over which work is averaged.
	workStart = 1.0
	// workAnchors bounds the prefixes measured per pool; only a few are worth a replica set.
	workAnchors = 128
	// workTold bounds the prefixes reported per pool.
	workTold = 64
	// A prefix is reported from leastWork prefill seconds per second or leastWorkActive active
	// requests.
	leastWork, leastWorkActive = 0.005, 1
)

// workMeter measures the work of one pool by prefix: SpaceSaving by requests, with exponential
// decay. It counts a prefix only since the prefix took its place, so the figures are lower bounds.
// Safe for concurrent use.
type workMeter struct {
	mu    sync.Mutex
	index map[prefixtree.Hash]*prefixWork
	list  []prefixWork // never reallocated: requests hold pointers into it
	all   decayedWork
	alike beginnings
	told  map[prefixtree.Hash]bool // anchors that other nodes report; never changed in place
}

// hear replaces the anchors that other nodes report.
func (m *workMeter) hear(anchors map[prefixtree.Hash]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = anchors
}

// prefixWork is the work of one prefix, guarded by the meter's lock. Another prefix may take its
// place only when no request runs on it.
type prefixWork struct {
	anchor prefixtree.Hash
	tokens float64
	rank   float64   // requests, including those of the place's former prefixes
	apart  bool      // prompts diverge here
	latest promptEnd // of the prompts that begin with it
	decayedWork
}

// decayedWork is sums that decay with workWindow. The first request only starts the clock, because
// one request says nothing about a frequency.
type decayedWork struct {
	since, last prefixtree.Time
	requests    float64
	fresh       float64
	prefill     float64 // seconds
	busy        float64 // request-seconds
	active      int     // requests that have not ended
}

// fade returns the decay factor since last.
func (d *decayedWork) fade(now prefixtree.Time) float64 {
	return math.Exp(-seconds(d.last, now) / workWindow)
}

// pass decays the sums up to now.
func (d *decayedWork) pass(now prefixtree.Time) {
	fade := d.fade(now)
	d.requests *= fade
	d.fresh *= fade
	d.prefill *= fade
	d.busy = d.busy*fade + float64(d.active)*workWindow*(1-fade)
	d.last = max(d.last, now)
}

// begin adds a request.
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

func (d *decayedWork) end(now prefixtree.Time) {
	d.pass(now)
	d.active--
}

// work returns the rates per second and the mean number of concurrent requests.
func (d decayedWork) work(now prefixtree.Time) (w Work) {
	if d.since == 0 {
		return w
	}
	d.pass(now)
	over := workWindow * (1 - math.Exp(-(seconds(d.since, d.last)+workStart)/workWindow))
	return Work{Requests: d.requests / over, Fresh: d.fresh / over, Prefill: d.prefill / over, Active: d.busy / over}
}

// count adds the work of a decision: the chosen candidate's uncached tokens to the pool, and to the
// prompt's deepest popular prefix what would remain if that were held. It returns the prefix, or
// nil.
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
		goesOn = int(s.known) >= blocks+sketchStride // popular prefixes end up to a stride before prompts diverge
	}
	p.begin(max(min(c.Uncached, float64(s.PromptTokens)-tokens), 1)/s.FleetRate, !goesOn, s.Now)
	return p
}

// promptEnd is the end of the latest prompt. Beyond sketchDepth, the longest match cannot
// distinguish a follow-up from a new question about the same text; promptEnd can.
type promptEnd struct {
	hash   prefixtree.Hash
	blocks int
}

// next replaces the end and reports whether the prompt continues the previous one.
func (e *promptEnd) next(hashes []prefixtree.Hash) (goesOn bool) {
	goesOn = e.blocks > 0 && e.blocks < len(hashes) && hashes[e.blocks-1] == e.hash
	*e = promptEnd{hashes[len(hashes)-1], len(hashes)}
	return goesOn
}

// end records the end of a request that was counted for p, which may be nil.
func (m *workMeter) end(p *prefixWork, now prefixtree.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.end(now)
	if p != nil {
		p.end(now)
	}
}

// deepest returns the place and depth in blocks of the prompt's deepest popular prefix; common is
// the number of blocks known to be common. It returns nil if there is none or no place is free.
func (m *workMeter) deepest(hashes []prefixtree.Hash, common int, now prefixtree.Time) (p *prefixWork, blocks int) {
	from := max(common, 1)
	f := m.alike.behind(hashes[from-1])
	blocks = f.extent(hashes, from)
	seen := f.seen // the next call may overwrite f
	if from > 1 {
		// The first block has been observed longest, so it finds most prefixes.
		blocks = max(blocks, m.alike.behind(hashes[0]).extent(hashes, 1))
	}
	if seen < furtherLeast {
		// While the sketch descends a long prefix, each anchor is new here. Earlier descents or
		// other nodes may know its end already.
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

// place returns the place of an anchor. A new anchor takes the least used place, or nil if requests
// run on all.
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

// tell appends the pool's total work and then its largest prefixes, or nothing if the pool is idle.
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

// OwnWork returns this node's work for at most so many pools.
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

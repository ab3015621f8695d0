package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"grapevine/prefixtree"
)

// Work is what one node's requests demand of a pool behind a popular prefix, each counted for its
// deepest one, without the prefix itself, which replicas do not reduce. Sums over nodes are lower
// bounds. Anchor 0 is the whole pool.
type Work struct {
	Pool     uint64
	Anchor   prefixtree.Hash
	Tokens   float64 // prompt tokens up to the anchor
	Requests float64
	Fresh    float64 // of these, new conversations; follow-ups go where their conversation is held
	Prefill  float64 // prefill seconds per second
	Active   float64 // mean concurrent requests
}

const (
	workWindow  = 10.0 // seconds: a prefix that turns hot gets its replicas soon
	workStart   = 1.0  // the least time averaged over, in seconds
	workAnchors = 128  // per pool; only a few are worth a replica set
	workTold    = 64
	// Prefixes below both, in prefill seconds per second and active requests, are not reported.
	leastWork, leastWorkActive = 0.005, 1
)

// workMeter measures a pool's work by prefix: SpaceSaving with decay, counted since the prefix took
// its place. Safe for concurrent use.
type workMeter struct {
	mu    sync.Mutex
	index map[prefixtree.Hash]*prefixWork
	list  []prefixWork // never reallocated: requests hold pointers into it
	all   decayedWork
	alike beginnings
}

// prefixWork is guarded by the meter's lock. Another prefix takes its place only when no request
// runs.
type prefixWork struct {
	anchor prefixtree.Hash
	tokens float64
	rank   float64 // requests, including those of the place's former prefixes
	apart  bool    // prompts diverge here
	latest promptEnd
	decayedWork
}

// decayedWork: the first request only starts the clock, since it shows no frequency.
type decayedWork struct {
	since, last prefixtree.Time
	requests    float64
	fresh       float64
	prefill     float64
	busy        float64 // request-seconds
	active      int     // requests that have not ended
}

func (d *decayedWork) fade(now prefixtree.Time) float64 {
	return math.Exp(-seconds(d.last, now) / workWindow)
}

func (d *decayedWork) pass(now prefixtree.Time) {
	fade := d.fade(now)
	d.requests *= fade
	d.fresh *= fade
	d.prefill *= fade
	d.busy = d.busy*fade + float64(d.active)*workWindow*(1-fade)
	d.last = max(d.last, now)
}

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

func (d decayedWork) work(now prefixtree.Time) (w Work) {
	if d.since == 0 {
		return w
	}
	d.pass(now)
	over := workWindow * (1 - math.Exp(-(seconds(d.since, d.last)+workStart)/workWindow))
	return Work{Requests: d.requests / over, Fresh: d.fresh / over, Prefill: d.prefill / over, Active: d.busy / over}
}

// count adds the candidate's uncached tokens to the pool, and what would remain behind the prompt's
// deepest popular prefix to that. It returns the prefix, or nil.
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
	if blocks < anchorDepth {
		goesOn = s.known() >= blocks+anchorStride // popular prefixes end up to a stride before prompts diverge
	}
	p.begin(max(min(c.Uncached, float64(s.PromptTokens)-tokens), 1)/s.FleetRate, !goesOn, s.Now)
	return p
}

func (s *Scene) known() (blocks int) {
	for _, h := range s.holders() {
		blocks = max(blocks, int(h.Blocks))
	}
	return blocks
}

// promptEnd distinguishes follow-ups from new questions about the same text beyond anchorDepth.
type promptEnd struct {
	hash   prefixtree.Hash
	blocks int
}

func (e *promptEnd) next(hashes []prefixtree.Hash) (goesOn bool) {
	goesOn = e.blocks > 0 && e.blocks < len(hashes) && hashes[e.blocks-1] == e.hash
	*e = promptEnd{hashes[len(hashes)-1], len(hashes)}
	return goesOn
}

func (m *workMeter) end(p *prefixWork, now prefixtree.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.end(now)
	if p != nil {
		p.end(now)
	}
}

// deepest returns the prompt's deepest popular prefix, or nil; common blocks are known to be
// common.
func (m *workMeter) deepest(hashes []prefixtree.Hash, common int, now prefixtree.Time) (p *prefixWork, blocks int) {
	from := max(common, 1)
	f := m.alike.behind(hashes[from-1])
	blocks = f.add(hashes, from)
	seen := f.seen // the next call may overwrite f
	if from > 1 {
		blocks = max(blocks, m.alike.behind(hashes[0]).add(hashes, 1))
	}
	if seen < extentLeast {
		// While the heavy hitters descend, each anchor is new here; an earlier descent may know the
		// end.
		last := min(len(hashes), anchorDepth) - 1
		for i := from - 1; i < last; {
			i = nextAnchor(i, last)
			if q := m.index[hashes[i]]; q != nil && q.apart {
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

// place gives a new anchor the least used place, or nil if requests run on all.
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

package policy

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sync"

	"grapevine.example/prefixtree"
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
	workWindow = 10.0 // seconds: a prefix that turns hot gets its replicas soon
	workStart  = 1.0  // the least time averaged over, in seconds
	workSets   = 128  // per pool; an anchor belongs to one of them
	workPlaces = 8    // per set, as a word has bytes
	workTold   = 64   // prefixes per pool, in a report
	// Prefixes below both, in prefill seconds per second and active requests, are not reported.
	leastWork, leastWorkActive = 0.005, 1
)

// A prefix is popular if popularLeast prompts left others at its end, as the follow-ups of one
// conversation do not, and it has popularShare of an engine's fair share of requests. Both are sums over
// nodes. A node halves its counts of requests at its part of popularWindow, but not before leastWindow
// requests.
const (
	popularLeast, popularShare = 4, 0.5
	popularWindow, leastWindow = 2048, 32
	prefixesTold               = 32
	anchorDepth                = 1024 // blocks of a prompt that are looked at: 128k tokens
)

// workMeter counts a pool's requests by prefix, and measures the work behind the popular ones since
// they took their place. Safe for concurrent use.
type workMeter struct {
	mu      sync.Mutex
	tags    []uint64                      // by set: a byte of each anchor
	anchors [][workPlaces]prefixtree.Hash // by set; 0: free
	places  [][workPlaces]prefixWork
	all     decayedWork
	total   float64     // requests; halved with all counts at the window
	peers   PrefixCount // the other nodes' total, and their number
	number  uint64      // of the latest request
}

// prefixWork is guarded by the meter's lock. Another prefix takes its place only when no request
// runs.
type prefixWork struct {
	tokens float64
	seen   float64     // requests, decayed with the meter's total
	left   int         // prompts of which engines held just this prefix, since it took its place
	latest uint64      // number of the latest request that left here, or passed after several had left
	peers  PrefixCount // the other nodes' sum
	blocks int32
	above  prefixtree.Hash // the longest shorter prefix with a place in the latest prompt; 0: none
	held   prefixtree.Hash // its last block that nodes tell each other of; see sharedDepth
	decayedWork
}

// These are the tree's: of other nodes' placements all blocks are known down to a depth, and then every fourth.
const (
	denseDepth   = 16
	anchorStride = 4
)

// sharedDepth returns the depth of the last block, of the first so many, that is known of other nodes' placements.
func sharedDepth(blocks int) int {
	if blocks <= denseDepth {
		return blocks
	}
	return blocks - blocks%anchorStride
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
	p, blocks := m.add(s.Request.Hashes, s.known, s.pool.fairShare())
	if p == nil {
		return nil
	}
	p.tokens = min(float64(blocks)*s.TokensPerBlock, float64(s.PromptTokens))
	goesOn := s.known >= blocks+anchorStride
	p.begin(max(min(c.Uncached, float64(s.PromptTokens)-p.tokens), 1)/s.FleetRate, !goesOn, s.Now)
	return p
}

func (m *workMeter) end(p *prefixWork, now prefixtree.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.end(now)
	if p != nil {
		p.end(now)
	}
}

// common returns the leading blocks of the deepest popular prefix, of the part that engines hold.
func (m *workMeter) common(hashes []prefixtree.Hash, known int, fair float64) (blocks int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, h := range hashes[:min(known, anchorDepth)] {
		if p := m.find(h); p != nil && m.popular(p, fair) {
			blocks = i + 1
		}
	}
	return blocks
}

// add counts a request for every prefix of its prompt that has a place, gives one to the longest that
// engines hold, since there the prompt leaves an earlier one, and returns the deepest popular one.
func (m *workMeter) add(hashes []prefixtree.Hash, known int, fair float64) (deepest *prefixWork, blocks int) {
	if m.total++; m.total > max(popularWindow/float64(1+m.peers.Left), leastWindow) {
		m.total /= 2
		for i := range m.places {
			for j := range m.places[i] {
				m.places[i][j].seen /= 2
			}
		}
	}
	m.number++
	above := prefixtree.Hash(0)
	for i, h := range hashes[:min(known, anchorDepth)] {
		p, leaves := m.find(h), i == known-1
		if leaves && p == nil {
			p = m.place(h, fair)
		}
		if p == nil {
			continue
		}
		p.seen++
		p.blocks, p.above, p.held = int32(i+1), above, hashes[sharedDepth(i+1)-1]
		above = h
		if leaves {
			p.left++
		}
		if leaves || p.left+p.peers.Left > 1 {
			p.latest = m.number
		}
		if m.popular(p, fair) {
			deepest, blocks = p, i+1
		}
	}
	return deepest, blocks
}

func (m *workMeter) popular(p *prefixWork, fair float64) bool {
	return p.left+p.peers.Left >= popularLeast && p.seen+p.peers.Requests >= popularShare*fair*(m.total+m.peers.Requests)
}

// PrefixCount counts the requests of a pool whose prompts begin with a prefix.
type PrefixCount struct {
	Anchor   prefixtree.Hash // where the prefix ends; 0: all requests
	Requests float64         // recent ones; a lower bound, because a node misses those before it gave the prefix a place
	Left     int             // prompts of which engines held just this prefix; with anchor 0, how many nodes count
}

// prefixes returns this node's counts of all requests and of at most prefixesTold prefixes: those that popularLeast prompts left, then the
// latest.
func (m *workMeter) prefixes() []PrefixCount {
	type counted struct {
		PrefixCount
		latest uint64
	}
	var left []counted
	m.mu.Lock()
	list := []PrefixCount{{Requests: m.total, Left: 1}}
	for i := range m.places {
		for j := range m.places[i] {
			if p := &m.places[i][j]; p.left > 0 {
				left = append(left, counted{PrefixCount{m.anchors[i][j], p.seen, p.left}, p.latest})
			}
		}
	}
	m.mu.Unlock()
	slices.SortFunc(left, func(p, q counted) int {
		return cmp.Or(cmp.Compare(min(q.Left, popularLeast), min(p.Left, popularLeast)), cmp.Compare(q.latest, p.latest))
	})
	for _, p := range left[:min(len(left), prefixesTold)] {
		list = append(list, p.PrefixCount)
	}
	return list
}

// setPeers takes the sum of the other nodes' counts. A prefix that is popular by their counts gets a place here, too.
func (m *workMeter) setPeers(counts []PrefixCount, fair float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = PrefixCount{}
	for i := range m.places {
		for j := range m.places[i] {
			m.places[i][j].peers = PrefixCount{}
		}
	}
	for _, c := range counts {
		if c.Anchor == 0 {
			m.peers = c
		} else if p := m.find(c.Anchor); p != nil {
			p.peers = c
		}
	}
	for _, c := range counts {
		if c.Anchor == 0 || !m.popular(&prefixWork{peers: c}, fair) || m.find(c.Anchor) != nil {
			continue
		}
		if p := m.place(c.Anchor, fair); p != nil {
			p.peers, p.latest = c, m.number
		}
	}
}

// find compares a byte of all anchors of the set at once: most blocks of a prompt have no place.
func (m *workMeter) find(anchor prefixtree.Hash) *prefixWork {
	if m.anchors == nil {
		return nil
	}
	low, high := uint64(0x0101010101010101), uint64(0x8080808080808080) // the lowest and the highest bit of each byte
	set := anchor % workSets
	// A byte of differ is zero where the tag is equal; borrows may flag a few more.
	differ := m.tags[set] ^ low*tag(anchor)
	for equal := (differ - low) & ^differ & high; equal != 0; equal &= equal - 1 {
		if i := bits.TrailingZeros64(equal) / 8; m.anchors[set][i] == anchor {
			return &m.places[set][i]
		}
	}
	return nil
}

func tag(anchor prefixtree.Hash) uint64 { return uint64(anchor) >> 56 }

// place gives a new anchor a place of its set: of those on which no request runs and that other nodes do not make popular, the one
// that has been of no use for longest; nil if there is none.
func (m *workMeter) place(anchor prefixtree.Hash, fair float64) *prefixWork {
	if m.anchors == nil {
		m.tags, m.anchors, m.places = make([]uint64, workSets), make([][workPlaces]prefixtree.Hash, workSets), make([][workPlaces]prefixWork, workSets)
	}
	set, at := anchor%workSets, -1
	for i := range m.places[set] {
		p := &m.places[set][i]
		if p.active == 0 && (p.peers.Left == 0 || !m.popular(p, fair)) && (at < 0 || p.latest < m.places[set][at].latest) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	m.anchors[set][at], m.places[set][at] = anchor, prefixWork{}
	m.tags[set] = m.tags[set]&^(0xff<<(8*at)) | tag(anchor)<<(8*at)
	return &m.places[set][at]
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
	for i := range m.places {
		for j := range m.places[i] {
			p := &m.places[i][j]
			w := p.work(now)
			if w.Pool, w.Anchor, w.Tokens = pool, m.anchors[i][j], p.tokens; w.Prefill >= leastWork || w.Active >= leastWorkActive {
				dst = append(dst, w)
			}
		}
	}
	slices.SortFunc(dst[from:], func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(b.Active, a.Active), cmp.Compare(a.Anchor, b.Anchor))
	})
	return dst[:min(len(dst), from+workTold)]
}

// OwnWork returns this node's work for at most so many pools.
func (r *Router) OwnWork(pools int, now prefixtree.Time) []Work {
	var out []Work
	for _, p := range r.table.Load().pools {
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

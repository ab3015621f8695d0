package demand

import (
	"cmp"
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
	workSets   = 128  // per pool; an anchor belongs to one of them
	workPlaces = 8    // per set, as a word has bytes
	workTold   = 64   // prefixes per pool, in a report
	// Prefixes below both, in prefill seconds per second and active requests, are not reported.
	leastWork, leastWorkActive = 0.005, 1
)

// A prefix is popular under three conditions. At its end popularLeast prompts branched off from earlier ones, which the
// follow-ups of one conversation do not. Requests that begin with it are popularShare of an engine's fair share. And either
// their prefill keeps popularBusy of an engine busy (with less, no request waits for the engine that holds the prefix, so a
// second engine would compute it for nothing), or they are popularMany fair shares: otherwise an engine that returns with an
// empty cache gets none of them in a fleet that is nearly idle. The counts are sums over all nodes. A node halves its counts
// once it has seen its part of popularWindow requests.
const (
	popularLeast              = 4
	popularShare, popularBusy = 0.5, 0.1
	popularMany               = 2
	popularWindow             = 2048
	prefixesTold              = 32
	// Depth is how many blocks of a prompt are looked at: 128k tokens.
	Depth = 1024
)

// Prefixes counts a pool's requests by prefix, and measures the work behind the popular ones since
// they took their place. The zero value is ready. Safe for concurrent use.
type Prefixes struct {
	mu      sync.Mutex
	tags    *[workSets]uint64 // by set: a byte of each anchor; nil: no prefix has a place
	anchors []prefixtree.Hash // workPlaces to a set; 0: free
	places  []place           // likewise
	all     running
	busy    float64 // Request.Busy of the latest request that has it
	total   float64 // requests; halved with all counts at the window
	peers   Count   // the other nodes' total, and their number
	number  uint64  // of the latest request
}

// place is that of a prefix, guarded by the lock of Prefixes. Another prefix takes it only when no request runs.
type place struct {
	tokens float64
	seen   float64 // requests, decayed with the total
	left   int     // prompts of which engines held just this prefix, since it took its place
	latest uint64  // number of the latest request that left here, or passed after several had left
	peers  Count   // the other nodes' sum
	blocks int32
	above  prefixtree.Hash // the longest shorter prefix with a place in the latest prompt; 0: none
	held   prefixtree.Hash // its last block that nodes tell each other of
	running
}

// running requests, decayed with workWindow. The first one only starts the clock, since it shows no frequency.
type running struct {
	clock
	requests float64
	fresh    float64
	prefill  float64
	busy     float64 // request-seconds
	active   int     // requests that have not ended
}

func (d *running) pass(now prefixtree.Time) {
	fade := d.fade(now, workWindow)
	d.requests *= fade
	d.fresh *= fade
	d.prefill *= fade
	d.busy = d.busy*fade + float64(d.active)*workWindow*(1-fade)
	d.last = max(d.last, now)
}

func (d *running) begin(prefill float64, fresh bool, now prefixtree.Time) {
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

func (d *running) end(now prefixtree.Time) {
	d.pass(now)
	d.active--
}

func (d running) work(now prefixtree.Time) (w Work) {
	if d.since == 0 {
		return w
	}
	d.pass(now)
	over := d.covers(now, workWindow)
	return Work{Requests: d.requests / over, Fresh: d.fresh / over, Prefill: d.prefill / over, Active: d.busy / over}
}

// Request is one whose prompt may begin with a popular prefix.
type Request struct {
	Hashes         []prefixtree.Hash
	Known          int // leading blocks that any engine holds
	Engines        int // of the pool
	TokensPerBlock float64
	Tokens         float64 // of the prompt
	Uncached       float64 // of these, what its engine computes
	Rate           float64 // prefill tokens/s of the fleet
	Busy           float64 // engines that the prefill of all nodes' requests keeps busy; 0: unknown
}

// Run is what is to be ended of a request.
type Run struct {
	in     *Prefixes
	behind *place // of the popular prefix that its prompt begins with; may be nil
}

// Begin counts a request. It adds its uncached tokens to the pool's work, and what would remain behind the prompt's
// deepest popular prefix to that one's.
func (m *Prefixes) Begin(q *Request, now prefixtree.Time) Run {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.begin(q.Uncached/q.Rate, false, now)
	m.busy = cmp.Or(q.Busy, m.busy)
	if len(q.Hashes) == 0 {
		return Run{m, nil}
	}
	p, blocks := m.add(q.Hashes, q.Known, q.Engines)
	if p != nil {
		p.tokens = min(float64(blocks)*q.TokensPerBlock, q.Tokens)
		goesOn := q.Known >= blocks+prefixtree.AnchorStride
		p.begin(max(min(q.Uncached, q.Tokens-p.tokens), 1)/q.Rate, !goesOn, now)
	}
	return Run{m, p}
}

// End ends the request, once.
func (r Run) End(now prefixtree.Time) {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.in.all.end(now)
	if r.behind != nil {
		r.behind.end(now)
	}
}

// Active returns how many requests have not ended.
func (m *Prefixes) Active() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.active
}

// Common returns the leading blocks of the deepest popular prefix, of the part that the pool's engines hold, and of the
// deepest of these that has an engine's fair share of the requests, at most blocks.
func (m *Prefixes) Common(hashes []prefixtree.Hash, known, engines int) (blocks, everywhere int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, h := range hashes[:min(known, Depth)] {
		p := m.find(h)
		if p == nil || !m.popular(p, engines) {
			continue
		}
		if blocks = i + 1; m.shares(p, engines) >= 1 {
			everywhere = blocks
		}
	}
	return blocks, everywhere
}

// add counts a request for every prefix of its prompt that has a place, gives one to the longest that
// engines hold, since there the prompt leaves an earlier one, and returns the deepest popular one.
func (m *Prefixes) add(hashes []prefixtree.Hash, known, engines int) (deepest *place, blocks int) {
	// All counts halve before the request is in any, or a prefix would have more requests than there are.
	if m.total >= popularWindow/float64(1+m.peers.Left) {
		m.total /= 2
		for i := range m.places {
			m.places[i].seen /= 2
		}
	}
	m.total++
	m.number++
	above := prefixtree.Hash(0)
	for i, h := range hashes[:min(known, Depth)] {
		p, leaves := m.find(h), i == known-1
		if leaves && p == nil {
			p = m.place(h, engines)
		}
		if p == nil {
			continue
		}
		p.seen++
		p.blocks, p.above, p.held = int32(i+1), above, hashes[prefixtree.SharedDepth(i+1)-1]
		above = h
		if leaves {
			p.left++
		}
		if leaves || p.left+p.peers.Left > 1 {
			p.latest = m.number
		}
		if m.popular(p, engines) {
			deepest, blocks = p, i+1
		}
	}
	return deepest, blocks
}

func (m *Prefixes) popular(p *place, engines int) bool {
	fair := m.shares(p, engines)
	if p.left+p.peers.Left < popularLeast || fair < popularShare {
		return false
	}
	return m.busy == 0 || fair*m.busy/float64(engines) >= popularBusy || fair >= popularMany
}

// shares returns the requests that begin with the prefix, in an engine's fair share of all. A faulty peer may report prefixes of no requests.
func (m *Prefixes) shares(p *place, engines int) float64 {
	return (p.seen + p.peers.Requests) / max(m.total+m.peers.Requests, 1) * float64(engines)
}

// Count counts the requests of a pool whose prompts begin with a prefix.
type Count struct {
	Anchor   prefixtree.Hash // where the prefix ends; 0: all requests
	Requests float64         // recent ones; a lower bound, because a node misses those before it gave the prefix a place
	Left     int             // prompts of which engines held just this prefix; with anchor 0, how many nodes count
}

// Counts returns this node's counts of all requests and of at most prefixesTold prefixes: those that popularLeast prompts left, then the
// latest.
func (m *Prefixes) Counts() []Count {
	type counted struct {
		Count
		latest uint64
	}
	var left []counted
	m.mu.Lock()
	list := []Count{{Requests: m.total, Left: 1}}
	for i := range m.places {
		if p := &m.places[i]; p.left > 0 {
			left = append(left, counted{Count{m.anchors[i], p.seen, p.left}, p.latest})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(left, func(p, q counted) int {
		return cmp.Or(cmp.Compare(min(q.Left, popularLeast), min(p.Left, popularLeast)), cmp.Compare(q.latest, p.latest))
	})
	for _, p := range left[:min(len(left), prefixesTold)] {
		list = append(list, p.Count)
	}
	return list
}

// SetPeers takes the sum of the other nodes' counts. A prefix that is popular by their counts gets a place here, too.
func (m *Prefixes) SetPeers(counts []Count, engines int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = Count{}
	for i := range m.places {
		m.places[i].peers = Count{}
	}
	for _, c := range counts {
		if c.Anchor == 0 {
			m.peers = c
		} else if p := m.find(c.Anchor); p != nil {
			p.peers = c
		}
	}
	for _, c := range counts {
		if c.Anchor == 0 || !m.popular(&place{peers: c}, engines) || m.find(c.Anchor) != nil {
			continue
		}
		if p := m.place(c.Anchor, engines); p != nil {
			p.peers, p.latest = c, m.number
		}
	}
}

// find compares a byte of all anchors of the set at once: most blocks of a prompt have no place.
func (m *Prefixes) find(anchor prefixtree.Hash) *place {
	if m.tags == nil {
		return nil
	}
	low, high := uint64(0x0101010101010101), uint64(0x8080808080808080) // the lowest and the highest bit of each byte
	set := anchor % workSets
	// A byte of differ is zero where the tag is equal; borrows may flag a few more.
	differ := m.tags[set] ^ low*tag(anchor)
	for equal := (differ - low) & ^differ & high; equal != 0; equal &= equal - 1 {
		if at := int(set)*workPlaces + bits.TrailingZeros64(equal)/8; m.anchors[at] == anchor {
			return &m.places[at]
		}
	}
	return nil
}

func tag(anchor prefixtree.Hash) uint64 { return uint64(anchor) >> 56 }

// place gives a new anchor a place of its set: of those on which no request runs and that other nodes do not make popular, the one
// that has been of no use for longest; nil if there is none.
func (m *Prefixes) place(anchor prefixtree.Hash, engines int) *place {
	if m.tags == nil {
		m.tags, m.anchors, m.places = new([workSets]uint64), make([]prefixtree.Hash, workSets*workPlaces), make([]place, workSets*workPlaces)
	}
	set, at := int(anchor%workSets), -1
	for i := set * workPlaces; i < (set+1)*workPlaces; i++ {
		p := &m.places[i]
		if p.active == 0 && (p.peers.Left == 0 || !m.popular(p, engines)) && (at < 0 || p.latest < m.places[at].latest) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	m.anchors[at], m.places[at] = anchor, place{}
	shift := 8 * (at % workPlaces)
	m.tags[set] = m.tags[set]&^(0xff<<shift) | tag(anchor)<<shift
	return &m.places[at]
}

// Works returns the work of the whole pool, then behind its popular prefixes; nothing if the pool has less than LeastRate.
func (m *Prefixes) Works(pool uint64, now prefixtree.Time) (list []Work) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all.work(now)
	if all.Pool = pool; all.Requests < LeastRate {
		return nil
	}
	for i := range m.places {
		w := m.places[i].work(now)
		if w.Pool, w.Anchor, w.Tokens = pool, m.anchors[i], m.places[i].tokens; w.Prefill >= leastWork || w.Active >= leastWorkActive {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b Work) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(b.Active, a.Active), cmp.Compare(a.Anchor, b.Anchor))
	})
	return append([]Work{all}, list[:min(len(list), workTold)]...)
}

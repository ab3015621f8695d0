package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

// Heat is what one node has lately seen of the requests themselves: which anchors of prompts are popular, how many requests
// there are for each pool of backends, and how long they take. Nodes that tell each other theirs know together what each of
// many sees too little of to tell. A plain value, as of the moment it was taken.
type Heat struct {
	Requests float64     // seen lately: the counts of anchors are of so many
	Anchors  []HotAnchor // the hottest first
	Paces    []Pace
	Works    []Work // the most work first
}

// HotAnchor is an anchor and how often it was seen lately, faded with the half-life of the sketch. It is a lower bound: what the
// counter may have taken over from another anchor is taken off. So sums over nodes are lower bounds, too, and the
// anchors hot in the fleet are those with the greatest sums.
type HotAnchor struct {
	Hash  prefixtree.Hash
	Count float64
}

// leastHeat is the count below which an anchor is not told: a single sighting two half-lives ago.
const leastHeat = 0.25

// OwnHeat returns what this node has lately seen by itself: at most so many anchors, and the paces of at most so many pools,
// the busiest first.
func (r *Router) OwnHeat(anchors, paces int, now prefixtree.Time) Heat {
	var h Heat
	h.Requests, h.Anchors = r.sketch.heat(anchors, now)
	for _, p := range r.table.Load().pools() {
		if pace := p.pace.own(p.key, now); pace.Rate >= leastRate {
			h.Paces = append(h.Paces, pace)
		}
	}
	slices.SortFunc(h.Paces, func(a, b Pace) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	h.Paces = h.Paces[:min(len(h.Paces), paces)]
	h.Works = r.OwnWork(paces, now)
	return h
}

// HeatSum is the heat of several nodes together. It must not change once it has been handed to a router.
type HeatSum struct {
	counters int // nodes that have told of anchors
	requests float64
	counts   map[prefixtree.Hash]float64
	paces    map[uint64]*Pace
	works    map[uint64]map[prefixtree.Hash]bool // by pool: anchors whose work is told
}

// Add takes in what one more node has told; it keeps nothing of h.
func (s *HeatSum) Add(h *Heat) {
	if h.Requests > 0 {
		s.counters++
	}
	s.requests += h.Requests
	if s.counts == nil {
		s.counts, s.paces = make(map[prefixtree.Hash]float64, len(h.Anchors)), map[uint64]*Pace{}
	}
	for _, a := range h.Anchors {
		s.counts[a.Hash] += a.Count
	}
	for i := range h.Works {
		if w := &h.Works[i]; w.Anchor != 0 {
			if s.works == nil {
				s.works = map[uint64]map[prefixtree.Hash]bool{}
			}
			if s.works[w.Pool] == nil {
				s.works[w.Pool] = map[prefixtree.Hash]bool{}
			}
			s.works[w.Pool][w.Anchor] = true
		}
	}
	for i := range h.Paces {
		p := &h.Paces[i]
		sum := s.paces[p.Pool]
		if sum == nil {
			sum = &Pace{Pool: p.Pool}
			s.paces[p.Pool] = sum
		}
		sum.add(p, 1)
	}
}

// pace returns the sum over a pool; nil if nobody has told of it.
func (s *HeatSum) pace(pool uint64) *Pace {
	if s == nil {
		return nil
	}
	return s.paces[pool]
}

// SetPeerHeat replaces what other nodes have told by all less own: own, which may be nil, is the part of all that this node
// has told itself. With all nil nothing is known of others. The router keeps both and only reads them.
func (r *Router) SetPeerHeat(all, own *HeatSum) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.sketch.setPeers(all, own)
	r.peerHeat = peerHeat{all, own}
	for _, p := range r.table.Load().pools() {
		p.hear(r.peerHeat)
	}
}

// peerHeat is what was last handed to a router.
type peerHeat struct {
	all, own *HeatSum
}

// hear takes the others' pace of the pool.
func (p *pool) hear(h peerHeat) {
	p.pace.setPeers(h.all.pace(p.key), h.own.pace(p.key))
	if h.all != nil {
		p.work.hear(h.all.works[p.key])
	} else {
		p.work.hear(nil)
	}
}

// peerCounts are the sightings of anchors by other nodes: of all, less the own among them.
type peerCounts struct {
	all, own *HeatSum // nil: none
	nodes    int
	requests float64
}

func newPeerCounts(all, own *HeatSum) peerCounts {
	p := peerCounts{all: all, own: own}
	if all != nil {
		p.nodes, p.requests = all.counters, all.requests
	}
	if own != nil {
		p.nodes -= own.counters
		p.requests -= own.requests
	}
	p.nodes, p.requests = max(p.nodes, 0), max(p.requests, 0)
	return p
}

// of returns how often the others saw an anchor lately.
func (p *peerCounts) of(h prefixtree.Hash) float64 {
	if p.all == nil {
		return 0
	}
	n := p.all.counts[h]
	if n > 0 && p.own != nil {
		n = max(n-p.own.counts[h], 0)
	}
	return n
}

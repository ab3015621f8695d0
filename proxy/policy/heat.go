package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

// Heat is what one node counted of recent requests; each node alone sees too little.
type Heat struct {
	Requests float64     // decayed number of requests
	Anchors  []HotAnchor // hottest first
	Paces    []Pace
	Works    []Work
}

// HotAnchor is an anchor and its decayed count, a lower bound. So are sums over nodes.
type HotAnchor struct {
	Hash  prefixtree.Hash
	Count float64
}

// leastHeat is the least reported count: one request two half-lives ago.
const leastHeat = 0.25

// OwnHeat returns this node's heat, at most so many anchors and pools, the busiest first.
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

// HeatSum is the heat of several nodes. It must not change after SetPeerHeat.
type HeatSum struct {
	counters int
	requests float64
	counts   map[prefixtree.Hash]float64
	paces    map[uint64]*Pace
	works    map[uint64]map[prefixtree.Hash]bool
}

// Add adds the heat of one node and keeps no reference to h.
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

func (s *HeatSum) pace(pool uint64) *Pace {
	if s == nil {
		return nil
	}
	return s.paces[pool]
}

// SetPeerHeat sets the other nodes' heat to all minus own, this node's part, which may be nil. With
// all nil it is unknown. The router keeps and only reads both.
func (r *Router) SetPeerHeat(all, own *HeatSum) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.sketch.setPeers(all, own)
	r.peerHeat = peerHeat{all, own}
	for _, p := range r.table.Load().pools() {
		p.hear(r.peerHeat)
	}
}

type peerHeat struct {
	all, own *HeatSum
}

func (p *pool) hear(h peerHeat) {
	p.pace.setPeers(h.all.pace(p.key), h.own.pace(p.key))
	if h.all != nil {
		p.work.hear(h.all.works[p.key])
	} else {
		p.work.hear(nil)
	}
}

type peerCounts struct {
	all, own *HeatSum
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

package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

// Heat is what one node counted of recent requests; each node alone sees too little.
type Heat struct {
	Requests float64     // decayed number of requests
	Anchors  []HotAnchor // not sent: each node finds common prefixes by itself
	Paces    []Pace
	Works    []Work
}

// HotAnchor is an anchor and its decayed count.
type HotAnchor struct {
	Hash  prefixtree.Hash
	Count float64
}

// OwnHeat returns this node's heat of at most so many pools, the busiest first.
func (r *Router) OwnHeat(_, pools int, now prefixtree.Time) Heat {
	h := Heat{Requests: r.heavyHitters.requests(now)}
	for _, p := range r.table.Load().pools() {
		if pace := p.load.own(p.key, now); pace.Rate >= leastRate {
			h.Paces = append(h.Paces, pace)
		}
	}
	slices.SortFunc(h.Paces, func(a, b Pace) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	h.Paces = h.Paces[:min(len(h.Paces), pools)]
	h.Works = r.OwnWork(pools, now)
	return h
}

// HeatSum is the heat of several nodes. It must not change after SetPeerHeat.
type HeatSum struct {
	paces map[uint64]*Pace
}

// Add adds the heat of one node and keeps no reference to h.
func (s *HeatSum) Add(h *Heat) {
	if s.paces == nil {
		s.paces = map[uint64]*Pace{}
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
	r.peerHeat = peerHeat{all, own}
	for _, p := range r.table.Load().pools() {
		p.hear(r.peerHeat)
	}
}

type peerHeat struct {
	all, own *HeatSum
}

func (p *pool) hear(h peerHeat) { p.load.setPeers(h.all.pace(p.key), h.own.pace(p.key)) }

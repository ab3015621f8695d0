package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

// Popularity is what one node counted of recent requests.
type Popularity struct {
	Requests float64 // decayed number of requests
	Paces    []Pace
	Works    []Work
}

// OwnPopularity returns this node's popularity of the busiest pools.
func (r *Router) OwnPopularity(pools int, now prefixtree.Time) Popularity {
	own := Popularity{Requests: r.heavyHitters.requests(now), Works: r.OwnWork(pools, now)}
	for _, p := range r.table.Load().pools() {
		if pace := p.load.own(p.key, now); pace.Rate >= leastRate {
			own.Paces = append(own.Paces, pace)
		}
	}
	slices.SortFunc(own.Paces, func(a, b Pace) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	own.Paces = own.Paces[:min(len(own.Paces), pools)]
	return own
}

// PopularitySum is the popularity at several nodes. It must not change after SetPeerPopularity.
type PopularitySum struct {
	paces map[uint64]*Pace
}

// Add keeps no reference to o.
func (s *PopularitySum) Add(o *Popularity) {
	if s.paces == nil {
		s.paces = map[uint64]*Pace{}
	}
	for i := range o.Paces {
		p := &o.Paces[i]
		sum := s.paces[p.Pool]
		if sum == nil {
			sum = &Pace{Pool: p.Pool}
			s.paces[p.Pool] = sum
		}
		sum.add(p)
	}
}

// SetPeerPopularity sets the sum over the other nodes; nil: unknown.
func (r *Router) SetPeerPopularity(sum *PopularitySum) {
	if sum == nil {
		sum = new(PopularitySum)
	}
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.peerPopularity = sum
	for _, p := range r.table.Load().pools() {
		p.load.setPeers(sum.paces[p.key])
	}
}

package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

type Popularity struct {
	Traffic []PoolTraffic
	Works   []Work
}

// OwnPopularity returns this node's popularity of the busiest pools.
func (r *Router) OwnPopularity(pools int, now prefixtree.Time) Popularity {
	own := Popularity{Works: r.OwnWork(pools, now)}
	for _, p := range r.table.Load().pools {
		if traffic := p.load.own(p.key, now); traffic.Rate >= leastRate {
			own.Traffic = append(own.Traffic, traffic)
		}
	}
	slices.SortFunc(own.Traffic, func(a, b PoolTraffic) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	own.Traffic = own.Traffic[:min(len(own.Traffic), pools)]
	return own
}

// PopularitySum is the popularity at several nodes. It must not change after SetPeerPopularity.
type PopularitySum struct {
	traffic map[uint64]*PoolTraffic
}

// Add keeps no reference to o.
func (s *PopularitySum) Add(o *Popularity) {
	if s.traffic == nil {
		s.traffic = map[uint64]*PoolTraffic{}
	}
	for i := range o.Traffic {
		p := &o.Traffic[i]
		sum := s.traffic[p.Pool]
		if sum == nil {
			sum = &PoolTraffic{Pool: p.Pool}
			s.traffic[p.Pool] = sum
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
	for _, p := range r.table.Load().pools {
		p.load.setPeers(sum.traffic[p.key])
	}
}

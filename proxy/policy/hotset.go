package policy

import (
	"cmp"
	"slices"

	"grapevine.example/prefixtree"
)

// HotPrefix is a prefix that the fleet keeps on the first eligible backends in its anchor's
// rendezvous order.
type HotPrefix struct {
	Anchor   prefixtree.Hash
	Tokens   int // prompt tokens up to the anchor
	Replicas int
}

type hotPrefixes struct {
	list   map[prefixtree.Hash]HotPrefix
	filter [64]uint64 // one bit per anchor avoids most map lookups
}

// SetHotPrefixes replaces the agreed prefixes. Entries without replicas are skipped.
func (r *Router) SetHotPrefixes(list []HotPrefix) {
	h := &hotPrefixes{list: make(map[prefixtree.Hash]HotPrefix, len(list))}
	for _, p := range list {
		if p.Replicas > 0 {
			h.list[p.Anchor] = p
			h.filter[p.Anchor>>6&63] |= 1 << (p.Anchor & 63)
		}
	}
	if len(h.list) == 0 {
		h = nil
	}
	r.hot.Store(h)
}

type PoolSize struct {
	Pool     uint64 // name, the same on all nodes
	Backends int
}

// Pools returns the present view's pools, sorted by name.
func (r *Router) Pools() []PoolSize {
	var list []PoolSize
	for _, p := range r.table.Load().pools {
		list = append(list, PoolSize{Pool: p.key, Backends: len(p.entries)})
	}
	return list
}

// HotSet returns the names of a hot prefix's set in order, with avoided backends; nil for an unknown pool.
func (r *Router) HotSet(key uint64, p HotPrefix) (names []string) {
	for _, pool := range r.table.Load().pools {
		if pool.key != key {
			continue
		}
		for _, at := range pool.order(p.Anchor)[:min(p.Replicas, len(pool.entries))] {
			names = append(names, pool.name(pool.entries[at].id))
		}
	}
	return names
}

// gather marks the candidates outside the hot prefix's set and returns how many are inside. The next
// in order replaces a candidate whose queue exceeds limit; if all exceed it, all are inside.
func (s *Scene) gather(limit float64) (inside int) {
	if s.hot.Replicas == 0 || s.hot.Replicas >= s.size {
		return s.size
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = true
	}
	set := s.pool.withReserve(s.hot)
	if s.hot.Replicas > selectReplicas && len(s.pool.entries) > weighAll {
		set = set[:s.hot.Replicas] // of which a decision weighs a part: no other is missing
	}
	for _, at := range set {
		if c := s.candidate(int(at)); c != nil && c.Queued <= limit && inside < s.hot.Replicas {
			c.outside = false
			inside++
		}
	}
	if inside > 0 {
		return inside
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = false
	}
	return s.size
}

const (
	knownOrders = 256 // bounds the orders remembered per pool
	setReserve  = 16  // replace those with long queues, and an eighth of the set does too
)

// withReserve returns the entries of a set and those that may replace some.
func (p *pool) withReserve(h HotPrefix) []int32 {
	return p.order(h.Anchor)[:min(h.Replicas+h.Replicas/8+setReserve, len(p.entries))]
}

// order returns the entries in the rendezvous order of a hot prefix's anchor.
func (p *pool) order(anchor prefixtree.Hash) []int32 {
	p.ordersMu.RLock()
	order := p.orders[anchor]
	p.ordersMu.RUnlock()
	if order != nil {
		return order
	}
	ranks, order := make([]float64, len(p.entries)), make([]int32, len(p.entries))
	for i := range p.entries {
		e := &p.entries[i]
		ranks[i], order[i] = rendezvous(uint64(anchor), e.key, e.weight, p.weighted), int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(ranks[b], ranks[a]) })
	p.ordersMu.Lock()
	defer p.ordersMu.Unlock()
	if p.orders == nil || len(p.orders) >= knownOrders {
		p.orders = map[prefixtree.Hash][]int32{}
	}
	p.orders[anchor] = order
	return order
}

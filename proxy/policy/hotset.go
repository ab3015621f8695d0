package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
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
	KVTokens int64 // total KV capacity; 0 unless all are known
}

// Pools returns the present view's pools, sorted by name.
func (r *Router) Pools() []PoolSize {
	var list []PoolSize
	for _, p := range r.table.Load().pools() {
		size := PoolSize{Pool: p.key, Backends: len(p.entries)}
		known := true
		for i := range p.entries {
			size.KVTokens += int64(p.entries[i].kv)
			known = known && p.entries[i].kv > 0
		}
		if !known {
			size.KVTokens = 0
		}
		list = append(list, size)
	}
	slices.SortFunc(list, func(a, b PoolSize) int { return cmp.Compare(a.Pool, b.Pool) })
	return list
}

// HotSet returns the names of a hot prefix's set in order, without those in without but with
// avoided ones; nil for an unknown pool.
func (r *Router) HotSet(key uint64, p HotPrefix, without ...string) []string {
	pools := r.table.Load().pools()
	at := slices.IndexFunc(pools, func(p *pool) bool { return p.key == key })
	if at < 0 {
		return nil
	}
	pool := pools[at]
	names := make([]string, 0, p.Replicas)
	for _, at := range pool.ranked(p.Anchor) {
		name := pool.name(pool.entries[at].id)
		if len(names) < p.Replicas && !slices.Contains(without, name) {
			names = append(names, name)
		}
	}
	return names
}

func (p *pool) ranked(anchor prefixtree.Hash) []int32 {
	ranks, list := make([]float64, len(p.entries)), make([]int32, len(p.entries))
	for i := range p.entries {
		e := &p.entries[i]
		ranks[i], list[i] = rendezvous(uint64(anchor), e.key, e.weight, p.weighted), int32(i)
	}
	slices.SortFunc(list, func(a, b int32) int { return cmp.Compare(ranks[b], ranks[a]) })
	return list
}

// gather marks the candidates outside the hot prefix's set and returns its size. The next in order
// replaces a candidate whose queue exceeds limit.
func (s *Scene) gather(limit float64) int {
	if s.hot.Replicas == 0 || s.hot.Replicas >= s.size() {
		return s.size()
	}
	if s.stats != nil {
		return s.gatherSelected(limit)
	}
	if cap(s.ranks) < len(s.Candidates) {
		s.ranks = make([]float64, 0, len(s.Candidates))
	}
	s.ranks = s.ranks[:0]
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = c.queue > limit; !c.outside {
			s.ranks = append(s.ranks, s.Rendezvous(uint64(s.hot.Anchor), i))
		}
	}
	if len(s.ranks) <= s.hot.Replicas {
		return len(s.ranks)
	}
	least := nthLargest(s.ranks, s.hot.Replicas-1)
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = c.outside || s.Rendezvous(uint64(s.hot.Anchor), i) < least; !c.outside {
			n++
		}
	}
	return n
}

// gatherSelected is gather for a selection. If all exceed the limit, all are inside.
func (s *Scene) gatherSelected(limit float64) int {
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = n == s.hot.Replicas || c.rank == unranked || c.queue > limit; !c.outside {
			n++
		}
	}
	if n > 0 {
		return s.hot.Replicas
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = false
	}
	return s.size()
}

// nthLargest takes linear time and reorders the list.
func nthLargest(list []float64, n int) float64 {
	low, high := 0, len(list)-1
	for low < high {
		pivot := list[(low+high)/2]
		i, j := low, high
		for i <= j {
			for list[i] > pivot {
				i++
			}
			for list[j] < pivot {
				j--
			}
			if i <= j {
				list[i], list[j] = list[j], list[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return list[n]
		}
	}
	return list[n]
}

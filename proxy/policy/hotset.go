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
	for _, p := range r.table.Load().pools {
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
	return list
}

// HotSet returns the names of a hot prefix's set in order, without those in without but with
// avoided ones; nil for an unknown pool.
func (r *Router) HotSet(key uint64, p HotPrefix, without ...string) []string {
	pools := r.table.Load().pools
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

// gather marks the candidates outside the hot prefix's set and returns how many are inside. The next
// in order replaces a candidate whose queue exceeds limit; if all exceed it, all are inside.
func (s *Scene) gather(limit float64) int {
	if s.hot.Replicas == 0 || s.hot.Replicas >= s.size {
		return s.size
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = true
	}
	set := s.pool.replicas(s.hot.Anchor, s.hot.Replicas)
	if s.hot.Replicas > selectReplicas && len(s.pool.entries) > weighAll {
		set = set[:s.hot.Replicas] // of which a decision weighs a part: no other is missing
	}
	n := 0
	for _, at := range set {
		if c := s.candidate(int(at)); c != nil && c.Queued <= limit {
			c.outside = false
			if n++; n == s.hot.Replicas {
				break
			}
		}
	}
	if n > 0 {
		return n
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = false
	}
	return s.size
}

const (
	knownSets  = 256 // bounds the sets remembered per pool
	setReserve = 16  // replace those with long queues, and an eighth of the set does too
)

// replicas returns the first entries in the anchor's order, with a reserve.
func (p *pool) replicas(anchor prefixtree.Hash, n int) []int32 {
	want := min(n+n/8+setReserve, len(p.entries))
	p.setsMu.RLock()
	set := p.sets[anchor]
	p.setsMu.RUnlock()
	if len(set) < want {
		set = p.findReplicas(anchor, want)
	}
	return set[:want] // an earlier set may be larger
}

func (p *pool) findReplicas(anchor prefixtree.Hash, n int) []int32 {
	set := slices.Clone(p.ranked(anchor)[:n])
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	if p.sets == nil || len(p.sets) >= knownSets {
		p.sets = map[prefixtree.Hash][]int32{}
	}
	p.sets[anchor] = set
	return set
}

package policy

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
)

// HotPrefix is a prefix of prompts that the fleet has agreed to hold on a number of backends. Which ones follows from the anchor: the
// first ones in its rendezvous order among those that are eligible, so that all nodes name the same, and one that is lost or
// drained changes one of them.
type HotPrefix struct {
	Anchor   prefixtree.Hash
	Tokens   int // of prompt up to the anchor
	Replicas int // at least 1
}

// hotPrefixes is what has been agreed on. Immutable; nil is nothing.
type hotPrefixes struct {
	list   map[prefixtree.Hash]HotPrefix
	filter [64]uint64 // a bit for each anchor: most blocks of a prompt are none, and cost no look into the map
}

// SetHotPrefixes replaces what has been agreed on. Nothing is changed for the others; with an empty list every decision is what it
// would be if there were no such thing. The list is copied. Entries without replicas are left out.
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

// PoolSize is how large a pool of backends is.
type PoolSize struct {
	Pool     uint64 // its name: the same on all nodes
	Backends int    // that are active
	KVTokens int64  // that their caches hold together; 0 if that is not known of all
}

// Pools returns the pools of the present view, in order of their names.
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

// HotSet returns the names of the backends of a pool that hold a hot prefix on the present view, the first in order first; without
// leaves some out, as if they were gone. Some of them may be left alone for failures just now. Nil if there is no such pool.
func (r *Router) HotSet(key uint64, p HotPrefix, without ...string) []string {
	pools := r.table.Load().pools()
	at := slices.IndexFunc(pools, func(p *pool) bool { return p.key == key })
	if at < 0 {
		return nil
	}
	pool := pools[at]
	type ranked struct {
		name string
		rank float64
	}
	var order []ranked
	for i := range pool.entries {
		e := &pool.entries[i]
		if name := pool.name(e.id); !slices.Contains(without, name) {
			order = append(order, ranked{name, rendezvous(uint64(p.Anchor), e.key, e.weight, pool.weighted)})
		}
	}
	slices.SortFunc(order, func(a, b ranked) int { return cmp.Compare(b.rank, a.rank) })
	names := make([]string, 0, p.Replicas)
	for _, o := range order[:min(len(order), p.Replicas)] {
		names = append(names, o.name)
	}
	return names
}

// deepest returns the deepest hot prefix of a prompt and the number of its blocks; false if there is none. Anchors are looked for
// where the sketch puts them.
func (h *hotPrefixes) deepest(hashes []prefixtree.Hash) (p HotPrefix, blocks int, ok bool) {
	last := min(len(hashes), sketchDepth) - 1
	for i := 0; i <= last; i = nextAnchor(i, last) {
		a := hashes[i]
		if h.filter[a>>6&63]&(1<<(a&63)) != 0 {
			if found, is := h.list[a]; is {
				p, blocks, ok = found, i+1, true
			}
		}
		if i == last {
			break
		}
	}
	return p, blocks, ok
}

// agree takes in what has been agreed on about the prompt: what is hot is common property, whatever this node has seen of it.
func (s *Scene) agree(h *hotPrefixes, blocks int) int {
	p, deep, ok := h.deepest(s.Request.Hashes)
	if !ok {
		return blocks
	}
	s.HotAnchor, s.Replicas = p.Anchor, p.Replicas
	tokens := min(float64(deep)*s.TokensPerBlock, float64(s.PromptTokens))
	if deep <= blocks || tokens <= s.CommonTokens {
		return blocks
	}
	s.CommonTokens, s.judged = tokens, true
	if s.nameless = deep == len(s.Request.Hashes); !s.nameless {
		s.Branch = s.Request.Hashes[deep]
	}
	return deep
}

// gather marks the candidates that are not of the hot prefix's replica set, and returns how many are: all if nothing is hot, or the set
// holds everybody. In the order of the anchor a candidate whose queue is above the limit is passed over, and the next one stands
// in for it: the set is where the prefix is held, not where it has to wait.
func (s *Scene) gather(limit float64) int {
	if s.Replicas == 0 || s.Replicas >= s.size() {
		return s.size()
	}
	if s.sampled {
		return s.gatherSelected(limit)
	}
	if cap(s.ranks) < len(s.Candidates) {
		s.ranks = make([]float64, 0, len(s.Candidates))
	}
	s.ranks = s.ranks[:0]
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = c.queue > limit; !c.outside {
			s.ranks = append(s.ranks, s.Rendezvous(uint64(s.HotAnchor), i))
		}
	}
	if len(s.ranks) <= s.Replicas {
		return len(s.ranks)
	}
	least := nthLargest(s.ranks, s.Replicas-1)
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = c.outside || s.Rendezvous(uint64(s.HotAnchor), i) < least; !c.outside {
			n++
		}
	}
	return n
}

// gatherSelected is gather where the candidates are a selection: those that have a rank are the first in the order of the anchor. If all
// of these have to wait there is no set.
func (s *Scene) gatherSelected(limit float64) int {
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.outside = n == s.Replicas || c.rank == unranked || c.queue > limit; !c.outside {
			n++
		}
	}
	if n > 0 {
		return s.Replicas
	}
	for i := range s.Candidates {
		s.Candidates[i].outside = false
	}
	return s.size()
}

// nthLargest returns the element that would be at n in descending order, in linear time; it reorders the list.
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

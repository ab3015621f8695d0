package policy

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

const (
	weighAll                 = 256 // the largest pool that is weighed as a whole
	selectHolders            = 32
	selectOrder              = 16     // some entries have long queues
	selectLows, selectRandom = 64, 16 // least loaded and random entries
	selectReplicas           = 96     // each prompt gets its own part of a larger hot set
	knownSets                = 256
)

var unranked = float32(math.Inf(-1)) // rank of candidates outside the order

type large struct {
	order    *order
	stats    statsOf
	credited []atomic.Uint64 // by entry: last decision that credited it during slow start

	setsMu sync.RWMutex
	sets   map[prefixtree.Hash][]int32 // entries in the order of a hot prefix's anchor
}

func (p *pool) enlarge(positions []int32) {
	keys := make([]orderKey, len(positions))
	for i, at := range positions {
		b := &p.view.Backends[at]
		keys[i] = orderKey{mix(keyOf(b)), p.byID[b.ID]}
	}
	p.order = newOrder(keys, p.entries, p.weighted)
	p.credited = make([]atomic.Uint64, len(p.entries))
}

func (r *Router) shortlist(s *Scene) bool {
	if s.stats = s.pool.stats.look(r, s); s.stats.eligible == 0 {
		s.stats = nil
		return false
	}
	s.foresee()
	key, _ := s.orderKey()
	if key == 0 {
		key = s.Rand()
	}
	hot := s.hot.Replicas > 0 && s.hot.Replicas < s.size()
	switch {
	case hot:
		s.putSet(key)
	case s.unseen.all:
		s.putFirst(key, selectOrder)
	default:
		s.putFirst(key, 2*s.unseen.k+selectOrder)
	}
	s.putHolders()
	if s.unseen.all || hot {
		best, next := s.stats.left(s.turn)
		for _, list := range [2][]int32{best, next} {
			for _, at := range list {
				s.putMore(int(at))
			}
		}
	}
	for range selectRandom {
		s.putMore(int(s.Rand() % uint64(len(s.pool.entries))))
	}
	if len(s.Candidates) == 0 {
		s.stats = nil
	}
	return s.stats != nil
}

func (s *Scene) may(at int) bool {
	e := &s.pool.entries[at]
	return e.slot.health(s.Now) != avoided && !slices.Contains(s.Request.Exclude, e.id)
}

func (s *Scene) putMore(at int) *Candidate {
	if c := s.candidate(at); c != nil {
		return c
	}
	if !s.put(at, &s.pool.entries[at]) {
		return nil
	}
	return &s.Candidates[len(s.Candidates)-1]
}

func (s *Scene) putFirst(key uint64, n int) {
	w := s.pool.order.begin(key, n)
	for len(s.Candidates) < n {
		at, ok := w.next()
		if !ok {
			return
		}
		if c := s.putMore(at); c != nil && c.rank == unranked {
			c.rank = 1 / float32(len(s.Candidates))
		}
	}
}

// putHolders adds the deepest holders of an uncommon prefix, the most recent first.
func (s *Scene) putHolders() {
	var best [selectHolders]prefixtree.Holder
	n := 0
	for _, h := range s.holders() {
		if float64(h.Expected)*s.TokensPerBlock <= s.CommonTokens || n == len(best) && !deeper(&h, &best[n-1]) {
			continue
		}
		if at := s.pool.entryOf(h.Backend); at < 0 || !s.may(at) {
			continue
		}
		j := min(n, len(best)-1)
		for ; j > 0 && deeper(&h, &best[j-1]); j-- {
			best[j] = best[j-1]
		}
		best[j] = h
		n = min(n+1, len(best))
	}
	for _, h := range best[:n] {
		s.putMore(s.pool.entryOf(h.Backend))
	}
}

func deeper(a, b *prefixtree.Holder) bool {
	if a.Expected != b.Expected {
		return a.Expected > b.Expected
	}
	if a.Age != b.Age {
		return a.Age < b.Age
	}
	return a.Backend < b.Backend
}

// putSet adds the hot set and its reserve, or a part of a large one by key.
func (s *Scene) putSet(key uint64) {
	set := s.pool.replicas(s.hot.Anchor, s.hot.Replicas)
	n, partly := 0, s.hot.Replicas > selectReplicas
	for i := range set {
		if partly && n == selectReplicas {
			return
		}
		at := i
		if partly {
			at = int(mix(key+uint64(i)*0x9e3779b97f4a7c15) % uint64(s.hot.Replicas))
		}
		c := s.putMore(int(set[at]))
		if c == nil || c.rank != unranked {
			continue
		}
		n++
		e := &s.pool.entries[set[at]]
		c.rank = float32(rendezvous(key, e.key, e.weight, s.pool.weighted))
	}
}

// replicas returns the first entries in the anchor's order, with a reserve.
func (p *pool) replicas(anchor prefixtree.Hash, n int) []int32 {
	want := min(n+n/8+selectOrder, len(p.entries))
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

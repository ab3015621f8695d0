package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"grapevine/prefixtree"
)

const (
	// weighAll is the size up to which every backend of a pool is weighed. Of a larger one prefix weighs a selection: the deepest
	// holders, the first ones in order, the least loaded, and a few at random.
	weighAll = 256
	// selectHolders bounds the holders of more than what is common property.
	selectHolders = 32
	// selectOrder is how many of the order are looked at beyond twice as many as there are choices: some have too long a queue.
	selectOrder = 16
	// selectLows and selectRandom are where the load decides.
	selectLows, selectRandom = 64, 16
	// selectReplicas bounds the backends of the replica set of a hot prefix. Of a larger set each prompt has a part of its own.
	selectReplicas = 96
	// knownSets bounds the replica sets that a pool remembers.
	knownSets = 256
)

// unranked is the rank of a candidate that is in no order: all that are come first.
var unranked = float32(math.Inf(-1))

// large is what a pool has that is too large for every backend to be weighed.
type large struct {
	order    *order // nil in the others
	survey   *survey
	credited []atomic.Uint64 // by entry: the decision up to which a backend that begins anew has been credited

	setsMu sync.RWMutex
	sets   map[prefixtree.Hash][]int32 // entries in the order of a hot prefix's anchor, as many as have been asked for
}

// enlarge lays out the order of a pool; positions are all its backends, also those that are not active.
func (p *pool) enlarge(positions []int32) {
	keys := make([]orderKey, len(positions))
	for i, at := range positions {
		b := &p.view.Backends[at]
		keys[i] = orderKey{mix(keyOf(b)), p.byID[b.ID]}
	}
	p.order, p.survey = newOrder(keys, p.entries, p.weighted), new(survey)
	p.credited = make([]atomic.Uint64, len(p.entries))
}

// shortlist puts forward a selection of the candidates of a large pool, for a prompt that has been matched. None, if nobody of the
// selection may be had.
func (r *Router) shortlist(s *Scene) {
	s.inferred = len(s.Request.Hashes) > 0 && r.infers(s) && int64(s.Now)-r.witnessed.Load() <= blindAfter
	s.foresee()
	key, _ := s.orderKey()
	if key == 0 {
		key = s.Rand()
	}
	hot := s.Replicas > 0 && s.Replicas < s.size()
	switch {
	case hot:
		s.putSet(key)
	case s.outsight.all:
		s.putFirst(key, selectOrder)
	default:
		s.putFirst(key, 2*s.outsight.k+selectOrder)
	}
	s.putHolders()
	if s.outsight.all || hot {
		for _, at := range s.lows {
			s.putMore(int(at))
		}
	}
	for range selectRandom {
		s.putMore(int(s.Rand() % uint64(len(s.pool.entries))))
	}
}

// putMore puts forward a backend unless it is there already.
func (s *Scene) putMore(at int) *Candidate {
	if c := s.candidate(at); c != nil {
		return c
	}
	if !s.put(at, &s.pool.entries[at]) {
		return nil
	}
	return &s.Candidates[len(s.Candidates)-1]
}

// putFirst puts forward the first backends in the order of the key.
func (s *Scene) putFirst(key uint64, n int) {
	w := s.pool.order.begin(key, n)
	for len(s.Candidates) < n {
		at, ok := w.next()
		if !ok {
			return
		}
		if c := s.putMore(at); c != nil && c.rank == unranked {
			c.rank = -float32(len(s.Candidates))
		}
	}
}

// putHolders puts forward the deepest holders of what is not common property, of equally deep ones those that saw it last.
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

// putSet puts forward backends of the replica set of the hot prefix: all of them and those that stand in for who is away or has a long
// queue, in the order of the anchor; or a part that differs from key to key.
func (s *Scene) putSet(key uint64) {
	set := s.pool.replicas(s.HotAnchor, s.Replicas)
	n, partly := 0, s.Replicas > selectReplicas
	for i := range set {
		if partly && n == selectReplicas {
			return
		}
		at := i
		if partly {
			at = int(mix(key+uint64(i)*0x9e3779b97f4a7c15) % uint64(s.Replicas))
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

// replicas returns the first backends in the rendezvous order of an anchor, a few more than so many: some may be away.
func (p *pool) replicas(anchor prefixtree.Hash, n int) []int32 {
	want := min(n+n/8+selectOrder, len(p.entries))
	p.setsMu.RLock()
	set := p.sets[anchor]
	p.setsMu.RUnlock()
	if len(set) < want {
		set = p.findReplicas(anchor, want)
	}
	return set[:want] // it may have been larger before
}

// findReplicas ranks all backends for an anchor, once for every view.
func (p *pool) findReplicas(anchor prefixtree.Hash, n int) []int32 {
	type ranked struct {
		at   int32
		rank float64
	}
	list := make([]ranked, len(p.entries))
	for i := range p.entries {
		e := &p.entries[i]
		list[i] = ranked{int32(i), rendezvous(uint64(anchor), e.key, e.weight, p.weighted)}
	}
	slices.SortFunc(list, func(a, b ranked) int { return cmp.Compare(b.rank, a.rank) })
	set := make([]int32, n)
	for i := range set {
		set[i] = list[i].at
	}
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	if p.sets == nil || len(p.sets) >= knownSets {
		p.sets = map[prefixtree.Hash][]int32{}
	}
	p.sets[anchor] = set
	return set
}

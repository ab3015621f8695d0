package policy

import (
	"slices"

	"grapevine/prefixtree"
)

// Weighing thousands of engines would cost more than the rest of a request. In a large pool a
// decision weighs the deepest holders, the hot prefix's set and a sample, the best of which is
// about as good as the best of all.
const (
	weighAll       = 256 // the largest pool that is weighed as a whole
	sampleSize     = 64
	selectHolders  = 32
	selectReplicas = 96 // each prompt gets its own part of a larger hot set
)

// stageSome adds a part of a large pool: false if none of it is eligible.
func (s *Scene) stageSome() bool {
	// Blind nodes take the same sample for the same conversation.
	key := s.orderKey()
	if key == 0 {
		key = s.Rand()
	}
	if s.hot.Replicas > 0 && s.hot.Replicas < len(s.pool.entries) {
		s.putSet(key)
	}
	s.putHolders()
	for i := range uint64(sampleSize) {
		s.putMore(int(nth(key, i) % uint64(len(s.pool.entries))))
	}
	s.size = len(s.pool.entries)
	return len(s.Candidates) > 0
}

// nth returns the number i of a random sequence.
func nth(key, i uint64) uint64 { return mix(key + i*0x9e3779b97f4a7c15) }

func (s *Scene) putMore(at int) {
	if s.candidate(at) == nil {
		s.put(at, &s.pool.entries[at])
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

func (s *Scene) may(at int) bool {
	e := &s.pool.entries[at]
	return e.slot.health(s.Now) != avoided && !slices.Contains(s.Request.Exclude, e.id)
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
	if s.hot.Replicas <= selectReplicas {
		for _, at := range set {
			s.putMore(int(at))
		}
		return
	}
	for i := range uint64(selectReplicas) {
		s.putMore(int(set[nth(^key, i)%uint64(s.hot.Replicas)]))
	}
}

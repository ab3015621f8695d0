package policy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
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

// stageSome adds a part of a large pool.
func (s *Scene) stageSome() {
	// Blind nodes take the same sample for the same conversation.
	key := s.orderKey()
	if key == 0 {
		key = s.Rand()
	}
	s.putSet(key)
	s.putHolders()
	if s.latest >= 0 {
		s.putMore(s.latest)
	}
	for i := range uint64(sampleSize) {
		s.putMore(int(nth(key, i) % uint64(len(s.pool.entries))))
	}
}

// nth returns the number i of a random sequence.
func nth(key, i uint64) uint64 { return mix(key + i*0x9e3779b97f4a7c15) }

func (s *Scene) putMore(at int) {
	if s.candidate(at) == nil {
		s.put(at)
	}
}

// putHolders adds the deepest holders of an uncommon prefix, the most recent first.
func (s *Scene) putHolders() {
	var best [selectHolders]prefixtree.Holder
	n := 0
	for _, h := range s.matches.Holders() {
		if float64(h.Expected)*s.TokensPerBlock <= s.CommonTokens || n == len(best) && !deeper(&h, &best[n-1]) {
			continue
		}
		if at := s.pool.entryOf(h.Backend); at < 0 || s.standing(&s.pool.entries[at]) == books.Avoided {
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

// putSet adds the hot prefix's set and its reserve, or a part of a large one by key.
func (s *Scene) putSet(key uint64) {
	replicas := s.hot.Replicas
	if replicas == 0 || replicas >= len(s.pool.entries) {
		return
	}
	set := s.pool.withReserve(s.hot)
	if replicas <= selectReplicas {
		for _, at := range set {
			s.putMore(int(at))
		}
		return
	}
	for i := range uint64(selectReplicas) {
		s.putMore(int(set[nth(^key, i)%uint64(replicas)]))
	}
}

package policy

import (
	"math"
	"sync"

	"grapevine/prefixtree"
)

const (
	// heavyHalfLife, in ms: long against gaps between requests, short against a system prompt's
	// life.
	heavyHalfLife = 30_000
	// heavyGap, in ms, bounds the decay between two requests: a quiet node remembers about 90.
	heavyGap     = heavyHalfLife / 90
	heavySupport = 4 // or the first request would be common
	// Anchors are the first anchorDense blocks, then every anchorStride-th, as in the tree.
	anchorDense, anchorStride = 16, 4
	anchorDepth               = 256 // bounds the walk, in blocks (32k tokens)
	// Bounds of the number of counters: with 8B the error, 1/(8B), is a quarter of the threshold.
	heavyMin, heavyMax = 1024, 16384
)

// heavyHitters finds common anchors: SpaceSaving (Metwally et al., ICDT 2005) with forward decay.
// It counts an anchor only behind a common one, so a request costs one or two updates.
type heavyHitters struct {
	mu    sync.Mutex
	index map[prefixtree.Hash]int32
	heap  []heavy // min-heap by count
	limit int
	total float64
	last  prefixtree.Time
	clock float64 // ms since an increment weighed 1, bounded per request by heavyGap
}

type heavy struct {
	hash  prefixtree.Hash
	count float64
}

func newHeavyHitters() *heavyHitters {
	return &heavyHitters{index: make(map[prefixtree.Hash]int32, 2*heavyMin), limit: heavyMin}
}

func (s *heavyHitters) resize(backends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = min(max(8*backends, s.limit), heavyMax)
}

// branch counts the request, unless peek is set. It returns the first anchor with at most share of
// recent traffic, or the deepest; the common blocks before it; and whether enough requests were
// seen.
func (s *heavyHitters) branch(hashes []prefixtree.Hash, share float64, now prefixtree.Time, peek bool) (key prefixtree.Hash, common int, judged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.weight(now, peek)
	threshold := max(share*s.total, heavySupport*w)
	judged = share*s.total >= heavySupport*w
	if !peek {
		s.total += w
	}
	last := min(len(hashes), anchorDepth) - 1
	for i := 0; ; {
		var before float64
		if peek {
			before = s.estimate(hashes[i])
		} else {
			before = s.count(hashes[i], w)
		}
		if before <= threshold {
			return hashes[i], common, judged
		}
		common = i + 1
		if i == last {
			return hashes[i], common, judged
		}
		i = nextAnchor(i, last)
	}
}

func nextAnchor(i, last int) int {
	if i++; i >= anchorDense {
		i += (anchorStride - 1 - i%anchorStride)
	}
	return min(i, last)
}

func (s *heavyHitters) requests(now prefixtree.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total / s.weight(now, true)
}

func (s *heavyHitters) estimate(h prefixtree.Hash) float64 {
	if at, ok := s.index[h]; ok {
		return s.heap[at].count
	}
	return 0
}

// weight returns the weight of a request. Without peek it may rescale the sums.
func (s *heavyHitters) weight(now prefixtree.Time, peek bool) float64 {
	clock := s.clock
	if s.last != 0 {
		clock += min(float64(max(now-s.last, 0)), heavyGap)
	}
	w := math.Exp2(clock / heavyHalfLife)
	if peek {
		return w
	}
	s.clock, s.last = clock, max(now, s.last)
	if w > 1<<20 {
		for i := range s.heap {
			s.heap[i].count /= w
		}
		s.total /= w
		s.clock = 0
		w = 1
	}
	return w
}

func (s *heavyHitters) count(h prefixtree.Hash, w float64) float64 {
	at, ok := s.index[h]
	if !ok {
		if len(s.heap) < s.limit {
			at = int32(len(s.heap))
			s.heap = append(s.heap, heavy{hash: h, count: w})
			s.index[h] = at
			s.up(at)
			return 0
		}
		// The least counter's count is no evidence about the new anchor.
		delete(s.index, s.heap[0].hash)
		s.heap[0] = heavy{hash: h, count: s.heap[0].count + w}
		s.index[h] = 0
		s.down(0)
		return 0
	}
	before := s.heap[at].count
	s.heap[at].count += w
	s.down(at)
	return before
}

func (s *heavyHitters) up(i int32) {
	for i > 0 {
		p := (i - 1) / 2
		if s.heap[p].count <= s.heap[i].count {
			return
		}
		s.swap(i, p)
		i = p
	}
}

func (s *heavyHitters) down(i int32) {
	n := int32(len(s.heap))
	for {
		c := 2*i + 1
		if c >= n {
			return
		}
		if c+1 < n && s.heap[c+1].count < s.heap[c].count {
			c++
		}
		if s.heap[i].count <= s.heap[c].count {
			return
		}
		s.swap(i, c)
		i = c
	}
}

func (s *heavyHitters) swap(i, j int32) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.index[s.heap[i].hash] = i
	s.index[s.heap[j].hash] = j
}

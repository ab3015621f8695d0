package policy

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"grapevine/prefixtree"
)

const (
	// sketchHalfLife is the time in which a count fades to half, milliseconds: long against the gap between requests, short
	// against the life of a system prompt (facts on heavy hitters use 30 s).
	sketchHalfLife = 30_000
	// sketchGap bounds the time that counts between two requests, milliseconds: a node that sees few requests remembers the last
	// ninety or so rather than the last half-minute, or it would never find anything common. Nodes that tell each other their
	// counts remember as many together.
	sketchGap = sketchHalfLife / 90
	// sketchSupport is the least number of (decayed) sightings that make an anchor common: without it the first request
	// after a start would be its own fleet-wide prompt.
	sketchSupport = 4
	// sketchDense anchors are looked at block by block (2k tokens of 128); beyond, every sketchStride-th. The same spacing as
	// the anchors of the tree.
	sketchDense, sketchStride = 16, 4
	// sketchDepth bounds the walk in blocks: 32k tokens of 128. A common prefix longer than that is cut here.
	sketchDepth = 256
	// The least and greatest number of counters. Every anchor above 1/n of the traffic is present with n counters, and the
	// question asked is 1/(2B): n = 4 x 2B leaves an error of a quarter of the threshold.
	sketchMin, sketchMax = 1024, 16384
)

// sketch finds the anchors that are common property: SpaceSaving (Metwally, Agrawal, El Abbadi, ICDT 2005) with exponential
// decay by the time parameter (forward decay, so that old counts need no touching). Bounded memory. An anchor is
// counted only when the one before it is common, so that a request costs one or two updates, not its depth.
type sketch struct {
	mu    sync.Mutex
	index map[prefixtree.Hash]int32 // anchor -> place in heap
	heap  []heavy                   // min-heap by count
	limit int
	total float64
	last  prefixtree.Time // of the latest request; 0 before the first
	clock float64         // milliseconds that count, since an increment weighed 1
	peers peerCounts
}

type heavy struct {
	hash  prefixtree.Hash
	count float64
	over  float64 // of count: what was there before the anchor took the counter over
}

func newSketch() *sketch {
	return &sketch{index: make(map[prefixtree.Hash]int32, 2*sketchMin), limit: sketchMin}
}

// resize follows the number of backends.
func (s *sketch) resize(backends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = min(max(8*backends, s.limit), sketchMax)
}

// branch returns the request's branch key, which is the first anchor whose share of recent traffic is at most share, or
// the deepest one looked at, the number of blocks before it that are common property, and whether enough requests have been
// seen lately to find an anchor of that share. It counts the request unless it is only asked about (peek). hashes must
// not be empty.
func (s *sketch) branch(hashes []prefixtree.Hash, share float64, now prefixtree.Time, peek bool) (key prefixtree.Hash, common int, judged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.weight(now, peek)
	total := s.total + w*s.peers.requests
	threshold := max(share*total, sketchSupport*w)
	judged = share*total >= sketchSupport*w
	if !peek {
		s.total += w
	}
	last := min(len(hashes), sketchDepth) - 1
	for i := 0; ; {
		var before float64
		if peek {
			before = s.estimate(hashes[i])
		} else {
			before = s.count(hashes[i], w)
		}
		if before+w*s.peers.of(hashes[i]) <= threshold {
			return hashes[i], common, judged
		}
		common = i + 1
		if i == last {
			return hashes[i], common, judged
		}
		i = nextAnchor(i, last)
	}
}

// nextAnchor returns the place of the anchor after the one at i, of those up to last; the last block looked at is always one.
func nextAnchor(i, last int) int {
	if i++; i >= sketchDense {
		i += (sketchStride - 1 - i%sketchStride)
	}
	return min(i, last)
}

// setPeers replaces what others have counted.
func (s *sketch) setPeers(all, own *HeatSum) {
	p := newPeerCounts(all, own)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = p
}

// heat returns how many requests were seen lately, and the hottest anchors.
func (s *sketch) heat(limit int, now prefixtree.Time) (requests float64, anchors []HotAnchor) {
	s.mu.Lock()
	w := s.weight(now, true)
	requests = s.total / w
	for i := range s.heap {
		if c := (s.heap[i].count - s.heap[i].over) / w; c >= leastHeat {
			anchors = append(anchors, HotAnchor{s.heap[i].hash, c})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(anchors, func(a, b HotAnchor) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Hash, b.Hash)) })
	return requests, anchors[:min(len(anchors), limit)]
}

func (s *sketch) estimate(h prefixtree.Hash) float64 {
	if at, ok := s.index[h]; ok {
		return s.heap[at].count
	}
	return 0
}

// weight returns what a sighting now counts, rescaling everything when the numbers grow large. Unless peek, the clock goes on.
func (s *sketch) weight(now prefixtree.Time, peek bool) float64 {
	clock := s.clock
	if s.last != 0 {
		clock += min(float64(max(now-s.last, 0)), sketchGap*float64(1+s.peers.nodes))
	}
	w := math.Exp2(clock / sketchHalfLife)
	if peek {
		return w
	}
	s.clock, s.last = clock, max(now, s.last)
	if w > 1<<20 {
		for i := range s.heap {
			s.heap[i].count /= w
			s.heap[i].over /= w
		}
		s.total /= w
		s.clock = 0
		w = 1
	}
	return w
}

// count adds w to the anchor and returns its count before.
func (s *sketch) count(h prefixtree.Hash, w float64) float64 {
	at, ok := s.index[h]
	if !ok {
		if len(s.heap) < s.limit {
			at = int32(len(s.heap))
			s.heap = append(s.heap, heavy{hash: h, count: w})
			s.index[h] = at
			s.up(at)
			return 0
		}
		// The newcomer takes over the least counter with its count: the error SpaceSaving is known for. It is not taken for
		// evidence: the count returned is 0.
		delete(s.index, s.heap[0].hash)
		s.heap[0] = heavy{hash: h, count: s.heap[0].count + w, over: s.heap[0].count}
		s.index[h] = 0
		s.down(0)
		return 0
	}
	before := s.heap[at].count
	s.heap[at].count += w
	s.down(at)
	return before
}

func (s *sketch) up(i int32) {
	for i > 0 {
		p := (i - 1) / 2
		if s.heap[p].count <= s.heap[i].count {
			return
		}
		s.swap(i, p)
		i = p
	}
}

func (s *sketch) down(i int32) {
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

func (s *sketch) swap(i, j int32) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.index[s.heap[i].hash] = i
	s.index[s.heap[j].hash] = j
}

package prefixtree

import (
	"math/bits"
	"slices"
	"time"
)

// scanLimit bounds the entries that one Match reads, about 40 us. Beyond, depths are lower bounds.
const scanLimit = 1 << 14

// Holder is what one backend is believed to hold of a prompt.
type Holder struct {
	Backend  Backend
	Blocks   int32         // leading blocks down to the deepest fact
	Fresh    int32         // leading blocks down to the deepest fact within the horizon
	Expected float32       // blocks expected in the cache: Fresh + (Blocks-Fresh) * residency
	Age      time.Duration // since the deepest block was touched
}

// Matches is the result and memory of Match. The zero value is ready. Not safe for concurrent use.
type Matches struct {
	holders []Holder
	found   []finding // by backend; zero outside of Match
	seen    []uint64
	levels  []uint64 // two sets per probe in progress
	words   int
	entries []entry
}

type finding struct {
	at            Time
	blocks, fresh int32
}

// Holders returns the backends found, in no order, valid until the next Match.
func (m *Matches) Holders() []Holder { return m.holders }

// Match finds how many leading blocks of the chain each backend is believed to hold; DESIGN.md has
// the search. Once m is warm it does not allocate. Safe for concurrent use with different m.
func (t *Tree) Match(m *Matches, chain []Hash, now Time) {
	m.holders = m.holders[:0]
	if len(chain) == 0 {
		return
	}
	s := search{t: t, m: m, chain: chain, now: clampTime(now), left: scanLimit}
	if !s.gallop() {
		return
	}
	s.collect()
}

type search struct {
	t     *Tree
	m     *Matches
	chain []Hash
	now   Time
	left  int
}

// sets are the backends at one depth: present ones, and those within their horizon.
type sets struct{ present, fresh []uint64 }

func (m *Matches) level(k int) sets {
	lo, w := 2*k*m.words, m.words
	return sets{m.levels[lo : lo+w : lo+w], m.levels[lo+w : lo+2*w : lo+2*w]}
}

func (m *Matches) prepare(words, levels int) {
	m.words = words
	need := 2 * words * levels
	m.levels = slices.Grow(m.levels[:0], need)[:need]
	if len(m.found) < 64*words {
		m.found = make([]finding, 64*words)
	}
	m.seen = slices.Grow(m.seen[:0], words)[:words]
	clear(m.seen)
}

// gallop probes depths 1, 8, 32, 128 ... until no backend is left, then resolves the intervals from
// the deepest up.
func (s *search) gallop() bool {
	total := len(s.chain)
	highest := int(s.t.highest.Load())
	if highest < 0 {
		return false
	}
	s.m.prepare(highest/64+1, 2*bits.Len(uint(total))+4)
	depths := [66]int{}
	n := 0
	for depth := 1; ; depth = nextGallop(depth, total) {
		found := s.probe(depth, s.m.level(n))
		if n == 0 && !found {
			return false
		}
		depths[n] = depth
		n++
		if !found || depth == total {
			break
		}
	}
	for i := n - 2; i >= 0; i-- {
		hi, lo := s.m.level(i+1), s.m.level(i)
		union(lo, hi)
		s.resolve(depths[i], depths[i+1], lo, hi, n)
	}
	return true
}

func nextGallop(depth, total int) int {
	if depth == 1 {
		return min(denseDepth/2, total)
	}
	return min(4*depth, total)
}

// resolve finds where backends in lo but not in hi end; free is the first unused level.
func (s *search) resolve(loDepth, hiDepth int, lo, hi sets, free int) {
	if s.left <= 0 || !differ(lo, hi) {
		return
	}
	total := len(s.chain)
	loAnchor, hiAnchor := anchorIndex(loDepth, total), anchorIndex(hiDepth, total)
	if hiAnchor-loAnchor <= 1 {
		s.refine(loDepth, hiDepth, lo, hi, free)
		return
	}
	midDepth := anchorDepth((loAnchor+hiAnchor)/2, total)
	mid := s.m.level(free)
	s.probe(midDepth, mid)
	union(mid, hi)
	s.resolve(midDepth, hiDepth, mid, hi, free+1)
	union(lo, mid)
	s.resolve(loDepth, midDepth, lo, mid, free+1)
}

func (s *search) refine(loDepth, hiDepth int, lo, hi sets, free int) {
	acc := s.m.level(free)
	copy(acc.present, hi.present)
	copy(acc.fresh, hi.fresh)
	one := s.m.level(free + 1)
	for depth := hiDepth - 1; depth > loDepth && differ(lo, acc); depth-- {
		s.probe(depth, one)
		union(acc, one)
	}
}

func (s *search) probe(depth int, out sets) bool {
	m := s.m
	clear(out.present)
	clear(out.fresh)
	key := uint64(s.chain[depth-1])
	if key == 0 {
		return false
	}
	m.entries = s.t.shard(key).read(key, m.entries)
	s.left -= len(m.entries)
	found, all := m.found[:64*m.words], s.t.limits
	any := false
	for _, e := range m.entries {
		b := uint(entryBackend(e))
		if b >= uint(len(found)) || b >= uint(len(all)) { // newer than this Match's sets
			continue
		}
		at, lim := entryTime(e), &all[b]
		age, horizon := int64(s.now-at), lim.horizon(s.now)
		if int64(at) <= lim.floor.Load() || age > retention*horizon {
			continue
		}
		any = true
		bit := uint64(1) << (b % 64)
		out.present[b/64] |= bit
		f := &found[b]
		if int32(depth) > f.blocks {
			f.blocks, f.at = int32(depth), at
		}
		if age <= horizon {
			out.fresh[b/64] |= bit
			if int32(depth) > f.fresh {
				f.fresh = int32(depth)
			}
		}
	}
	if any {
		for i, w := range out.present {
			m.seen[i] |= w
		}
	}
	return any
}

func (s *search) collect() {
	m := s.m
	for i, w := range m.seen {
		for ; w != 0; w &= w - 1 {
			b := 64*i + bits.TrailingZeros64(w)
			f := &m.found[b]
			age := max(0, int64(s.now-f.at))
			p := residency(age, s.t.limits[b].horizon(s.now))
			m.holders = append(m.holders, Holder{
				Backend:  Backend(b),
				Blocks:   f.blocks,
				Fresh:    f.fresh,
				Expected: float32(f.fresh) + float32(f.blocks-f.fresh)*p,
				Age:      time.Duration(age) * time.Millisecond,
			})
			*f = finding{}
		}
	}
}

func union(into, from sets) {
	for i := range into.present {
		into.present[i] |= from.present[i]
		into.fresh[i] |= from.fresh[i]
	}
}

func differ(lo, hi sets) bool {
	for i := range lo.present {
		if lo.present[i]&^hi.present[i]|lo.fresh[i]&^hi.fresh[i] != 0 {
			return true
		}
	}
	return false
}

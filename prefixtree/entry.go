package prefixtree

// Backend is this node's dense id of an engine, or of a data-parallel rank.
type Backend uint16

// Time is milliseconds since the Unix epoch or of virtual time, clamped to [1, 2^44).
type Time int64

const maxTime Time = 1<<44 - 1

func clampTime(t Time) Time { return max(1, min(t, maxTime)) }

// An entry is one fact: backend in bits 0-15, time in 16-59, span minus one in 60-61 (anchors
// only), anchor flag in 62; bit 63 is clear. It is never zero.
type entry = uint64

const (
	entryTimeShift        = 16
	entryTimeMask         = uint64(maxTime)
	entrySpanShift        = 60
	entryAnchor    uint64 = 1 << 62
	entryFlags            = entryAnchor | (maxSpan-1)<<entrySpanShift

	spanTag uint64 = 1 << 63 // marks a span
)

func makeEntry(b Backend, at Time, flags uint64) entry {
	return flags | uint64(at)<<entryTimeShift | uint64(b)
}

func entryAt(e entry, at Time) entry {
	return e&^(entryTimeMask<<entryTimeShift) | uint64(at)<<entryTimeShift
}

func entryBackend(e entry) Backend { return Backend(e) }
func entryTime(e entry) Time       { return Time(e >> entryTimeShift & entryTimeMask) }
func entrySpan(e entry) uint8      { return uint8(e>>entrySpanShift&(maxSpan-1)) + 1 }

func anchorFlags(span uint8) uint64 {
	return entryAnchor | uint64(max(1, min(span, maxSpan))-1)<<entrySpanShift
}

func blockFlags(depth, total int) uint64 {
	if depth <= denseDepth {
		return entryAnchor
	}
	if beyond := uint64(depth-1) % AnchorStride; beyond == AnchorStride-1 || depth == total {
		return entryAnchor | beyond<<entrySpanShift
	}
	return 0
}

// mergeEntries takes the later time and the flags of both.
func mergeEntries(a, b entry) entry {
	flags := (a | b) & entryFlags
	if entryTime(b) > entryTime(a) {
		a = b
	}
	return a | flags
}

// A span locates the entries of a block with several holders: arena offset in words in bits 0-31,
// count (at least 2) in 32-47, class in 48-55, spanTag.
type span = uint64

func makeSpan(offset uint32, count, class int) span {
	return spanTag | uint64(class)<<48 | uint64(count)<<32 | uint64(offset)
}

func spanOffset(s span) int { return int(uint32(s)) }
func spanCount(s span) int  { return int(s >> 32 & 0xffff) }
func spanClass(s span) int  { return int(s >> 48 & 0x7f) }

// classSizes are arena block sizes in words; at most a third of a block is unused.
var classSizes = func() (sizes []int) {
	for n := 2; n <= 1<<16; n *= 2 {
		sizes = append(sizes, n, n+n/2)
	}
	return sizes
}()

const classCount = 32

func classFor(n int) int {
	for c, size := range classSizes {
		if size >= n {
			return c
		}
	}
	panic("prefixtree: more holders than backends")
}

package prefixtree

// Backend is the dense id of one inference engine (or one data-parallel rank of it), issued by the membership.
type Backend uint16

// Time is milliseconds since the Unix epoch (in virtual time: since its start). It is always a parameter; the package
// reads no clock. Facts hold 44 bits of it, which lasts for 557 years; times outside [1, 2^44) are clamped.
type Time int64

const maxTime Time = 1<<44 - 1

func clampTime(t Time) Time { return max(1, min(t, maxTime)) }

// An entry is one fact about one block in a word: backend in bits 0-15, time in bits 16-59, anchor flag in bit 62.
// Bits 60 and 61 are spare, bit 63 is clear. Times are at least 1, so no entry is zero.
type entry = uint64

const (
	entryTimeShift        = 16
	entryTimeMask         = uint64(maxTime)
	entryAnchor    uint64 = 1 << 62

	// spanTag marks a slot's value as a span (several holders) rather than an entry (one).
	spanTag uint64 = 1 << 63
)

func makeEntry(b Backend, at Time, anchor bool) entry {
	e := uint64(at)<<entryTimeShift | uint64(b)
	if anchor {
		e |= entryAnchor
	}
	return e
}

func entryBackend(e entry) Backend { return Backend(e) }
func entryTime(e entry) Time       { return Time(e >> entryTimeShift & entryTimeMask) }

// mergeEntries is the join of two facts about the same block and backend: the later time, and an anchor if either says so.
func mergeEntries(a, b entry) entry {
	flag := (a | b) & entryAnchor
	if entryTime(b) > entryTime(a) {
		a = b
	}
	return a | flag
}

// A span is a slot's value when several backends hold the block: where in the arena their entries lie. Offset in bits
// 0-31 (words), count in bits 32-47, class in bits 48-55, spanTag in bit 63. Count is at least 2 except while an edit
// is in progress under the shard's lock.
type span = uint64

func makeSpan(offset uint32, count, class int) span {
	return spanTag | uint64(class)<<48 | uint64(count)<<32 | uint64(offset)
}

func spanOffset(s span) int { return int(uint32(s)) }
func spanCount(s span) int  { return int(s >> 32 & 0xffff) }
func spanClass(s span) int  { return int(s >> 48 & 0x7f) }

// classSizes are the arena block sizes in words: powers of two and the halves between, so that at most a third of a block
// is unused.
var classSizes = func() (sizes []int) {
	for n := 2; n <= 1<<16; n *= 2 {
		sizes = append(sizes, n)
		if n > 2 {
			sizes = append(sizes, n+n/2)
		} else {
			sizes = append(sizes, 3)
		}
	}
	return sizes
}()

const classCount = 32

// classFor returns the smallest class that holds n entries.
func classFor(n int) int {
	for c, size := range classSizes {
		if size >= n {
			return c
		}
	}
	panic("prefixtree: more holders than backends")
}

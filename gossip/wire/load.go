package wire

import "encoding/binary"

// Load is one node's outstanding work on one backend.
type Load struct {
	Backend       uint32 // hash of the backend's name
	PrefillTokens uint32 // prompt tokens not yet computed
	Active        uint32 // requests
}

// loadFull marks a whole vector: backends it does not list are idle.
const loadFull = 1 << 0

// AppendLoad appends a Load frame with at most MaxLoads entries. Time is in Unix milliseconds.
func AppendLoad(dst []byte, time int64, full bool, loads []Load) []byte {
	if len(loads) > MaxLoads {
		loads = loads[:MaxLoads]
	}
	dst, mark := begin(dst, KindLoad)
	var flags byte
	if full {
		flags |= loadFull
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(time))
	dst = binary.AppendUvarint(dst, uint64(len(loads)))
	for i := range loads {
		dst = binary.LittleEndian.AppendUint32(dst, loads[i].Backend)
		dst = binary.AppendUvarint(dst, uint64(loads[i].PrefillTokens))
		dst = binary.AppendUvarint(dst, uint64(loads[i].Active))
	}
	return end(dst, mark)
}

// DecodeLoad appends a Load frame's entries to dst.
func DecodeLoad(dst []Load, body []byte) (loads []Load, time int64, full bool, err error) {
	c := cursor{rest: body}
	full = c.byte()&loadFull != 0
	time = int64(c.bounded(maxTime))
	n := c.bounded(MaxLoads)
	if c.err == nil && n*6 > uint64(len(c.rest)) { // an entry has at least 6 bytes
		c.fail(ErrTruncated)
	}
	for ; n > 0 && c.err == nil; n-- {
		l := Load{Backend: c.uint32()}
		l.PrefillTokens = uint32(c.bounded(1<<32 - 1))
		l.Active = uint32(c.bounded(1<<32 - 1))
		dst = append(dst, l)
	}
	return dst, time, full, c.err
}

// AppendState appends a State frame. Time is in Unix milliseconds.
func AppendState(dst []byte, time int64, state []byte) []byte {
	dst, mark := begin(dst, KindState)
	dst = binary.AppendUvarint(dst, uint64(time))
	dst = binary.AppendUvarint(dst, uint64(len(state)))
	dst = append(dst, state...)
	return end(dst, mark)
}

// DecodeState decodes its body.
func DecodeState(body []byte) (time int64, state []byte, err error) {
	c := cursor{rest: body}
	time = int64(c.bounded(maxTime))
	state = c.bytes(MaxState)
	return time, state, c.err
}

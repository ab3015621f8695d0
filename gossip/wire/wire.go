// Package wire encodes and decodes the frames of knowledge streams (gossip/DESIGN.md). Results
// point into the input; decoders allocate a small multiple of it at most.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Oldest is the first version still spoken: one before Version, so that an upgrade does not split
// the fleet.
const Oldest = 1

// Kind identifies a frame.
type Kind uint8

// Frames from the subscriber, which dials, to the publisher.
const (
	KindSubscribe Kind = 0x01
	KindPing      Kind = 0x02
	KindSnapshot  Kind = 0x03
	KindCancel    Kind = 0x04
)

// Frames from the publisher to the subscriber.
const (
	KindStart        Kind = 0x11
	KindPong         Kind = 0x12
	KindBatch        Kind = 0x13
	KindLoad         Kind = 0x14
	KindState        Kind = 0x15
	KindSnapshotHead Kind = 0x16
	KindPage         Kind = 0x17
	KindSnapshotDone Kind = 0x18 // ends or refuses a snapshot
	KindUsage        Kind = 0x19
	KindFigures      Kind = 0x1a
	KindClaims       Kind = 0x1b
)

const Kinds = 0x20 // exceeds all kinds

// Bounds on what a peer may send, checked before memory is spent.
const (
	MaxPayload   = 64 << 10  // some 400 placements, far beyond one flush
	MaxRecords   = 1 << 20   // a record has at least one byte
	MaxPage      = 64 << 10  // live frames wait for milliseconds only
	MaxState     = 256 << 10 // a thousand backends of 256 bytes
	MaxLoads     = 16384     // also clients in use, and figures
	MaxClaims    = 16 << 10  // sent at most every flush
	MaxName      = 255
	MaxPositions = 2049 // 2048 members and the node itself

	maxSmall    = 1 << 10
	maxUnknown  = 1 << 20   // an unknown frame, skipped without buffering
	slack       = 1 << 10   // what later versions may append
	maxSequence = 1<<62 - 1 // arithmetic does not overflow
	maxTime     = 1<<48 - 1 // ms: the year 10889
)

// ErrMalformed means a violation of the format or a bound; the stream is unusable.
var ErrMalformed = errors.New("wire: malformed")

// limit is the longest body, in bytes.
var kinds = [Kinds]struct {
	name  string
	limit int
}{
	KindSubscribe:    {"subscribe", maxSmall},
	KindPing:         {"ping", maxSmall},
	KindSnapshot:     {"snapshot", maxSmall},
	KindCancel:       {"cancel", maxSmall},
	KindStart:        {"start", maxSmall},
	KindPong:         {"pong", maxSmall},
	KindBatch:        {"batch", MaxPayload + slack},
	KindLoad:         {"load", MaxLoads*(4+2*binary.MaxVarintLen32) + slack},
	KindState:        {"state", MaxState + slack},
	KindSnapshotHead: {"snapshot_head", MaxPositions*(2+MaxName+2*binary.MaxVarintLen64) + slack},
	KindPage:         {"page", MaxPage + slack},
	KindSnapshotDone: {"snapshot_done", maxSmall},
	KindUsage:        {"usage", MaxLoads*(4+2*binary.MaxVarintLen32) + slack},
	KindFigures:      {"figures", MaxLoads*(4+2*binary.MaxVarintLen32) + slack},
	KindClaims:       {"claims", MaxClaims + slack},
}

// Limit returns the longest body of a kind, in bytes; known is false for kinds of other versions.
func Limit(k Kind) (limit int, known bool) {
	if k < Kinds && kinds[k].limit > 0 {
		return kinds[k].limit, true
	}
	return maxUnknown, false
}

func (k Kind) String() string {
	if _, known := Limit(k); known {
		return kinds[k].name
	}
	return fmt.Sprintf("unknown_%02x", uint8(k))
}

const headSize = 4 // kind, and the body's length as u24 big-endian

// end fills in the length.
func begin(dst []byte, k Kind) (out []byte, mark int) {
	return append(dst, byte(k), 0, 0, 0), len(dst)
}

func end(dst []byte, mark int) []byte {
	dst = appended(dst, mark)
	head := dst[mark : mark+headSize]
	binary.BigEndian.PutUint32(head, uint32(head[0])<<24|uint32(len(dst)-mark-headSize))
	return followed(dst, Kind(dst[mark]))
}

// Split returns the kind and whole length of the frame that begins with head, at least 4 bytes.
func Split(head []byte) (k Kind, size int) {
	v := binary.BigEndian.Uint32(head)
	return Kind(v >> 24), headSize + int(v&0xff_ffff)
}

func uvarints(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

func blob(dst, b []byte) []byte { return append(binary.AppendUvarint(dst, uint64(len(b))), b...) }

// cursor reads a body from the front. The first failure sticks.
type cursor struct {
	rest []byte
	err  error
}

func (c *cursor) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	c.rest = nil
}

// take returns the next n bytes; nil after a failure.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.rest)) || c.err != nil {
		c.fail("frame ends early")
		return nil
	}
	v := c.rest[:n:n]
	c.rest = c.rest[n:]
	return v
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.fail("number")
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cursor) bounded(limit uint64) uint64 {
	v := c.uvarint()
	if v > limit {
		c.fail("number beyond its bound")
		return 0
	}
	return v
}

func (c *cursor) byte() (v byte) {
	if b := c.take(1); b != nil {
		v = b[0]
	}
	return v
}

func (c *cursor) uint32() (v uint32) {
	if b := c.take(4); b != nil {
		v = binary.LittleEndian.Uint32(b)
	}
	return v
}

func (c *cursor) uint64() (v uint64) {
	if b := c.take(8); b != nil {
		v = binary.LittleEndian.Uint64(b)
	}
	return v
}

func (c *cursor) bytes(limit uint64) []byte { return c.take(c.bounded(limit)) }

func (c *cursor) name() []byte {
	v := c.bytes(MaxName)
	if c.err == nil && !validName(v) {
		c.fail("name")
	}
	return v
}

// validName reports whether a name is safe in logs and metrics.
func validName(name []byte) bool {
	for _, b := range name {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '.', b == '-', b == '_':
		default:
			return false
		}
	}
	return len(name) > 0
}

// Package wire is the format of knowledge streams: frames, what stands in them, and the bounds that
// hold before any of it is believed. It knows neither sockets nor goroutines nor clocks, and not
// what a payload means. DESIGN.md one directory up describes it byte by byte.
//
// A decoder never allocates more than a small multiple of the bytes it was given, and never reads
// past them. What it returns points into its input unless it says otherwise.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Oldest is the first version that this release still speaks: the one before its own, or every
// upgrade would split the fleet.
const Oldest = 1

// Kind says what a frame holds. Kinds below 0x10 go from subscriber to publisher, the others back.
type Kind uint8

// Frames from the subscriber, which dialed, to the publisher.
const (
	KindSubscribe Kind = 0x01 // where to begin
	KindPing      Kind = 0x02 // measures round trip and clock offset
	KindSnapshot  Kind = 0x03 // asks for all that the publisher knows
	KindCancel    Kind = 0x04 // ends a snapshot
)

// Frames from the publisher to the subscriber.
const (
	KindStart        Kind = 0x11 // the sequence of the first batch that will come
	KindPong         Kind = 0x12 // answers Ping
	KindBatch        Kind = 0x13 // news of the publisher itself
	KindLoad         Kind = 0x14 // its outstanding work
	KindState        Kind = 0x15 // its small state
	KindSnapshotHead Kind = 0x16 // a snapshot begins
	KindPage         Kind = 0x17 // a page of it
	KindSnapshotDone Kind = 0x18 // it ended, or will not begin
)

// Kinds is above all kinds, for arrays indexed by kind.
const Kinds = 0x20

// Bounds of what a peer may send. Each is checked before memory is spent on what it bounds.
const (
	// MaxPayload bounds a batch's payload: at 150 bytes per placement it holds some 400 placements,
	// far beyond one flush.
	MaxPayload = 64 << 10
	// MaxRecords bounds how many records a batch or page may claim: no record is shorter than a
	// byte.
	MaxRecords = 1 << 20
	// MaxPage bounds a page of a snapshot: small enough that live frames between two pages wait for
	// milliseconds.
	MaxPage = 64 << 10
	// MaxState bounds the state blob: a thousand backends at 256 bytes each.
	MaxState = 256 << 10
	// MaxLoads bounds the backends in one load frame. A full vector of more backends does not fit.
	MaxLoads = 16384
	// MaxName bounds the name of a node.
	MaxName = 255
	// MaxPositions bounds the positions in one SnapshotHead: the members that a node keeps streams
	// of, and itself.
	MaxPositions = 2049

	// maxSmall bounds the frames that hold only a few numbers, and what later versions may append
	// to them.
	maxSmall = 1 << 10
	// maxUnknown bounds a frame of a kind this version does not know. It is skipped without being
	// held.
	maxUnknown = 1 << 20
	// slack is what a later version may append to any frame.
	slack = 1 << 10
)

// Errors of decoding. All mean that the stream cannot be used any more.
var (
	ErrTruncated = errors.New("wire: frame ends early")
	ErrTooLarge  = errors.New("wire: beyond the bound")
	ErrMalformed = errors.New("wire: malformed")
)

// Limit is the longest body of a kind, in bytes; known is false for kinds of other versions, which
// are skipped.
func Limit(k Kind) (limit int, known bool) {
	switch k {
	case KindSubscribe, KindPing, KindStart, KindPong, KindSnapshot, KindCancel, KindSnapshotDone:
		return maxSmall, true
	case KindBatch:
		return MaxPayload + slack, true
	case KindLoad:
		return MaxLoads*(4+2*binary.MaxVarintLen32) + slack, true
	case KindState:
		return MaxState + slack, true
	case KindSnapshotHead:
		return MaxPositions*(2+MaxName+2*binary.MaxVarintLen64) + slack, true
	case KindPage:
		return MaxPage + slack, true
	}
	return maxUnknown, false
}

// String is the kind's name in statistics and logs.
func (k Kind) String() string {
	switch k {
	case KindSubscribe:
		return "subscribe"
	case KindPing:
		return "ping"
	case KindSnapshot:
		return "snapshot"
	case KindCancel:
		return "cancel"
	case KindStart:
		return "start"
	case KindPong:
		return "pong"
	case KindBatch:
		return "batch"
	case KindLoad:
		return "load"
	case KindState:
		return "state"
	case KindSnapshotHead:
		return "snapshot_head"
	case KindPage:
		return "page"
	case KindSnapshotDone:
		return "snapshot_done"
	}
	return fmt.Sprintf("unknown_%02x", uint8(k))
}

// begin reserves a frame's head in dst; end fills it in. Between the two the body is appended. Most
// bodies are shorter than 128 bytes and stay where they are; a longer one is moved by a byte or
// two.
func begin(dst []byte, k Kind) (out []byte, mark int) {
	mark = len(dst)
	return append(dst, byte(k), 0), mark
}

func end(dst []byte, mark int) []byte {
	dst = appended(dst, mark)
	body := len(dst) - mark - 2
	if body < 0x80 {
		dst[mark+1] = byte(body)
		return followed(dst, Kind(dst[mark]))
	}
	var head [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(head[:], uint64(body))
	dst = append(dst, head[:n-1]...) // makes room; overwritten by the move
	copy(dst[mark+1+n:], dst[mark+2:mark+2+body])
	copy(dst[mark+1:], head[:n])
	return followed(dst, Kind(dst[mark]))
}

// cursor reads a body from the front. The first failure sticks, so that callers check once at the
// end.
type cursor struct {
	rest []byte
	err  error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.rest = nil
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.fail(ErrTruncated)
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

// bounded is uvarint for a number that must not exceed limit.
func (c *cursor) bounded(limit uint64) uint64 {
	v := c.uvarint()
	if v > limit {
		c.fail(ErrTooLarge)
		return 0
	}
	return v
}

func (c *cursor) byte() byte {
	if len(c.rest) < 1 {
		c.fail(ErrTruncated)
		return 0
	}
	v := c.rest[0]
	c.rest = c.rest[1:]
	return v
}

func (c *cursor) uint32() uint32 {
	if len(c.rest) < 4 {
		c.fail(ErrTruncated)
		return 0
	}
	v := binary.LittleEndian.Uint32(c.rest)
	c.rest = c.rest[4:]
	return v
}

func (c *cursor) uint64() uint64 {
	if len(c.rest) < 8 {
		c.fail(ErrTruncated)
		return 0
	}
	v := binary.LittleEndian.Uint64(c.rest)
	c.rest = c.rest[8:]
	return v
}

// bytes reads a length of at most limit and that many bytes, which point into the body.
func (c *cursor) bytes(limit uint64) []byte {
	n := c.bounded(limit)
	if c.err != nil {
		return nil
	}
	if n > uint64(len(c.rest)) {
		c.fail(ErrTruncated)
		return nil
	}
	v := c.rest[:n:n]
	c.rest = c.rest[n:]
	return v
}

// name reads a node's name.
func (c *cursor) name() []byte {
	v := c.bytes(MaxName)
	if c.err == nil && !validName(v) {
		c.fail(ErrMalformed)
	}
	return v
}

// validName reports whether a name is one that members may have, so that it can stand in logs and
// metrics as it is.
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

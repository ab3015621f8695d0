// Package wire encodes and decodes the frames of knowledge streams (gossip/DESIGN.md). Decoders
// allocate at most a small multiple of their input; results point into the input unless documented
// otherwise.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Oldest is the first version still spoken: one before Version, so that an upgrade does not split
// the fleet.
const Oldest = 1

// Kind identifies a frame. Kinds below 0x10 go from subscriber to publisher, other kinds back.
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
)

// Kinds exceeds all kinds, for arrays indexed by kind.
const Kinds = 0x20

// Bounds on what a peer may send, checked before memory is spent.
const (
	// MaxPayload holds some 400 placements, far beyond one flush.
	MaxPayload = 64 << 10
	// MaxRecords: a record has at least one byte.
	MaxRecords = 1 << 20
	// MaxPage lets live frames wait for milliseconds only.
	MaxPage = 64 << 10
	// MaxState holds a thousand backends at 256 bytes each.
	MaxState = 256 << 10
	MaxLoads = 16384
	MaxName  = 255
	// MaxPositions is 2048 members and the node itself.
	MaxPositions = 2049

	maxSmall = 1 << 10
	// maxUnknown bounds an unknown frame, which is skipped without buffering.
	maxUnknown = 1 << 20
	// slack is how much later versions may append.
	slack = 1 << 10
)

// Errors of decoding; the stream is unusable afterwards.
var (
	ErrTruncated = errors.New("wire: frame ends early")
	ErrTooLarge  = errors.New("wire: beyond the bound")
	ErrMalformed = errors.New("wire: malformed")
)

// Limit returns the longest body of a kind, in bytes; known is false for kinds of other versions.
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

// begin reserves a frame's head; end fills in the length, moving bodies of 128 bytes or more.
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
	dst = append(dst, head[:n-1]...)
	copy(dst[mark+1+n:], dst[mark+2:mark+2+body])
	copy(dst[mark+1:], head[:n])
	return followed(dst, Kind(dst[mark]))
}

// cursor reads a body from the front. The first failure sticks.
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

func (c *cursor) name() []byte {
	v := c.bytes(MaxName)
	if c.err == nil && !validName(v) {
		c.fail(ErrMalformed)
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

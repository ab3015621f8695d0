package prefixtree

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

const (
	deltaFormat = 1

	opBackend   = 0 // the following records are about this backend and generation
	opAdd       = 1
	opTouch     = 2
	opDrop      = 3
	opRevert    = 4
	opFence     = 5
	opExtension = 7 // of later releases, skipped

	tagOp         = 0x07
	tagTime       = 0x08
	tagSpanShift  = 4
	tagSpan       = 0x30
	tagCountShift = 6
	hashBytes     = 8

	maxRecordHead = (1 + 4 + 5) + 1 + 7 + 7 + 4 // backend record, tag, time, time before, count
	payloadHead   = 1 + 7

	// MinPayload is the least payload limit in bytes.
	MinPayload = payloadHead + maxRecordHead + hashBytes
	// MaxPayload bounds a payload in bytes, about ten milliseconds of work.
	MaxPayload = 1 << 20

	maxAhead Time = 5_000 // ms: clocks differ by about a second
)

// ErrDelta is wrapped by every error about a malformed payload.
var ErrDelta = errors.New("prefixtree: malformed delta")

// BackendKey returns the wire name of a backend. Names must refuse collisions (5e-4 among 2,000).
func BackendKey(name string) uint32 { return uint32(xxh3.HashString(name)) }

// Names translates between this node's ids and wire keys. Safe for concurrent use.
type Names interface {
	Key(b Backend) (key uint32, ok bool)
	Backend(key uint32) (b Backend, ok bool)
}

type encoder struct {
	dst   []byte
	limit int
	names Names

	begun      bool
	named      bool
	backend    Backend
	generation uint32
	at         Time
}

// room returns how many hashes fit after one more head.
func (w *encoder) room() int {
	room := w.limit - len(w.dst) - maxRecordHead
	if !w.begun {
		room -= payloadHead
	}
	return room / hashBytes
}

// head writes what precedes n hashes, for which there is room, or a fence. False: no key.
func (w *encoder) head(f *Fact, n int) bool {
	key, ok := w.names.Key(f.Backend)
	if !ok {
		return false
	}
	if !w.begun {
		w.begun, w.at = true, f.Time
		w.dst = append(w.dst, deltaFormat)
		w.dst = binary.AppendUvarint(w.dst, uint64(f.Time))
	}
	if !w.named || w.backend != f.Backend || w.generation != f.Generation {
		w.named, w.backend, w.generation = true, f.Backend, f.Generation
		w.dst = append(w.dst, opBackend)
		w.dst = binary.LittleEndian.AppendUint32(w.dst, key)
		w.dst = binary.AppendUvarint(w.dst, uint64(f.Generation))
	}
	tag := opAdd + byte(f.Kind)
	if f.Time != w.at {
		tag |= tagTime
	}
	if f.Kind != Fence {
		tag |= (max(1, min(f.Span, maxSpan)) - 1) << tagSpanShift
		if n < 4 {
			tag |= byte(n) << tagCountShift
		}
	}
	w.dst = append(w.dst, tag)
	if f.Time != w.at {
		w.dst = binary.AppendVarint(w.dst, int64(f.Time-w.at))
		w.at = f.Time
	}
	if f.Kind == Fence {
		return true
	}
	if f.Kind == Revert {
		before := uint64(0)
		if f.Before != 0 {
			before = uint64(max(1, f.Time-f.Before))
		}
		w.dst = binary.AppendUvarint(w.dst, before)
	}
	if n >= 4 {
		w.dst = binary.AppendUvarint(w.dst, uint64(n))
	}
	return true
}

func (w *encoder) hash(h Hash) { w.dst = binary.LittleEndian.AppendUint64(w.dst, uint64(h)) }

// decoder reads an untrusted payload: results lie within it, times within [1, 2^44).
type decoder struct {
	rest []byte
	at   Time

	named bool
	key   uint32

	fact   Fact
	hashes []byte // 8 bytes each, in the payload's memory
	skip   bool
}

func (r *decoder) begin(payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("%w: %d bytes exceed %d", ErrDelta, len(payload), MaxPayload)
	}
	if len(payload) == 0 || payload[0] != deltaFormat {
		return fmt.Errorf("%w: format is not %d", ErrDelta, deltaFormat)
	}
	r.rest = payload[1:]
	base, ok := r.uvarint()
	if !ok || base < 1 || base > uint64(maxTime) {
		return fmt.Errorf("%w: base time", ErrDelta)
	}
	r.at = Time(base)
	return nil
}

func (r *decoder) next() (more bool, err error) {
	for len(r.rest) > 0 {
		tag := r.rest[0]
		r.rest = r.rest[1:]
		r.hashes, r.skip = nil, false
		switch op := tag & tagOp; {
		case op == opBackend && tag == opBackend:
			if !r.readBackend() {
				return false, fmt.Errorf("%w: backend", ErrDelta)
			}
		case op == opExtension && tag == opExtension:
			n, ok := r.uvarint()
			if !ok || n > uint64(len(r.rest)) {
				return false, fmt.Errorf("%w: extension", ErrDelta)
			}
			r.rest, r.skip = r.rest[n:], true
			return true, nil
		case op >= opAdd && op <= opFence && r.named:
			if what := r.readRecord(tag); what != "" {
				return false, fmt.Errorf("%w: %s", ErrDelta, what)
			}
			return true, nil
		default:
			return false, fmt.Errorf("%w: tag %#02x", ErrDelta, tag)
		}
	}
	return false, nil
}

func (r *decoder) readBackend() bool {
	if len(r.rest) < 4 {
		return false
	}
	r.key = binary.LittleEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	generation, ok := r.uvarint()
	r.named, r.fact.Generation = true, uint32(generation)
	return ok && generation <= 1<<32-1
}

func (r *decoder) readRecord(tag byte) (wrong string) {
	f := &r.fact
	f.Kind = Kind(tag&tagOp - opAdd)
	if tag&tagTime != 0 {
		delta, n := binary.Varint(r.rest)
		if n <= 0 || delta < -int64(maxTime) || delta > int64(maxTime) {
			return "time"
		}
		r.rest = r.rest[n:]
		r.at += Time(delta)
		if r.at < 1 || r.at > maxTime {
			return "time"
		}
	}
	f.Time, f.Before = r.at, 0
	if f.Kind == Fence {
		if tag&^(tagOp|tagTime) != 0 {
			return "fence"
		}
		return ""
	}
	f.Span = tag&tagSpan>>tagSpanShift + 1
	if f.Kind == Revert {
		before, ok := r.uvarint()
		if !ok || before >= uint64(f.Time) {
			return "time before"
		}
		if before > 0 {
			f.Before = f.Time - Time(before)
		}
	}
	count := uint64(tag >> tagCountShift)
	if count == 0 {
		var ok bool
		if count, ok = r.uvarint(); !ok || count == 0 {
			return "count"
		}
	}
	if count > uint64(len(r.rest)/hashBytes) {
		return "count"
	}
	r.hashes, r.rest = r.rest[:count*hashBytes], r.rest[count*hashBytes:]
	return ""
}

func (r *decoder) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return 0, false
	}
	r.rest = r.rest[n:]
	return v, true
}

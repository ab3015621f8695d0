package events

import (
	"encoding/binary"
	"fmt"
	"math"
)

// pack appends a Go value as msgpack: nil, bool, int, uint64, int64, float64, string, []byte, []any (array) and pairs (map).
func pack(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return pack(b, int64(v))
	case int64:
		switch {
		case v >= 0:
			return pack(b, uint64(v))
		case v >= -32:
			return append(b, byte(v))
		case v >= math.MinInt8:
			return append(b, 0xd0, byte(v))
		case v >= math.MinInt16:
			return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
		case v >= math.MinInt32:
			return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
		}
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case uint64:
		switch {
		case v < 0x80:
			return append(b, byte(v))
		case v <= math.MaxUint8:
			return append(b, 0xcc, byte(v))
		case v <= math.MaxUint16:
			return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
		case v <= math.MaxUint32:
			return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
		}
		return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		if len(v) < 32 {
			return append(append(b, 0xa0|byte(len(v))), v...)
		}
		return append(append(b, 0xd9, byte(len(v))), v...)
	case []byte:
		return append(append(b, 0xc4, byte(len(v))), v...)
	case []any:
		if len(v) < 16 {
			b = append(b, 0x90|byte(len(v)))
		} else {
			b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(len(v)))
		}
		for _, e := range v {
			b = pack(b, e)
		}
		return b
	case pairs:
		b = binary.BigEndian.AppendUint16(append(b, 0xde), uint16(len(v)/2))
		for _, e := range v {
			b = pack(b, e)
		}
		return b
	}
	panic(fmt.Sprintf("cannot pack %T", v))
}

// pairs are the keys and values of a map, in turn.
type pairs []any

// payload is a batch as engines send it.
func payload(events ...any) []byte {
	return pack(nil, []any{1763900000.25, events, 0})
}

func ints(from, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = from + i
	}
	return list
}

func hashes(from uint64, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = spread(from + uint64(i))
	}
	return list
}

// spread makes a hash of 64 bits of a small number.
func spread(n uint64) uint64 { return n*0x9e3779b97f4a7c15 | 1<<63 }

// storedMap is what vLLM 0.30 writes for blocks of 16 tokens.
func storedMap(from uint64, blocks int, session any) pairs {
	p := pairs{
		"type", "BlockStored", "block_hashes", hashes(from, blocks), "parent_block_hash", spread(from - 1),
		"token_ids", ints(1000, blocks*16), "block_size", 16, "lora_id", nil, "medium", "GPU", "lora_name", nil,
	}
	if session != nil {
		p = append(p, "session_id", session)
	}
	return p
}

func removedMap(n uint64) pairs {
	return pairs{"type", "BlockRemoved", "block_hashes", hashes(n, 1), "medium", "GPU"}
}

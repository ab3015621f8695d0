package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed is what a payload that is not a batch of events is refused with.
var ErrMalformed = errors.New("malformed batch of cache events")

type kind uint8

const (
	isOther kind = iota // nil, booleans
	isInt
	isFloat
	isBytes // str or bin
	isArray
	isMap
)

// value is a msgpack value without its contents. n is the integer in two's complement, the float's bits, the bytes that follow, the
// elements of an array, or the pairs of a map.
type value struct {
	kind kind
	n    uint64
}

// reader walks over msgpack values. After the first mistake err is set and every read yields nothing. A length beyond the end of
// the data is a mistake, so a loop over the elements of an array takes no more steps than the data has bytes.
type reader struct {
	data []byte
	at   int
	err  error
}

func (r *reader) fail(want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: byte %d of %d: want %s", ErrMalformed, r.at, len(r.data), want)
	}
	r.at = len(r.data)
}

// widths are the bytes of fixed-size values by their first byte; 0 for all others.
var widths = func() (w [256]uint8) {
	for c := range w {
		switch {
		case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
			w[c] = 1
		}
	}
	for c, n := range map[int]uint8{
		0xcc: 2, 0xcd: 3, 0xce: 5, 0xcf: 9, 0xd0: 2, 0xd1: 3, 0xd2: 5, 0xd3: 9, // integers
		0xca: 5, 0xcb: 9, // floats
		0xd4: 3, 0xd5: 4, 0xd6: 6, 0xd7: 10, 0xd8: 18, // extensions of fixed size
	} {
		w[c] = n
	}
	return w
}()

// next reads a value without its contents.
func (r *reader) next() value {
	if r.at >= len(r.data) {
		r.fail("a value")
		return value{}
	}
	c := r.data[r.at]
	rest := len(r.data) - r.at
	if w := int(widths[c]); w > rest {
		r.fail("a whole number")
		return value{}
	} else if w > 0 {
		b := r.data[r.at+1 : r.at+w]
		r.at += w
		return scalar(c, b)
	}
	v := value{kind: isBytes}
	size := 1 // of the head
	switch {
	case c >= 0xa0 && c <= 0xbf:
		v.n = uint64(c & 0x1f)
	case c >= 0x90 && c <= 0x9f:
		v = value{isArray, uint64(c & 0xf)}
	case c >= 0x80 && c <= 0x8f:
		v = value{isMap, uint64(c & 0xf)}
	case c == 0xc1:
		r.fail("a value")
		return value{}
	default:
		switch c {
		case 0xc4, 0xc7, 0xd9:
			size = 2
		case 0xc5, 0xc8, 0xda, 0xdc, 0xde:
			size = 3
		default: // 0xc6, 0xc9, 0xdb, 0xdd, 0xdf
			size = 5
		}
		if size > rest {
			r.fail("a length")
			return value{}
		}
		v.n = bigEndian(r.data[r.at+1 : r.at+size])
		switch c {
		case 0xc7, 0xc8, 0xc9:
			v.n++ // the type of an extension
		case 0xdc, 0xdd:
			v.kind = isArray
		case 0xde, 0xdf:
			v.kind = isMap
		}
	}
	need := v.n
	if v.kind == isMap {
		need *= 2
	}
	if need > uint64(rest-size) {
		r.fail("fewer elements or bytes")
		return value{}
	}
	r.at += size
	return v
}

func scalar(c byte, b []byte) value {
	switch {
	case c <= 0x7f:
		return value{isInt, uint64(c)}
	case c >= 0xe0:
		return value{isInt, uint64(int64(int8(c)))}
	case c == 0xca:
		return value{isFloat, math.Float64bits(float64(math.Float32frombits(binary.BigEndian.Uint32(b))))}
	case c == 0xcb:
		return value{isFloat, bigEndian(b)}
	case c == 0xcf:
		return value{isInt, binary.BigEndian.Uint64(b)}
	case c >= 0xcc && c <= 0xce:
		return value{isInt, bigEndian(b)}
	case c >= 0xd0 && c <= 0xd3:
		shift := 64 - 8*len(b)
		return value{isInt, uint64(int64(bigEndian(b)<<shift) >> shift)}
	}
	return value{} // nil, booleans, extensions
}

// bigEndian reads the last 8 bytes of b.
func bigEndian(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// skip passes over n whole values, however deep.
func (r *reader) skip(n uint64) {
	for n > 0 && r.at < len(r.data) {
		n--
		switch r.data[r.at] { // token ids: a processor guesses the branch, while it would wait for the table
		case 0xcd:
			r.at += 3
			continue
		case 0xce:
			r.at += 5
			continue
		}
		switch v := r.next(); v.kind {
		case isBytes:
			r.at += int(v.n)
		case isArray:
			n += v.n
		case isMap:
			n += 2 * v.n
		}
	}
	if n > 0 || r.at > len(r.data) {
		r.at = min(r.at, len(r.data))
		r.fail("a value")
	}
}

// array reads the head of an array.
func (r *reader) array() uint64 {
	v := r.next()
	if v.kind != isArray {
		r.fail("an array")
		return 0
	}
	return v.n
}

// bytes reads a string or bytes; nil for a nil value. The result is part of the data.
func (r *reader) bytes() []byte {
	v := r.next()
	switch v.kind {
	case isBytes:
		b := r.data[r.at : r.at+int(v.n) : r.at+int(v.n)]
		r.at += int(v.n)
		return b
	case isOther:
		return nil
	}
	r.fail("a string or nil")
	return nil
}

// count reads an integer from 0 to most; 0 for a nil value.
func (r *reader) count(most uint64) uint64 {
	v := r.next()
	if v.kind == isOther || v.kind == isInt && v.n <= most {
		return v.n
	}
	r.fail(fmt.Sprintf("an integer up to %d", most))
	return 0
}

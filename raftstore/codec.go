package raftstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
)

// Log entries, snapshots, answers and hellos are structs, written field after field:
//
//	bool            1 byte, 0 or 1
//	uint, int       uvarint, varint
//	float           8 bytes, big-endian
//	array of bytes  the bytes
//	string, []byte  length as uvarint, the bytes
//	slice           count as uvarint, the elements
//	pointer         1 byte for presence, the element
//
// So a change of such a struct is a change of its format. Fields with the tag since are absent from
// older formats, where their value is zero.

var errShort = errors.New("cut short")

const (
	firstFormat  = 1
	newestFormat = 3 // labels, rules with targets

	// silentFormat is the newest that programs knew which do not say what they know.
	silentFormat = 2
)

// grown has, for each struct with the tag since, the format that began each field.
var grown = formatsOf(reflect.TypeFor[Backend](), reflect.TypeFor[UpdateBackend](), reflect.TypeFor[Rules](), reflect.TypeFor[SetRules]())

func formatsOf(structs ...reflect.Type) map[reflect.Type][]uint8 {
	formats := make(map[reflect.Type][]uint8)
	for _, t := range structs {
		for i := range t.NumField() {
			since, err := strconv.ParseUint(cmp.Or(t.Field(i).Tag.Get("since"), "1"), 10, 8)
			if err != nil {
				panic(fmt.Sprintf("raftstore: tag of %s.%s: %v", t, t.Field(i).Name, err))
			}
			formats[t] = append(formats[t], uint8(since))
		}
	}
	return formats
}

// present reports whether a format has the struct's field.
func present(formats []uint8, field int, format uint8) bool {
	return formats == nil || formats[field] <= format
}

func encode(dst []byte, v any) []byte { return appendValue(dst, reflect.ValueOf(v), newestFormat) }

// encodeOldest appends v in the oldest format that holds it, so that older programs can read it.
func encodeOldest(dst []byte, v any) (_ []byte, format uint8) {
	value := reflect.ValueOf(v)
	format = formatOf(value)
	return appendValue(dst, value, format), format
}

func formatOf(v reflect.Value) uint8 {
	format := uint8(firstFormat)
	switch v.Kind() {
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				format = max(format, formatOf(v.Index(i)))
			}
		}
	case reflect.Struct:
		formats := grown[v.Type()]
		for i := range v.NumField() {
			format = max(format, formatOf(v.Field(i)))
			if formats != nil && !v.Field(i).IsZero() {
				format = max(format, formats[i])
			}
		}
	}
	return format
}

func appendValue(dst []byte, v reflect.Value, format uint8) []byte {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(dst, 1)
		}
		return append(dst, 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(dst, v.Uint())
	case reflect.Int64:
		return binary.AppendVarint(dst, v.Int())
	case reflect.Float64:
		return binary.BigEndian.AppendUint64(dst, math.Float64bits(v.Float()))
	case reflect.String:
		return append(binary.AppendUvarint(dst, uint64(v.Len())), v.String()...)
	case reflect.Array:
		for i := range v.Len() {
			dst = append(dst, byte(v.Index(i).Uint()))
		}
		return dst
	case reflect.Slice:
		dst = binary.AppendUvarint(dst, uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(dst, v.Bytes()...)
		}
		for i := range v.Len() {
			dst = appendValue(dst, v.Index(i), format)
		}
		return dst
	case reflect.Pointer:
		if v.IsNil() {
			return append(dst, 0)
		}
		return appendValue(append(dst, 1), v.Elem(), format)
	case reflect.Struct:
		formats := grown[v.Type()]
		for i := range v.NumField() {
			if present(formats, i, format) {
				dst = appendValue(dst, v.Field(i), format)
			}
		}
		return dst
	}
	panic(fmt.Sprintf("raftstore: %s has no encoding", v.Type()))
}

// decode fills the struct that into points to, and copies what it keeps.
func decode(b []byte, into any) error { return decodeFormat(b, newestFormat, into) }

func decodeFormat(b []byte, format uint8, into any) error {
	d := &decoder{b: b, format: format}
	d.value(reflect.ValueOf(into).Elem())
	return d.done()
}

// decoder keeps the first error. It allocates as values arrive, not as announced.
type decoder struct {
	b      []byte
	format uint8
	err    error
}

func (d *decoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(d.uint(1) == 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(d.uint(math.MaxUint64 >> (64 - v.Type().Bits())))
		if v.Kind() == reflect.Uint8 {
			d.known(v)
		}
	case reflect.Int64:
		n := d.uint(math.MaxUint64) // zigzag
		v.SetInt(int64(n>>1) ^ -int64(n&1))
	case reflect.Float64:
		if b := d.take(8); b != nil {
			v.SetFloat(math.Float64frombits(binary.BigEndian.Uint64(b)))
		}
	case reflect.String:
		v.SetString(string(d.bytes()))
	case reflect.Array:
		reflect.Copy(v, reflect.ValueOf(d.take(v.Len())))
	case reflect.Slice:
		d.slice(v)
	case reflect.Pointer:
		if d.uint(1) == 1 {
			v.Set(reflect.New(v.Type().Elem()))
			d.value(v.Elem())
		}
	case reflect.Struct:
		formats := grown[v.Type()]
		for i := range v.NumField() {
			if present(formats, i, d.format) {
				d.value(v.Field(i))
			}
		}
	default:
		panic(fmt.Sprintf("raftstore: %s has no encoding", v.Type()))
	}
}

// known refuses a value without a name, which only a newer program writes.
func (d *decoder) known(v reflect.Value) {
	if named, ok := v.Addr().Interface().(fmt.Stringer); ok && named.String() == noName {
		d.fail(fmt.Errorf("%d is no known %s", v.Uint(), v.Type().Name()))
	}
}

func (d *decoder) slice(v reflect.Value) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		v.SetBytes(append([]byte(nil), d.bytes()...))
		return
	}
	element := reflect.New(v.Type().Elem()).Elem()
	for n := d.uint(uint64(len(d.b))); n > 0 && d.err == nil; n-- {
		element.SetZero()
		d.value(element)
		v.Set(reflect.Append(v, element))
	}
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte { return d.take(int(d.uint(uint64(len(d.b))))) }

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	switch {
	case d.err != nil || n <= 0:
		d.fail(errShort)
		return 0
	case v > limit:
		d.fail(fmt.Errorf("%d is above %d", v, limit))
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) done() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail(fmt.Errorf("%d bytes too many", len(d.b)))
	}
	return d.err
}

package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
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
// So a change of such a struct is a change of its format.

var errShort = errors.New("cut short")

func encode(dst []byte, v any) []byte { return appendValue(dst, reflect.ValueOf(v)) }

func appendValue(dst []byte, v reflect.Value) []byte {
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
			dst = appendValue(dst, v.Index(i))
		}
		return dst
	case reflect.Pointer:
		if v.IsNil() {
			return append(dst, 0)
		}
		return appendValue(append(dst, 1), v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			dst = appendValue(dst, v.Field(i))
		}
		return dst
	}
	panic(fmt.Sprintf("raftstore: %s has no encoding", v.Type()))
}

// decode fills the struct that into points to, and copies what it keeps.
func decode(b []byte, into any) error {
	d := &decoder{b: b}
	d.value(reflect.ValueOf(into).Elem())
	return d.done()
}

// decoder keeps the first error. It allocates as values arrive, not as announced.
type decoder struct {
	b   []byte
	err error
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
		for i := range v.NumField() {
			d.value(v.Field(i))
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

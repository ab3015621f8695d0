package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

var errShort = errors.New("cut short")

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, s := range list {
		dst = appendString(dst, s)
	}
	return dst
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendFloat(dst []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(f))
}

// decoder keeps the first error, then reads zeros. It never allocates more than the input covers.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail(fmt.Errorf("%d is no boolean", v))
	}
	return v == 1
}

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	switch {
	case d.err != nil:
		return 0
	case n <= 0:
		d.fail(errShort)
		return 0
	case v > limit:
		d.fail(fmt.Errorf("%d is above %d", v, limit))
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if d.err != nil || n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint64() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) float() float64 { return math.Float64frombits(d.uint64()) }

func (d *decoder) string(limit int) string {
	return string(d.take(int(d.uint(uint64(limit)))))
}

// count reads a number of elements of at least size bytes.
func (d *decoder) count(limit, size int) int {
	n := int(d.uint(uint64(limit)))
	if n*size > len(d.b) {
		d.fail(errShort)
		return 0
	}
	return n
}

func (d *decoder) strings(limit, each int) []string {
	n := d.count(limit, 1)
	if n == 0 {
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = d.string(each)
	}
	return list
}

func (d *decoder) done() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail(fmt.Errorf("%d bytes too many", len(d.b)))
	}
	return d.err
}

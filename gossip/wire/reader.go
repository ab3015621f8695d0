package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// NewsSize holds some twenty flushes of a busy node.
	NewsSize = 32 << 10
	// RequestSize suits small, rare requests.
	RequestSize = 2 << 10
	// growStep makes memory follow received bytes, not announced ones.
	growStep = 64 << 10
)

// Reader splits a stream into frames, returned in place, so a burst costs one system call. Not safe
// for concurrent use.
type Reader struct {
	src     io.Reader
	size    int
	buf     []byte
	lo, hi  int
	skipped uint64
}

// NewReader returns a reader with a buffer of size bytes, which grows for larger frames.
func NewReader(src io.Reader, size int) *Reader {
	return &Reader{src: src, size: size, buf: make([]byte, size)}
}

// Skipped returns the number of skipped frames of unknown kinds.
func (r *Reader) Skipped() uint64 { return r.skipped }

// Buffered returns the number of received bytes not yet returned.
func (r *Reader) Buffered() int { return r.hi - r.lo }

// Next returns the next known frame and its whole length. The body is valid until the next call.
// io.EOF means that the stream ended between frames; after other errors it is unusable.
func (r *Reader) Next() (k Kind, body []byte, size int, err error) {
	for {
		k, n, head, err := r.head()
		if err != nil {
			return 0, nil, 0, err
		}
		limit, known := Limit(k)
		if n > uint64(limit) {
			return 0, nil, 0, fmt.Errorf("%w: %v of %d bytes, at most %d", ErrTooLarge, k, n, limit)
		}
		r.lo += head
		if !known {
			r.skipped++
			if err := r.skip(int(n)); err != nil {
				return 0, nil, 0, err
			}
			continue
		}
		if err := r.need(int(n)); err != nil {
			return 0, nil, 0, err
		}
		body = r.buf[r.lo : r.lo+int(n) : r.lo+int(n)]
		r.lo += int(n)
		return k, body, head + int(n), nil
	}
}

func (r *Reader) head() (k Kind, length uint64, size int, err error) {
	for {
		have := r.buf[r.lo:r.hi]
		if len(have) >= 2 {
			length, n := binary.Uvarint(have[1:])
			if n > 0 {
				return Kind(have[0]), length, 1 + n, nil
			}
			if n < 0 || len(have) > binary.MaxVarintLen64 {
				return 0, 0, 0, fmt.Errorf("%w: length of a frame", ErrMalformed)
			}
		}
		if err := r.need(len(have) + 1); err != nil {
			if len(have) == 0 && errors.Is(err, io.ErrUnexpectedEOF) {
				err = io.EOF
			}
			return 0, 0, 0, err
		}
	}
}

// need makes n unread bytes available. The caller bounds n.
func (r *Reader) need(n int) error {
	for r.hi-r.lo < n {
		r.makeRoom(n)
		got, err := r.src.Read(r.buf[r.hi:])
		r.hi += got
		if err != nil && r.hi-r.lo < n {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

func (r *Reader) makeRoom(n int) {
	have := r.hi - r.lo
	switch {
	case have == 0 && len(r.buf) > r.size && n <= r.size:
		r.buf = make([]byte, r.size) // shrinks after a large frame
		r.lo, r.hi = 0, 0
	case have == 0:
		r.lo, r.hi = 0, 0
	case r.lo > 0 && (r.hi == len(r.buf) || r.lo+n > len(r.buf)):
		copy(r.buf, r.buf[r.lo:r.hi])
		r.lo, r.hi = 0, have
	}
	if r.hi == len(r.buf) {
		grown := make([]byte, min(len(r.buf)+growStep, max(n, len(r.buf)+1)))
		copy(grown, r.buf[r.lo:r.hi])
		r.buf, r.lo, r.hi = grown, 0, have
	}
}

func (r *Reader) skip(n int) error {
	for n > 0 {
		if r.hi == r.lo {
			if err := r.need(1); err != nil {
				return err
			}
		}
		step := min(n, r.hi-r.lo)
		r.lo += step
		n -= step
	}
	return nil
}

package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	NewsSize    = 32 << 10 // twenty flushes of a busy node
	RequestSize = 2 << 10  // small, rare requests
)

// Reader splits a stream into frames, which stay in its buffer if they fit. Not safe for concurrent
// use.
type Reader struct {
	src     *bufio.Reader
	pending int // length of the frame returned last, if it is still in src's buffer
	skipped uint64
}

// NewReader returns a reader with a buffer of size bytes.
func NewReader(src io.Reader, size int) *Reader { return &Reader{src: bufio.NewReaderSize(src, size)} }

// Skipped counts frames of unknown kinds.
func (r *Reader) Skipped() uint64 { return r.skipped }

// Next returns the next known frame and its whole length. The body is valid until the next call;
// io.EOF means an end between frames.
func (r *Reader) Next() (k Kind, body []byte, size int, err error) {
	for {
		_, _ = r.src.Discard(r.pending) // cannot fail: these bytes are in the buffer
		r.pending = 0
		head, err := r.src.Peek(headSize)
		if err != nil {
			if len(head) > 0 {
				err = early(err)
			}
			return 0, nil, 0, err
		}
		k, size = Split(head)
		limit, known := Limit(k)
		switch {
		case size > headSize+limit:
			return 0, nil, 0, fmt.Errorf("%w: %v of %d bytes, at most %d", ErrMalformed, k, size, headSize+limit)
		case known:
			body, err = r.body(size)
			return k, body, size, early(err)
		}
		r.skipped++
		if _, err := r.src.Discard(size); err != nil {
			return 0, nil, 0, early(err)
		}
	}
}

func (r *Reader) body(size int) ([]byte, error) {
	if size <= r.src.Size() {
		frame, err := r.src.Peek(size)
		if err != nil {
			return nil, err
		}
		r.pending = size
		return frame[headSize:], nil
	}
	// The copy grows with the bytes that arrive, not with the announced length.
	var large bytes.Buffer
	if _, err := io.CopyN(&large, r.src, int64(size)); err != nil {
		return nil, err
	}
	return large.Bytes()[headSize:], nil
}

// early names the end of a stream within a frame.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

var errFraming = errors.New("malformed response body")

const (
	maxChunkLine = 1 << 10 // with extensions
	maxTrailer   = 8 << 10
)

// Lengths as fasthttp encodes them.
const (
	lengthChunked = -1
	lengthToClose = -2
)

// bodyReader removes a body's framing in place, joining buffered chunks into fewer writes.
type bodyReader struct {
	br      *bufio.Reader
	length  int   // bytes, lengthChunked or lengthToClose
	left    int64 // of the body or chunk
	phase   chunkPhase
	trailer int // bytes read
	done    bool
}

type chunkPhase uint8

const (
	atSize chunkPhase = iota
	inData
	afterData
	inTrailer
)

func (b *bodyReader) reset(br *bufio.Reader, length int) {
	*b = bodyReader{br: br, length: length, left: int64(max(length, 0)), done: length == 0}
}

// next waits for bytes, valid until the next call. It returns io.EOF or io.ErrUnexpectedEOF at the
// end, and may be called again after a timeout.
func (b *bodyReader) next() ([]byte, error) {
	for {
		if !b.done && b.br.Buffered() > 0 {
			if view, err := b.take(); len(view) > 0 || err != nil {
				return view, err
			}
		}
		if b.done {
			return nil, io.EOF
		}
		had := b.br.Buffered()
		if _, err := b.br.Peek(had + 1); err != nil && b.br.Buffered() == had {
			switch {
			case errors.Is(err, bufio.ErrBufferFull):
				return nil, errFraming
			case !errors.Is(err, io.EOF):
				return nil, err
			case b.length == lengthToClose:
				b.done = true
				return nil, io.EOF
			}
			return nil, io.ErrUnexpectedEOF
		}
	}
}

func (b *bodyReader) take() ([]byte, error) {
	view, err := b.br.Peek(b.br.Buffered())
	if err != nil {
		return nil, err
	}
	used := len(view)
	switch b.length {
	case lengthToClose:
	case lengthChunked:
		if view, used, err = b.dechunk(view); err != nil {
			return nil, err
		}
	default:
		used = int(min(int64(used), b.left))
		view = view[:used]
		b.left -= int64(used)
		b.done = b.left == 0
	}
	_, err = b.br.Discard(used)
	return view, err
}

func (b *bodyReader) dechunk(view []byte) (data []byte, used int, err error) {
	from, to := 0, 0
	for used < len(view) && !b.done {
		n := 0
		rest := view[used:]
		switch b.phase {
		case inData:
			n = int(min(b.left, int64(len(rest))))
			if from == to {
				from, to = used, used
			}
			if to != used {
				copy(view[to:], rest[:n])
			}
			to += n
			if b.left -= int64(n); b.left == 0 {
				b.phase = afterData
			}
		case afterData:
			n, err = b.endChunk(rest)
		case atSize:
			n, err = b.startChunk(rest)
		case inTrailer:
			n, err = b.skipTrailer(rest)
		}
		if err != nil {
			return nil, 0, err
		}
		if n == 0 {
			break // the line is incomplete
		}
		used += n
	}
	return view[from:to], used, nil
}

func (b *bodyReader) endChunk(rest []byte) (int, error) {
	if rest[0] != '\r' || len(rest) > 1 && rest[1] != '\n' {
		return 0, errFraming
	}
	if len(rest) < 2 {
		return 0, nil
	}
	b.phase = atSize
	return 2, nil
}

func (b *bodyReader) startChunk(rest []byte) (int, error) {
	end := bytes.IndexByte(rest, '\n')
	if end < 0 && len(rest) < maxChunkLine {
		return 0, nil
	}
	if end < 2 || rest[end-1] != '\r' {
		return 0, errFraming
	}
	digits := rest[:bytes.IndexAny(rest, "\r; \t")] // an extension may follow
	size, err := strconv.ParseUint(string(digits), 16, 60)
	if err != nil || len(digits) > 15 {
		return 0, errFraming
	}
	b.left, b.phase = int64(size), inData
	if size == 0 {
		b.phase = inTrailer
	}
	return end + 1, nil
}

func (b *bodyReader) skipTrailer(rest []byte) (int, error) {
	end := bytes.IndexByte(rest, '\n')
	if b.trailer+end+1 > maxTrailer || end < 0 && b.trailer+len(rest) > maxTrailer {
		return 0, errFraming
	}
	if end < 0 {
		return 0, nil
	}
	b.trailer += end + 1
	b.done = len(bytes.TrimSuffix(rest[:end], []byte("\r"))) == 0
	return end + 1, nil
}

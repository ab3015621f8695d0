package proxy

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

var errBodyMemory = errors.New("no memory for the request body")

// retainBody bounds, in bytes, the buffers that connections keep and that may use the last quarter.
const retainBody = 256 << 10

// BodyMemoryShare times MaxBody must fit in MaxBodyMemory: a growing buffer and its copy take twice
// a body's size, out of three quarters.
const BodyMemoryShare = 3

// bodyMemory refuses, because bodies that wait for each other's memory would all time out.
type bodyMemory struct {
	limit   atomic.Int64
	used    atomic.Int64
	refused atomic.Uint64
}

// Large buffers may not use the last quarter, which keeps ordinary prompts flowing.
func (m *bodyMemory) take(n int) bool {
	limit := m.limit.Load()
	if n > retainBody {
		limit -= limit / 4
	}
	for {
		used := m.used.Load()
		if used+int64(n) > limit {
			m.refused.Add(1)
			return false
		}
		if m.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

func (m *bodyMemory) give(n int) { m.used.Add(-int64(n)) }

// If memory is scarce, idle connections keep no buffers.
func (m *bodyMemory) scarce() bool { return m.used.Load() > m.limit.Load()/16 }

func (c *clientConn) growBody(size int) error {
	if !c.proxy.bodies.take(size) {
		return errBodyMemory
	}
	grown := make([]byte, len(c.body), size)
	copy(grown, c.body)
	c.proxy.bodies.give(cap(c.body))
	c.body = grown
	return nil
}

func (c *clientConn) releaseBody(keep int) {
	if n := cap(c.body); n > keep || n > 0 && c.proxy.bodies.scarce() {
		c.proxy.bodies.give(n)
		c.body = nil
	}
}

// The first buffer of a body of known length, in bytes. Full buffers double, so that an announced
// length alone costs nothing.
const firstPiece = 64 << 10

// For unknown lengths.
const firstChunks = 16 << 10

// fasthttp reads prefetched bytes before the handler.
const prefetched = 8 << 10

func (c *clientConn) receive(ctx *fasthttp.RequestCtx, limit int) error {
	c.body, c.arrived = c.body[:0], ctx.Time()
	stream := ctx.RequestBodyStream()
	length := ctx.Request.Header.ContentLength()
	if stream == nil || length == 0 {
		return nil
	}
	most, piece := length+1, firstPiece
	if length < 0 {
		most, piece = limit+1, firstChunks
	}
	for len(c.body) < most {
		if len(c.body) == cap(c.body) {
			if err := c.growBody(min(max(2*len(c.body), piece), most)); err != nil {
				return err
			}
		}
		n, err := stream.Read(c.body[len(c.body):min(cap(c.body), most)])
		c.body = c.body[:len(c.body)+n]
		switch {
		case err == nil:
		case err != io.EOF:
			return err
		// fasthttp ends the body when the connection closes between two chunks.
		case len(c.body) < length || length < 0 && c.ended:
			return io.ErrUnexpectedEOF
		default:
			if length < 0 || length > prefetched {
				c.arrived = time.Now()
			}
			return nil
		}
	}
	return fasthttp.ErrBodyTooLarge // for a known length the last read returns io.EOF
}

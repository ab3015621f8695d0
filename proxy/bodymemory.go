package proxy

import (
	"errors"
	"sync/atomic"
)

var errBodyMemory = errors.New("no memory for the request body")

// retainBody is the largest body buffer, in bytes, that a connection keeps for its next request,
// and the largest that may use the reserved quarter of the memory.
const retainBody = 256 << 10

// BodyMemoryShare is how many bodies of MaxBody must fit in MaxBodyMemory, so that a single one is
// never refused: its last buffer and the one it is copied from take twice its size, out of three
// quarters of the memory less what idle connections keep.
const BodyMemoryShare = 3

// bodyMemory bounds the body buffers of all client connections together, including those kept for a
// next request.
//
// A body that does not fit is refused at once: bodies that hold memory while they wait for each
// other's would all time out.
type bodyMemory struct {
	limit   int64 // bytes
	used    atomic.Int64
	refused atomic.Uint64
}

// take books a buffer of n bytes and reports whether there was room. The last quarter is for
// buffers up to retainBody, so that a few large uploads do not shut out ordinary prompts.
func (m *bodyMemory) take(n int) bool {
	limit := m.limit
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

// scarce reports whether connections must release their buffers after each request. It bounds what
// idle connections keep to a sixteenth.
func (m *bodyMemory) scarce() bool { return m.used.Load() > m.limit/16 }

// BodyMemory returns the bytes that request bodies hold, and how many times a body was refused for
// lack of room.
func (p *Proxy) BodyMemory() (used int64, refused uint64) {
	return p.bodies.used.Load(), p.bodies.refused.Load()
}

// growBody moves the body to a buffer of size bytes; both buffers are booked during the copy.
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

// releaseBody releases the body's buffer if it is larger than keep or memory is scarce.
func (c *clientConn) releaseBody(keep int) {
	if n := cap(c.body); n > keep || n > 0 && c.proxy.bodies.scarce() {
		c.proxy.bodies.give(n)
		c.body = nil
	}
}

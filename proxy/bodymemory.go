package proxy

import (
	"errors"
	"sync/atomic"
)

var errBodyMemory = errors.New("no memory for the request body")

// retainBody is the largest buffer, in bytes, that a connection keeps, and that may use the
// reserved quarter.
const retainBody = 256 << 10

// BodyMemoryShare times MaxBody must fit in MaxBodyMemory, so that a single body always fits: its
// last buffer and the one it is copied from take twice its size, out of three quarters.
const BodyMemoryShare = 3

// bodyMemory bounds the body buffers of all connections together. A body that does not fit is
// refused, because bodies that wait for each other's memory would all time out.
type bodyMemory struct {
	limit   int64
	used    atomic.Int64
	refused atomic.Uint64
}

// take books n bytes and reports whether there was room. Buffers above retainBody may not use the
// last quarter, which keeps ordinary prompts flowing.
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

// scarce reports whether idle connections must keep no buffers.
func (m *bodyMemory) scarce() bool { return m.used.Load() > m.limit/16 }

// BodyMemory returns the bytes that bodies hold and the number of refusals.
func (p *Proxy) BodyMemory() (used int64, refused uint64) {
	return p.bodies.used.Load(), p.bodies.refused.Load()
}

// growBody books both buffers during the copy.
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

// releaseBody releases a buffer larger than keep, or any if memory is scarce.
func (c *clientConn) releaseBody(keep int) {
	if n := cap(c.body); n > keep || n > 0 && c.proxy.bodies.scarce() {
		c.proxy.bodies.give(n)
		c.body = nil
	}
}

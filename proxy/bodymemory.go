package proxy

import (
	"errors"
	"sync/atomic"
)

// errBodyMemory refuses a body for which Config.MaxBodyMemory leaves no room.
var errBodyMemory = errors.New("no memory for the request body")

// retainBody is the largest body buffer a connection keeps for its next request, and the largest
// that may use all of the memory for bodies.
const retainBody = 256 << 10

// BodyMemoryShare is how many of the largest bodies Config.MaxBodyMemory must hold, so that one alone
// is never refused: its last buffer and the one it is copied from take twice its size, of three quarters
// of the memory less what idle connections keep.
const BodyMemoryShare = 3

// bodyMemory bounds what the body buffers of all client connections hold together: those of bodies
// that arrive, of requests that are served, and those a connection keeps for its next request.
//
// A body that does not fit is refused at once and not made to wait: what has arrived of it is held
// meanwhile, so bodies that wait for each other's memory would all wait until they time out.
type bodyMemory struct {
	limit   int64 // bytes
	used    atomic.Int64
	refused atomic.Uint64
}

// take books a buffer of n bytes and reports whether there was room. A quarter of the memory is kept
// for buffers up to retainBody, so that a few large uploads do not shut out ordinary prompts.
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

// scarce reports whether connections are to keep no buffers for later. What idle ones keep is out of
// reach of others for minutes, so it is never more than this.
func (m *bodyMemory) scarce() bool { return m.used.Load() > m.limit/16 }

// BodyMemory returns the bytes that request bodies hold, and how many requests were answered 503
// because there was no room for theirs.
func (p *Proxy) BodyMemory() (used int64, refused uint64) {
	return p.bodies.used.Load(), p.bodies.refused.Load()
}

// growBody moves the body to a buffer of size bytes. Both buffers are booked while it is copied.
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

// releaseBody lets go of the body's buffer if it is larger than keep, or if memory is scarce.
func (c *clientConn) releaseBody(keep int) {
	if n := cap(c.body); n > keep || n > 0 && c.proxy.bodies.scarce() {
		c.proxy.bodies.give(n)
		c.body = nil
	}
}

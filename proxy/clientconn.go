package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// States of a client connection. Its goroutine advances the state; the drain moves it from idle or
// reading to closing.
const (
	connIdle    int32 = iota // no byte of the next request has come
	connReading              // part of a request has come
	connActive               // a request is being served
	connClosing              // the drain is closing it
)

// reason says why a wait for the backend was interrupted.
type reason uint8

const (
	undisturbed reason = iota
	expired            // the deadline passed
	departed           // the client left
	stalled            // the client does not read
	forced             // the drain ran out of time
)

// bodyCredit is how many bytes of a request must arrive per Timeouts.Read: 8.7 KiB/s at the
// default, so a client that sends a byte now and then cannot hold the memory of its body for hours.
const bodyCredit = 256 << 10

const (
	lingerTime = 10 * time.Second
	lingerIdle = 2 * time.Second
)

// clientConn is an accepted connection as fasthttp sees it. The embedded net.Conn carries HTTP: the
// socket itself, or the connection left after the PROXY header or TLS.
type clientConn struct {
	net.Conn
	proxy *Proxy
	raw   net.Conn // the socket
	index int      // in the registry
	key   uint64   // in departures

	forwarded []byte // the client's address, for X-Forwarded-For

	state    atomic.Int32
	left     atomic.Bool  // the client closed the connection or its sending half
	writing  atomic.Int64 // coarse time at which the current write began; 0 if none
	deadline atomic.Int64 // coarse time at which to interrupt the wait for the backend; 0 if none

	// readBy is when the request must have arrived, in nanoseconds since Proxy.epoch; 0 for no
	// limit.
	readBy atomic.Int64

	// Used by the connection's goroutine only.
	body      []byte    // of the request
	arrived   time.Time // when the whole request had arrived
	credit    int       // bytes read since readBy last moved
	heard     bool      // a byte of a request has come
	ended     bool      // the client's sending half is closed
	muted     bool      // drop what fasthttp writes: the proxy wrote a response, or sends none
	lingering bool      // the request was refused before all of it was read: see Close
	whole     wholeBody

	mu   sync.Mutex // guards the fields below
	up   *upstreamConn
	why  reason
	late bool // reads fail because readBy has passed
}

// Read implements net.Conn. Every bodyCredit bytes extend readBy, so large bodies have time and
// slow trickles do not.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ended = err == io.EOF
	if n > 0 {
		c.heard = true
		if c.state.Load() == connIdle {
			c.state.CompareAndSwap(connIdle, connReading)
		}
		if c.state.Load() == connClosing {
			return 0, net.ErrClosed
		}
		if c.credit += n; c.credit >= bodyCredit {
			c.credit = 0
			if c.readBy.Load() != 0 {
				c.readBy.Store(c.proxy.clock.Load() + int64(c.proxy.cfg.Timeouts.Read+c.proxy.cfg.Timeouts.Watch))
			}
		}
	}
	return n, err
}

// SetReadDeadline implements net.Conn. fasthttp sets two deadlines per request; the watch enforces
// them, so they cost no timers.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.credit = 0
	var by int64
	if !t.IsZero() {
		by = int64(t.Sub(c.proxy.epoch))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy.Store(by)
	if !c.late {
		return nil
	}
	c.late = false
	return c.Conn.SetReadDeadline(time.Time{})
}

// expireRead makes reads fail once readBy has passed.
func (c *clientConn) expireRead(now int64) {
	if by := c.readBy.Load(); by == 0 || now <= by {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if by := c.readBy.Load(); by != 0 && now > by && !c.late {
		c.late = true
		_ = c.Conn.SetReadDeadline(aLongTimeAgo) // an error means the connection is closed already
	}
}

func (c *clientConn) Write(b []byte) (int, error) {
	if c.muted {
		return len(b), nil
	}
	c.writing.Store(c.proxy.clock.Load() + 1)
	n, err := c.Conn.Write(b)
	c.writing.Store(0)
	return n, err
}

// Close implements net.Conn. Closing a socket that has unread bytes resets it, and the reset would
// overtake a refusal. So after a refusal Close first reads and drops what the client still sends.
func (c *clientConn) Close() error {
	if tc, ok := c.raw.(*net.TCPConn); ok && c.lingering {
		c.lingering = false
		if secure, ok := c.Conn.(*tls.Conn); ok {
			_ = secure.CloseWrite() // an error means the client has gone
		}
		_ = tc.CloseWrite()
		c.state.Store(connIdle) // lets a drain close it
		drop(tc)
	}
	return c.Conn.Close()
}

// abort closes the connection with a TCP reset.
func (c *clientConn) abort() {
	if tc, ok := c.raw.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // an error means the connection is closed already
	}
	c.raw.Close()
}

// drop reads and discards until the peer closes, sends nothing for lingerIdle, or lingerTime is
// over.
func drop(c net.Conn) {
	scratch := dropBuffers.Get().(*[]byte)
	defer dropBuffers.Put(scratch)
	for end := time.Now().Add(lingerTime); ; {
		now := time.Now()
		if now.After(end) || c.SetReadDeadline(now.Add(lingerIdle)) != nil {
			return
		}
		if _, err := c.Read(*scratch); err != nil {
			return
		}
	}
}

var dropBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// wholeBody is a response body that is flushed once written. fasthttp alone delays a response while
// its buffer holds the next pipelined request.
type wholeBody struct{ body []byte }

// Read implements io.Reader. fasthttp uses WriteTo.
func (b *wholeBody) Read([]byte) (int, error) { return 0, errNotRead }

func (b *wholeBody) SupportsBodyWriteTo() bool { return true }

func (b *wholeBody) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.body)
	b.body = nil
	if f, ok := w.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return int64(n), err
}

var errNotRead = errors.New("proxy: body is written, not read")

// begin marks the start of a request. The client may have left before there was a request to
// interrupt, so begin checks left.
func (c *clientConn) begin() {
	c.state.Store(connActive)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.why == forced:
	case c.left.Load():
		c.why = departed
	default:
		c.why = undisturbed
	}
}

// depart records that the client left and interrupts the current request, if any.
func (c *clientConn) depart() {
	c.left.Store(true)
	if c.state.Load() == connActive {
		c.interrupt(departed)
	}
}

// attach hands the backend connection to the watch, which may interrupt it, and starts the wait. It
// returns why the request must stop, or undisturbed.
func (c *clientConn) attach(up *upstreamConn, wait time.Duration) reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != undisturbed && c.why != expired {
		return c.why
	}
	c.why = undisturbed
	c.up = up
	c.arm(wait)
	return undisturbed
}

// arm sets the deadline of the wait at least wait from now, allowing for the age of the coarse
// clock.
func (c *clientConn) arm(wait time.Duration) {
	c.deadline.Store(c.proxy.clock.Load() + int64(wait+c.proxy.cfg.Timeouts.Watch))
}

// detach takes the backend connection back and returns why it was interrupted, if it was. The watch
// does not touch the connection afterwards.
func (c *clientConn) detach() reason {
	c.deadline.Store(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = nil
	return c.why
}

// resume clears an expiry and waits again, so that the attached connection stays readable.
func (c *clientConn) resume(wait time.Duration) reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != expired {
		return c.why
	}
	c.why = undisturbed
	c.arm(wait)
	if err := c.up.raw.SetDeadline(time.Time{}); err != nil {
		return departed
	}
	return undisturbed
}

func (c *clientConn) cause() reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

func (c *clientConn) overdue() bool {
	deadline := c.deadline.Load()
	return deadline != 0 && c.proxy.clock.Load() > deadline
}

// interrupt ends the wait for the backend. The first reason stands, but any other replaces expired.
func (c *clientConn) interrupt(why reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != undisturbed && c.why != expired {
		return
	}
	if why == expired && (c.up == nil || c.why == expired || !c.overdue()) {
		return // the wait went on since the watch looked
	}
	c.why = why
	if c.up != nil {
		c.up.interrupt()
	}
}

// registry lists the open client connections, unordered. Guarded by Proxy.mu.
type registry struct{ list []*clientConn }

func (r *registry) add(c *clientConn) {
	c.index = len(r.list)
	r.list = append(r.list, c)
}

func (r *registry) remove(c *clientConn) {
	last := len(r.list) - 1
	r.list[c.index] = r.list[last]
	r.list[c.index].index = c.index
	r.list[last] = nil
	r.list = r.list[:last]
}

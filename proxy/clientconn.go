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

// What a client connection is doing. The connection's goroutine moves it on; the drain takes it from idle to closing.
const (
	connIdle    int32 = iota // no byte of a request has come since the last response
	connReading              // part of a request has come
	connActive               // a request is being served
	connClosing              // the drain is closing it
)

// reason says why the watch interrupted a wait.
type reason uint8

const (
	undisturbed reason = iota
	expired            // the deadline of the wait has passed
	departed           // the client has left
	stalled            // the client does not read
	forced             // the drain has run out of time
)

// bodyCredit is how much of a request must arrive within each Timeouts.Read, in bytes, unless it is
// whole: 8.7 KiB/s at the default of 30 s. Any byte would do for a network that is slow, but then a
// client that sends one now and then could hold the memory of its body for hours.
const bodyCredit = 256 << 10

const (
	lingerTime = 10 * time.Second
	lingerIdle = 2 * time.Second
)

// clientConn is one accepted connection, as fasthttp sees it: a net.Conn that notes what it is doing for the watch. The
// net.Conn inside is what HTTP is spoken over: the socket itself, or what is left of it after the PROXY header or TLS.
type clientConn struct {
	net.Conn
	proxy *Proxy
	raw   net.Conn // the socket
	index int      // in the registry
	key   uint64   // in departures

	forwarded []byte // the client's address as X-Forwarded-For has it

	state    atomic.Int32
	left     atomic.Bool  // the client has closed the connection, or its sending half
	writing  atomic.Int64 // coarse time the write in progress began, 0 without one
	deadline atomic.Int64 // coarse time at which the wait for the backend is to be interrupted, 0 without one

	readBy atomic.Int64 // time by which a request is to be read, in nanoseconds since the proxy's epoch, 0 without one

	// Of the connection's goroutine.
	body      []byte    // of the request
	arrived   time.Time // when the request had been read whole
	credit    int       // bytes read since readBy was last moved
	heard     bool      // a byte of a request has come
	ended     bool      // the client sends nothing more
	muted     bool      // the response was written by hand, or there is to be none: what fasthttp writes is dropped
	lingering bool      // refused before all of it was read: see Close
	whole     wholeBody

	mu   sync.Mutex // guards what follows, between the connection's goroutine and the watch
	up   *upstreamConn
	why  reason
	late bool // reads fail because readBy has passed
}

// Read implements net.Conn. Progress moves the time by which the request is to be read, so that a large body may take
// its time and a trickle may not.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ended = err == io.EOF
	if n > 0 {
		c.heard = true
		if c.state.Load() == connIdle {
			c.state.CompareAndSwap(connIdle, connReading)
		}
		if c.state.Load() == connClosing { // a request that the drain has forestalled: nobody could be told its answer
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

// SetReadDeadline implements net.Conn. fasthttp sets two deadlines per request; the watch keeps them, so that they cost
// no timers.
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

// expireRead makes reading fail if the time for it has passed.
func (c *clientConn) expireRead(now int64) {
	if by := c.readBy.Load(); by == 0 || now <= by {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if by := c.readBy.Load(); by != 0 && now > by && !c.late {
		c.late = true
		_ = c.Conn.SetReadDeadline(aLongTimeAgo) // fails on a closed connection, which is as good
	}
}

// Write implements net.Conn.
func (c *clientConn) Write(b []byte) (int, error) {
	if c.muted {
		return len(b), nil
	}
	c.writing.Store(c.proxy.clock.Load() + 1)
	n, err := c.Conn.Write(b)
	c.writing.Store(0)
	return n, err
}

// Close implements net.Conn. Closing a socket with unread bytes resets it, and a reset overtakes the response: a client
// that is still sending a body too large would never learn why. So after such a refusal the rest is read and dropped for
// a while.
func (c *clientConn) Close() error {
	if tc, ok := c.raw.(*net.TCPConn); ok && c.lingering {
		c.lingering = false
		if secure, ok := c.Conn.(*tls.Conn); ok {
			_ = secure.CloseWrite() // the client may have gone already
		}
		_ = tc.CloseWrite()
		c.state.Store(connIdle) // a drain need not wait
		drop(tc)
	}
	return c.Conn.Close()
}

// abort resets the connection, whatever is spoken over it.
func (c *clientConn) abort() {
	if tc, ok := c.raw.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // fails on a closed connection, which is as good
	}
	c.raw.Close()
}

// drop reads and forgets until the peer closes, is silent for lingerIdle, or lingerTime is over.
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

// wholeBody is a response body that is flushed when it has been written. fasthttp by itself holds a response back while
// the next request is already in its buffer, which for a client that pipelines may be minutes.
type wholeBody struct{ body []byte }

// Read implements io.Reader. fasthttp uses WriteTo.
func (b *wholeBody) Read([]byte) (int, error) { return 0, errNotRead }

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (b *wholeBody) SupportsBodyWriteTo() bool { return true }

// WriteTo implements io.WriterTo.
func (b *wholeBody) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.body)
	b.body = nil
	if f, ok := w.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return int64(n), err
}

var errNotRead = errors.New("proxy: body is written, not read")

// begin marks the start of a request. A client may have left right behind it, before depart had a
// request to interrupt.
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

// depart notes that the client has left and ends the request that is being served, if any.
func (c *clientConn) depart() {
	c.left.Store(true)
	if c.state.Load() == connActive {
		c.interrupt(departed)
	}
}

// attach gives the watch the backend connection to interrupt when the client leaves or the time is up. It reports why
// the request is not to go on, if so.
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

// arm moves the deadline of the wait: it is not before wait from now, whatever the age of the coarse clock.
func (c *clientConn) arm(wait time.Duration) {
	c.deadline.Store(c.proxy.clock.Load() + int64(wait+c.proxy.cfg.Timeouts.Watch))
}

// detach takes the backend connection back and reports whether it was interrupted meanwhile, and why. After it the
// watch does not touch the connection.
func (c *clientConn) detach() reason {
	c.deadline.Store(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = nil
	return c.why
}

// resume clears an expiry that turned out to be none, so that the attached connection can be read on.
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

// cause returns why the wait was interrupted.
func (c *clientConn) cause() reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// overdue reports whether the wait for the backend has passed its deadline.
func (c *clientConn) overdue() bool {
	deadline := c.deadline.Load()
	return deadline != 0 && c.proxy.clock.Load() > deadline
}

// interrupt ends the wait for the backend. The first reason stands, except that an expiry gives way to the rest.
func (c *clientConn) interrupt(why reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != undisturbed && c.why != expired {
		return
	}
	if why == expired && (c.up == nil || c.why == expired || !c.overdue()) {
		return // it has gone on since the watch looked
	}
	c.why = why
	if c.up != nil {
		c.up.interrupt()
	}
}

// registry lists the open client connections, in no order. Guarded by Proxy.mu.
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

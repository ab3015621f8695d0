package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The connection's goroutine advances the state; the drain sets connClosing.
const (
	connIdle  int32 = iota // between requests
	connFresh              // accepted, nothing read yet
	connReading
	connActive
	connClosing
)

type reason uint8

const (
	undisturbed reason = iota
	expired
	unpaired // the prefill backend failed; see pair
	departed // the client left
	stalled  // the client does not read
	forced   // the drain ran out of time
)

// bodyCredit bytes must arrive per Timeouts.Read, so that slow clients cannot hold memory for
// hours.
const bodyCredit = 256 << 10

const (
	lingerTime = 10 * time.Second
	lingerIdle = 2 * time.Second
)

// clientConn's embedded Conn carries HTTP, inside PROXY protocol or TLS if configured.
type clientConn struct {
	net.Conn
	proxy *Proxy
	raw   net.Conn
	key   uint64

	forwarded []byte // for X-Forwarded-For

	state    atomic.Int32
	left     atomic.Bool  // the client closed the connection or its sending half
	writing  atomic.Int64 // coarse start of the current write; 0 if none
	deadline atomic.Int64 // coarse end of the wait for the backend; 0 if none

	// The request's deadline, in ns since Proxy.epoch; 0 if none.
	readBy atomic.Int64

	// For the connection's goroutine only.
	body      []byte
	arrived   time.Time // when the request was complete
	credit    int       // bytes read since readBy last moved
	heard     bool
	ended     bool
	muted     bool // drop what fasthttp writes
	lingering bool // the rest of a refused request is unread: see Close
	whole     wholeBody

	mu   sync.Mutex // guards the fields below
	up   *upstreamConn
	why  reason
	stir chan<- struct{} // wakes the request while it waits in the queue; else nil
	pair bool            // up waits for a prefill backend
	late bool            // reads fail because readBy has passed
}

// Read implements net.Conn. Every bodyCredit bytes extend readBy.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ended = err == io.EOF
	if n > 0 {
		c.heard = true
		if s := c.state.Load(); s == connIdle || s == connFresh {
			c.state.CompareAndSwap(s, connReading)
		}
		if c.state.Load() == connClosing {
			return 0, net.ErrClosed
		}
		if c.credit += n; c.credit >= bodyCredit {
			c.credit = 0
			if c.readBy.Load() != 0 {
				c.readBy.Store(c.proxy.clock.Load() + int64(c.proxy.tuned.Load().Timeouts.Read+c.proxy.cfg.Timeouts.Watch))
			}
		}
	}
	return n, err
}

// SetReadDeadline implements net.Conn without a timer: the watch enforces it.
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

func (c *clientConn) expireRead(now int64) {
	if by := c.readBy.Load(); by == 0 || now <= by {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if by := c.readBy.Load(); by != 0 && now > by && !c.late {
		c.late = true
		_ = c.Conn.SetReadDeadline(aLongTimeAgo) // the connection is closed otherwise
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

// Close implements net.Conn. After a refusal it drops unread input first: a reset would overtake
// the answer.
func (c *clientConn) Close() error {
	if tc, ok := c.raw.(*net.TCPConn); ok && c.lingering {
		c.lingering = false
		if secure, ok := c.Conn.(*tls.Conn); ok {
			_ = secure.CloseWrite()
		}
		_ = tc.CloseWrite()
		c.state.Store(connIdle) // lets a drain close it
		drop(tc)
	}
	return c.Conn.Close()
}

func (c *clientConn) abort() {
	if tc, ok := c.raw.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
	c.raw.Close()
}

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

// written makes fasthttp write a body by WriteTo instead of reading it.
type written struct{}

func (written) Read([]byte) (int, error) { return 0, errNotRead }

func (written) SupportsBodyWriteTo() bool { return true }

// wholeBody is flushed at once; fasthttp would wait for the answer to the next pipelined request.
type wholeBody struct {
	written
	body []byte
}

func (b *wholeBody) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.body)
	b.body = nil
	if f, ok := w.(interface{ Flush() error }); ok && err == nil {
		err = f.Flush()
	}
	return int64(n), err
}

var errNotRead = errors.New("proxy: body is written, not read")

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

func (c *clientConn) depart() {
	c.left.Store(true)
	if c.state.Load() == connActive {
		c.interrupt(departed)
	}
}

// attach lets the watch interrupt up unless the request must stop.
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

// The coarse clock may be one Watch old.
func (c *clientConn) arm(wait time.Duration) {
	c.deadline.Store(c.proxy.clock.Load() + int64(wait+c.proxy.cfg.Timeouts.Watch))
}

func (c *clientConn) detach() reason {
	c.deadline.Store(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = nil
	return c.why
}

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

// awaitPair lets the failure of a prefill backend interrupt the decode backend's part.
func (c *clientConn) awaitPair() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pair = true
}

// settlePair ends awaitPair. An interruption by it is forgotten.
func (c *clientConn) settlePair() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pair = false
	if c.why != unpaired {
		return
	}
	c.why = undisturbed
	if c.up != nil {
		_ = c.up.raw.SetDeadline(time.Time{}) // a closed connection fails at the next read
	}
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

// The first reason stands, except that others replace expired, and all but expired replace unpaired.
func (c *clientConn) interrupt(why reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why > unpaired || why == unpaired && (!c.pair || c.why == unpaired) {
		return
	}
	if why == expired && (c.up == nil || c.why != undisturbed || !c.overdue()) {
		return // the wait went on meanwhile
	}
	c.why = why
	if c.up != nil {
		c.up.interrupt()
	}
	if c.stir != nil {
		select {
		case c.stir <- struct{}{}:
		default: // it is awake
		}
	}
}

func (p *Proxy) watch(done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(p.cfg.Timeouts.Watch)
	defer ticker.Stop()
	for {
		select {
		case <-p.watchStop:
			return
		case <-ticker.C:
			p.sweep()
			p.sweeps.Add(1)
		}
	}
}

// Sweeps counts finished passes of the watch; while it stands still, no deadline is enforced.
func (p *Proxy) Sweeps() uint64 { return p.sweeps.Load() }

// openConns returns a copy, so that interrupting requests does not block new connections.
func (p *Proxy) openConns() []*clientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.AppendSeq(make([]*clientConn, 0, len(p.conns)), maps.Values(p.conns))
}

func (p *Proxy) sweep() {
	now := int64(time.Since(p.epoch))
	p.clock.Store(now)
	stall := int64(p.tuned.Load().Timeouts.Write)
	for _, c := range p.openConns() {
		if since := c.writing.Load(); since != 0 && now-since > stall {
			c.interrupt(stalled)
			c.abort() // a FIN would keep unread data in the kernel's buffers for minutes
			continue
		}
		if c.state.Load() != connActive {
			c.expireRead(now)
			continue
		}
		if c.overdue() {
			c.interrupt(expired)
		}
	}
	p.upstreams.closeUnused(now - int64(p.tuned.Load().Timeouts.UpstreamIdle))
}

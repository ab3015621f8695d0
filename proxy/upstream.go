package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"syscall"
	"time"
)

// upstreamBuffer is the read buffer of a backend connection. It bounds the head of a response, and 16 KiB is where reads
// stop getting cheaper.
const upstreamBuffer = 16 << 10

// smallBody is the largest request body that is copied behind its head, to leave in one plain write: up to here a copy
// is cheaper than a vector.
const smallBody = 8 << 10

// upstreams keeps unused connections to backends. Unlike a general HTTP client it hands out the connection itself, so
// that a request can be cancelled by interrupting it, and a request that met a stale one can be sent again.
type upstreams struct {
	proxy  *Proxy
	dialer net.Dialer
	mu     sync.RWMutex // guards pools
	pools  map[poolKey]*pool
}

// poolKey is what makes connections interchangeable.
type poolKey struct {
	addr string
	tls  *tls.Config
}

// pool is the unused connections to one backend, the longest unused first. They are taken from the end, so that a burst's
// surplus grows old and goes.
type pool struct {
	mu   sync.Mutex
	idle []*upstreamConn
	used int64 // coarse time of the last use: a pool that is not used is forgotten
	dead bool  // forgotten: takes no more connections
}

// upstreamConn is one connection to a backend, for one request at a time.
type upstreamConn struct {
	net.Conn          // what HTTP is spoken over
	raw      net.Conn // the socket
	br       *bufio.Reader
	probe    *probe
	pool     *pool
	head     []byte // scratch of the request's head
	vector   [2][]byte
	buffers  net.Buffers
	since    int64 // coarse time it was put back
	reused   bool  // has carried a request before
}

func (u *upstreams) init(p *Proxy) {
	u.proxy = p
	u.pools = make(map[poolKey]*pool)
	// Keep-alive probes find a backend whose machine has vanished while it owes a first byte.
	u.dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
}

func (u *upstreams) pool(t *Target) *pool {
	key := poolKey{t.Addr, t.TLS}
	u.mu.RLock()
	pl := u.pools[key]
	u.mu.RUnlock()
	if pl != nil {
		return pl
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if pl = u.pools[key]; pl == nil {
		pl = &pool{used: u.proxy.clock.Load()}
		u.pools[key] = pl
	}
	return pl
}

// get returns an unused connection that still looks alive, or nil.
func (u *upstreams) get(t *Target) *upstreamConn {
	pl := u.pool(t)
	oldest := u.proxy.clock.Load() - int64(u.proxy.tuned.Load().Timeouts.UpstreamIdle)
	for {
		c := pl.take(u.proxy.clock.Load())
		if c == nil {
			return nil
		}
		if c.since >= oldest && c.br.Buffered() == 0 && (c.probe == nil || c.probe.quiet()) {
			c.reused = true
			return c
		}
		c.raw.Close()
	}
}

func (pl *pool) take(now int64) *upstreamConn {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.used = now
	n := len(pl.idle) - 1
	if n < 0 {
		return nil
	}
	c := pl.idle[n]
	pl.idle[n] = nil
	pl.idle = pl.idle[:n]
	return c
}

// put takes a connection back whose response was read to its end.
func (u *upstreams) put(c *upstreamConn) {
	c.vector = [2][]byte{}
	if cap(c.head) > upstreamBuffer {
		c.head = nil
	}
	c.since = u.proxy.clock.Load()
	pl := c.pool
	pl.mu.Lock()
	if !pl.dead && len(pl.idle) < u.proxy.tuned.Load().MaxIdle {
		pl.idle = append(pl.idle, c)
		c = nil
	}
	pl.mu.Unlock()
	if c != nil {
		c.raw.Close()
	}
}

// dial opens a connection. The context only cancels; the time is bounded by Timeouts.Connect.
func (u *upstreams) dial(ctx context.Context, t *Target) (*upstreamConn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.proxy.tuned.Load().Timeouts.Connect)
	defer cancel()
	raw, err := u.dialer.DialContext(ctx, "tcp", t.Addr)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		u.closeIdle() // a request needs the descriptor more than connections to other engines do
		raw, err = u.dialer.DialContext(ctx, "tcp", t.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	c := &upstreamConn{Conn: raw, raw: raw, probe: newProbe(raw), pool: u.pool(t)}
	if t.TLS != nil {
		cfg := t.TLS
		if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
			cfg = cfg.Clone()
			cfg.ServerName, _, _ = net.SplitHostPort(t.Addr)
		}
		secure := tls.Client(raw, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("tls handshake: %w", err)
		}
		c.Conn = secure
	}
	c.br = bufio.NewReaderSize(c.Conn, upstreamBuffer)
	return c, nil
}

// send writes a request, the head of which is in c.head, and calls sent when it is written. body is
// only read.
func (c *upstreamConn) send(body []byte, sent func()) error {
	if len(body) <= smallBody {
		c.head = append(c.head, body...)
		_, err := c.Write(c.head)
		return after(err, sent)
	}
	if _, secure := c.Conn.(*tls.Conn); secure {
		if _, err := c.Write(c.head); err != nil {
			return err
		}
		_, err := c.Write(body)
		return after(err, sent)
	}
	c.vector = [2][]byte{c.head, body}
	c.buffers = c.vector[:]
	_, err := c.buffers.WriteTo(c.raw)
	return after(err, sent)
}

// after calls sent if err is nil, and returns err.
func after(err error, sent func()) error {
	if err == nil {
		sent()
	}
	return err
}

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// interrupt makes the read or write in progress, and all later ones, fail. The connection cannot be reused after it.
func (c *upstreamConn) interrupt() {
	// The error says the connection is closed, which is as good.
	_ = c.raw.SetDeadline(aLongTimeAgo)
}

// sweep closes connections that were not used for too long and forgets pools that were not used for an hour.
func (u *upstreams) sweep(now int64) {
	oldest := now - int64(u.proxy.tuned.Load().Timeouts.UpstreamIdle)
	forget := false
	u.mu.RLock()
	for _, pl := range u.pools {
		forget = pl.expire(oldest) || forget
	}
	u.mu.RUnlock()
	if !forget {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, pl := range u.pools {
		if pl.retire(now - int64(time.Hour)) {
			delete(u.pools, key)
		}
	}
}

// expire closes the connections put back before oldest, and reports whether the pool may be due to be forgotten.
func (pl *pool) expire(oldest int64) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	n := 0
	for n < len(pl.idle) && pl.idle[n].since < oldest {
		pl.idle[n].raw.Close()
		n++
	}
	if n > 0 {
		rest := copy(pl.idle, pl.idle[n:])
		clear(pl.idle[rest:])
		pl.idle = pl.idle[:rest]
	}
	return len(pl.idle) == 0 && oldest-pl.used > int64(time.Hour)
}

// retire closes the pool for good if it was not used since then. A connection that is still out is closed when it comes
// back.
func (pl *pool) retire(since int64) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.used > since || len(pl.idle) > 0 {
		return false
	}
	pl.dead = true
	return true
}

// closeIdle closes the connections that are unused now.
func (u *upstreams) closeIdle() {
	u.mu.RLock()
	defer u.mu.RUnlock()
	for _, pl := range u.pools {
		pl.expire(math.MaxInt64)
	}
}

// close closes all unused connections, and those given back later.
func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, pl := range u.pools {
		pl.mu.Lock()
		for _, c := range pl.idle {
			c.raw.Close()
		}
		pl.idle, pl.dead = nil, true
		pl.mu.Unlock()
		delete(u.pools, key)
	}
}

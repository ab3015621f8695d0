package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"time"
)

// upstreamBuffer bounds a response's head; larger reads are not cheaper.
const upstreamBuffer = 16 << 10

// smallBody is the largest body, in bytes, that is copied behind its head into one write; above, a
// vectored write is cheaper.
const smallBody = 8 << 10

// upstreams pools connections, which callers can interrupt or replace when stale.
type upstreams struct {
	proxy  *Proxy
	dialer net.Dialer
	mu     sync.RWMutex
	pools  map[poolKey]*pool
}

type poolKey struct {
	addr string
	tls  *tls.Config
}

// pool holds unused connections, longest unused first; take uses the last, so that a burst's
// surplus ages out.
type pool struct {
	mu   sync.Mutex
	idle []*upstreamConn
	used int64 // coarse time of the last use
	dead bool  // removed
}

type upstreamConn struct {
	net.Conn          // carries HTTP
	raw      net.Conn // the socket
	br       *bufio.Reader
	probe    *probe
	pool     *pool
	head     []byte   // scratch
	vector   [][]byte // scratch
	buffers  net.Buffers
	since    int64 // coarse time of put
	reused   bool
}

func (u *upstreams) init(p *Proxy) {
	u.proxy = p
	u.pools = make(map[poolKey]*pool)
	// Keep-alive detects a backend whose machine vanished.
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

// get returns a pooled connection that looks alive, or nil.
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

// put pools a connection whose response was read whole.
func (u *upstreams) put(c *upstreamConn) {
	clear(c.vector)
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

func (u *upstreams) dial(ctx context.Context, t *Target) (*upstreamConn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.proxy.tuned.Load().Timeouts.Connect)
	defer cancel()
	raw, err := u.dialer.DialContext(ctx, "tcp", t.Addr)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		u.closeIdle() // a request needs the descriptor more
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

// send writes the head c.head and the body, then calls sent.
func (c *upstreamConn) send(body [][]byte, sent func()) error {
	if pieceBytes(body) <= smallBody {
		for _, p := range body {
			c.head = append(c.head, p...)
		}
		_, err := c.Write(c.head)
		return after(err, sent)
	}
	c.vector = append(append(c.vector[:0], c.head), body...)
	if _, secure := c.Conn.(*tls.Conn); secure {
		return after(c.writeEach(), sent)
	}
	c.buffers = c.vector
	_, err := c.buffers.WriteTo(c.raw)
	return after(err, sent)
}

// writeEach writes the vector over TLS, joining small pieces: each write is a TLS record and a
// system call.
func (c *upstreamConn) writeEach() error {
	small := c.head // the vector's first piece
	for _, p := range c.vector[1:] {
		if len(p) <= smallBody && len(small) <= smallBody {
			small = append(small, p...)
			continue
		}
		if err := writeAll(c.Conn, small); err != nil {
			return err
		}
		if err := writeAll(c.Conn, p); err != nil {
			return err
		}
		small = small[:0]
	}
	c.head = small
	return writeAll(c.Conn, small)
}

func writeAll(w io.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := w.Write(p)
	return err
}

func after(err error, sent func()) error {
	if err == nil {
		sent()
	}
	return err
}

var aLongTimeAgo = time.Unix(1, 0)

// interrupt makes reads and writes fail for good.
func (c *upstreamConn) interrupt() {
	// It fails only if the connection is closed.
	_ = c.raw.SetDeadline(aLongTimeAgo)
}

// sweep closes connections unused for UpstreamIdle and removes pools unused for an hour.
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

// expire reports whether the pool looks due for removal.
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

// retire marks an empty pool dead if it was not used after since.
func (pl *pool) retire(since int64) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.used > since || len(pl.idle) > 0 {
		return false
	}
	pl.dead = true
	return true
}

func (u *upstreams) closeIdle() {
	u.mu.RLock()
	defer u.mu.RUnlock()
	for _, pl := range u.pools {
		pl.expire(math.MaxInt64)
	}
}

// close closes pooled connections, now and when put.
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

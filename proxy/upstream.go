package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

// upstreamBuffer bounds a response's head; larger reads are not cheaper.
const upstreamBuffer = 16 << 10

// Up to smallBody bytes a copy behind the head is cheaper than a vectored write.
const smallBody = 8 << 10

// Target is the backend that a Picker chose.
type Target struct {
	ID       prefixtree.Backend
	Name     string      // for headers, logs and records
	Addr     string      // host:port
	Host     string      // Host header; "" for Addr
	TLS      *tls.Config // nil for plain HTTP; one pointer per backend, which keys the pool
	BasePath string      // without a trailing slash
	Role     policy.Role
	// Bootstrap, if not 0, is the port at which SGLang's decode engines ask a prefill engine.
	Bootstrap uint16
	Header    [][2]string // replaces the client's headers, on inference paths only
}

type upstreams struct {
	proxy  *Proxy
	dialer net.Dialer

	mu     sync.Mutex                      // guards the fields below
	idle   map[upstreamKey][]*upstreamConn // longest unused first
	closed bool
}

type upstreamKey struct {
	addr string
	tls  *tls.Config
}

type upstreamConn struct {
	net.Conn          // carries HTTP
	raw      net.Conn // the socket
	key      upstreamKey
	br       *bufio.Reader
	probe    *probe
	head     []byte   // scratch
	vector   [][]byte // scratch
	buffers  net.Buffers
	since    int64 // coarse time of put
	reused   bool
}

func (u *upstreams) init(p *Proxy) {
	u.proxy = p
	u.idle = make(map[upstreamKey][]*upstreamConn)
	// Detects a backend whose machine vanished.
	u.dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
}

func (u *upstreams) get(t *Target) *upstreamConn {
	oldest := u.proxy.clock.Load() - int64(u.proxy.tuned.Load().Timeouts.UpstreamIdle)
	for {
		c := u.take(upstreamKey{t.Addr, t.TLS})
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

// take returns the connection used last, so that a burst's surplus ages out.
func (u *upstreams) take(key upstreamKey) *upstreamConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	idle := u.idle[key]
	last := len(idle) - 1
	if last < 0 {
		return nil
	}
	c := idle[last]
	idle[last] = nil
	u.idle[key] = idle[:last]
	return c
}

func (u *upstreams) put(c *upstreamConn) {
	clear(c.vector)
	if cap(c.head) > upstreamBuffer {
		c.head = nil
	}
	c.since = u.proxy.clock.Load()
	u.mu.Lock()
	idle := u.idle[c.key]
	keep := !u.closed && len(idle) < u.proxy.tuned.Load().MaxIdle
	if keep {
		u.idle[c.key] = append(idle, c)
	}
	u.mu.Unlock()
	if !keep {
		c.raw.Close()
	}
}

func (u *upstreams) dial(ctx context.Context, t *Target) (*upstreamConn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.proxy.tuned.Load().Timeouts.Connect)
	defer cancel()
	raw, err := u.dialer.DialContext(ctx, "tcp", t.Addr)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		u.closeUnused(math.MaxInt64) // a request needs the descriptor more
		raw, err = u.dialer.DialContext(ctx, "tcp", t.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	c := &upstreamConn{Conn: raw, raw: raw, key: upstreamKey{t.Addr, t.TLS}, probe: newProbe(raw)}
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

// On a socket this is one system call.
func (c *upstreamConn) send(body [][]byte) error {
	if pieceBytes(body) <= smallBody {
		for _, p := range body {
			c.head = append(c.head, p...)
		}
		_, err := c.Write(c.head)
		return err
	}
	c.vector = append(append(c.vector[:0], c.head), body...)
	c.buffers = c.vector
	_, err := c.buffers.WriteTo(c.Conn)
	return err
}

func pieceBytes(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

var aLongTimeAgo = time.Unix(1, 0)

func (c *upstreamConn) interrupt() {
	_ = c.raw.SetDeadline(aLongTimeAgo)
}

func (u *upstreams) closeUnused(since int64) {
	var old []*upstreamConn
	u.mu.Lock()
	for key, idle := range u.idle {
		n := 0
		for n < len(idle) && idle[n].since < since {
			n++
		}
		old = append(old, idle[:n]...)
		if u.idle[key] = slices.Delete(idle, 0, n); n == len(idle) {
			delete(u.idle, key)
		}
	}
	u.mu.Unlock()
	for _, c := range old {
		c.raw.Close()
	}
}

func (u *upstreams) close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.closeUnused(math.MaxInt64)
}

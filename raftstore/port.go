package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	helloFormat = 1
	// maxConns is ample: each node of a hundred opens two or three.
	maxConns      = 1024
	greetTimeout  = 5 * time.Second
	idleTimeout   = time.Minute
	maxHelloBytes = 1024
)

const (
	useRaft     = 'R' // only the dialer asks
	useRequests = 'Q' // see frames.go
)

// hello begins every connection: its length (2 bytes, big-endian), then the fields as in codec.go.
// For raft the answer is a byte 0, or 1 and a reason. To keeps a node that took over an address
// from voting for its predecessor.
type hello struct {
	Use    uint8
	Format uint8
	Group  groupID // zero with requests
	To     string  // id of the node that is dialed; empty with requests
	ID     string  // the dialer
	Addr   string  // the dialer's address
}

func (h hello) encode() []byte {
	h.Format = helloFormat
	dst := encode([]byte{0, 0}, h)
	binary.BigEndian.PutUint16(dst, uint16(len(dst)-2))
	return dst
}

func readHello(r io.Reader) (h hello, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return h, err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n < 2 || n > maxHelloBytes {
		return h, fmt.Errorf("hello of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return h, err
	}
	switch {
	case body[0] != useRaft && body[0] != useRequests:
		return h, fmt.Errorf("%q is no use of a connection", body[0])
	case body[1] != helloFormat:
		return h, fmt.Errorf("hello of the unknown format %d", body[1])
	}
	return h, decode(body, &h)
}

type port struct {
	streams Streams
	addr    string
	id      string
	// admits returns why it refuses a connection for raft.
	admits   func(hello) error
	raft     func(*conn) error
	requests func(*conn)
	onError  func(error)

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

type conn struct {
	net.Conn
	port  *port
	hello hello
	once  sync.Once
}

func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		err = c.Conn.Close()
		c.port.mu.Lock()
		delete(c.port.conns, c)
		c.port.mu.Unlock()
	})
	return err
}

func (c *conn) limit(t time.Time) { _ = c.Conn.SetDeadline(t) }

func (c *conn) interrupt() { c.limit(time.Now().Add(-time.Second)) }

func (c *conn) turnAway(why string) { _, _ = c.Write(append([]byte{1}, why...)) }

func (p *port) start() {
	p.conns = make(map[*conn]struct{})
	p.wg.Go(p.accept)
}

func (p *port) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.streams.Close()
	p.closeConns(func(*conn) bool { return true })
	p.wg.Wait()
}

func (p *port) closeConns(which func(*conn) bool) {
	p.mu.Lock()
	conns := slices.DeleteFunc(slices.Collect(maps.Keys(p.conns)), func(c *conn) bool { return !which(c) })
	p.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

func (p *port) accept() {
	wait := 5 * time.Millisecond
	for {
		raw, err := p.streams.Accept()
		p.mu.Lock()
		closed, full := p.closed, len(p.conns) >= maxConns
		p.mu.Unlock()
		switch {
		case closed:
			if err == nil {
				raw.Close()
			}
			return
		case errors.Is(err, net.ErrClosed):
			p.onError(fmt.Errorf("accept: %w", err))
			return
		case err != nil:
			// Probably no file descriptor is free.
			p.onError(fmt.Errorf("accept: %w", err))
			time.Sleep(wait)
			wait = min(2*wait, time.Second)
			continue
		case full:
			raw.Close()
			continue
		}
		wait = 5 * time.Millisecond
		c := &conn{Conn: raw, port: p}
		if !p.track(c) {
			return
		}
		p.wg.Go(func() { p.greet(c) })
	}
}

func (p *port) track(c *conn) bool {
	p.mu.Lock()
	if !p.closed {
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		return true
	}
	p.mu.Unlock()
	c.Conn.Close()
	return false
}

func (p *port) greet(c *conn) {
	keep := false
	defer func() {
		if !keep {
			c.Close()
		}
	}()
	c.limit(time.Now().Add(greetTimeout))
	h, err := readHello(c.Conn)
	if err != nil {
		return
	}
	p.mu.Lock() // for closeConns
	c.hello = h
	p.mu.Unlock()
	c.limit(time.Time{})
	if h.Use == useRequests {
		p.requests(c)
		return
	}
	keep = p.admit(c)
}

func (p *port) admit(c *conn) bool {
	c.limit(time.Now().Add(greetTimeout))
	if c.hello.To != p.id {
		c.turnAway("here is " + p.id)
		return false
	}
	if err := p.admits(c.hello); err != nil {
		c.turnAway(err.Error())
		return false
	}
	// Answer before raft writes.
	if _, err := c.Write([]byte{0}); err != nil {
		return false
	}
	c.limit(time.Time{})
	return p.raft(c) == nil
}

func (p *port) dial(ctx context.Context, addr string, h hello) (*conn, error) {
	h.ID, h.Addr = p.id, p.addr
	raw, err := p.streams.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, port: p, hello: h}
	if !p.track(c) {
		return nil, net.ErrClosed
	}
	if err := p.introduce(ctx, c); err != nil {
		c.Close()
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return c, nil
}

func (p *port) introduce(ctx context.Context, c *conn) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(greetTimeout)
	}
	c.limit(deadline)
	stop := context.AfterFunc(ctx, c.interrupt)
	defer func() {
		if stop() {
			c.limit(time.Time{})
		}
	}()
	if _, err := c.Write(c.hello.encode()); err != nil {
		return err
	}
	if c.hello.Use == useRequests {
		return nil
	}
	return readAdmission(c.Conn)
}

func readAdmission(r io.Reader) error {
	var b [3]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil || b[0] == 0 {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxHelloBytes))
	if err != nil {
		return err
	}
	return fmt.Errorf("refused: %s", text)
}

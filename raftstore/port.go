package raftstore

import (
	"context"
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

// hello begins every connection: a frame (see frames.go) of helloFormat. For raft the answer is an
// empty frame, or one of answerRefused with the reason. To keeps a node that took over an address
// from voting for its predecessor.
type hello struct {
	Use   uint8
	Group groupID // zero with requests
	To    string  // id of the node that is dialed; empty with requests
	ID    string  // the dialer
	Addr  string  // the dialer's address
}

func readHello(r io.Reader) (h hello, err error) {
	format, body, err := readFrame(r, maxHelloBytes)
	switch {
	case err != nil:
		return h, err
	case format != helloFormat:
		return h, fmt.Errorf("hello of the unknown format %d", format)
	}
	if err = decode(body, &h); err == nil && h.Use != useRaft && h.Use != useRequests {
		err = fmt.Errorf("%q is no use of a connection", h.Use)
	}
	return h, err
}

type port struct {
	store *Store

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

type conn struct {
	net.Conn
	port  *port
	hello hello
	idle  time.Time // since when the caller keeps it
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

func (p *port) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.store.cfg.Streams.Close()
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
		raw, err := p.store.cfg.Streams.Accept()
		p.mu.Lock()
		closed, full := p.closed, len(p.conns) >= maxConns
		p.mu.Unlock()
		switch {
		case err != nil && closed:
			return
		case errors.Is(err, net.ErrClosed):
			p.store.log.Warn().Err(err).Msg("the Raft port accepts no more connections")
			return
		case err != nil:
			// Probably no file descriptor is free.
			p.store.log.Warn().Err(err).Msg("the Raft port accepts no connections")
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
	c.limit(time.Now().Add(greetTimeout))
	h, err := readHello(c.Conn)
	p.mu.Lock() // for closeConns
	c.hello = h
	p.mu.Unlock()
	switch {
	case err != nil:
	case h.Use == useRequests:
		p.store.serve(c)
	case p.admit(c):
		return // raft owns the connection
	}
	c.Close()
}

func (p *port) admit(c *conn) bool {
	link, err := p.store.admits(c.hello)
	if c.hello.To != p.store.id {
		err = errors.New("this is node " + p.store.id)
	}
	if err != nil {
		_ = writeFrame(c, byte(answerRefused), []byte(err.Error()))
		return false
	}
	// Answer before raft writes.
	if err := writeFrame(c, byte(answerDone), nil); err != nil {
		return false
	}
	c.limit(time.Time{})
	return link.take(c)
}

func (p *port) dial(ctx context.Context, addr string, h hello) (*conn, error) {
	h.ID, h.Addr = p.store.id, p.store.addr
	raw, err := p.store.cfg.Streams.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, port: p, hello: h}
	if !p.track(c) {
		return nil, net.ErrClosed
	}
	if err := c.introduce(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return c, nil
}

func (c *conn) introduce(ctx context.Context) error {
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
	err := writeFrame(c, helloFormat, encode(nil, c.hello))
	if err != nil || c.hello.Use == useRequests {
		return err
	}
	status, why, err := readFrame(c, maxHelloBytes)
	if err == nil && answerStatus(status) != answerDone {
		err = fmt.Errorf("refused: %s", why)
	}
	return err
}

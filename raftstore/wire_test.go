package raftstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

type wire struct {
	dir string // holds the nodes' data

	mu        sync.Mutex
	listeners map[string]*wireListener
	aliases   map[string]string
}

func (w *wire) alias(name, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aliases = map[string]string{name: addr}
}

type wireListener struct {
	wire   *wire
	addr   *net.TCPAddr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newWire(dir string) *wire { return &wire{dir: dir, listeners: make(map[string]*wireListener)} }

func (w *wire) listen(addr string) (Streams, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners[addr] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &wireListener{wire: w, addr: at, conns: make(chan net.Conn), closed: make(chan struct{})}
	w.listeners[addr] = l
	return l, nil
}

func (l *wireListener) Dial(ctx context.Context, addr string) (net.Conn, error) {
	w := l.wire
	w.mu.Lock()
	to := w.listeners[cmp.Or(w.aliases[addr], addr)]
	w.mu.Unlock()
	if to == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	select {
	case to.conns <- there:
		return here, nil
	case <-to.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), here.Close(), there.Close())
	}
}

func (l *wireListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *wireListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.wire.mu.Lock()
		defer l.wire.mu.Unlock()
		delete(l.wire.listeners, l.addr.String())
	})
	return nil
}

func (l *wireListener) Addr() net.Addr { return l.addr }

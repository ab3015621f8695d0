package raftstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var errLinkClosed = errors.New("raft is not running")

// link is one raft's share of the port's connections.
type link struct {
	port  *port
	group func() groupID

	incoming chan *conn
	closed   chan struct{}

	mu    sync.Mutex
	shut  bool
	conns map[*linkConn]struct{}
}

var (
	_ raft.StreamLayer           = (*link)(nil)
	_ raft.ServerAddressProvider = named{}
)

type linkConn struct {
	*conn
	link *link
	once sync.Once
}

func (c *linkConn) Close() error {
	c.once.Do(func() {
		c.link.mu.Lock()
		delete(c.link.conns, c)
		c.link.mu.Unlock()
	})
	return c.conn.Close()
}

func newLink(p *port, group func() groupID) *link {
	return &link{
		port: p, group: group, incoming: make(chan *conn), closed: make(chan struct{}),
		conns: make(map[*linkConn]struct{}),
	}
}

func (l *link) take(c *conn) error {
	select {
	case l.incoming <- c:
		return nil
	case <-l.closed:
		return errLinkClosed
	}
}

func (l *link) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return l.track(c)
	case <-l.closed:
		return nil, errLinkClosed
	}
}

func (l *link) Addr() net.Addr { return address(l.port.addr) }

// Close ends all of raft's connections.
func (l *link) Close() error {
	l.mu.Lock()
	first := !l.shut
	l.shut = true
	l.mu.Unlock()
	if first {
		close(l.closed)
	}
	l.sever()
	return nil
}

func (l *link) sever() {
	l.mu.Lock()
	conns := make([]*linkConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

func (l *link) track(c *conn) (net.Conn, error) {
	lc := &linkConn{conn: c, link: l}
	l.mu.Lock()
	shut := l.shut
	if !shut {
		l.conns[lc] = struct{}{}
	}
	l.mu.Unlock()
	if shut {
		c.Close()
		return nil, errLinkClosed
	}
	return lc, nil
}

// Dial takes addresses from named.
func (l *link) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, ok := strings.Cut(string(to), "@")
	if !ok {
		return nil, errors.New("dial " + string(to) + ": no id")
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-l.closed:
			cancel()
		case <-stop:
		}
	}()
	c, err := l.port.dial(ctx, addr, hello{Use: useRaft, Group: l.group(), To: id})
	if err != nil {
		return nil, err
	}
	return l.track(c)
}

// named makes raft dial "id@host:port", so that the hello can name the server. This node's own
// address stays plain, because raft sends it to other nodes.
type named struct {
	self string
	addr string
	find func(raft.ServerID) (raft.ServerAddress, bool)
}

func (n named) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if string(id) == n.self {
		return raft.ServerAddress(n.addr), nil
	}
	addr, ok := n.find(id)
	if !ok {
		return "", errors.New("server " + string(id) + " is not in the configuration")
	}
	return raft.ServerAddress(string(id) + "@" + string(addr)), nil
}

type address string

func (address) Network() string { return "tcp" }

func (a address) String() string { return string(a) }

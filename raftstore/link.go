package raftstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

var errLinkClosed = errors.New("raft is not running")

// link gives one raft its connections on the port.
type link struct {
	port     *port
	incoming chan *conn
	ctx      context.Context // until Close
	cancel   context.CancelFunc
}

func newLink(p *port) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{port: p, incoming: make(chan *conn), ctx: ctx, cancel: cancel}
}

func (l *link) take(c *conn) bool {
	select {
	case l.incoming <- c:
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *link) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return l.open(c)
	case <-l.ctx.Done():
		return nil, errLinkClosed
	}
}

func (l *link) Addr() net.Addr { return l.port.store.cfg.Streams.Addr() }

func (l *link) Close() error {
	l.cancel()
	l.port.closeConns(func(c *conn) bool { return c.hello.Use == useRaft })
	return nil
}

// open keeps no connection after Close.
func (l *link) open(c *conn) (net.Conn, error) {
	if l.ctx.Err() != nil {
		c.Close()
		return nil, errLinkClosed
	}
	return c, nil
}

func (l *link) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, addr, ok := strings.Cut(string(to), "@")
	if !ok {
		return nil, errors.New("dial " + string(to) + ": no id")
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	c, err := l.port.dial(ctx, addr, hello{Use: useRaft, Group: l.port.store.group(), To: id})
	if err != nil {
		return nil, err
	}
	return l.open(c)
}

// ServerAddr makes raft dial "id@host:port", so that the hello names the server. The own address
// stays plain, because raft sends it to other nodes.
func (inst *raftInstance) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if own := inst.link.port.store; string(id) == own.id {
		return raft.ServerAddress(own.addr), nil
	}
	server, ok := inst.find(id)
	if !ok {
		return "", errors.New("server " + string(id) + " is not in the configuration")
	}
	return raft.ServerAddress(string(id) + "@" + string(server.Address)), nil
}

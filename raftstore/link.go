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
	port  *port
	group func() groupID

	incoming chan *conn
	ctx      context.Context // until Close
	cancel   context.CancelFunc
}

func newLink(p *port, group func() groupID) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{port: p, group: group, incoming: make(chan *conn), ctx: ctx, cancel: cancel}
}

func (l *link) take(c *conn) error {
	select {
	case l.incoming <- c:
		return nil
	case <-l.ctx.Done():
		return errLinkClosed
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

func (l *link) Addr() net.Addr { return address(l.port.addr) }

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
	c, err := l.port.dial(ctx, addr, hello{Use: useRaft, Group: l.group(), To: id})
	if err != nil {
		return nil, err
	}
	return l.open(c)
}

// ServerAddr makes raft dial "id@host:port", so that the hello names the server. The own address
// stays plain, because raft sends it to other nodes.
func (inst *raftInstance) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if string(id) == inst.link.port.id {
		return raft.ServerAddress(inst.link.port.addr), nil
	}
	addr, ok := inst.find(id)
	if !ok {
		return "", errors.New("server " + string(id) + " is not in the configuration")
	}
	return raft.ServerAddress(string(id) + "@" + string(addr)), nil
}

type address string

func (address) Network() string { return "tcp" }

func (a address) String() string { return string(a) }

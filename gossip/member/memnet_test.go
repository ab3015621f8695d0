package member

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
)

// memNet is a network in memory, for tests in virtual time. It implements network for all nodes;
// each binds an address of its own.
type memNet struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]*memPort
	sides map[netip.AddrPort]int // of a partition; nil: none
}

func (n *memNet) cut(a, b netip.AddrPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sides != nil && n.sides[a] != n.sides[b]
}

func (n *memNet) partition(sides map[netip.AddrPort]int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sides = sides
}

// host is the network as the node at addr has it.
type memHost struct {
	*memNet
	addr netip.AddrPort
}

func (h memHost) listen(string) (net.Listener, packetConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ports[h.addr] != nil {
		return nil, nil, errors.New("address in use")
	}
	if h.ports == nil {
		h.memNet.ports = make(map[netip.AddrPort]*memPort)
	}
	p := &memPort{host: h, conns: make(chan net.Conn), packets: make(chan memPacket, 1024), closed: make(chan struct{})}
	h.ports[h.addr] = p
	return p, p, nil
}

func (h memHost) dial(ctx context.Context, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	p := h.ports[to]
	h.mu.Unlock()
	if p == nil || h.cut(h.addr, to) {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	select {
	case p.conns <- memConn{far, h.addr}:
		return memConn{near, to}, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memConn struct {
	net.Conn
	remote netip.AddrPort
}

func (c memConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

type memPacket struct {
	from netip.AddrPort
	text []byte
}

// memPort is both the listener and the packet socket of a node.
type memPort struct {
	host    memHost
	conns   chan net.Conn
	packets chan memPacket
	closed  chan struct{}
	once    sync.Once
}

func (p *memPort) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *memPort) Addr() net.Addr { return net.TCPAddrFromAddrPort(p.host.addr) }

func (p *memPort) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.host.mu.Lock()
		defer p.host.mu.Unlock()
		delete(p.host.ports, p.host.addr)
	})
	return nil
}

func (p *memPort) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case m := <-p.packets:
		return copy(b, m.text), m.from, nil
	case <-p.closed:
		return 0, netip.AddrPort{}, io.EOF
	}
}

func (p *memPort) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	p.host.mu.Lock()
	other := p.host.ports[to]
	p.host.mu.Unlock()
	if other != nil && !p.host.cut(p.host.addr, to) {
		select {
		case other.packets <- memPacket{p.host.addr, append([]byte(nil), b...)}:
		default:
		}
	}
	return len(b), nil
}

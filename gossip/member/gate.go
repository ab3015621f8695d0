package member

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// gate bounds strangers' connections. It closes the oldest of the address with the most: honest
// handshakes take milliseconds.
type gate struct {
	limit int

	mu     sync.Mutex
	open   []*inbound
	closed bool
}

// inbound is counted by a gate until its peer is authenticated. One goroutine reads it.
type inbound struct {
	net.Conn
	from  netip.Addr
	gate  *gate  // nil: none counts it
	first []byte // selected the protocol; Read returns it again
	left  int    // bytes that may be read; below 0, any number
}

var errLongHandshake = fmt.Errorf("no handshake within %d bytes", maxHandshakeBytes)

func (x *inbound) Read(p []byte) (int, error) {
	if len(x.first) > 0 && len(p) > 0 {
		n := copy(p, x.first)
		x.first = x.first[n:]
		return n, nil
	}
	if x.left < 0 {
		return x.Conn.Read(p)
	}
	if x.left == 0 {
		return 0, errLongHandshake
	}
	n, err := x.Conn.Read(p[:min(len(p), x.left)])
	x.left -= n
	return n, err
}

func (x *inbound) CloseWrite() error {
	if half, ok := x.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func newInbound(c net.Conn) *inbound {
	x := &inbound{Conn: c, left: -1}
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		x.from = at.Addr().Unmap().WithZone("")
	}
	return x
}

func (g *gate) admit(x *inbound) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = x.Close()
		return
	}
	if len(g.open) >= g.limit {
		out := g.worstLocked()
		_ = g.open[out].Close()
		g.open = slices.Delete(g.open, out, out+1)
	}
	x.gate = g
	g.open = append(g.open, x)
}

func (g *gate) worstLocked() int {
	counts := make(map[netip.Addr]int, len(g.open))
	most := 0
	for _, x := range g.open {
		counts[x.from]++
		most = max(most, counts[x.from])
	}
	return slices.IndexFunc(g.open, func(x *inbound) bool { return counts[x.from] == most })
}

func (x *inbound) leave() {
	g := x.gate
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = slices.DeleteFunc(g.open, func(other *inbound) bool { return other == x })
}

// closeAll also closes later connections.
func (g *gate) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.open {
		_ = x.Close()
	}
	g.open, g.closed = nil, true
}

const lingerTime = time.Second

// A close with unread input sends a reset, which can overtake an alert or a verdict.
func closeGently(c net.Conn) {
	defer func() { _ = c.Close() }()
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(lingerTime))
	buf := make([]byte, 1024)
	for range 16 {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

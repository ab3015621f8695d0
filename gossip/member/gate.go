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

// gate bounds connections of strangers. At the bound it closes the oldest one of the address that
// has the most: an honest handshake takes milliseconds and is rarely the oldest.
type gate struct {
	limit int

	mu     sync.Mutex
	open   []*inbound
	closed bool
}

// inbound is an accepted connection, counted by a gate until its peer is authenticated. One
// goroutine reads it.
type inbound struct {
	net.Conn
	from netip.Addr
	gate *gate // nil: none counts it
	// first is the byte that selected the protocol; Read returns it again.
	first []byte
	// left is how many more bytes may be read; below 0, any number.
	left int
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

// admit counts x, which no gate counts, and evicts another connection at the limit.
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

// leave ends the counting, not the connection. Idempotent.
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

// closeGently half-closes and reads briefly: a close with unread input sends a reset, which can
// overtake an alert or a verdict.
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

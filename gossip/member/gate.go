package member

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// gate bounds unauthenticated connections. At the bound it closes the oldest one of the address
// that has the most: an honest handshake takes milliseconds and is rarely the oldest.
type gate struct {
	limit int

	mu      sync.Mutex
	open    []*gated
	closed  bool
	evicted uint64
}

type gated struct {
	net.Conn          // read by one goroutine
	raw      net.Conn // to close; never changes
	from     netip.Addr
	gate     *gate
}

// admit evicts another connection at the limit.
func (g *gate) admit(c net.Conn) *gated {
	x := &gated{Conn: c, raw: c, from: hostOf(c.RemoteAddr()), gate: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = c.Close()
		return x
	}
	if len(g.open) >= g.limit {
		out := g.worstLocked()
		victim := g.open[out]
		g.open = append(g.open[:out], g.open[out+1:]...)
		g.evicted++
		_ = victim.raw.Close()
	}
	g.open = append(g.open, x)
	return x
}

func (g *gate) worstLocked() int {
	counts := make(map[netip.Addr]int, len(g.open))
	most := 0
	for _, x := range g.open {
		counts[x.from]++
		most = max(most, counts[x.from])
	}
	for i, x := range g.open {
		if counts[x.from] == most {
			return i
		}
	}
	return 0
}

// leave does not close the connection. Idempotent.
func (x *gated) leave() {
	g := x.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.open {
		if other == x {
			g.open = append(g.open[:i], g.open[i+1:]...)
			return
		}
	}
}

// closeAll also closes later connections.
func (g *gate) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.open {
		_ = x.raw.Close()
	}
	g.open, g.closed = nil, true
}

func (g *gate) counts() (open int, evicted uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open), g.evicted
}

func hostOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
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

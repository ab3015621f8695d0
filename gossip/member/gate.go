package member

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// gate bounds how many connections are open that have not shown who they are.
// At the bound the oldest connection of the address that has most of them is
// closed, so that one address cannot keep others out: an honest handshake takes
// milliseconds, and is as a rule not the oldest.
type gate struct {
	limit int

	mu      sync.Mutex
	open    []*gated // in order of arrival; at most limit
	closed  bool
	evicted uint64
}

// gated is one connection in a gate.
type gated struct {
	net.Conn          // what to read from; its goroutine's alone
	raw      net.Conn // what to close; never changes
	from     netip.Addr
	gate     *gate
}

// admit lets a connection in, at the cost of another one if need be.
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
		_ = victim.raw.Close() // wakes its goroutine, which finds itself gone
	}
	g.open = append(g.open, x)
	return x
}

// worstLocked returns the index of the oldest connection of the address with most.
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

// leave takes the connection out of the gate; it is not closed. Idempotent.
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

// closeAll closes what is in the gate, and what comes later.
func (g *gate) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.open {
		_ = x.raw.Close()
	}
	g.open, g.closed = nil, true
}

// counts returns how many are in the gate and how many were put out of it.
func (g *gate) counts() (open int, evicted uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open), g.evicted
}

// hostOf is the IP of an address, the invalid one if it has none.
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

// lingerTime bounds how long a refused connection stays open for its last words.
const lingerTime = time.Second

// closeGently ends a connection whose last words the peer should read. A close
// with unread bytes in the receive queue would send a reset, which may overtake
// an alert or a verdict; so it half-closes, and reads a little until the peer
// has closed.
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

package gossip

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/gossip/member"
)

// memnet is a network in virtual time. Its streams stall, like TCP, while nodes are cut off.
type memnet struct {
	t       *testing.T
	latency time.Duration
	buffer  int
	notice  time.Duration
	slow    func(from, to string) time.Duration

	mu    sync.Mutex
	nodes map[string]*memnode
	cut   func(a, b string) bool
	pipes []*memhalf
}

type memnode struct {
	net     *memnet
	self    member.Info
	onEvent func(member.Event)
	serve   func(net.Conn, member.Info)

	mu      sync.Mutex
	up      bool
	known   map[string]member.Status
	events  chan member.Event
	done    chan struct{}
	serving sync.WaitGroup
	joined  bool
}

func newMemnet(t *testing.T) *memnet {
	return &memnet{t: t, latency: 200 * time.Microsecond, buffer: 256 << 10, notice: 3 * time.Second, nodes: map[string]*memnode{}}
}

func (n *memnet) node(name string, incarnation uint64) *memnode {
	return &memnode{
		net: n, self: member.Info{Name: name, Incarnation: incarnation, Addr: name + ":7946"},
		known: map[string]member.Status{}, events: make(chan member.Event, 4096), done: make(chan struct{}),
	}
}

func (m *memnode) Self() member.Info { return m.self }

func (m *memnode) Joined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.joined
}

func (m *memnode) Members() []member.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []member.Status
	for _, s := range m.known {
		out = append(out, s)
	}
	return out
}

func (m *memnode) Start(context.Context) error {
	m.mu.Lock()
	m.up = true
	m.mu.Unlock()
	m.serving.Go(func() {
		for {
			select {
			case e := <-m.events:
				m.onEvent(e)
			case <-m.done:
				return
			}
		}
	})
	m.net.mu.Lock()
	m.net.nodes[m.self.Name] = m
	others := m.net.reachableLocked(m)
	m.net.mu.Unlock()
	for _, o := range others {
		m.hear(member.Joined, o.self)
		o.hear(member.Joined, m.self)
	}
	m.mu.Lock()
	m.joined = true
	m.mu.Unlock()
	return nil
}

func (n *memnet) reachableLocked(m *memnode) []*memnode {
	var out []*memnode
	for name, o := range n.nodes {
		if name != m.self.Name && o.up && (n.cut == nil || !n.cut(m.self.Name, name)) {
			out = append(out, o)
		}
	}
	return out
}

func (m *memnode) hear(kind member.Kind, info member.Info) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.up {
		return
	}
	state := member.StateAlive
	switch kind {
	case member.Failed:
		state = member.StateFailed
	case member.Left:
		state = member.StateLeft
	}
	old, ok := m.known[info.Name]
	switch {
	case !ok, old.Incarnation == info.Incarnation && old.State != state:
	case old.Incarnation == info.Incarnation, kind != member.Joined:
		return
	case old.State == member.StateAlive:
		m.events <- member.Event{Kind: member.Failed, Member: old.Info}
	}
	m.known[info.Name] = member.Status{Info: info, State: state, Since: time.Now()}
	m.events <- member.Event{Kind: kind, Member: info}
}

func (m *memnode) Leave(time.Duration) error {
	m.mu.Lock()
	up := m.up
	m.mu.Unlock()
	if up {
		m.net.tell(m, member.Left)
	}
	return nil
}

func (n *memnet) tell(m *memnode, kind member.Kind) {
	n.mu.Lock()
	others := n.reachableLocked(m)
	n.mu.Unlock()
	for _, o := range others {
		o.hear(kind, m.self)
	}
}

func (m *memnode) Stop(context.Context) error {
	m.mu.Lock()
	was := m.up
	m.up = false
	m.mu.Unlock()
	if was {
		close(m.done)
	}
	m.net.mu.Lock()
	if m.net.nodes[m.self.Name] == m {
		delete(m.net.nodes, m.self.Name)
	}
	m.net.mu.Unlock()
	m.serving.Wait()
	return nil
}

// errUnreachable is of a node whose process has ended.
var errUnreachable = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

func (m *memnode) connect(ctx context.Context, peer member.Info) (net.Conn, member.Info, error) {
	m.net.mu.Lock()
	o := m.net.nodes[peer.Name]
	cut := m.net.cut != nil && (m.net.cut(m.self.Name, peer.Name) || m.net.cut(peer.Name, m.self.Name))
	m.net.mu.Unlock()
	if cut {
		<-ctx.Done()
		return nil, peer, ctx.Err()
	}
	select {
	case <-time.After(2 * m.net.latency):
	case <-ctx.Done():
		return nil, peer, ctx.Err()
	}
	if o == nil {
		return nil, peer, errUnreachable
	}
	here, there := m.net.pipe(m.self.Name, peer.Name)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.up {
		return nil, peer, errUnreachable
	}
	o.serving.Go(func() {
		defer there.Close()
		o.serve(there, m.self)
	})
	return here, o.self, nil
}

func (n *memnet) partition(side func(name string) bool) {
	n.setCut(func(a, b string) bool { return side(a) != side(b) })
	n.afterNotice(member.Failed)
}

func (n *memnet) heal() {
	n.setCut(nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.nodes {
		for _, b := range n.nodes {
			if a != b {
				time.AfterFunc(time.Second, func() { a.hear(member.Joined, b.self) })
			}
		}
	}
}

func (n *memnet) afterNotice(kind member.Kind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.nodes {
		for _, b := range n.nodes {
			if a != b && n.cut(a.self.Name, b.self.Name) {
				time.AfterFunc(n.notice, func() { a.hear(kind, b.self) })
			}
		}
	}
}

func (n *memnet) setCut(cut func(a, b string) bool) {
	n.mu.Lock()
	n.cut = cut
	pipes := n.pipes
	n.mu.Unlock()
	for _, h := range pipes {
		h.bump()
	}
}

func (n *memnet) isCut(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut != nil && n.cut(a, b)
}

func (n *memnet) kill(name string) {
	n.mu.Lock()
	m := n.nodes[name]
	delete(n.nodes, name)
	var others []*memnode
	for _, o := range n.nodes {
		others = append(others, o)
	}
	pipes := n.pipes
	n.mu.Unlock()
	m.mu.Lock()
	m.up = false
	m.mu.Unlock()
	close(m.done)
	for _, h := range pipes {
		if h.from == name || h.to == name {
			h.close()
		}
	}
	for _, o := range others {
		time.AfterFunc(n.notice, func() { o.hear(member.Failed, m.self) })
	}
}

type memhalf struct {
	net      *memnet
	from, to string

	mu       sync.Mutex
	segments []memsegment
	size     int
	closed   bool
	gone     bool
	readBy   time.Time
	writeBy  time.Time
	changed  chan struct{}
	total    int64
	last     time.Time
}

type memsegment struct {
	data []byte
	at   time.Time
}

type memconn struct {
	in, out *memhalf
}

func (n *memnet) pipe(a, b string) (net.Conn, net.Conn) {
	ab := &memhalf{net: n, from: a, to: b, changed: make(chan struct{})}
	ba := &memhalf{net: n, from: b, to: a, changed: make(chan struct{})}
	n.mu.Lock()
	live := n.pipes[:0:0]
	for _, h := range n.pipes {
		if !h.isClosed() {
			live = append(live, h)
		}
	}
	n.pipes = append(live, ab, ba)
	n.mu.Unlock()
	return &memconn{in: ba, out: ab}, &memconn{in: ab, out: ba}
}

func (h *memhalf) isClosed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

func (h *memhalf) bump() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bumpLocked()
}

func (h *memhalf) bumpLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *memhalf) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		h.bumpLocked()
	}
}

func wait(changed <-chan struct{}, times ...time.Time) {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if first.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(first))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func (c *memconn) Read(p []byte) (int, error) {
	h := c.in
	for {
		cut := h.net.isCut(h.from, h.to) || h.net.isCut(h.to, h.from) // no acknowledgements
		h.mu.Lock()
		now := time.Now()
		var next time.Time
		switch {
		case h.gone:
			h.mu.Unlock()
			return 0, net.ErrClosed
		case !h.readBy.IsZero() && !now.Before(h.readBy):
			h.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(h.segments) > 0 && !cut:
			if next = h.segments[0].at; !now.Before(next) {
				n := h.takeLocked(p, now)
				h.mu.Unlock()
				return n, nil
			}
		case h.closed && !cut:
			h.mu.Unlock()
			return 0, io.EOF
		}
		changed, by := h.changed, h.readBy
		h.mu.Unlock()
		wait(changed, next, by)
	}
}

func (h *memhalf) takeLocked(p []byte, now time.Time) (n int) {
	for n < len(p) && len(h.segments) > 0 && !now.Before(h.segments[0].at) {
		s := &h.segments[0]
		k := copy(p[n:], s.data)
		n += k
		if s.data = s.data[k:]; len(s.data) == 0 {
			h.segments = h.segments[1:]
		}
	}
	h.size -= n
	h.bumpLocked()
	return n
}

func (c *memconn) Write(p []byte) (n int, err error) {
	h := c.out
	for len(p) > 0 {
		h.mu.Lock()
		now := time.Now()
		switch {
		case h.closed:
			h.mu.Unlock()
			return n, net.ErrClosed
		case !h.writeBy.IsZero() && !now.Before(h.writeBy):
			h.mu.Unlock()
			return n, os.ErrDeadlineExceeded
		case h.size < h.net.buffer:
			k := min(len(p), h.net.buffer-h.size)
			at := now.Add(h.net.latency)
			if h.net.slow != nil {
				at = at.Add(h.net.slow(h.from, h.to))
			}
			if at.Before(h.last) {
				at = h.last
			}
			h.last = at
			h.segments = append(h.segments, memsegment{append([]byte(nil), p[:k]...), at})
			h.size += k
			h.total += int64(k)
			n, p = n+k, p[k:]
			h.bumpLocked()
			h.mu.Unlock()
			continue
		}
		changed, by := h.changed, h.writeBy
		h.mu.Unlock()
		wait(changed, by)
	}
	return n, nil
}

func (c *memconn) Close() error {
	c.in.mu.Lock()
	c.in.gone = true
	c.in.mu.Unlock()
	c.in.bump()
	c.in.close()
	c.out.close()
	return nil
}

func (c *memconn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.readBy = t
	c.in.bumpLocked()
	return nil
}

func (c *memconn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.writeBy = t
	c.out.bumpLocked()
	return nil
}

func (c *memconn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *memconn) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (c *memconn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

type testNode struct {
	*Exchange
	name  string
	know  *model
	inner *memnode
}

func (n *memnet) start(name string, adjust func(*Config)) *testNode {
	n.t.Helper()
	know := newModel(name)
	cfg := Config{Knowledge: know, Log: zerolog.Nop()}
	if adjust != nil {
		adjust(&cfg)
	}
	f, err := prepare(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	m := n.node(name, uint64(f.wall(time.Now()).UnixMilli()))
	m.onEvent, m.serve = f.onEvent, f.serve
	f.members = m
	if err := f.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	return &testNode{Exchange: f, name: name, know: know, inner: m}
}

func (n *testNode) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("%s: stop: %v", n.name, err)
	}
}

func (n *testNode) kill(t *testing.T) {
	t.Helper()
	n.inner.net.kill(n.name)
	n.stop(t)
}

package gossip

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/virtual"
	"grapevine/gossip/member"
	"grapevine/gossip/wire"
	"grapevine/prefixtree"
)

// mesh is a fleet of hundreds of nodes driven by hand: one goroutine does everything in order, so what happens to it is the seed's
// alone. What nodes make of it is, too, but for the order in which they list streams and ask for what they lack, which is that of
// maps: where facts do not commute (a revert, a drop: m.exact is false) single ones may differ from run to run. Nodes
// publish, accept, keep journals, compare digests, ask for and serve ranges by their own code. Left out are the goroutines: live
// batches are handed over one by one, and a stream is a call (see meet). It must run in a bubble, for its time.
type mesh struct {
	t     *testing.T
	r     *rand.Rand
	truth *truth
	nodes []*meshNode
	under map[int64][]parcel // what is under way, by the tick of its arrival
	tick  int64

	skewed, exact bool
	loss          int // of live batches, per mille
	late          int // ticks, the most
	copies        bool
	side          []uint8 // of a partition
	mute          map[[2]int]int64
	generations   [virtualBackends]uint32
	requests      uint64
	ends          []meshEnd
	notes         []string
	delivered     int
}

// meshTick is the step of time.
const meshTick = 100 * time.Millisecond

// parcel is a live batch on its way.
type parcel struct {
	to   int
	from streamID
	body []byte
}

type meshEnd struct {
	tick int64
	node *meshNode
	life uint64
	end  func(failed bool)
}

type meshNode struct {
	mesh   *mesh
	index  int
	name   string
	offset time.Duration
	life   uint64
	fleet  *Fleet
	know   *treeKnowledge
	pub    publisher
	sent   uint64 // batches up to here are on their way
	back   int64  // tick at which a dead node starts again
	next   int64  // tick of its next stream
	last   Stats
}

func (n *meshNode) wall(at time.Time) time.Time { return at.Add(n.offset) }

func (n *meshNode) now() prefixtree.Time { return prefixtree.Time(n.wall(time.Now()).UnixMilli()) }

func newMesh(t *testing.T, seed uint64, size int) *mesh {
	m := &mesh{
		t: t, r: virtual.Rand(seed, 2), truth: newTruth(), under: map[int64][]parcel{}, side: make([]uint8, size), mute: map[[2]int]int64{},
	}
	m.exact, m.skewed, m.copies = m.r.IntN(3) > 0, size <= 128 && m.r.IntN(3) == 0, m.r.IntN(2) == 0
	m.truth.skewed = m.skewed
	for i := range m.generations {
		m.generations[i] = 1
	}
	for i := range size {
		m.nodes = append(m.nodes, &meshNode{mesh: m, index: i, name: fmt.Sprintf("n%04d", i)})
		m.begin(m.nodes[i])
	}
	return m
}

func (m *mesh) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf("%6.1fs ", float64(m.tick)*meshTick.Seconds())+fmt.Sprintf(format, args...))
}

func (m *mesh) fail(format string, args ...any) {
	m.t.Helper()
	m.note(format, args...)
	for _, n := range m.notes {
		m.t.Log(n)
	}
	m.t.FailNow()
}

// begin starts the next process of a node, and has it learn what another one knows.
func (m *mesh) begin(n *meshNode) {
	know, err := newTreeKnowledge(n.name, n.index, n.now, m.truth)
	if err != nil {
		m.t.Fatal(err)
	}
	know.begin(m.generations)
	f, err := prepare(Config{Knowledge: know, Clock: n.wall, Log: zerolog.Nop(), JournalBytes: 8 << 20})
	if err != nil {
		m.t.Fatal(err)
	}
	n.life++
	f.self = streamID{n.name, uint64(n.wall(time.Now()).UnixMilli()) + n.life}
	f.journal.own(f.self, n.wall(time.Now()).UnixMilli())
	n.fleet, n.know, n.pub, n.sent, n.last = f, know, publisher{next: 1}, 1, Stats{}
	n.next = m.tick + m.r.Int64N(100)
	if n.life > 1 {
		if o := m.reachable(n); o != nil {
			m.measure(n, o)
			o.know.Snapshot(pageBytes, func(page []byte, _ int) bool {
				_, err = know.ApplySnapshot(page, n.shift(o))
				return err == nil
			})
			if err != nil {
				m.t.Fatal(err)
			}
		}
	}
	f.warming.finish()
}

// linked reports whether a's packets reach b.
func (m *mesh) linked(a, b *meshNode) bool {
	return a.fleet != nil && b.fleet != nil && m.side[a.index] == m.side[b.index] && m.mute[[2]int{a.index, b.index}] <= m.tick
}

// reachable draws a node that n can have a stream with; nil if none was found.
func (m *mesh) reachable(n *meshNode) *meshNode {
	for range 20 {
		o := m.nodes[m.r.IntN(len(m.nodes))]
		if o != n && m.linked(n, o) && m.linked(o, n) {
			return o
		}
	}
	return nil
}

// peerOf is what n keeps of o; only where clocks differ is it kept at all.
func (n *meshNode) peerOf(o *meshNode) *peer {
	p := n.fleet.peers[o.name]
	if p == nil || p.status.Incarnation != o.fleet.self.incarnation {
		p = &peer{name: o.name, status: member.Status{Info: member.Info{Name: o.name, Incarnation: o.fleet.self.incarnation}, State: member.StateAlive}}
		n.fleet.peers[o.name] = p
	}
	return p
}

func (n *meshNode) shift(o *meshNode) time.Duration {
	if !n.mesh.skewed {
		return 0
	}
	d, _ := n.peerOf(o).shift()
	return d
}

// measure is a ping from n to o, with a delay on each way.
func (m *mesh) measure(n, o *meshNode) {
	if !m.skewed {
		return
	}
	now := time.Now()
	there, back := time.Duration(m.r.Int64N(int64(20*time.Millisecond))), time.Duration(m.r.Int64N(int64(20*time.Millisecond)))
	received := o.wall(now.Add(there)).UnixNano()
	n.peerOf(o).measured(n.wall(now).UnixNano(), received, received, n.wall(now.Add(there+back)).UnixNano())
}

// publish has a node flush its news and puts them on their way to everybody.
func (m *mesh) publish(n *meshNode) {
	n.fleet.flushNews(&n.pub, time.Now())
	_, head, _ := n.fleet.journal.position(n.fleet.self)
	n.fleet.journal.read(n.fleet.self, n.sent, head, func(_ uint64, body []byte) bool {
		for _, o := range m.nodes {
			if o == n || !m.linked(n, o) || m.r.IntN(1000) < m.loss {
				continue
			}
			for range 1 + m.r.IntN(2)*m.r.IntN(2)*b2i(m.copies) {
				at := m.tick + 1 + int64(m.r.IntN(m.late+1))
				m.under[at] = append(m.under[at], parcel{o.index, n.fleet.self, body})
			}
		}
		return true
	})
	n.sent = head
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// deliver hands over what arrives now, in random order.
func (m *mesh) deliver() {
	list := m.under[m.tick]
	delete(m.under, m.tick)
	m.r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, p := range list {
		n := m.nodes[p.to]
		if n.fleet == nil {
			continue
		}
		b, err := wire.DecodeBatch(p.body)
		if err != nil {
			m.t.Fatal(err)
		}
		m.delivered++
		shift := time.Duration(0)
		if o := m.nodes[slices.IndexFunc(m.nodes, func(o *meshNode) bool { return o.name == p.from.origin })]; m.skewed && o.fleet != nil {
			shift = n.shift(o)
		}
		if err := n.fleet.accept(p.from, &b, p.body, shift, false, time.Now()); err != nil {
			m.fail("%s: %v", n.name, err)
		}
	}
}

// unread is a connection of which only the end is used.
type unread struct{ net.Conn }

func (unread) Close() error { return nil }

// meet opens a stream on which n is sent what o knows, pumps it until both are silent, and closes it: hello apart, that is what a
// reconnection does, with a comparison of digests and the repairs that follow.
func (m *mesh) meet(n, o *meshNode) {
	m.measure(n, o)
	p := n.peerOf(o)
	s := &session{f: n.fleet, p: p, conn: unread{}, id: o.fleet.self, began: time.Now(), asked: map[uint64]*ask{}, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	p.session = s
	d := &feed{f: o.fleet, conn: unread{}, who: n.fleet.self, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.subscribeTo()
	for moment := 0; moment < 60; moment++ {
		now := time.Now().Add(time.Duration(moment) * repairInterval) // so that gaps are old enough to be asked for
		n.fleet.lookAtGaps(now)
		out := s.out
		s.out = nil
		if err := frames(out, func(kind wire.Kind, body []byte) error { return d.take(kind, body, &wire.Digest{}) }); err != nil {
			m.fail("%s asks %s: %v", n.name, o.name, err)
		}
		in, _ := d.fill(nil, now)
		if err := frames(in, func(kind wire.Kind, body []byte) error { return s.take(kind, body, time.Now()) }); err != nil {
			m.fail("%s is sent by %s: %v", n.name, o.name, err)
		}
		if len(out)+len(in) == 0 && moment > 3 {
			break
		}
	}
	s.end(io.EOF)
	close(s.done)
	p.session = nil
	n.fleet.lookAtGaps(time.Now().Add(time.Minute)) // takes back what was not answered
	if !m.skewed {
		delete(n.fleet.peers, o.name) // a million of them would not fit
	}
}

// frames takes a stream of frames apart.
func frames(b []byte, take func(kind wire.Kind, body []byte) error) error {
	if len(b) == 0 {
		return nil // a reader has a buffer, and most have nothing to read
	}
	r := wire.NewReader(bytes.NewReader(b), wire.RequestSize)
	for {
		kind, body, _, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = take(kind, body)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", kind, err)
		}
	}
}

// catchUp has a node open a stream to whoever has said what it has not heard, as a jump in a sequence, a Pong or the end of a cut
// would have it do.
func (m *mesh) catchUp(n *meshNode) {
	for _, o := range m.nodes {
		if o == n || o.sent == 1 || !m.linked(n, o) || !m.linked(o, n) {
			continue
		}
		if len(n.fleet.journal.gaps(o.fleet.self, 1, o.sent-1, 1)) > 0 {
			m.meet(n, o)
		}
	}
}

// step is one tick: what arrives, what is placed, what is told, and streams that are due.
func (m *mesh) step(rate int) {
	time.Sleep(meshTick)
	m.tick++
	m.deliver()
	open := m.ends[:0]
	for _, e := range m.ends {
		switch {
		case e.tick > m.tick:
			open = append(open, e)
		case e.node.fleet != nil && e.node.life == e.life:
			e.end(!m.exact && m.r.IntN(10) == 0)
		}
	}
	m.ends = open
	for range m.r.IntN(rate + 1) {
		m.request(m.nodes[m.r.IntN(len(m.nodes))])
	}
	for _, n := range m.nodes {
		switch {
		case n.fleet == nil && n.back <= m.tick:
			m.begin(n)
		case n.fleet == nil:
			continue
		case n.know.outbox.Stats().Pending > 0:
			m.publish(n)
		}
		if (m.tick+int64(n.index))%10 == 0 {
			m.catchUp(n)
		}
		if n.next <= m.tick {
			n.next = m.tick + 50 + m.r.Int64N(100)
			n.fleet.journal.age(n.wall(time.Now()).UnixMilli())
			if o := m.reachable(n); o != nil {
				m.meet(n, o)
			}
		}
	}
}

func (m *mesh) request(n *meshNode) {
	if n.fleet == nil {
		return
	}
	m.requests++
	b := m.r.IntN(virtualBackends - 1)
	own := m.requests
	if m.r.IntN(2) == 0 {
		own -= min(own, uint64(m.r.IntN(30)))
	}
	blocks := 1 + m.r.IntN(30)
	cached := -1
	if !m.exact && m.r.IntN(3) == 0 {
		cached = m.r.IntN(blocks + 1)
	}
	end := n.know.request(b, virtualChain(uint64(m.r.IntN(5))<<8|uint64(m.generations[b]), own, int(own%16), blocks), cached)
	m.ends = append(m.ends, meshEnd{m.tick + m.r.Int64N(150), n, n.life, end})
}

// strike does one fault.
func (m *mesh) strike(what int) {
	n := m.nodes[m.r.IntN(len(m.nodes))]
	switch what {
	case 0:
		ways := uint8(1 + m.r.IntN(3)) // 1: whole again
		for i := range m.side {
			m.side[i] = uint8(m.r.IntN(int(ways)))
		}
		m.note("partition into %d", ways)
	case 1:
		o := m.nodes[m.r.IntN(len(m.nodes))]
		m.mute[[2]int{n.index, o.index}] = m.tick + m.r.Int64N(100)
	case 2:
		if n.fleet != nil {
			n.fleet, n.know, n.back = nil, nil, m.tick+m.r.Int64N(80)
			m.note("%s is killed, back in %d ticks", n.name, n.back-m.tick)
		}
	case 3:
		m.loss, m.late = m.r.IntN(3)*m.r.IntN(150), m.r.IntN(3)*m.r.IntN(10)
		m.note("loss %d per mille, up to %d ticks late", m.loss, m.late)
	case 4:
		b := m.r.IntN(virtualBackends - 1)
		m.generations[b]++
		m.note("generation %d of backend %d", m.generations[b], b)
		for _, o := range m.nodes {
			g, life := m.generations[b], o.life
			m.ends = append(m.ends, meshEnd{m.tick + m.r.Int64N(30), o, life, func(bool) { o.know.renew(b, g) }})
		}
	case 5:
		if n.fleet != nil {
			b := m.r.IntN(virtualBackends - 1)
			m.note("%s finds backend %d empty", n.name, b)
			n.know.forget(b)
		}
	case 6:
		if m.skewed {
			step := time.Duration(m.r.Int64N(int64(10*time.Minute))) - 5*time.Minute
			n.offset += step
			m.note("clock of %s by %v", n.name, step)
		}
	}
	if m.skewed { // everybody pings everybody
		for _, a := range m.nodes {
			for _, b := range m.nodes {
				if a != b && m.linked(a, b) && m.linked(b, a) {
					m.measure(a, b)
				}
			}
		}
	}
}

// inspect holds some of the nodes, or all, against the truth, their counters and their bounds.
func (m *mesh) inspect(some int) {
	m.t.Helper()
	for range some {
		m.inspectNode(m.nodes[m.r.IntN(len(m.nodes))])
	}
}

func (m *mesh) inspectNode(n *meshNode) map[spot]prefixtree.Time {
	m.t.Helper()
	if n.fleet == nil {
		return nil
	}
	held, err := n.know.believes()
	if err == nil {
		n.last, err = account(n.fleet, n.know, n.last, 8<<20)
	}
	if err != nil {
		m.fail("%s (clock %v): %v", n.name, n.offset, err)
	}
	return held
}

// disagreement says how the first node that differs from the first one does; "" if none does.
func (m *mesh) disagreement() string {
	first := m.inspectNode(m.nodes[0])
	for _, n := range m.nodes {
		if n.fleet == nil {
			return n.name + " is down"
		}
		held := m.inspectNode(n)
		if m.skewed || !m.exact {
			continue
		}
		if d := difference(first, held, max(m.nodes[0].know.since, n.know.since)); d != "" {
			return n.name + ": " + d
		}
	}
	return ""
}

// meshSettles is how long after the last fault all agree. Digests are compared with a random peer every 5 to 15 s, so what half of
// the fleet lacks takes some rounds to be everywhere.
const meshSettles = 2 * time.Minute

// run is a run of a mesh. It returns what it came to, to be compared.
func (m *mesh) run(lasts time.Duration, rate int) string {
	swarm := virtual.NewSwarm(m.r, 7)
	next := int64(0)
	for until := m.tick + int64(lasts/meshTick); m.tick < until; {
		m.step(rate)
		if m.tick >= next {
			m.strike(swarm.Next(m.r))
			next = m.tick + 1 + m.r.Int64N(30)
		}
		if m.tick%20 == 0 {
			m.inspect(3)
		}
	}
	clear(m.side)
	clear(m.mute)
	m.loss, m.late, m.copies = 0, 0, false
	m.note("quiet")
	began := m.tick
	for why := "not looked at"; why != ""; {
		if time.Duration(m.tick-began)*meshTick > meshSettles {
			m.fail("not settled after %v: %s", meshSettles, why)
		}
		for range 50 {
			m.step(0)
		}
		why = m.disagreement()
	}
	settled := time.Duration(m.tick-began) * meshTick
	m.probe()
	batches, facts, digest := uint64(0), 0, uint64(0)
	for _, n := range m.nodes {
		batches += n.fleet.Stats().AppliedBatches
		for p, at := range m.inspectNode(n) {
			facts++
			digest ^= scramble(scramble(uint64(p.hash)^uint64(p.key)) ^ uint64(at) ^ uint64(n.index)<<48)
		}
	}
	return fmt.Sprintf("%d nodes, skewed %v, exact %v: %d requests, %d live batches handed over, %d applied, %d facts in all, digest %x, settled within %v",
		len(m.nodes), m.skewed, m.exact, m.requests, m.delivered, batches, facts, digest, settled)
}

// probe has some nodes place something and expects everybody to hear of it.
func (m *mesh) probe() {
	m.t.Helper()
	m.strike(-1) // measures clocks
	want := map[spot]string{}
	for range 10 {
		n := m.nodes[m.r.IntN(len(m.nodes))]
		m.requests++
		chain := virtualChain(0, 1<<30|m.requests, 0, 4)
		n.know.request(virtualBackends-1, chain, -1)(false)
		for _, h := range chain {
			want[spot{h, virtualKeys[virtualBackends-1]}] = n.name
		}
	}
	for range 5 {
		m.step(0)
	}
	for _, n := range m.nodes {
		held := map[spot]bool{}
		n.know.tree.Range(n.now(), func(f prefixtree.Fact) bool {
			key, _ := n.know.names.Key(f.Backend)
			held[spot{f.Hash, key}] = true
			return true
		})
		for p, by := range want {
			if !held[p] {
				m.fail("%s has not heard of what %s placed", n.name, by)
			}
		}
	}
}

package fleetsim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"grapevine.example/chaos/report"
	"grapevine.example/gossip/wire"
	"grapevine.example/node/share"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/queue"
)

// Intervals and the size of a batch in gossip.
const (
	flushEvery = 50 * time.Millisecond
	fullEvery  = 10 * time.Second // of the whole load
	stateEvery = 5 * time.Second
	batchBytes = 16 << 10
)

// message is shared by its receivers.
type message struct {
	sent   time.Duration
	origin int
	batch  []byte      // of placements
	loads  []wire.Load // changed
	claims []queue.Claim
	queued bool // claims are set
	state  *share.State
}

// exchange carries what nodes share: one log in the order of sending with two cursors per node,
// because the other half of a partition may lag. Taking what has arrived just before a node acts
// equals delivery at each message's time and keeps its tree in the processor's cache.
type exchange struct {
	link
	point     point
	nodes     []node
	senders   []sender
	flush     time.Duration // interval; 0: nodes send at once
	due       time.Duration // next flush; never: no node has news
	nextState time.Duration
	hidden    bool // some requests are not streamed, so that nodes cannot see their prefills end
	noticed   bool // the partition began
	healed    bool

	log   []message
	first int // number of log[0]
	limit int
	near  []int // by node: number of the next message from its own half
	far   []int

	from, to time.Duration // of the measurement
	bytes    int
	buf      []byte
	ages     []float64 // ms from each change until all nodes that it reaches have it
}

type sender struct {
	name    string
	pending bool
	since   time.Duration // of the oldest change that is pending
	watched bool          // prefills may leave its load without an event
	loads   []wire.Load   // by backend, last sent
	next    []wire.Load
	fullAt  time.Duration
	state   []byte // last sent
	claims  []queue.Claim
	batches uint64
}

const minLog = 1 << 12

// newExchange counts bytes from warm-up to span, the end of arrivals.
func newExchange(cfg *Config, pt point, nodes []node, span time.Duration) *exchange {
	x := &exchange{
		point: pt, nodes: nodes, senders: make([]sender, len(nodes)), flush: min(flushEvery, pt.staleness), due: never,
		nextState: stateEvery, limit: minLog, near: make([]int, len(nodes)), far: make([]int, len(nodes)), from: cfg.Warmup, to: span,
	}
	x.link = link{delay: pt.staleness - x.flush, size: pt.nodes, loss: cfg.Loss, seed: cfg.Options.Seed, Partition: cfg.Partition}
	for i := range x.senders {
		s := &x.senders[i]
		s.name, s.loads, s.next = nodeName(i), make([]wire.Load, cfg.Backends), make([]wire.Load, cfg.Backends)
		for b := range s.loads {
			s.loads[b].Backend = uint32(b)
		}
	}
	for i := range nodes {
		x.connect(i, 0, func(int) bool { return true })
	}
	return x
}

// acted makes a node send its news at the next flush.
func (x *exchange) acted(node int, now time.Duration) {
	if x == nil || x.senders[node].pending {
		return
	}
	s := &x.senders[node]
	s.pending, s.since = true, now
	if x.flush == 0 {
		x.send(node, now)
	} else {
		x.flushNext(x.flush, now)
	}
}

func (x *exchange) flushNext(every, now time.Duration) { x.due = min(x.due, now/every*every+every) }

func (x *exchange) pass(now time.Duration) {
	if x == nil {
		return
	}
	if now >= x.nextState {
		// No event happened since it was due, so one state serves for all that were.
		at := now / stateEvery * stateEvery
		x.nextState = at + stateEvery
		x.flushBy(at)
		for i := range x.nodes {
			x.deliver(i, at)
			x.sendState(i, at)
		}
	}
	x.flushBy(now)
	switch {
	case x.none() || x.healed:
	case now >= x.To+reunion:
		x.healed = true
		x.reunite(now)
	case !x.noticed && now >= x.From+detection+x.delay:
		x.noticed = true
		x.part(now)
	}
}

func (x *exchange) flushBy(now time.Duration) {
	for x.due <= now {
		at := x.due
		x.due = never
		for i := range x.senders {
			if x.senders[i].pending || x.senders[i].watched {
				x.send(i, at)
			}
		}
	}
}

func (x *exchange) send(node int, at time.Duration) {
	s, shared := &x.senders[node], x.nodes[node].shared
	s.pending, s.watched = false, false
	m := message{sent: at, origin: node}
	if x.point.share.loads() && !x.point.oracle.load {
		var busy []wire.Load
		m.loads, busy = s.changedLoads(shared, at)
		switch {
		case m.loads == nil:
		case at >= s.fullAt:
			s.fullAt = at + fullEvery
			x.count(at, wire.AppendLoad(x.buf[:0], int64(clock(at)), true, busy))
		default:
			x.count(at, wire.AppendLoad(x.buf[:0], int64(clock(at)), false, m.loads))
		}
	}
	for {
		payload, records := shared.Drain(nil, batchBytes)
		if records == 0 {
			break
		}
		s.batches++
		b := wire.Batch{Sequence: s.batches, Time: int64(clock(at)), Records: records, Payload: payload}
		x.count(at, wire.AppendBatch(x.buf[:0], b.AppendBody(nil)))
		m.batch = payload
		x.post(m)
		m = message{sent: at, origin: node}
		x.ages = append(x.ages, float64(x.known(at)-s.since)/float64(time.Millisecond))
	}
	if q := x.nodes[node].queue; q != nil && x.point.share.loads() {
		if now := q.claims(); !slices.Equal(now, s.claims) {
			s.claims, m.claims, m.queued = now, now, true
		}
	}
	if m.loads != nil || m.queued {
		x.post(m)
	}
	// Live nodes look at their load at every flush, and take out the prefills that must be done by then.
	if x.hidden && slices.ContainsFunc(s.loads, func(l wire.Load) bool { return l.PrefillTokens > 0 }) {
		s.watched = true
		x.flushNext(flushEvery, at)
	}
}

// changedLoads returns the load where it changed, and on all busy backends. No load is lost, so
// changes are enough.
func (s *sender) changedLoads(shared *share.Knowledge, at time.Duration) (changed, busy []wire.Load) {
	for b := range s.next {
		s.next[b] = wire.Load{Backend: uint32(b)}
	}
	busy = shared.Loads(nil, clock(at))
	for _, l := range busy {
		s.next[l.Backend] = l
	}
	for b, l := range s.next {
		if l != s.loads[b] {
			changed = append(changed, l)
		}
	}
	s.loads, s.next = s.next, s.loads
	return changed, busy
}

func (x *exchange) sendState(node int, at time.Duration) {
	s := &x.senders[node]
	blob := x.nodes[node].shared.State(nil, clock(at))
	if bytes.Equal(blob, s.state) {
		return
	}
	s.state = blob
	x.count(at, wire.AppendState(x.buf[:0], int64(clock(at)), blob))
	state, err := share.Parse(blob)
	if err != nil {
		panic(fmt.Sprintf("fleetsim: a node cannot read its own state: %v", err))
	}
	x.point.share.withhold(state)
	x.post(message{sent: at, origin: node, state: state})
}

func (x *exchange) count(at time.Duration, frame []byte) {
	if at >= x.from && at <= x.to {
		x.bytes += len(frame)
	}
	x.buf = frame
}

func (x *exchange) post(m message) {
	x.log = append(x.log, m)
	if len(x.log) > x.limit {
		x.cut(m.sent)
	}
}

func (x *exchange) cut(now time.Duration) {
	x.limit = int(^uint(0) >> 1)
	for node := range x.nodes {
		x.deliver(node, now)
	}
	least := slices.Min(x.near)
	if !x.none() {
		least = min(least, slices.Min(x.far))
	}
	x.log = slices.Delete(x.log, 0, least-x.first)
	x.first = least
	x.limit = max(minLog, 2*len(x.log))
}

// deliver gives a node what has arrived by now.
func (x *exchange) deliver(node int, now time.Duration) {
	if x == nil {
		return
	}
	news := x.advance(node, now, x.near, false)
	if !x.none() && x.advance(node, now, x.far, true) || news {
		x.acted(node, now) // it may know more than a sender
	}
}

func (x *exchange) advance(node int, now time.Duration, cursors []int, far bool) (news bool) {
	for n := cursors[node]; n < x.first+len(x.log); n = cursors[node] {
		m := &x.log[n-x.first]
		arrival := m.sent + x.delay
		if far {
			arrival = x.known(m.sent)
		}
		if arrival > now {
			break
		}
		cursors[node]++
		if m.origin != node && x.link.far(node, m.origin) == far {
			x.take(node, m, far && !x.up(m.sent), arrival)
			news = news || m.batch != nil
		}
	}
	return news
}

// take merges a message. Of what was cut off, only batches are sent again.
func (x *exchange) take(node int, m *message, cut bool, at time.Duration) {
	shared, from := x.nodes[node].shared, x.senders[m.origin].name
	if m.batch != nil && !x.lost(m.origin, node, m.sent) {
		if _, err := shared.Apply(m.batch, 0, clock(at)); err != nil {
			panic(fmt.Sprintf("fleetsim: a node cannot read another's batch: %v", err))
		}
	}
	if cut {
		return
	}
	if m.loads != nil {
		shared.PeerLoad(from, m.loads, false, clock(at))
	}
	if m.queued {
		x.nodes[node].queue.SetPeer(from, m.claims)
	}
	if m.state != nil {
		shared.PeerState(from, m.state)
	}
}

// part makes every node drop the other half of the fleet.
func (x *exchange) part(now time.Duration) {
	var sizes [2]int
	for i := range x.nodes {
		sizes[x.half(i)]++
	}
	for i := range x.nodes {
		x.deliver(i, now)
		x.nodes[i].router.SetFleet(x.point.with(sizes[x.half(i)]).fleet())
		for j := range x.nodes {
			if x.link.far(i, j) {
				x.nodes[i].shared.DropPeer(x.senders[j].name)
				if q := x.nodes[i].queue; q != nil {
					q.SetPeer(x.senders[j].name, nil)
				}
			}
		}
	}
}

// reunite connects the halves: peers are idle until every node sends its load and state.
func (x *exchange) reunite(now time.Duration) {
	for i := range x.nodes {
		x.deliver(i, now)
		x.nodes[i].router.SetFleet(x.point.fleet())
		x.connect(i, now, func(j int) bool { return x.link.far(i, j) })
	}
	for i := range x.senders {
		s := &x.senders[i]
		s.fullAt, s.state, s.claims = 0, nil, nil
		for b := range s.loads {
			s.loads[b] = wire.Load{Backend: uint32(b)}
		}
		x.acted(i, now)
		x.sendState(i, now)
	}
}

// connect makes the node take chosen peers as idle until they send a load.
func (x *exchange) connect(node int, now time.Duration, to func(peer int) bool) {
	for j := range x.senders {
		if j != node && x.point.share.loads() && !x.point.oracle.load && to(j) {
			x.nodes[node].shared.PeerLoad(x.senders[j].name, nil, true, clock(now))
		}
	}
}

func (x *exchange) report() (g report.Gossip) {
	if x == nil {
		return g
	}
	if x.due != never {
		x.flushBy(x.due)
	}
	if seconds := (x.to - x.from).Seconds(); seconds > 0 {
		g.BytesPerSPerNode = float64(x.bytes) * float64(x.size-1) / float64(x.size) / seconds
	}
	ages := x.ages
	if len(ages) == 0 {
		ages = []float64{float64(x.point.staleness) / float64(time.Millisecond)}
	}
	q := report.Summarise(ages)
	g.Convergence = report.Convergence{P50: q.P50, P99: q.P99}
	return g
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// engineKeys uses a backend's number as its key.
type engineKeys int

func (n engineKeys) Key(b prefixtree.Backend) (uint32, bool) { return uint32(b), int(b) < int(n) }

func (n engineKeys) Backend(key uint32) (prefixtree.Backend, bool) {
	return prefixtree.Backend(key), key < uint32(n)
}

func (n engineKeys) Lookup(key uint32) (prefixtree.Backend, bool) { return n.Backend(key) }

func (n engineKeys) Listed(yield func(b prefixtree.Backend, key uint32)) {
	for b := range prefixtree.Backend(n) {
		yield(b, uint32(b))
	}
}

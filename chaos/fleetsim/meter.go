package fleetsim

import (
	"time"

	"grapevine/gossip/wire"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

const flush = 50 * time.Millisecond

// meter counts gossip bytes by running the encoders of live nodes: all changes since the last flush
// go into one batch and one load frame, equal for every peer. It counts frames without TLS, TCP,
// pings and digests. A nil meter counts nothing.
type meter struct {
	from, to time.Duration
	senders  []sender
	bytes    int64
	buf, tmp []byte
	loads    []wire.Load
}

type sender struct {
	outbox  *prefixtree.Outbox
	is      []work
	said    []work
	due     time.Duration
	pending bool
	full    time.Duration
	next    uint64
}

const wholeVector = 10 * time.Second

func newMeter(nodes int, from, to time.Duration) *meter {
	m := &meter{from: from, to: to, senders: make([]sender, nodes)}
	for i := range m.senders {
		m.senders[i].outbox = prefixtree.NewOutbox(0)
	}
	return m
}

func (m *meter) news(node int, now time.Duration, facts []prefixtree.Fact) {
	if m != nil {
		m.touch(node, now)
		m.senders[node].outbox.Add(facts)
	}
}

func (m *meter) load(node int, now time.Duration, b prefixtree.Backend, is work) {
	if m == nil {
		return
	}
	m.touch(node, now)
	s := &m.senders[node]
	for len(s.is) <= int(b) {
		s.is, s.said = append(s.is, work{}), append(s.said, work{})
	}
	s.is[b] = is
}

func (m *meter) touch(node int, now time.Duration) {
	s := &m.senders[node]
	if s.pending && s.due <= now {
		m.send(s)
	}
	if !s.pending {
		s.pending, s.due = true, now/flush*flush+flush
	}
}

func (m *meter) send(s *sender) {
	s.pending = false
	at := int64(clock(s.due))
	m.buf = m.buf[:0]
	for {
		var n int
		if m.tmp, n = s.outbox.Drain(m.tmp[:0], wire.MaxPayload, names); n == 0 {
			break
		}
		s.next++
		b := wire.Batch{Sequence: s.next, Time: at, Records: n, Payload: m.tmp}
		m.buf = wire.AppendBatch(m.buf, b.AppendBody(nil))
	}
	if s.is != nil {
		m.sendLoads(s, at)
	}
	if s.due >= m.from && s.due <= m.to {
		m.bytes += int64(len(m.buf))
	}
}

func (m *meter) sendLoads(s *sender, at int64) {
	full := s.due >= s.full
	m.loads = m.loads[:0]
	for b, is := range s.is {
		if is != s.said[b] || full && is != (work{}) {
			s.said[b] = is
			m.loads = append(m.loads, wire.Load{Backend: uint32(b), PrefillTokens: uint32(is.tokens), Active: uint32(is.active)})
		}
	}
	if full {
		s.full = s.due + wholeVector
	}
	if len(m.loads) > 0 || full {
		m.buf = wire.AppendLoad(m.buf, at, full, m.loads)
	}
}

// Sizes of a live node's state of backends (node/evidence.go) and heat (node/heat.go).
const (
	stateHead, stateClaim             = 6, 12
	heatHead, heatAnchor              = 5, 10
	heatPaceHead, heatPace, heatCount = 4, 17, 3
	heatWorkHead, heatWork            = 4, 24
)

func stateSize(claims int, h *policy.Heat) int {
	size := 0
	if claims > 0 {
		size += stateHead + stateClaim*claims
	}
	if len(h.Anchors) > 0 {
		size += heatHead + heatAnchor*len(h.Anchors)
	}
	for i := range h.Paces {
		size += heatPaceHead + heatPace
		for _, n := range h.Paces[i].Soonest {
			if n > 0 {
				size += heatCount
			}
		}
	}
	if len(h.Works) > 0 {
		size += heatWorkHead + heatWork*len(h.Works)
	}
	return size
}

func (m *meter) state(now time.Duration, claims int, h *policy.Heat) {
	size := stateSize(claims, h)
	if m == nil || size == 0 || now < m.from || now > m.to {
		return
	}
	m.tmp = append(m.tmp[:0], make([]byte, size)...)
	m.buf = wire.AppendState(m.buf[:0], int64(clock(now)), m.tmp)
	m.bytes += int64(len(m.buf))
}

// perNode returns the mean bytes per second that a node sends to all its peers, over the measured
// time.
func (m *meter) perNode() float64 {
	for i := range m.senders {
		if s := &m.senders[i]; s.pending {
			m.send(s)
		}
	}
	n := float64(len(m.senders))
	if m.to <= m.from {
		return 0
	}
	return float64(m.bytes) / n * (n - 1) / (m.to - m.from).Seconds()
}

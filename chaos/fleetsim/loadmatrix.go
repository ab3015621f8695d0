package fleetsim

import (
	"fmt"
	"time"

	"grapevine/proxy/policy"
)

// loadMatrix is a loadExchange that keeps for every pair of nodes what one has heard of the other,
// because that differs in a partition. Reports are absolute.
type loadMatrix struct {
	loadQueue
	link
	sent  []work // by origin, backend: the latest announcement that had time to arrive
	heard []work
	sum   []work
	dirty []bool // by node, backend: not yet delivered to the router

	apart  partitionPhase
	vector []policy.PeerLoad
}

type partitionPhase uint8

const (
	whole partitionPhase = iota
	noticed
	healed
)

// maxMatrix bounds the memory of a matrix, in entries of 16 bytes.
const maxMatrix = 1 << 27

func newLoadMatrix(l link, backends int, m *meter) (*loadMatrix, error) {
	if n := l.nodes * l.nodes * backends; n > maxMatrix {
		return nil, fmt.Errorf("%w: %d nodes and %d backends are too many for a partition: %d pairs of nodes and backends, at most %d", ErrConfig, l.nodes, backends, n, maxMatrix)
	}
	return &loadMatrix{
		loadQueue: newLoadQueue(l.nodes, backends, m), link: l, sent: make([]work, l.nodes*backends),
		heard: make([]work, l.nodes*l.nodes*backends), sum: make([]work, l.nodes*backends), dirty: make([]bool, l.nodes*backends),
	}, nil
}

func (m *loadMatrix) deliver(node int, now time.Duration) {
	m.arrive(now)
	m.vector = m.vector[:0]
	row := m.dirty[node*m.backends : (node+1)*m.backends]
	for b := range row {
		if row[b] {
			row[b] = false
			m.vector = append(m.vector, peerLoad(b, m.sum[node*m.backends+b]))
		}
	}
	if len(m.vector) > 0 {
		m.routers[node].UpdatePeerLoad(others, m.vector)
	}
}

func (m *loadMatrix) arrive(now time.Duration) {
	for {
		turn, then := m.upcoming()
		until := min(now-m.delay, turn)
		for c := m.next(until); c != nil; c = m.next(until) {
			m.change(c)
		}
		if turn > now-m.delay {
			return
		}
		m.apart++
		then()
	}
}

func (m *loadMatrix) upcoming() (at time.Duration, then func()) {
	switch {
	case m.none() || m.apart == healed:
		return never, nil
	case m.apart == whole:
		return min(m.From+detection, m.To+reunion), m.drop
	default:
		return m.To + reunion, m.reunite
	}
}

func (m *loadMatrix) change(c *loadChange) {
	b := int(c.backend)
	m.row(c.origin)[b] = c.is
	for node := range m.nodes {
		if node != c.origin && (!m.far(node, c.origin) || m.up(c.at)) {
			m.hear(node, c.origin, b, c.is)
		}
	}
}

func (m *loadMatrix) row(origin int) []work {
	return m.sent[origin*m.backends : (origin+1)*m.backends]
}

func (m *loadMatrix) hear(node, origin, b int, is work) {
	was := &m.heard[(node*m.nodes+origin)*m.backends+b]
	if *was == is {
		return
	}
	at := node*m.backends + b
	m.sum[at] = m.sum[at].plus(is).minus(*was)
	m.dirty[at] = true
	*was = is
}

func (m *loadMatrix) hearAll(node, origin int) {
	for b, is := range m.row(origin) {
		m.hear(node, origin, b, is)
	}
}

func (m *loadMatrix) drop() {
	m.acrossPairs(func(node, origin int) {
		for b := range m.backends {
			m.hear(node, origin, b, work{})
		}
	})
}

func (m *loadMatrix) reunite() { m.acrossPairs(m.hearAll) }

func (m *loadMatrix) acrossPairs(do func(node, origin int)) {
	for node := range m.nodes {
		for origin := range m.nodes {
			if m.far(node, origin) {
				do(node, origin)
			}
		}
	}
}

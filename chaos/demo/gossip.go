package demo

import (
	"context"
	"time"

	"grapevine/chaos/fleet"
)

// tlsRecord is what each write to a stream between routers costs beyond its bytes: head, tag and type of a TLS 1.3 record.
const tlsRecord = 22

// gossipMeter counts what routers send each other on their streams, from newGossipMeter to perSecond.
type gossipMeter struct {
	nodes []*fleet.Node
	began time.Time
	sent  uint64
}

// newGossipMeter begins to count at the given routers, which must run until the end.
func newGossipMeter(ctx context.Context, nodes []*fleet.Node) (*gossipMeter, error) {
	m := &gossipMeter{nodes: nodes, began: time.Now()}
	var err error
	m.sent, err = m.total(ctx)
	return m, err
}

func (m *gossipMeter) total(ctx context.Context) (sent uint64, err error) {
	for _, n := range m.nodes {
		g, err := n.Gossip(ctx)
		if err != nil {
			return 0, err
		}
		sent += g.Stats.SentBytes + tlsRecord*g.Stats.Writes
	}
	return sent, nil
}

// perSecond is how many bytes a second each has sent so far, encryption included.
func (m *gossipMeter) perSecond(ctx context.Context) (float64, error) {
	sent, err := m.total(ctx)
	if err != nil {
		return 0, err
	}
	return float64(sent-m.sent) / float64(len(m.nodes)) / time.Since(m.began).Seconds(), nil
}

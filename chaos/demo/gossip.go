package demo

import (
	"context"
	"time"

	"grapevine.example/chaos/fleet"
)

// tlsRecord is the overhead of each stream write as a TLS 1.3 record: header, tag and type.
const tlsRecord = 22

type gossipMeter struct {
	nodes []*fleet.Node
	began time.Time
	sent  uint64
}

// newGossipMeter starts to count at routers that must run until the end.
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

func (m *gossipMeter) perSecond(ctx context.Context) (float64, error) {
	sent, err := m.total(ctx)
	if err != nil {
		return 0, err
	}
	return float64(sent-m.sent) / float64(len(m.nodes)) / time.Since(m.began).Seconds(), nil
}

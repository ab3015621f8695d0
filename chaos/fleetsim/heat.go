package fleetsim

import (
	"time"

	"grapevine/proxy/policy"
)

// Bounds of a live node's heat (node/heat.go).
const (
	heatAnchors = 320
	heatPaces   = 4
)

// sampledHeat is the heat of all nodes at one moment. A node receives the sum and its own part,
// instead of a sum per node.
type sampledHeat struct {
	own  []*policy.HeatSum  // by node
	half [2]*policy.HeatSum // of the two halves of a partition
	all  *policy.HeatSum
}

func newSampledHeat(nodes int) sampledHeat {
	return sampledHeat{own: make([]*policy.HeatSum, nodes), half: [2]*policy.HeatSum{{}, {}}, all: new(policy.HeatSum)}
}

// take adds a node's heat.
func (s *sampledHeat) take(node, half int, h *policy.Heat) {
	s.own[node] = new(policy.HeatSum)
	s.own[node].Add(h)
	s.half[half].Add(h)
	s.all.Add(h)
}

// heard returns the sum that reaches a node of one half, its own part included.
func (s *sampledHeat) heard(half int, up bool) *policy.HeatSum {
	if up {
		return s.all
	}
	return s.half[half]
}

// ownHeat returns a node's heat.
func (e *evidenceBoard) ownHeat(n *node, at time.Duration) policy.Heat {
	h := n.router.OwnHeat(heatAnchors, heatPaces, clock(at))
	if !e.reaches {
		h.Requests, h.Anchors = 0, nil
	}
	if !e.works {
		h.Works = nil
	}
	if !e.rates {
		h.Paces = nil
	}
	return h
}

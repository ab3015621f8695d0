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
	own  []*policy.HeatSum
	half [2]*policy.HeatSum
	all  *policy.HeatSum
}

func newSampledHeat(nodes int) sampledHeat {
	return sampledHeat{own: make([]*policy.HeatSum, nodes), half: [2]*policy.HeatSum{{}, {}}, all: new(policy.HeatSum)}
}

func (s *sampledHeat) take(node, half int, h *policy.Heat) {
	s.own[node] = new(policy.HeatSum)
	s.own[node].Add(h)
	s.half[half].Add(h)
	s.all.Add(h)
}

func (s *sampledHeat) heard(half int, up bool) *policy.HeatSum {
	if up {
		return s.all
	}
	return s.half[half]
}

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

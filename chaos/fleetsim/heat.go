package fleetsim

import (
	"time"

	"grapevine/proxy/policy"
)

// What a live node tells of its heat at most (node/heat.go).
const (
	heatAnchors = 320
	heatPaces   = 4
)

// sampledHeat is the heat that all nodes told at one moment. Nodes are told a sum and their own part of it, in place of a sum of
// their own each.
type sampledHeat struct {
	own  []*policy.HeatSum  // by node
	half [2]*policy.HeatSum // of the two sides of a partition
	all  *policy.HeatSum
}

func newSampledHeat(nodes int) sampledHeat {
	return sampledHeat{own: make([]*policy.HeatSum, nodes), half: [2]*policy.HeatSum{{}, {}}, all: new(policy.HeatSum)}
}

// take takes in what a node tells.
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

// ownHeat returns what a node tells of its heat.
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

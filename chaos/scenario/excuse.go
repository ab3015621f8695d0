package scenario

import (
	"slices"
	"time"

	"grapevine/chaos/fleet"
)

// settle is how long after its end a fault can still show: what it held up arrives, what it broke is noticed.
const settle = 500 * time.Millisecond

// losesNode are the faults in which a node is gone or stands still.
var losesNode = []string{"kill", "pause"}

// nodeLost says whether a node was killed or stood still at some time of a span, or was cut off from its clients. An empty name is a node that
// nobody knows, which may be any.
func (e *evidence) nodeLost(name string, from, to time.Duration) bool {
	for i := range e.marks {
		m := &e.marks[i]
		if slices.Contains(losesNode, m.Kind) && (name == "" || m.touches(name)) && m.during(from, to, settle) {
			return true
		}
	}
	return e.linkBroken(name, from, to, fleet.BalancerName, fleet.ClientsName, fleet.Everybody)
}

// linkBroken says whether links between a node and one of the others were broken at some time of a span.
func (e *evidence) linkBroken(node string, from, to time.Duration, others ...string) bool {
	for i := range e.marks {
		m := &e.marks[i]
		sp := specOf(m.Kind)
		if sp.to != toPair && sp.to != toWay || m.Kind == "partition" || !m.during(from, to, settle) {
			continue // a partition lies between nodes
		}
		if (node == "" || m.touches(node) || m.touches(fleet.Everybody)) && slices.ContainsFunc(others, m.touches) {
			return true
		}
	}
	return false
}

// overstayed says whether a node that drained had to cut an attempt, because it took longer than the limit.
func (e *evidence) overstayed(a *Attempt) bool {
	for i := range e.marks {
		for _, s := range e.marks[i].Steps {
			if s.What == "asked to stop" && s.Member == a.Node && s.At <= a.End && a.End-s.At >= e.limit {
				return true
			}
		}
	}
	return false
}

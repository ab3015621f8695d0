package scenario

import (
	"cmp"
	"slices"
	"time"

	"grapevine.example/chaos/fleet"
)

// settle is how long after its end a fault can show, by delayed packets or late detection.
const settle = 500 * time.Millisecond

var (
	losesNode    = []string{"kill", "pause"}
	breaksEngine = []string{"crash", "hang", "overload", "break"}
	losesCache   = []string{"amnesia", "renew", "crash", "lie"}
	// After these faults an engine has lost its cache or may not be used.
	forgets = append([]string{"amnesia", "renew", "drain", "remove", "slow"}, breaksEngine...)
)

func (e *evidence) harmed(name string, kinds []string, from, to time.Duration) bool {
	return slices.ContainsFunc(e.marks, func(m Mark) bool {
		return slices.Contains(kinds, m.Kind) && (name == fleet.Everybody || m.touches(name)) && m.during(from, to, settle)
	})
}

// nodeLost reports whether a node, any if "", was down, stopped, or cut off from clients.
func (e *evidence) nodeLost(name string, from, to time.Duration) bool {
	return e.harmed(cmp.Or(name, fleet.Everybody), losesNode, from, to) || e.linkBroken(name, from, to, fleet.BalancerName, fleet.ClientsName)
}

func (e *evidence) engineBroke(name string, from, to time.Duration) bool {
	return e.harmed(name, breaksEngine, from, to)
}

const mildLoss = 0.05

// linkBroken reports whether links between a node, any if "", and others were broken.
func (e *evidence) linkBroken(node string, from, to time.Duration, others ...string) bool {
	return e.linkHarmed(node, from, to, others, func(m *Mark) bool {
		l := linkOf(&m.Event)
		return m.Kind != "link" || l.Loss > mildLoss || l.Rate > 0 || l.Delay+l.Jitter >= settle
	})
}

func (e *evidence) linkHarmed(node string, from, to time.Duration, others []string, counts func(*Mark) bool) bool {
	for _, m := range e.marks {
		if reach := specOf(m.Kind).to; reach != toPair && reach != toWay || m.Kind == "partition" || len(m.Members) != 2 || !m.during(from, to, settle) || !counts(&m) {
			continue
		}
		in := func(g []string, name string) bool {
			return name == "" || slices.Contains(g, name) || slices.Contains(g, fleet.Everybody)
		}
		a, b := m.Members[0], m.Members[1]
		if slices.ContainsFunc(others, func(o string) bool { return in(a, node) && in(b, o) || in(b, node) && in(a, o) }) {
			return true
		}
	}
	return false
}

func (e *evidence) overstayed(a *Attempt) bool {
	for i := range e.marks {
		for _, s := range e.marks[i].Steps {
			if s.What == "asked to stop" && (s.Member == a.Node || a.Node == "") && s.At <= a.End && a.End-s.At >= e.limit {
				return true
			}
		}
	}
	return false
}

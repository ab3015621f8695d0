package scenario

import (
	"slices"
	"time"

	"grapevine.example/chaos/fleet"
)

const removalBound = 500 * time.Millisecond

var removedStayQuiet = Invariant{
	Name:       "removed-stay-quiet",
	Promise:    "a node sends nothing to an engine that it shows as removed, draining or down",
	Bound:      "from 0.5 s after the node shows it",
	Seen:       "each node's GET /backends, compared with the requests that the engine received and the node that answered them",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		nodes := make(map[string]*Attempt, len(e.attempts))
		for _, a := range e.attempts {
			nodes[a.ID] = a
		}
		type gone struct {
			node, state string
			from, to    time.Duration
		}
		spans := make(map[string][]gone)
		for name, s := range e.seen {
			for engine, t := range s.backends {
				for _, one := range t.list {
					if !slices.Contains(away, one.what) {
						continue
					}
					if !e.partial {
						f.checked++
					}
					spans[engine] = append(spans[engine], gone{name, one.what, one.first.answered + removalBound, one.last.asked})
				}
			}
		}
		for id, list := range e.visits {
			a := nodes[id]
			if a == nil || a.Node == "" {
				continue
			}
			for _, v := range list {
				for _, g := range spans[v.Engine] {
					if g.node == a.Node && v.Began > g.from && v.Began < g.to {
						f.violate(v.Began, a.Node+", "+v.Engine, "%s came %v after the node showed the engine as %s", id, v.Began-g.from+removalBound, g.state)
					}
				}
			}
		}
	},
}

// In these states an engine must get no requests.
var away = []string{absent, "draining", "down"}

// departureBound is how soon an engine must notice that its client has left.
const departureBound = time.Second

// anyHarm counts every link fault, because a lost packet or two exceed the bound.
func anyHarm(*Mark) bool { return true }

func (e *evidence) linked() []string {
	return append([]string{fleet.BalancerName, fleet.ClientsName}, e.engines...)
}

var departuresEnd = Invariant{
	Name:       "departures-end",
	Promise:    "when a client leaves, its request ends at the engine",
	Bound:      "1 s",
	Seen:       "clients leave before, at the begin of and within answers; engines report when each request ended",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		for _, a := range e.attempts {
			if a.Outcome != Departed || e.nodeLost(a.Node, a.Sent, a.End+departureBound) || e.linkHarmed(a.Node, a.Sent, a.End+departureBound, e.linked(), anyHarm) {
				continue
			}
			for _, v := range e.visits[a.ID] {
				f.checked++
				switch {
				case v.Began > a.End+departureBound:
					f.violate(v.Began, v.Engine, "%s came %v after its client had left", a.ID, v.Began-a.End)
				case v.Ended < 0:
					f.violate(a.End+departureBound, v.Engine, "%s has not ended at all; its client left at %v, %s", a.ID, a.End, a.place())
				case v.Ended > a.End+departureBound:
					f.violate(v.Ended, v.Engine, "%s ended %v after its client had left, %s", a.ID, v.Ended-a.End, a.place())
				}
			}
		}
	},
}

package scenario

import (
	"time"

	"grapevine/chaos/fleet"
)

// toldBound is how soon an engine must notice that its client has left.
const toldBound = time.Second

// anyHarm counts every link fault, because a lost packet or two exceed the bound.
func anyHarm(*Mark) bool { return true }

func (e *evidence) linked() []string {
	return append([]string{fleet.BalancerName, fleet.ClientsName}, e.engines...)
}

var enginesTold = Invariant{
	Name:       "engines-told",
	Promise:    "an engine is told of a client that has left, and computes nothing for it any more",
	Bound:      "1 s",
	Seen:       "clients leave before, at and within answers; the engine itself tells when the request has ended there",
	ofAttempts: true,
	judge: func(e *evidence) (f finding) {
		for _, a := range e.attempts {
			if a.Outcome != Departed || e.nodeLost(a.Node, a.Sent, a.End+toldBound) || e.linkHarmed(a.Node, a.Sent, a.End+toldBound, e.linked(), anyHarm) {
				continue
			}
			for _, v := range e.visits[a.ID] {
				f.checked++
				switch {
				case v.began > a.End+toldBound:
					f.violate(v.began, v.engine, "%s came %v after its client had left", a.ID, v.began-a.End)
				case v.ended < 0:
					f.violate(a.End+toldBound, v.engine, "%s has not ended at all; its client left at %v, %s", a.ID, a.End, a.place())
				case v.ended > a.End+toldBound:
					f.violate(v.ended, v.engine, "%s ended %v after its client had left, %s", a.ID, v.ended-a.End, a.place())
				}
			}
		}
		return f
	},
}

package scenario

// Invariants about requests that a fault must not affect.

var streamsSurvive = Invariant{
	Name:       "streams-survive",
	Promise:    "an answer that has begun on a node that lives on, from an engine that lives on, is never broken; a node that drains cuts none within its limit, nor a request that is at an engine",
	Bound:      "always",
	Seen:       "ends of all answers that had begun, against the times in which their node or engine was harmed",
	ofAttempts: true,
	judge: func(e *evidence) (f finding) {
		for _, a := range e.attempts {
			if a.Outcome == Unanswered {
				e.cutBefore(&f, a)
				continue
			}
			if a.Head < 0 || a.Outcome == Refused {
				continue
			}
			if a.Outcome == Departed || e.nodeLost(a.Node, a.Sent, a.End) || e.overstayed(a) {
				continue
			}
			if e.struck <= a.End {
				f.checked++
			}
			if a.failed() && !e.engineExcuses(a) {
				f.violate(a.End, a.place(), "%s %s after %d of %d bytes, sent at %v: %s", a.ID, a.Outcome, a.Text, a.Want, a.Sent, a.Detail)
			}
		}
		return f
	},
}

// cutBefore checks that no connection broke while its request was at an engine, unless the router
// or proxy on its path was lost.
func (e *evidence) cutBefore(f *finding, a *Attempt) {
	for _, v := range e.visits[a.ID] {
		if v.began > a.End {
			continue
		}
		if e.nodeLost("", a.Sent, a.End) || e.overstayed(a) {
			return
		}
		f.checked++
		f.violate(a.End, a.place(), "%s was cut before its answer began, while it was at %s: %s", a.ID, v.engine, a.Detail)
		return
	}
}

// engineExcuses reports whether the engine's end explains that of an answer that had begun: a
// stream must then end with an error event, other answers can only break off.
func (e *evidence) engineExcuses(a *Attempt) bool {
	if !e.engineBroke(a.Backend, a.Sent, a.End) && !e.linkBroken(a.Node, a.Sent, a.End, a.Backend) {
		return false
	}
	return a.Outcome == ErrorEvent || a.Outcome == Broken && a.Shape == chatWhole
}

var requestsAnswered = Invariant{
	Name:       "requests-answered",
	Promise:    "no request fails but answers that had begun on a node or an engine that was lost: what is lost before is made good, by a router elsewhere or by the client's next attempt",
	Bound:      "two retries of the official clients",
	Seen:       "the last attempt of every request",
	ofAttempts: true,
	judge: func(e *evidence) (f finding) {
		for _, a := range e.attempts {
			if !a.Last || a.Outcome == Departed {
				continue
			}
			if e.struck <= a.End {
				f.checked++
			}
			if !a.failed() {
				continue
			}
			begun := a.Head >= 0 && a.Outcome != Refused
			if begun && (e.nodeLost(a.Node, a.Sent, a.End) || e.overstayed(a) || e.engineExcuses(a)) {
				continue
			}
			f.violate(a.End, a.place(), "%s %s (status %d) at try %d, sent at %v: %s", a.ID, a.Outcome, a.Status, a.Try+1, a.Sent, a.Detail)
		}
		return f
	},
}

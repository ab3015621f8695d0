package scenario

import (
	"slices"
	"time"
)

// Invariants about the outcomes of requests.

var oneOutcome = Invariant{
	Name:       "one-outcome",
	Promise:    "every admitted request ends in exactly one outcome, and the engines serve exactly what clients sent, once",
	Bound:      "within the client's patience of 40 s",
	Seen:       "clients take every answer to its last byte; engines tell of every request they get, by its id",
	ofAttempts: true,
	judge:      judgeOutcomes,
}

func judgeOutcomes(e *evidence) (f finding) {
	known := make(map[string]bool, len(e.attempts))
	f.checked = len(e.attempts)
	for _, a := range e.attempts {
		known[a.ID] = true
		switch a.Outcome {
		case Silent, Malformed, Truncated:
			f.violate(a.End, a.place(), "%s %s: %s", a.ID, a.Outcome, a.Detail)
		default:
			e.served(&f, a)
		}
	}
	for id, list := range e.visits {
		if !known[id] {
			f.violate(list[0].began, list[0].engine, "a request %q that no client sent", id)
		}
	}
	return f
}

// served checks that the named engine computed a complete answer to its end, and that any answer
// was computed at most once. Engines that broke meanwhile do not count, nor does a first engine
// whose router asked another after its first-byte timeout.
func (e *evidence) served(f *finding, a *Attempt) {
	var whole []visit
	for _, v := range e.visits[a.ID] {
		if v.ended >= 0 && !v.departed && !e.engineBroke(v.engine, v.began, v.ended) {
			whole = append(whole, v)
		}
	}
	patience := firstByte
	if a.Shape == chatWhole {
		patience = wholeByte
	}
	for i := 1; i < len(whole); i++ {
		if whole[i].began-whole[i-1].began < patience {
			f.violate(a.End, a.place(), "%s was served %d times: %+v", a.ID, len(whole), e.visits[a.ID])
			return
		}
	}
	switch {
	case a.Outcome != Complete:
	case len(whole) == 0 && !e.engineBroke(a.Backend, a.Sent, a.End):
		f.violate(a.End, a.place(), "%s was served by nobody: %+v", a.ID, e.visits[a.ID])
	case len(whole) > 0 && whole[len(whole)-1].engine != a.Backend && !e.askedAgain(a, whole[len(whole)-1].began+patience):
		f.violate(a.End, a.place(), "%s names %s, and was served by %s", a.ID, a.Backend, whole[len(whole)-1].engine)
	}
}

// askedAgain reports whether an engine that broke meanwhile got an attempt at or after from, and
// may have answered it.
func (e *evidence) askedAgain(a *Attempt, from time.Duration) bool {
	return slices.ContainsFunc(e.visits[a.ID], func(v visit) bool {
		return v.engine == a.Backend && v.began >= from && e.engineBroke(v.engine, a.Sent, a.End)
	})
}

var noForeignBytes = Invariant{
	Name:       "no-foreign-bytes",
	Promise:    "no byte of one stream in another, none twice, none missing, none after the end",
	Bound:      "every byte",
	Seen:       "an engine's reply follows from the prompt, each prompt is unlike every other, and clients compare each byte as it comes",
	ofAttempts: true,
	judge: func(e *evidence) (f finding) {
		for _, a := range e.attempts {
			if a.Text > 0 {
				f.checked++
			}
			if a.Outcome == Foreign {
				f.violate(a.End, a.place(), "%s: %s", a.ID, a.Detail)
			}
		}
		return f
	},
}

func (a *Attempt) place() string {
	where := "connection " + a.Conn
	if a.Node != "" {
		where = a.Node + ", " + where
	}
	if a.Backend != "" {
		where += ", " + a.Backend
	}
	return where
}

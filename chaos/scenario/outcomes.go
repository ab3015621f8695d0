package scenario

import (
	"slices"
	"time"
)

// What becomes of requests: one end each, and nobody else's bytes.

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
		case Complete:
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

// served holds a complete answer to have been computed to its end by one engine, once. Engines that broke while they answered do not count; and
// a router whose patience for a first byte has ended may ask another, while the first writes its answer to nobody.
func (e *evidence) served(f *finding, a *Attempt) {
	whole, by, again := 0, "", false
	for _, v := range e.visits[a.ID] {
		again = again || v.began-a.Sent >= firstByte
		if v.ended >= 0 && !v.departed && !e.engineBroke(v.engine, v.began, v.ended) {
			whole++
			by = v.engine
		}
	}
	switch {
	case whole == 1 && by == a.Backend, whole > 1 && again, whole == 0 && e.engineBroke(a.Backend, a.Sent, a.End):
	case whole == 1:
		f.violate(a.End, a.place(), "%s names %s, and was served by %s", a.ID, a.Backend, by)
	default:
		f.violate(a.End, a.place(), "%s was served %d times: %+v", a.ID, whole, e.visits[a.ID])
	}
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

// place is where an attempt ended, as far as the client knows.
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

// breaksEngine are the faults in which an engine does not answer as it should, or not to the end.
var breaksEngine = []string{"crash", "hang", "overload", "break"}

// engineBroke says whether the engine suffered such a fault at some time of a span. An engine that crashed is started with the fault's end.
func (e *evidence) engineBroke(name string, from, to time.Duration) bool {
	for i := range e.marks {
		m := &e.marks[i]
		if slices.Contains(breaksEngine, m.Kind) && m.touches(name) && m.during(from, to, settle) {
			return true
		}
	}
	return false
}

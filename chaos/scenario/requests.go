package scenario

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

var oneOutcome = Invariant{
	Name:       "one-outcome",
	Promise:    "every admitted request ends in exactly one way, and the engines compute each request of a client once",
	Bound:      "40 s, the longest that a client waits",
	Seen:       "clients read every answer to its last byte; engines report every request by its id",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		known := make(map[string]bool, len(e.attempts))
		f.checked += len(e.attempts)
		for _, a := range e.attempts {
			known[a.ID] = true
			switch a.Outcome {
			case Silent, Malformed, Truncated:
				f.violate(a.End, a.place(), "%s %s: %s", a.ID, a.Outcome, a.Detail)
			default:
				e.served(f, a)
			}
		}
		for id, list := range e.visits {
			if !known[id] {
				f.violate(list[0].Began, list[0].Engine, "a request %q that no client sent", id)
			}
		}
	},
}

// served checks that the named engine computed a complete answer to its end, and any answer was
// computed at most once. Excused are engines that broke meanwhile, and a first engine after its
// first-byte timeout.
func (e *evidence) served(f *finding, a *Attempt) {
	var whole []visit
	for _, v := range e.visits[a.ID] {
		if v.Ended >= 0 && !v.Departed && !e.engineBroke(v.Engine, v.Began, v.Ended) {
			whole = append(whole, v)
		}
	}
	patience := firstByte
	if a.Shape == chatWhole {
		patience = wholeByte
	}
	for i := 1; i < len(whole); i++ {
		if whole[i].Began-whole[i-1].Began < patience {
			f.violate(a.End, a.place(), "%s was served %d times: %+v", a.ID, len(whole), e.visits[a.ID])
			return
		}
	}
	switch {
	case a.Outcome != Complete:
	case len(whole) == 0 && !e.engineBroke(a.Backend, a.Sent, a.End):
		f.violate(a.End, a.place(), "%s was served by no engine: %+v", a.ID, e.visits[a.ID])
	case len(whole) > 0 && whole[len(whole)-1].Engine != a.Backend && !e.askedAgain(a, whole[len(whole)-1].Began+patience):
		f.violate(a.End, a.place(), "%s names %s, and was served by %s", a.ID, a.Backend, whole[len(whole)-1].Engine)
	}
}

// askedAgain reports whether the answer's engine, which broke meanwhile, got an attempt after from.
func (e *evidence) askedAgain(a *Attempt, from time.Duration) bool {
	return slices.ContainsFunc(e.visits[a.ID], func(v visit) bool {
		return v.Engine == a.Backend && v.Began >= from && e.engineBroke(v.Engine, a.Sent, a.End)
	})
}

var noForeignBytes = Invariant{
	Name:       "no-foreign-bytes",
	Promise:    "no stream has a byte of another stream, none twice, none missing, none after its end",
	Bound:      "every byte",
	Seen:       "replies follow from prompts, all prompts differ, and clients compare every byte",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		for _, a := range e.attempts {
			if a.Text > 0 {
				f.checked++
			}
			if a.Outcome == Foreign {
				f.violate(a.End, a.place(), "%s: %s", a.ID, a.Detail)
			}
		}
	},
}

func (a *Attempt) place() string {
	known := slices.DeleteFunc([]string{a.Node, "connection " + a.Conn, a.Backend}, func(s string) bool { return s == "" })
	return strings.Join(known, ", ")
}

var streamsSurvive = Invariant{
	Name: "streams-survive",
	Promise: "an answer that has begun is never broken if its node and its engine live on; a draining node cuts no answer within its " +
		"limit, and no request that is at an engine",
	Bound:      "always",
	Seen:       "the ends of all answers that had begun, compared with the times in which their node or engine was harmed",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
		for _, a := range e.attempts {
			if a.Outcome == Unanswered {
				e.cutBefore(f, a)
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
	},
}

// cutBefore checks that no connection broke while its request was at an engine.
func (e *evidence) cutBefore(f *finding, a *Attempt) {
	for _, v := range e.visits[a.ID] {
		if v.Began > a.End {
			continue
		}
		if e.nodeLost("", a.Sent, a.End) || e.overstayed(a) {
			return
		}
		f.checked++
		f.violate(a.End, a.place(), "%s was cut before its answer began, while it was at %s: %s", a.ID, v.Engine, a.Detail)
		return
	}
}

// engineExcuses reports whether the engine's end explains the answer's: an error event for a
// stream, else a break.
func (e *evidence) engineExcuses(a *Attempt) bool {
	if !e.engineBroke(a.Backend, a.Sent, a.End) && !e.linkBroken(a.Node, a.Sent, a.End, a.Backend) {
		return false
	}
	return a.Outcome == ErrorEvent || a.Outcome == Broken && a.Shape == chatWhole
}

var requestsAnswered = Invariant{
	Name: "requests-answered",
	Promise: "a request fails only if its answer had begun on a node or an engine that was lost; an earlier loss is made good by " +
		"another router, another engine or the client's retry",
	Bound:      "two retries, as the official clients make",
	Seen:       "the last attempt of every request",
	ofAttempts: true,
	judge: func(e *evidence, f *finding) {
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
			if e.mayBeRefused(a.Client) && (a.Status == http.StatusTooManyRequests || a.Outcome == Unanswered && e.nodeLost("", a.Sent, a.End)) {
				continue // 429 may also have used up the retries
			}
			begun := a.Head >= 0 && a.Outcome != Refused
			if begun && (e.nodeLost(a.Node, a.Sent, a.End) || e.overstayed(a) || e.engineExcuses(a)) {
				continue
			}
			f.violate(a.End, a.place(), "%s %s (status %d) at try %d, sent at %v: %s", a.ID, a.Outcome, a.Status, a.Try+1, a.Sent, a.Detail)
		}
	},
}

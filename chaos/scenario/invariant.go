package scenario

import (
	"fmt"
	"slices"
	"time"

	"grapevine/chaos/engine"
	"grapevine/chaos/history"
)

// Invariant is a promise of the fleet that a run is held to.
type Invariant struct {
	Name    string
	Promise string
	Bound   string // within which it must hold
	Seen    string // how it is seen
	judge   func(*evidence) finding
	// ofAttempts: it is judged attempt by attempt, so that what lies far enough back can be judged while the run goes on.
	ofAttempts bool
}

// State is what a run says of an invariant.
type State string

// The states. What was not exercised is not a pass: nothing in the run could have broken it.
const (
	Held         State = "held"
	Violated     State = "violated"
	NotExercised State = "not exercised"
	LeftOut      State = "left out" // nobody looked
)

// Verdict is an invariant and what a run says of it.
type Verdict struct {
	Invariant  string      `json:"invariant"`
	Promise    string      `json:"promise"`
	Bound      string      `json:"bound"`
	Seen       string      `json:"seen"`
	State      State       `json:"state"`
	Checked    int         `json:"checked"` // cases in which it could have been broken
	Note       string      `json:"note,omitempty"`
	Count      int         `json:"violations"`
	Violations []Violation `json:"cases,omitempty"` // the first of them
}

// Violation is one case in which an invariant did not hold.
type Violation struct {
	At       time.Duration `json:"at_ns"` // since the traffic began
	Place    string        `json:"place"` // a node, an engine, a connection
	Evidence string        `json:"evidence"`
}

// finding is what a judge found.
type finding struct {
	checked    int
	note       string
	violations []Violation // the first of them
	more       int         // that are only counted
}

func (f *finding) violate(at time.Duration, place, format string, args ...any) {
	if len(f.violations) >= maxCases {
		f.more++
		return
	}
	f.add(Violation{at, place, fmt.Sprintf(format, args...)})
}

func (f *finding) add(v Violation) {
	if len(f.violations) >= maxCases {
		f.more++
		return
	}
	f.violations = append(f.violations, v)
}

// maxCases bounds the violations of one invariant that are told in full.
const maxCases = 20

// evidence is all that was seen of a run. Judges only read it.
type evidence struct {
	cfg      engine.ServerConfig
	past     past          // of the attempts that were folded
	partial  bool          // a part of a run that goes on
	width    time.Duration // of a slice of the timeline; default a second
	nodes    []string
	engines  []string
	attempts []*Attempt // by when they were sent; without those that were folded
	visits   map[string][]visit
	marks    []Mark
	seen     map[string]*seen
	history  []history.Operation
	late     []Violation   // answers that operators did not get, by the node's name
	strange  []Violation   // answers to operators
	calm     time.Duration // when the load was even: the warm-up is over
	struck   time.Duration // when the first event began; the end of traffic without
	healed   time.Duration // when the last was over
	stopped  time.Duration // when no conversation was begun any more
	drained  time.Duration // when the last request had ended
	limit    time.Duration // of a node that drains: what takes longer is cut
	quiet    quiet
	harness  memoryUse
	died     []Violation // nodes that ended by themselves
}

// invariants are all of them, in the order in which they are told.
func invariants() []Invariant {
	return []Invariant{
		oneOutcome, noForeignBytes, streamsSurvive, requestsAnswered, removedStayQuiet, membershipKept, oneLeader, treesConverge, hitRateRecovers,
		enginesTold, countsReturn, resourcesReturn, readyIsTrue, nodesLive,
	}
}

// Invariants lists what runs are held to.
func Invariants() []Invariant { return invariants() }

// judgeAll holds a run to every invariant but those left out.
func judgeAll(e *evidence, leaveOut []string) []Verdict {
	var out []Verdict
	for _, i := range invariants() {
		if slices.Contains(leaveOut, i.Name) {
			out = append(out, Verdict{Invariant: i.Name, Promise: i.Promise, Bound: i.Bound, Seen: i.Seen, State: LeftOut})
			continue
		}
		f := i.judge(e)
		if i.ofAttempts {
			f = e.past.findings[i.Name].and(f)
		}
		v := Verdict{Invariant: i.Name, Promise: i.Promise, Bound: i.Bound, Seen: i.Seen, State: Held, Checked: f.checked, Note: f.note,
			Count: len(f.violations) + f.more, Violations: f.violations[:min(len(f.violations), maxCases)]}
		switch {
		case v.Count > 0:
			v.State = Violated
		case f.checked == 0:
			v.State = NotExercised
		}
		out = append(out, v)
	}
	return out
}

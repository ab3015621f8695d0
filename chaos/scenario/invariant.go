package scenario

import (
	"fmt"
	"slices"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/history"
)

// Invariant is a promise of the fleet.
type Invariant struct {
	Name    string `json:"name"`
	Promise string `json:"promise"`
	Bound   string `json:"bound"` // the time or amount within which it must hold
	Seen    string `json:"seen"`  // how the harness observes it
	judge   func(*evidence, *finding)
	// ofAttempts invariants judge old attempts during the run.
	ofAttempts bool
}

type State string

// NotExercised is no pass: the run could not have broken the invariant.
const (
	Held         State = "held"
	Violated     State = "violated"
	NotExercised State = "not exercised"
	LeftOut      State = "left out"
)

type Verdict struct {
	Invariant
	State      State       `json:"state"`
	Checked    int         `json:"checked"` // cases that could have broken it
	Note       string      `json:"note,omitempty"`
	Count      int         `json:"violations"`
	Violations []Violation `json:"cases,omitempty"` // the first cases
}

type Violation struct {
	At       time.Duration `json:"at_ns"` // since the traffic began
	Place    string        `json:"place"` // a node, an engine, a connection
	Evidence string        `json:"evidence"`
}

type finding struct {
	checked    int
	note       string
	violations []Violation
	more       int
}

func (f *finding) violate(at time.Duration, place, format string, args ...any) {
	f.add(Violation{at, place, fmt.Sprintf(format, args...)})
}

func (f *finding) add(v Violation) {
	if len(f.violations) >= maxCases {
		f.more++
		return
	}
	f.violations = append(f.violations, v)
}

// maxCases bounds the violations of one invariant that are reported in full.
const maxCases = 20

type evidence struct {
	cfg      engine.ServerConfig
	past     past
	partial  bool
	width    time.Duration // of a slice of the timeline; default a second
	nodes    []string
	engines  []string
	attempts []*Attempt
	visits   map[string][]visit
	marks    []Mark
	seen     map[string]*seen
	history  []history.Operation
	late     []Violation
	strange  []Violation
	calm     time.Duration
	struck   time.Duration // begin of the first event, or the end of traffic without one
	healed   time.Duration
	stopped  time.Duration
	drained  time.Duration
	limit    time.Duration // of a node that drains: it cuts longer answers
	clients  []Client
	wait     time.Duration // queue_timeout; 0: requests do not wait at routers
	places   int           // queue_in_flight
	quiet    quiet
	// forecasts are of the time at rest.
	forecasts []forecast
	harness   memoryUse
	died      []Violation
}

// Invariants are in the order of the report.
func Invariants() []Invariant {
	return []Invariant{
		oneOutcome, noForeignBytes, streamsSurvive, requestsAnswered, removedStayQuiet, membershipKept, oneLeader, treesConverge, hitRateRecovers,
		cachesKnown, shareKept, limitKept, placesKept, waitsEnd,
		departuresEnd, countsReturn, resourcesReturn, readyIsTrue, nodesLive,
	}
}

// judgeAll needs whole evidence.
func judgeAll(e *evidence, leaveOut []string) (out []Verdict) {
	for _, i := range Invariants() {
		v := Verdict{Invariant: i, State: LeftOut}
		if !slices.Contains(leaveOut, i.Name) {
			f := e.past.findings[i.Name]
			if !i.ofAttempts {
				f = new(finding)
				i.judge(e, f)
			}
			v.Checked, v.Note, v.Count, v.Violations = f.checked, f.note, len(f.violations)+f.more, f.violations[:min(len(f.violations), maxCases)]
			switch {
			case v.Count > 0:
				v.State = Violated
			case v.Checked == 0:
				v.State = NotExercised
			default:
				v.State = Held
			}
		}
		v.judge = nil // a verdict is data
		out = append(out, v)
	}
	return out
}

package scenario

import (
	"slices"
	"sync"
	"time"
)

// Mark times count from the begin of traffic; negative: never.
type Mark struct {
	Event
	// Members are the event's resolved names by group.
	Members [][]string
	Began   time.Duration
	Struck  time.Duration // when the fault was in effect
	Ending  time.Duration // when its undoing began
	Over    time.Duration // when its effects had ended: started members are ready
	Failed  string        // error of doing or undoing it, which voids the run
	// Steps are parts of an event, such as each node's turn of a roll.
	Steps []Step
}

type Step struct {
	Member string
	What   string
	At     time.Duration
}

func (m *Mark) touches(name string) bool {
	return slices.ContainsFunc(m.Members, func(g []string) bool { return slices.Contains(g, name) })
}

var startsNode = []string{"kill", "stop", "start", "roll", "upgrade"}

func (m *Mark) during(from, to, slack time.Duration) bool {
	if m.Began < 0 {
		return false
	}
	return m.Began <= to && (m.Over < 0 || from <= m.Over+slack)
}

// marks is safe for concurrent use.
type marks struct {
	now func() time.Duration

	mu   sync.Mutex
	list []*Mark
}

func (l *marks) begin(e Event) *Mark {
	m := &Mark{Event: e, Began: l.now(), Struck: -1, Ending: -1, Over: -1}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, m)
	return m
}

func (l *marks) set(m *Mark, change func(m *Mark)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(m)
}

func (l *marks) step(m *Mark, member, what string) {
	at := l.now()
	l.set(m, func(m *Mark) { m.Steps = append(m.Steps, Step{member, what, at}) })
}

func (l *marks) snapshot() []Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Mark, len(l.list))
	for i, m := range l.list {
		out[i] = *m
		out[i].Steps = slices.Clone(m.Steps)
	}
	return out
}

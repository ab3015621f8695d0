package notify

import (
	"context"
	"errors"
	"time"
)

// errNoAnswer is told when a look has not come back by the time of the next.
var errNoAnswer = errors.New("whether this node works cannot be found out: something it needs is held")

// statusInterval is how often the status is told where no watchdog sets a pace.
const statusInterval = 10 * time.Second

// Interval is how often Watch looks: three times within the watchdog's
// patience, so that one look may fail, or take long on a busy machine, without
// the process being ended for it.
func (m *Manager) Interval() time.Duration {
	if w := m.Watchdog(); w > 0 {
		return w / 3
	}
	return statusInterval
}

// Patient is what Watch watches. Its methods are called one at a time, from a
// goroutine of Watch's.
type Patient interface {
	// Working returns nil if the process does its work, else what does not. A
	// call that never returns means the same as an error: what Working cannot
	// find out because a lock is held for ever counts as well.
	Working(ctx context.Context) error
	// Summary is how it is doing, in one line for people.
	Summary() string
}

// Watch gives the manager a sign of life and a status whenever p is found
// working, until ctx ends. If p does not work, or does not say, there is no sign, and
// after Watchdog the manager ends the process. Failed is told each failure, and
// each message that could not be sent; it must not block. Watch returns soon
// after ctx has ended, and leaves behind only a look that does not return.
func (m *Manager) Watch(ctx context.Context, p Patient, failed func(error)) {
	if m == nil {
		return
	}
	interval := m.Interval()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var answer chan finding // of the look under way; nil: none
	look := func() {
		answer = make(chan finding, 1)
		go examine(ctx, p, interval, answer)
	}
	look()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-answer:
			answer = nil
			if ctx.Err() != nil {
				return // what it found may be the end itself
			}
			if f.err != nil {
				failed(f.err)
			}
			if err := m.Send(f.lines()...); err != nil {
				failed(err)
			}
		case <-tick.C:
			if answer != nil {
				failed(errNoAnswer)
				continue // nobody answers: looking twice finds nothing more
			}
			look()
		}
	}
}

// finding is what one look found.
type finding struct {
	err     error
	summary string
}

func (f finding) lines() []string {
	if f.err != nil {
		return []string{Status("not working: " + f.err.Error())}
	}
	return []string{alive, Status(f.summary)}
}

func examine(ctx context.Context, p Patient, patience time.Duration, answer chan<- finding) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var f finding
	if f.err = p.Working(ctx); f.err == nil {
		f.summary = p.Summary()
	}
	answer <- f // never blocks: capacity 1, one answer
}

package notify

import (
	"context"
	"errors"
	"time"
)

// errNoAnswer is reported when a check still runs at the time of the next.
var errNoAnswer = errors.New("whether this node works cannot be found out: something it needs is held")

// statusInterval is how often the status is sent without a watchdog.
const statusInterval = 10 * time.Second

// Interval is the pause between two checks: a third of the watchdog's timeout, so that one failed
// or slow check does not kill the process.
func (m *Manager) Interval() time.Duration {
	if w := m.Watchdog(); w > 0 {
		return w / 3
	}
	return statusInterval
}

// Patient is what Watch checks. Watch calls its methods one at a time, from a goroutine of its own.
type Patient interface {
	// Working returns nil if the process does its work, else the failure. A call that never returns
	// counts as a failure, so that a deadlock is one too.
	Working(ctx context.Context) error
	// Summary is the status in one line of text.
	Summary() string
}

// Watch sends a sign of life and a status each time p works, until ctx ends. While p fails or does
// not answer it sends no sign of life, and the manager kills the process after Watchdog. Failed
// receives each failure and each send error; it must not block. Watch returns soon after ctx ends
// and leaves behind only a check that hangs.
func (m *Manager) Watch(ctx context.Context, p Patient, failed func(error)) {
	if m == nil {
		return
	}
	interval := m.Interval()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var answer chan finding // of the running check; nil: none
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
				return // the check may have seen the shutdown itself
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
				continue // a second check would hang too
			}
			look()
		}
	}
}

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

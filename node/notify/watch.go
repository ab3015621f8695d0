package notify

import (
	"context"
	"errors"
	"time"
)

var errNoAnswer = errors.New("whether this node works cannot be found out: something it needs is held")

const statusInterval = 10 * time.Second

// Interval lets one check fail or be slow before the watchdog acts.
func (m *Manager) Interval() time.Duration {
	if w := m.Watchdog(); w > 0 {
		return w / 3
	}
	return statusInterval
}

type Patient interface {
	// Working returns what does not work. Not returning counts as a failure.
	Working(ctx context.Context) error
	Summary() string
}

// Watch sends a sign of life and a status each time p works, until ctx ends. failed receives errors
// and must not block. Only a check that hangs may outlive Watch.
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

package health

import (
	"strings"
	"time"
)

const (
	// sameProcess is how far two start times of one process may lie apart, because several front
	// ends of one engine start one after the other.
	sameProcess = time.Second
	// firstAmnesia is the pause between two generations that only empty caches indicate; it doubles
	// up to lastAmnesia. An engine without a prefix cache always looks restarted.
	firstAmnesia = time.Minute
	lastAmnesia  = time.Hour
)

// restart is what this node knows about the process behind an engine.
type restart struct {
	started    time.Time // of the newest process seen; zero: its metrics do not report it
	generation uint32    // in force when started was last seen
	amnesia    time.Time // when an empty cache last indicated a restart
	pause      time.Duration
}

func (r *restart) seconds() uint32 {
	if r.started.IsZero() {
		return 0
	}
	return uint32(max(r.started.Unix(), 0))
}

// Started records the start time that an engine's metrics report and the generation in force when
// they were read. It returns whether this is a new process, and the generation that ended with the
// old one. Earlier start times are ignored: several front ends of one engine may answer in turn.
func (b *Board) Started(key uint32, started time.Time, generation uint32) (ended uint32, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || started.IsZero() {
		return 0, false
	}
	r := &e.restart
	if r.started.IsZero() || started.Sub(r.started) <= sameProcess {
		if r.started.IsZero() {
			r.started = started
		}
		r.generation = generation
		return 0, false
	}
	ended = r.generation
	r.started, r.generation = started, generation
	return ended, true
}

// Forgot records that an engine's answers showed an empty cache. It returns whether to raise the
// generation: not if metrics report the start of the process, which is better evidence, and not
// again within the pause.
func (b *Board) Forgot(key uint32, now time.Time) (ended uint32, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || !e.restart.started.IsZero() {
		return 0, false
	}
	r := &e.restart
	switch since := now.Sub(r.amnesia); {
	case r.amnesia.IsZero() || since > lastAmnesia:
		r.pause = firstAmnesia
	case since < r.pause:
		return 0, false
	default:
		r.pause = min(2*r.pause, lastAmnesia)
	}
	r.amnesia = now
	return e.Generation, true
}

// gone says whether the process of a down engine has certainly ended: its port was closed, and no
// metrics report its start.
func (e *engine) gone() bool {
	if !e.restart.started.IsZero() {
		return false
	}
	for i := range e.peers {
		if e.peers[i].Started != 0 {
			return false
		}
	}
	return strings.HasPrefix(e.Reason, Prefix+Refused.String())
}

package health

import (
	"strings"
	"time"
)

const (
	// sameProcess is how far two readings of one process's start may lie apart:
	// front ends of one engine start one after the other.
	sameProcess = time.Second
	// firstAmnesia is the pause between two generations that caches alone have
	// shown; each further one doubles it, up to lastAmnesia. An engine that keeps
	// no cache at all looks restarted all the time.
	firstAmnesia = time.Minute
	lastAmnesia  = time.Hour
)

// restart is what is known of the process behind an engine.
type restart struct {
	started    time.Time // of the newest process seen; zero: its metrics do not tell
	generation uint32    // in force when that was last seen
	amnesia    time.Time // when caches last showed a restart
	pause      time.Duration
}

func (r *restart) seconds() uint32 {
	if r.started.IsZero() {
		return 0
	}
	return uint32(max(r.started.Unix(), 0))
}

// Started takes when an engine's process began, as its metrics say, and the
// generation that was in force when it was asked. It reports whether that is
// another process than before, and the generation that has ended with the old
// one. Later starts only: several front ends of one engine may answer in turn.
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

// Forgot says that an engine's answers have shown an empty cache. It reports
// whether the fleet should be told: not if its metrics tell when its process
// began, which is the better evidence, and not again and again.
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

// gone says whether the process of an engine that is down has surely ended: its
// port was closed, and no metrics tell better.
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

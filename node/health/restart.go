package health

import (
	"strings"
	"time"
)

const (
	// sameProcess covers the start times of several front ends of one engine.
	sameProcess = time.Second
	// firstPause doubles to lastPause between generations that only empty caches show: an engine
	// without a prefix cache always looks restarted.
	firstPause = time.Minute
	lastPause  = time.Hour
)

type restart struct {
	started    time.Time // of the newest process; zero: unknown
	generation uint32    // in force when started was last seen
	emptied    time.Time // when an empty cache last indicated a restart
	pause      time.Duration
}

func (r *restart) seconds() uint32 {
	if r.started.IsZero() {
		return 0
	}
	return uint32(max(r.started.Unix(), 0))
}

// Started records when an engine's process began. again: it is a new process, and ended is the
// generation of the old one. Earlier times are of other front ends.
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

// Forgot records an answer that showed an empty cache. again: the generation ended has to be
// raised; false if metrics report the process's start or the pause has not passed.
func (b *Board) Forgot(key uint32, now time.Time) (ended uint32, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	if e == nil || !e.restart.started.IsZero() {
		return 0, false
	}
	r := &e.restart
	switch since := now.Sub(r.emptied); {
	case r.emptied.IsZero() || since > lastPause:
		r.pause = firstPause
	case since < r.pause:
		return 0, false
	default:
		r.pause = min(2*r.pause, lastPause)
	}
	r.emptied = now
	return e.Generation, true
}

// gone says whether a down engine has certainly restarted: its port was closed, and no metrics
// contradict.
func (e *watched) gone() bool {
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

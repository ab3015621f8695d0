package policy

import (
	"math"
	"sync/atomic"

	"grapevine/prefixtree"
)

// Failure says how an attempt ended. Only Connect, Timeout, Reset and Status5xx speak against the backend.
type Failure uint8

// The ways an attempt ends.
const (
	None       Failure = iota // answered
	Connect                   // no connection
	Timeout                   // no first byte in time
	Reset                     // connection lost before the end
	Status5xx                 // answered 5xx
	ClientGone                // the client left: says nothing of the backend
	Client4xx                 // answered 4xx: the backend is alive
)

var failureNames = [...]string{"none", "connect", "timeout", "reset", "5xx", "client-gone", "4xx"}

// String returns the lower-case name used in metrics.
func (f Failure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return "unknown"
}

func (f Failure) blames() bool { return f >= Connect && f <= Status5xx }

const (
	// backoffMin is the first time a failed backend is left alone, milliseconds: long enough to end a storm of retries, short
	// enough that one lost connection costs its prefixes little.
	backoffMin = 1_000
	// backoffMax bounds the doubling, milliseconds: a repaired backend is tried again within half a minute.
	backoffMax = 30_000
)

// health classes of a slot at one time.
type health uint8

const (
	healthy health = iota
	halfOpen
	avoided
)

func (s *slot) health(now prefixtree.Time) health {
	at := s.retryAt.Load()
	switch {
	case at == 0:
		return healthy
	case int64(now) < at || s.trial.Load():
		return avoided
	}
	return halfOpen
}

// failed books a failure. Requests that were already running when the backend failed do not lengthen the back-off: one
// crash fails many requests at once, and is one failure.
func (s *slot) failed(why Failure, picked, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 && picked <= s.lastFailure {
		return
	}
	backoff := int64(backoffMin) << min(s.failures, 5)
	s.failures++
	s.lastFailure, s.lastWhy = now, why
	s.backoff = int64(now) + min(backoff, backoffMax)
	s.retryLocked()
}

// retryLocked sets when the backend may be tried again. What others report ends by their word, not by a trial: they probe it.
func (s *slot) retryLocked() {
	if s.reportedAt != 0 {
		s.retryAt.Store(math.MaxInt64)
		return
	}
	s.retryAt.Store(s.backoff)
}

// answered books a sign of life. Only a request picked after the last failure proves recovery. After more than one
// back-off the backend begins anew: what failed so often was rather restarted than disturbed.
func (r *Router) answered(s *slot, picked, now prefixtree.Time) {
	if s.answerAt.Load() < int64(now) {
		s.answerAt.Store(int64(now))
	}
	if s.retryAt.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if picked <= s.lastFailure {
		return
	}
	if s.failures > 1 {
		r.begins(s, now)
	}
	s.failures, s.backoff = 0, 0
	s.retryLocked()
}

// SetReported says that other nodes find the backend failing, or that they do not any more. It is left alone while they do: they
// look after it, and no request need be put at risk to learn more. One that comes back after longer than a first back-off begins anew.
func (r *Router) SetReported(b prefixtree.Backend, failing bool, now prefixtree.Time) {
	s := r.table.Load().slot(b)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case failing && s.reportedAt == 0:
		s.reportedAt = max(now, 1)
	case !failing && s.reportedAt != 0:
		if now-s.reportedAt > backoffMin {
			r.begins(s, now)
		}
		s.reportedAt = 0
	}
	s.retryLocked()
}

// Health is what this node's own requests have shown of a backend.
type Health struct {
	Failures int32           // in a row
	Failure  Failure         // the last one's kind
	FailedAt prefixtree.Time // 0 never
	Answered prefixtree.Time // when it last gave a first token or an answer that does not speak against it; 0 never
	Reported bool            // other nodes find it failing
}

// Health returns what is known of a backend of the present view.
func (r *Router) Health(b prefixtree.Backend) Health {
	s := r.table.Load().slot(b)
	if s == nil {
		return Health{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Health{s.failures, s.lastWhy, s.lastFailure, prefixtree.Time(s.answerAt.Load()), s.reportedAt != 0}
}

// reportedFailures is what a report counts: more than requests can show, since who reports has made sure.
const reportedFailures = 1 << 20

// consecutive returns the failures in a row.
func (s *slot) consecutive() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reportedAt != 0 {
		return min(s.failures, reportedFailures) + reportedFailures
	}
	return s.failures
}

// raise moves a value up to v.
func raise(value *atomic.Int64, v int64) {
	for {
		was := value.Load()
		if was >= v || value.CompareAndSwap(was, v) {
			return
		}
	}
}

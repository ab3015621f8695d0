package policy

import "grapevine/prefixtree"

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
func (s *slot) failed(picked, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 && picked <= s.lastFailure {
		return
	}
	backoff := int64(backoffMin) << min(s.failures, 5)
	s.failures++
	s.lastFailure = now
	s.retryAt.Store(int64(now) + min(backoff, backoffMax))
}

// answered books a sign of life. Only a request picked after the last failure proves recovery.
func (s *slot) answered(picked prefixtree.Time) {
	if s.retryAt.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if picked <= s.lastFailure {
		return
	}
	s.failures = 0
	s.retryAt.Store(0)
}

// consecutive returns the failures in a row.
func (s *slot) consecutive() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures
}

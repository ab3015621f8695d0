package node

import "sync"

// readiness is whether the node asks for traffic and, if not, why. A node that
// has begun to drain never becomes ready again, whatever comes late. Safe for
// concurrent use.
type readiness struct {
	announce func(ready bool) // told every change; called under mu, so that changes arrive in order

	mu       sync.Mutex
	ready    bool
	draining bool
	reason   func() string // why not; nil: not started
}

// get returns whether the node is ready, and the reason if it is not.
func (r *readiness) get() (ready bool, reason string) {
	r.mu.Lock()
	ready, why := r.ready, r.reason
	r.mu.Unlock()
	switch {
	case ready:
		return true, ""
	case why == nil:
		return false, "not started"
	}
	return false, why()
}

// wait says what the node waits for before it becomes ready.
func (r *readiness) wait(reason func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ready && !r.draining {
		r.reason = reason
	}
}

// set makes the node ready, unless it drains; it reports whether it did.
func (r *readiness) set() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	r.ready = true
	r.announce(true)
	return true
}

// drain ends the readiness for good.
func (r *readiness) drain(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.draining = false, true
	r.reason = because(reason)
	r.announce(false)
}

// because is a reason that does not change.
func because(reason string) func() string { return func() string { return reason } }

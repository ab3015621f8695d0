package node

import "sync"

// readiness is whether the node wants traffic and why not. Draining is final. Safe for concurrent
// use.
type readiness struct {
	announce func(ready bool) // called under mu, so that changes arrive in order

	mu       sync.Mutex
	ready    bool
	draining bool
	reason   func() string // why not ready; nil: not started
}

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

func (r *readiness) wait(reason func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ready && !r.draining {
		r.reason = reason
	}
}

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

func (r *readiness) drain(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.draining = false, true
	r.reason = because(reason)
	r.announce(false)
}

func because(reason string) func() string { return func() string { return reason } }

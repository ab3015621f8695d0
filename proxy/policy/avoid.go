package policy

import (
	"math"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

// Failure says how an attempt ended. Timeout, Reset and Status5xx may be the request's fault and
// count only with the failure of a second request.
type Failure uint8

const (
	None Failure = iota
	Connect
	Timeout // no first byte in time
	Reset   // connection lost, or an answer that is not HTTP
	Status5xx
	ClientGone // no evidence about the backend
	Client4xx  // the backend is alive
	Busy       // answered 429
	Transfer   // answered with an error instead of a reply to a prompt that another backend computed
)

const Failures = len(failureNames)

var failureNames = [...]string{"none", "connect", "timeout", "reset", "5xx", "client-gone", "4xx", "busy", "transfer"}

// String returns the name used in metrics.
func (f Failure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return "unknown"
}

func (f Failure) blames() bool { return f >= Connect && f <= Status5xx }

const (
	backoffMin  = 1_000  // ms; ends a storm of retries, and a mistake costs little
	backoffMax  = 30_000 // ms
	strikeLasts = 30_000 // ms
	// ejectShare: failed requests, but not refused connections, eject at most one in so many
	// backends of a pool, and at least one.
	ejectShare = 5
	// Bounds of the pause after a 429, in ms: short, since the limit may be one client's.
	busyMin, busyMax = 1_000, 10_000
)

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
	case int64(now) < at:
		return avoided
	case !s.ejected.Load():
		return healthy
	case s.trial.Load():
		return avoided
	}
	return halfOpen
}

// strikes are failed requests that count; guarded by slot.mu.
type strikes struct {
	by          [2]uint64 // failed requests; 0: none. Two eject the backend
	at          prefixtree.Time
	failures    int32
	lastFailure prefixtree.Time
	lastWhy     Failure
	backoff     int64 // ms; end of the ejection, 0: none
}

// failed reports whether a failure can count; DESIGN.md, "Failures", has the rules. Requests that
// ran when the backend was ejected do not count: one crash fails many.
func (r *Router) failed(s *slot, o *Outcome, picked, now prefixtree.Time) bool {
	if o.Failed != Connect && o.Request == 0 {
		return false
	}
	r.ejecting.Lock()
	defer r.ejecting.Unlock()
	if o.Failed != Connect && len(o.FailedBefore) > 0 {
		t := r.table.Load()
		for _, b := range o.FailedBefore {
			if before := t.slot(b); before != nil {
				before.absolve(o.Request)
			}
		}
		return true
	}
	room := o.Failed == Connect || r.mayEject(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.strikes
	if k.failures > 0 && picked <= k.lastFailure {
		return true
	}
	if now-k.at > strikeLasts {
		k.by = [2]uint64{}
	}
	k.at, k.lastWhy = now, o.Failed
	second := k.by[0] != 0 && k.by[0] != o.Request
	eject := o.Failed == Connect || room && (second || k.failures > 0)
	switch {
	case o.Failed == Connect:
	case eject && second:
		k.by[1] = o.Request
	case !second:
		k.by[0] = o.Request
	}
	if !eject {
		s.struck.Store(true)
		return true
	}
	k.backoff = int64(now) + min(int64(backoffMin)<<min(k.failures, 5), backoffMax)
	k.failures++
	k.lastFailure = now
	s.retryLocked()
	return true
}

func (s *slot) absolve(request uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.strikes
	switch request {
	case k.by[0]:
		k.by = [2]uint64{k.by[1]}
	case k.by[1]:
		k.by[1] = 0
	default:
		return
	}
	if k.backoff != 0 && k.lastWhy != Connect {
		k.failures--
		k.backoff = 0
	}
	s.retryLocked()
}

// mayEject reports whether failed requests may eject one more backend. Needs ejecting.
func (r *Router) mayEject(s *slot) bool {
	for _, p := range r.table.Load().pools {
		if p.entryOf(s.id) < 0 {
			continue
		}
		n := 0
		for i := range p.entries {
			if other := p.entries[i].slot; other != s && other.byRequests.Load() {
				n++
			}
		}
		if n >= max(len(p.entries)/ejectShare, 1) {
			return false
		}
	}
	return true
}

// retryLocked recomputes retryAt. Peers that report failures also probe.
func (s *slot) retryLocked() {
	s.struck.Store(s.strikes.by[0] != 0)
	s.ejected.Store(s.strikes.backoff != 0)
	s.byRequests.Store(s.strikes.backoff != 0 && s.strikes.lastWhy != Connect)
	if s.reportedAt != 0 {
		s.retryAt.Store(math.MaxInt64)
		return
	}
	s.retryAt.Store(max(s.strikes.backoff, s.busyUntil))
}

// answered ends strikes, and an ejection before the Pick. After two ejections the backend probably
// restarted.
func (r *Router) answered(s *slot, picked, now prefixtree.Time) {
	raise(&s.answerAt, int64(now))
	if s.retryAt.Load() == 0 && !s.struck.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.strikes
	if k.failures == 0 || picked > k.lastFailure {
		if k.failures > 1 {
			r.begins(s, now)
		}
		k.by, k.failures, k.backoff = [2]uint64{}, 0, 0
	}
	if picked > s.busyAt {
		s.busyUntil = 0
	}
	s.retryLocked()
}

func (s *slot) busy(wait int64, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busyAt, s.busyUntil = now, int64(now)+min(max(wait, busyMin), busyMax)
	s.retryLocked()
}

// Lives ends an ejection after a probe sent at asked: if it began before, if the back-off is over
// when it is not the first, and if it was not for 5xx, since such a backend may answer probes.
func (r *Router) Lives(b prefixtree.Backend, asked, now prefixtree.Time) {
	s := r.table.Load().slot(b)
	if s == nil || !s.ejected.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.strikes
	over := k.lastFailure
	if k.failures > 1 && k.lastWhy != Connect {
		over = prefixtree.Time(k.backoff)
	}
	if k.lastWhy == Status5xx || asked < over {
		return
	}
	k.backoff = 0
	s.retryLocked()
}

// SetReported sets whether probes or other nodes report the backend as failing, which avoids it. With the
// report own ejections end, except for 5xx, and after more than backoffMin slow start begins.
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
		if s.strikes.lastWhy != Status5xx {
			s.strikes.backoff = 0
		}
		s.reportedAt = 0
	}
	s.retryLocked()
}

type Health struct {
	Failures int32 // ejections in a row
	Failure  Failure
	Answered prefixtree.Time // last sign of life; 0: never
	Reported bool
	Ejected  bool // by failed requests of this node, and not retried yet
}

// Health returns the failure state of a backend at this node.
func (r *Router) Health(b prefixtree.Backend) Health {
	s := r.known(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	return Health{
		s.strikes.failures, s.strikes.lastWhy, prefixtree.Time(s.answerAt.Load()), s.reportedAt != 0, s.byRequests.Load(),
	}
}

// consecutive ranks reports above own failures, because the reporting node has verified them.
func (s *slot) consecutive() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reportedAt != 0 {
		return math.MaxInt32
	}
	return s.strikes.failures
}

func raise(value *atomic.Int64, v int64) {
	for {
		was := value.Load()
		if was >= v || value.CompareAndSwap(was, v) {
			return
		}
	}
}

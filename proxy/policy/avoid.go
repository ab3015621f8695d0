package policy

import (
	"math"
	"sync/atomic"

	"grapevine/prefixtree"
)

// Failure says how an attempt ended. Connect always speaks against the backend; Timeout, Reset and Status5xx may be the
// request's own fault, and speak against it together with the failure of another request.
type Failure uint8

// The ways an attempt ends.
const (
	None       Failure = iota // answered
	Connect                   // no connection
	Timeout                   // no first byte in time
	Reset                     // connection lost before the end, or an answer that is no HTTP
	Status5xx                 // answered 5xx
	ClientGone                // the client left: says nothing of the backend
	Client4xx                 // answered 4xx: the backend is alive
	Busy                      // answered 429: another backend may have room
)

// Failures is how many ways to end there are.
const Failures = len(failureNames)

var failureNames = [...]string{"none", "connect", "timeout", "reset", "5xx", "client-gone", "4xx", "busy"}

// String returns the lower-case name used in metrics.
func (f Failure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return "unknown"
}

func (f Failure) blames() bool { return f >= Connect && f <= Status5xx }

const (
	// backoffMin is the first time an ejected backend is left alone, milliseconds: long enough to end a storm of retries,
	// short enough that a mistake costs its prefixes little.
	backoffMin = 1_000
	// backoffMax bounds the doubling, milliseconds: a repaired backend is tried again within half a minute.
	backoffMax = 30_000
	// strikeLasts is how long one failure counts towards an ejection, milliseconds.
	strikeLasts = 30_000
	// ejectShare: failed requests eject at most one in so many backends of a pool, but one in any pool. More than that is
	// rather the clients' doing, and the pool needs its backends. Connections refused are not bounded.
	ejectShare = 5
	// busyMin and busyMax bound how long an answer of 429 keeps new requests away, milliseconds. The default is the least:
	// it may be the limit of one client's key, which is no reason to take the backend from others for long.
	busyMin, busyMax = 1_000, 10_000
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
	case int64(now) < at:
		return avoided
	case !s.ejected.Load():
		return healthy // it was busy
	case s.trial.Load():
		return avoided
	}
	return halfOpen
}

// strikes are what failed requests hold against a backend; slot.mu guards them.
type strikes struct {
	by          [2]uint64       // the requests; 0 for none. Two of them eject
	at          prefixtree.Time // of the last
	failures    int32           // ejections since the backend last answered
	lastFailure prefixtree.Time // of the last ejection
	lastWhy     Failure
	backoff     int64 // ms; until when the ejection lasts, 0 for none
}

// failed books a failure that speaks against the backend, and reports whether it does.
//
// No connection ejects at once: no request can cause that. Any other failure may be the fault of the request, so it takes
// two different requests in a row to eject, or one if the backend has not answered any since its last ejection. A request
// that fails on a second backend is held against neither. Requests that were running when the backend was ejected do not
// count: one crash fails many at once.
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

// absolve takes back what a request's failure did to a backend: it has failed on another, too.
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

// mayEject says whether failed requests may eject one more backend of the pools that the slot is in. ejecting must be held.
func (r *Router) mayEject(s *slot) bool {
	for _, p := range r.table.Load().pools() {
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

// retryLocked sets when the backend may be tried again. What others report ends by their word, not by a trial: they probe it.
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

// answered books a sign of life: it ends a strike, and an ejection if the request was picked after it. After more than one
// back-off the backend begins anew: what failed so often was rather restarted than disturbed.
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

// busy keeps new requests away for as long as the backend asks for, in milliseconds, while others have room.
func (s *slot) busy(wait int64, now prefixtree.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busyAt, s.busyUntil = now, int64(now)+min(max(wait, busyMin), busyMax)
	s.retryLocked()
}

// Lives says that the backend answered a probe that was put to it at that time. That ends an ejection before it: at once if
// nothing could connect, or if the backend had answered requests until then; when the back-off is over if it was ejected
// again before it answered any. An ejection for answers of 5xx stands, since the backend answers probes better than requests.
// Until it answers a request, the next failure of any request ejects it again.
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

// SetReported says that other nodes find the backend failing, or that they do not any more. It is left alone while they do: they
// look after it, and no request need be put at risk to learn more. One that comes back after longer than a first back-off
// begins anew, and what own requests held against it is forgotten: it has been probed since.
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

// Health is what this node's own requests have shown of a backend.
type Health struct {
	Failures int32           // ejections in a row
	Failure  Failure         // the last one's kind
	FailedAt prefixtree.Time // 0 never
	Answered prefixtree.Time // when it last gave a first token or an answer that does not speak against it; 0 never
	Reported bool            // other nodes find it failing
	Ejected  bool            // by failed requests of this node, and not tried again yet
}

// Health returns what is known of a backend of the present view.
func (r *Router) Health(b prefixtree.Backend) Health {
	s := r.table.Load().slot(b)
	if s == nil {
		return Health{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Health{
		s.strikes.failures, s.strikes.lastWhy, s.strikes.lastFailure, prefixtree.Time(s.answerAt.Load()), s.reportedAt != 0, s.byRequests.Load(),
	}
}

// reportedFailures is what a report counts: more than requests can show, since who reports has made sure.
const reportedFailures = 1 << 20

// consecutive returns the failures in a row.
func (s *slot) consecutive() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reportedAt != 0 {
		return min(s.strikes.failures, reportedFailures) + reportedFailures
	}
	return s.strikes.failures
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

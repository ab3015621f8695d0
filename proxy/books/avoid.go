package books

import (
	"math"

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

// Failures is the number of kinds.
const Failures = len(failureNames)

var failureNames = [...]string{"none", "connect", "timeout", "reset", "5xx", "client-gone", "4xx", "busy", "transfer"}

// String returns the name used in metrics.
func (f Failure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return "unknown"
}

// Blames reports whether such a failure may count against the backend.
func (f Failure) Blames() bool { return f >= Connect && f <= Status5xx }

const (
	backoffMin  = 1_000  // ms; ends a storm of retries, and a mistake costs little
	backoffMax  = 30_000 // ms
	strikeLasts = 30_000 // ms
	// Bounds of the pause after a 429, in ms: short, since the limit may be one client's.
	busyMin, busyMax = 1_000, 10_000
)

// Standing says which requests an engine gets.
type Standing uint8

const (
	Healthy  Standing = iota // all
	HalfOpen                 // one at a time, which tries it; see Engine.BeginTrial
	Avoided                  // none, unless all engines are avoided
)

// Standing returns the engine's.
func (e *Engine) Standing(now prefixtree.Time) Standing {
	at := e.retryAt.Load()
	switch {
	case at == 0:
		return Healthy
	case int64(now) < at:
		return Avoided
	case !e.ejected.Load():
		return Healthy
	case e.trial.Load():
		return Avoided
	}
	return HalfOpen
}

// Avoided reports whether new requests avoid the engine, and until when.
func (e *Engine) Avoided(now prefixtree.Time) (until prefixtree.Time, avoid bool) {
	return prefixtree.Time(min(e.retryAt.Load(), int64(now)+backoffMax)), e.Standing(now) != Healthy
}

// Struck reports whether a request failed there since the engine last answered, whether or not that ejected it.
func (e *Engine) Struck() bool { return e.struck.Load() }

// EjectedByRequests reports whether failed requests of this router, but not refused connections, ejected the engine, which has not
// answered since.
func (e *Engine) EjectedByRequests() bool { return e.byRequests.Load() }

// strikes are failed requests that count; guarded by Engine.mu.
type strikes struct {
	by          [2]uint64 // failed requests; 0: none. Two eject the backend
	at          prefixtree.Time
	failures    int32
	lastFailure prefixtree.Time
	lastWhy     Failure
	backoff     int64 // ms; end of the ejection, 0: none
}

// Fail counts a failure of a request, picked at that time, that may count; DESIGN.md, "Failures", has the rules. It ejects the engine only
// if it may. Requests that ran when the backend was ejected do not count: one crash fails many.
func (e *Engine) Fail(why Failure, request uint64, mayEject bool, picked, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.strikes
	if k.failures > 0 && picked <= k.lastFailure {
		return
	}
	if now-k.at > strikeLasts {
		k.by = [2]uint64{}
	}
	k.at, k.lastWhy = now, why
	second := k.by[0] != 0 && k.by[0] != request
	eject := why == Connect || mayEject && (second || k.failures > 0)
	switch {
	case why == Connect:
	case eject && second:
		k.by[1] = request
	case !second:
		k.by[0] = request
	}
	if !eject {
		e.struck.Store(true)
		return
	}
	k.backoff = int64(now) + min(int64(backoffMin)<<min(k.failures, 5), backoffMax)
	k.failures++
	k.lastFailure = now
	e.retryLocked()
}

// Absolve takes a request's failure back, which failed on another engine, too.
func (e *Engine) Absolve(request uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.strikes
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
	e.retryLocked()
}

// retryLocked recomputes retryAt. Peers that report failures also probe.
func (e *Engine) retryLocked() {
	e.struck.Store(e.strikes.by[0] != 0)
	e.ejected.Store(e.strikes.backoff != 0)
	e.byRequests.Store(e.strikes.backoff != 0 && e.strikes.lastWhy != Connect)
	if e.reportedAt != 0 {
		e.retryAt.Store(math.MaxInt64)
		return
	}
	e.retryAt.Store(max(e.strikes.backoff, e.busyUntil))
}

// Answered notes a sign of life for a request that was picked at that time. It ends strikes, and an ejection before the Pick. After two
// ejections the backend probably restarted.
func (e *Engine) Answered(picked, now prefixtree.Time) (restarted bool) {
	raise(&e.answerAt, int64(now))
	if e.retryAt.Load() == 0 && !e.struck.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.strikes
	if k.failures == 0 || picked > k.lastFailure {
		restarted = k.failures > 1
		k.by, k.failures, k.backoff = [2]uint64{}, 0, 0
	}
	if picked > e.busyAt {
		e.busyUntil = 0
	}
	e.retryLocked()
	return restarted
}

// Refused notes an answer of 429, which asks to wait for so many ms.
func (e *Engine) Refused(wait int64, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busyAt, e.busyUntil = now, int64(now)+min(max(wait, busyMin), busyMax)
	e.retryLocked()
}

// Lives ends an ejection after a probe sent at asked: if it began before, if the back-off is over
// when it is not the first, and if it was not for 5xx, since such a backend may answer probes.
func (e *Engine) Lives(asked prefixtree.Time) {
	if !e.ejected.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k := &e.strikes
	over := k.lastFailure
	if k.failures > 1 && k.lastWhy != Connect {
		over = prefixtree.Time(k.backoff)
	}
	if k.lastWhy == Status5xx || asked < over {
		return
	}
	k.backoff = 0
	e.retryLocked()
}

// SetReported sets whether probes or other nodes report the backend as failing, which avoids it. With the
// report own ejections end, except for 5xx, and after more than backoffMin the backend probably restarted.
func (e *Engine) SetReported(failing bool, now prefixtree.Time) (restarted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case failing && e.reportedAt == 0:
		e.reportedAt = max(now, 1)
	case !failing && e.reportedAt != 0:
		restarted = now-e.reportedAt > backoffMin
		if e.strikes.lastWhy != Status5xx {
			e.strikes.backoff = 0
		}
		e.reportedAt = 0
	}
	e.retryLocked()
	return restarted
}

// Health is the failure state of a backend at this node.
type Health struct {
	Failures int32 // ejections in a row
	Failure  Failure
	Answered prefixtree.Time // last sign of life; 0: never
	Reported bool
	Ejected  bool // by failed requests of this node, and not retried yet
}

// Health returns the failure state.
func (e *Engine) Health() Health {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Health{
		e.strikes.failures, e.strikes.lastWhy, prefixtree.Time(e.answerAt.Load()), e.reportedAt != 0, e.byRequests.Load(),
	}
}

// Consecutive returns the ejections in a row. It ranks reports above own failures, because the reporting node has verified them.
func (e *Engine) Consecutive() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reportedAt != 0 {
		return math.MaxInt32
	}
	return e.strikes.failures
}

package books

import (
	"time"

	"grapevine.example/prefixtree"
)

const (
	// ReportsLast is how long, in ms, an engine's counters stand for its speed, and the adapters that it
	// reports count; nodes read both every few seconds.
	ReportsLast = 30_000
	mostRate    = 1e7 // tokens/s: more than any engine computes
	fullKV      = 0.9 // KV use from which on an engine may lack memory for the next prompt
)

// Telemetry is what an engine reports of itself, at one moment. Zero means idle.
type Telemetry struct {
	At               prefixtree.Time // when it was read
	Running, Waiting int             // requests
	KVUsage          float64         // share of the KV cache in use, 0 to 1; -1: not reported
	Queued           int64           // prompt tokens that it has yet to compute; -1: not reported
	// Since the engine started; 0: not reported.
	Prefilled   int64         // prompt tokens computed
	PrefillTime time.Duration // in which it computed them
	Prefills    int64         // requests of which each took a part of that time
	// Of vLLM's requests with a first token, which are more than the finished ones; 0: not reported.
	FirstTokens   int64 // requests
	FirstComputed int64 // their prompt tokens that it computed
}

// Report is an engine's latest telemetry with this node's counts at that time. Immutable.
type Report struct {
	Telemetry
	Placed, Active int64 // see Engine.Placed and Engine.Active
	All            int64 // active requests of all nodes
}

// Since returns the seconds since the report, at least 0.
func (t *Report) Since(now prefixtree.Time) float64 { return seconds(t.At, now) }

// Report returns the engine's latest report; nil: there is none.
func (e *Engine) Report() *Report { return e.report.Load() }

// KVUsage returns the used share of the KV cache, 0 to 1: the engine's report, else an estimate from
// own requests and the capacity in tokens (0: unknown); -1 without both.
func (e *Engine) KVUsage(capacity int) float64 {
	if t := e.report.Load(); t != nil && t.KVUsage >= 0 {
		return min(t.KVUsage, 1)
	}
	if capacity > 0 {
		return min(float64(e.resident.Load())/float64(capacity), 1)
	}
	return -1
}

// SetTelemetry takes an engine's report. What the engine computed since the report before shows its
// prefill rate.
//
// vLLM tells only of finished requests how long their prefills took, and an engine that has become slow is slow to finish those. But if
// it began to answer fewer requests than had waited at the report before, it has computed all the time since, and that time is known. An
// engine whose requests wait for places, not for computation, begins about as many as it ends, or its memory is full.
func (f *Fleet) SetTelemetry(e *Engine, t Telemetry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.report.Swap(&Report{t, e.placed.Load(), e.active.Load(), e.active.Load() + e.peerActive.Load()})
	if was == nil || was.PrefillTime == 0 {
		return
	}
	// A restarted engine counts from zero again, and a new one may be behind the old URL.
	tokens, seconds, prefills := float64(t.Prefilled-was.Prefilled), (t.PrefillTime - was.PrefillTime).Seconds(), t.Prefills-was.Prefills
	begun := t.FirstTokens - was.FirstTokens
	busy := begun > 0 && begun < int64(was.Waiting) && t.Waiting > 0 && // else those that waited may have left
		begun-prefills >= int64(max(2, t.Running/20)) && t.KVUsage < fullKV && t.FirstComputed > was.FirstComputed
	if busy {
		tokens, seconds, prefills = float64(t.FirstComputed-was.FirstComputed), float64(t.At-was.At)/1000, begun
	}
	if enough := rateMinTokens * float64(prefills); tokens <= 0 || tokens < enough || tokens > mostRate*seconds {
		return
	}
	f.rate.add(tokens, seconds)
	if busy && 2*tokens < seconds*e.RateOr(f.rate.load()) {
		e.reported = rateSums{tokens / seconds * ratePrior, ratePrior} // it has become slow
	} else {
		e.reported.add(tokens, seconds, e.RateOr(f.rate.load()))
		e.reported = e.reported.within(ratePrior)
	}
	e.combine()
}

// ReportsRate reports whether the engine itself tells its speed: then its rate is what its reports show, not what requests show.
func (e *Engine) ReportsRate(now prefixtree.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reported.seconds == 0 {
		return false
	}
	if t := e.report.Load(); t.PrefillTime > 0 && int64(now-t.At) < ReportsLast {
		return true
	}
	e.reported = rateSums{}
	e.combine()
	return false
}

package policy

import (
	"math"
	"time"

	"grapevine.example/prefixtree"
)

const (
	// reportsLast is how long, in ms, an engine's counters stand for its speed; nodes read them every
	// few seconds.
	reportsLast = 30_000
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

// telemetry is the latest report with this node's counts at that time.
type telemetry struct {
	Telemetry
	placed, active int64
	all            int64 // active requests of all nodes
}

// SetTelemetry takes an engine's report. What the engine computed since the report before shows its
// prefill rate.
//
// vLLM tells only of finished requests how long their prefills took, and an engine that has become slow is slow to finish those. But if
// it began to answer fewer requests than had waited at the report before, it has computed all the time since, and that time is known. An
// engine whose requests wait for places, not for computation, begins about as many as it ends, or its memory is full.
func (r *Router) SetTelemetry(b prefixtree.Backend, t Telemetry) {
	s := r.table.Load().slot(b)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.telemetry.Swap(&telemetry{t, s.placed.Load(), s.active.Load(), s.active.Load() + s.peerActive.Load()})
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
	r.rate.add(tokens, seconds)
	if busy && 2*tokens < seconds*s.rateOr(r.rate.load()) {
		s.reported = rateSums{tokens / seconds * ratePrior, ratePrior} // it has become slow
	} else {
		s.reported.add(tokens, seconds, s.rateOr(r.rate.load()))
		s.reported = s.reported.within(ratePrior)
	}
	s.combine()
}

// RateReported reports whether the backend's rate is what its engine reports of itself, not what requests
// show.
func (r *Router) RateReported(b prefixtree.Backend, now prefixtree.Time) bool {
	return r.known(b).speaks(now)
}

// speaks reports whether the engine itself tells its speed.
func (s *slot) speaks(now prefixtree.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reported.seconds == 0 {
		return false
	}
	if t := s.telemetry.Load(); t.PrefillTime > 0 && int64(now-t.At) < reportsLast {
		return true
	}
	s.reported = rateSums{}
	s.combine()
	return false
}

// reportedWait returns the least seconds until an engine will have computed the requests that wait there by its report and what this
// node placed since: 0 without such a report. vLLM counts these requests, not their tokens, so each stands for the traffic's mean. Sizes
// vary about as much as their mean is, so that n of them may be short of n means by twice the square root of n. It shows an engine that
// has become slow before the answers do, and only adds to the wait that the nodes count: the report lags.
func (s *Scene) reportedWait(c *Candidate) float64 {
	t := c.slot.telemetry.Load()
	if t == nil || t.Waiting <= 0 || t.Queued >= 0 || int64(s.Now-t.At) >= reportsLast {
		return 0
	}
	n := float64(t.Waiting)
	least := max(n-2*math.Sqrt(n), 0) * s.traffic.Uncached * s.FleetRate
	return max((least+float64(c.slot.placed.Load()-t.placed))/c.Rate-seconds(t.At, s.Now), 0)
}

// hear replaces what nodes report of each other's work by what the engines report, if that is newer for
// all candidates. To an engine's queue it adds what this node placed since, and takes out what the
// engine has computed since.
func (s *Scene) hear() {
	if s.Nodes == 1 || s.blind() { // blind, the order of the key leads conversations to their caches
		return
	}
	age := int64(0)
	for i := range s.Candidates {
		t := s.Candidates[i].slot.telemetry.Load()
		if t == nil || t.Queued < 0 {
			return
		}
		if age = max(age, int64(s.Now-t.At)); age >= s.Staleness {
			return
		}
	}
	s.Staleness, s.FromEngines = age, true
	for i := range s.Candidates {
		c := &s.Candidates[i]
		t := c.slot.telemetry.Load()
		left := float64(t.Queued+c.slot.placed.Load()-t.placed) - c.Rate*seconds(t.At, s.Now)
		c.Queued = max(c.OwnQueued, left)
		c.Active = max(c.OwnActive, int64(t.Running+t.Waiting)+c.OwnActive-t.active)
	}
}

func seconds(from, to prefixtree.Time) float64 { return float64(max(to-from, 0)) / 1000 }

package policy

import "grapevine/prefixtree"

// inferred estimates a backend's prefill work from placements: it computes new ones in turn, at its
// rate. Idle times and own first tokens correct the error.
type inferred struct {
	placed int64           // Witness.Placed at that time
	tokens float64         // prefill tokens, including own ones
	at     prefixtree.Time // 0: never inferred
}

// lastPlaced is in seconds: placements of the last second count as not computed yet.
const lastPlaced = 1.0

// leastAhead is the work in front, in tokens, from which a prefill no longer shows the engine's
// rate.
const leastAhead = 256

func (w *inferred) advance(now prefixtree.Time, rate float64) {
	w.tokens = max(w.tokens-seconds(w.at, now)*rate, 0)
	w.at = max(w.at, now)
}

// infer returns all nodes' prefill tokens in front of a new request, and whether other nodes placed
// anything since.
func (s *slot) infer(placed int64, perBlock, rate float64, now prefixtree.Time) (tokens float64, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.inferred
	fresh := float64(placed-w.placed) * perBlock
	if w.at == 0 {
		w.tokens, fresh = float64(s.charged.Load()), 0
	}
	passed := seconds(w.at, now)
	// If spread evenly, all but the latest placements are computed by now.
	w.tokens = max(w.tokens+fresh-passed*rate, fresh*min(lastPlaced/passed, 1), 0)
	w.at = max(w.at, now)
	news = placed > w.placed
	w.placed = placed
	return w.tokens, news
}

// chargeInferred adds an own charge. mu must be held.
func (s *slot) chargeInferred(a *Attempt) {
	w := &s.inferred
	if ahead := int64(w.tokens) - (s.charged.Load() - a.charged); ahead > leastAhead {
		a.ahead = max(a.ahead, ahead)
	}
	w.tokens += float64(a.charged)
	a.placed = w.placed
}

// correctInferred: at an own first token all earlier placements are computed. mu must be held.
func (s *slot) correctInferred(a *Attempt, perBlock, rate float64, now prefixtree.Time) {
	w := &s.inferred
	w.advance(now, rate)
	w.tokens = min(w.tokens, float64(s.charged.Load())+float64(w.placed-a.placed)*perBlock)
}

// infer estimates other nodes' load if they share only placements. Only the prefix strategy uses
// it.
func (r *Router) infer(s *Scene) {
	if !r.infers(s) {
		return
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		tokens, news := c.slot.infer(r.witness.Placed(c.Backend), s.TokensPerBlock, s.FleetRate, s.Now)
		c.inferred = max(c.Queued, tokens)
		if news {
			r.witnessed.Store(int64(s.Now))
		}
	}
	s.inferred = int64(s.Now)-r.witnessed.Load() <= blindAfter
}

func (r *Router) infers(s *Scene) bool {
	return s.Nodes > 1 && r.witness != nil && s.Staleness > blindAfter && s.FactStaleness <= blindAfter
}

// loadLate returns the staleness of other nodes' load in ms, reported or inferred.
func (s *Scene) loadLate() int64 {
	if s.inferred {
		return s.FactStaleness
	}
	return s.Staleness
}

// allQueued returns all nodes' prefill tokens in front of a new request, reported or inferred.
func (s *Scene) allQueued(c *Candidate) float64 {
	if s.inferred {
		return c.inferred
	}
	return c.Queued
}

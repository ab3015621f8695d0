package policy

import "grapevine/prefixtree"

// inferred is the work that a backend still has to do by the placements on it: it computes what was newly placed, one thing
// after the other, at its rate. An estimate for nodes that do not tell each other their load. What is wrong in it is
// forgotten whenever the backend falls idle, and corrected by the own first tokens.
type inferred struct {
	placed int64           // Witness.Placed, as of now
	tokens float64         // prefill tokens, own ones included
	at     prefixtree.Time // now; 0 if never inferred
}

// lastPlaced is the time in seconds whose placements are taken for still to do, whatever else the backend did since it was last
// looked at.
const lastPlaced = 1.0

// leastAhead is the work in front of an own request from which its prefill says nothing of the engine's rate: less than a
// step of the engine.
const leastAhead = 256

// advance lets the backend work until now.
func (w *inferred) advance(now prefixtree.Time, rate float64) {
	w.tokens = max(w.tokens-seconds(w.at, now)*rate, 0)
	w.at = max(w.at, now)
}

// infer returns the prefill tokens in front of a new request, all nodes', by what others have placed and by the own charges; and
// whether others have placed something since the last time.
func (s *slot) infer(placed int64, perBlock, rate float64, now prefixtree.Time) (tokens float64, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.inferred
	fresh := float64(placed-w.placed) * perBlock
	if w.at == 0 {
		w.tokens, fresh = float64(s.charged.Load()), 0
	}
	passed := seconds(w.at, now)
	// When it was placed meanwhile is not known. If evenly, it was worked off as it came, but for what came last.
	w.tokens = max(w.tokens+fresh-passed*rate, fresh*min(lastPlaced/passed, 1), 0)
	w.at = max(w.at, now)
	news = placed > w.placed
	w.placed = placed
	return w.tokens, news
}

// chargeInferred notes what is in front of an own request, and counts it; the lock must be held.
func (s *slot) chargeInferred(a *Attempt) {
	w := &s.inferred
	if ahead := int64(w.tokens) - (s.charged.Load() - a.charged); ahead > leastAhead {
		a.ahead = max(a.ahead, ahead)
	}
	w.tokens += float64(a.charged)
	a.placed = w.placed
}

// correctInferred learns from an own first token: what was placed before that request has been done. The lock must be held.
func (s *slot) correctInferred(a *Attempt, perBlock, rate float64, now prefixtree.Time) {
	w := &s.inferred
	w.advance(now, rate)
	w.tokens = min(w.tokens, float64(s.charged.Load())+float64(w.placed-a.placed)*perBlock)
}

// infer notes the load of other nodes where they do not tell it, but what they place becomes known: some of it has within
// blindAfter. Only prefix goes by it: the other strategies are what their authors describe.
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

// infers reports whether the load of others has to be inferred, and can be.
func (r *Router) infers(s *Scene) bool {
	return s.Nodes > 1 && r.witness != nil && s.Staleness > blindAfter && s.FactStaleness <= blindAfter
}

// loadLate returns the milliseconds by which other nodes' load is known late, told or inferred.
func (s *Scene) loadLate() int64 {
	if s.inferred {
		return s.FactStaleness
	}
	return s.Staleness
}

// allQueued returns the prefill tokens of all nodes in front of a new request, told or inferred.
func (s *Scene) allQueued(c *Candidate) float64 {
	if s.inferred {
		return c.inferred
	}
	return c.Queued
}

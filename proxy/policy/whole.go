package policy

import (
	"math"

	"grapevine/prefixtree"
)

// Only the end of an answer that is not streamed is visible, seconds or minutes after its prefill.
// Counted as a prefill until then, one such request would make its engine look stuck and drive away
// all its conversations.

// settle removes the whole requests from the head of the line whose prefill must be done by now at
// that rate.
func (s *slot) settle(now prefixtree.Time, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := s.first; a != nil && a.whole; a = s.first {
		took := float64(s.headAhead.Load()+a.charged) / rate
		done := s.headSince.Load() + int64(math.Ceil(min(took*1000, math.MaxInt32)))
		if done > int64(now) {
			return
		}
		s.leave(a, prefixtree.Time(done), now)
	}
}

// wholeDoubt returns the weight of a whole answer slower than its expected prefill: 0, as
// generation took part of the time. If this router never sees a first token it is rateGuess, else a
// rate learned too high would never fall.
func (r *Router) wholeDoubt() float64 {
	if r.streamed.Load() {
		return 0
	}
	return rateGuess
}

package policy

import (
	"math"

	"grapevine/prefixtree"
)

// An answer that is not streamed ends long after its prefill. Counted as a prefill until then, its
// engine would look stuck.

// settle removes non-streamed requests from the head of the line once their prefill must be done.
func (s *slot) settle(now prefixtree.Time, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := s.first; a != nil && a.nonStreaming; a = s.first {
		took := float64(s.headAhead.Load()+a.charged) / rate
		done := s.headSince.Load() + int64(math.Ceil(min(took*1000, math.MaxInt32)))
		if done > int64(now) {
			return
		}
		s.leave(a, prefixtree.Time(done), now)
	}
}

// nonStreamingDoubt: generation took part of a slow answer. Without any streams a rate learned too
// high must fall nevertheless.
func (r *Router) nonStreamingDoubt() float64 {
	if r.streamed.Load() {
		return 0
	}
	return rateGuess
}

package policy

import (
	"math"

	"grapevine/prefixtree"
)

// An answer that is not streamed ends long after its prefill. Counted as a prefill until then, it
// would make its engine look stuck and drive away its conversations.

// settle removes non-streamed requests from the head of the line when their prefill must be done.
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

// nonStreamingDoubt returns the weight of a slow non-streamed answer: 0, since
// generation took part of it.
// Without any streams it is rateGuess, or a rate learned too high would never fall.
func (r *Router) nonStreamingDoubt() float64 {
	if r.streamed.Load() {
		return 0
	}
	return rateGuess
}

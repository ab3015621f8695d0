package policy

import (
	"math"

	"grapevine/prefixtree"
)

// Of a request that is not streamed nobody sees the first token: its answer comes when all of it has been generated, seconds or
// minutes after its prefill. Taken for a prefill that runs until then, one such request makes its engine look stuck to this node, and
// sends every conversation away that the engine holds.

// settle takes whole requests off the head of the line whose prefills are done by now at that rate. When each was done follows from the rate
// alone, not from when that is asked.
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

// wholeDoubt returns what a whole answer that took longer than a prefill by the present rate says of the rate: nothing, as generating it
// took some of the time. An engine is at least as fast as the whole took. But where no first token is ever told, too high a rate would
// never be found out, and a queue never seen; too low a one holds for all alike.
func (r *Router) wholeDoubt() float64 {
	if r.streamed.Load() {
		return 0
	}
	return rateGuess
}

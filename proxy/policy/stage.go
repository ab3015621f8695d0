package policy

import (
	"math"
	"slices"

	"grapevine.example/proxy/books"
)

// stage adds the eligible backends, of a large pool some if it may, or, if all are avoided, those with
// the fewest failures. A request that failed gets those that failed others only without others; see wary.
func (s *Scene) stage(some bool) (lastResort bool) {
	for s.wary = len(s.Request.Exclude) > 0; ; s.wary = false {
		if some && len(s.pool.entries) > weighAll {
			if s.stageSome(); len(s.Candidates) > 0 {
				s.size = len(s.pool.entries)
				return false
			}
		}
		for i := range s.pool.entries {
			s.where[i] = -1
			s.put(i)
		}
		if len(s.Candidates) > 0 || !s.wary {
			break
		}
	}
	if lastResort = len(s.Candidates) == 0; lastResort {
		s.stageLeastBad()
	}
	s.size = len(s.Candidates)
	return lastResort
}

func (s *Scene) put(at int) {
	e := &s.pool.entries[at]
	if h := s.standing(e); h != books.Avoided {
		s.add(at, e, h == books.HalfOpen)
	}
}

// standing returns an engine's for the request.
func (s *Scene) standing(e *entry) books.Standing {
	if slices.Contains(s.Request.Exclude, e.id) {
		return books.Avoided
	}
	h := e.engine.Standing(s.Now)
	if s.wary && (h == books.HalfOpen || e.engine.Struck()) {
		return books.Avoided
	}
	return h
}

// stageLeastBad reads each count once, since counts may grow meanwhile.
func (s *Scene) stageLeastBad() {
	fewest := int32(math.MaxInt32)
	for i := range s.pool.entries {
		e := &s.pool.entries[i]
		if slices.Contains(s.Request.Exclude, e.id) {
			continue
		}
		n := e.engine.Consecutive()
		if n > fewest {
			continue
		}
		if n < fewest {
			fewest = n
			s.Candidates = s.Candidates[:0]
			for j := range i {
				s.where[j] = -1
			}
		}
		s.add(i, e, false)
	}
}

func (s *Scene) add(at int, e *entry, half bool) {
	s.where[at] = int32(len(s.Candidates))
	s.stand(e, half)
}

func (s *Scene) stand(e *entry, half bool) {
	rate := e.engine.RateOr(s.FleetRate)
	own := e.engine.Active()
	// A composite literal would be copied: a third of a Pick at 2,000 backends.
	s.Candidates = s.Candidates[:len(s.Candidates)+1]
	c := &s.Candidates[len(s.Candidates)-1]
	c.entry, c.Backend, c.Rate = e, e.id, rate
	c.half, c.outside, c.exact, c.full = half, false, false, false
	c.OwnQueued, c.Overdue = e.engine.Queued(s.Now, rate)
	c.Queued = e.engine.Ahead(c.OwnQueued, s.Now, rate)
	c.Outstanding = e.engine.Charged() + e.engine.PeerTokens()
	c.Active, c.OwnActive = own+e.engine.PeerActive(), own
	c.parked = 0
	if s.gated {
		c.parked = float64(e.engine.Parked()) * float64(s.Nodes) / rate
	}
	c.HeldBlocks, c.Held, c.Age = 0, 0, 0
	c.Cost, c.start, c.way, c.compute, c.later = math.Inf(1), 0, 0, 0, 0
}

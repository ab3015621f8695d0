package policy

import (
	"math"
	"time"

	"grapevine/prefixtree"
)

const (
	// DefaultSlowStart is how long the share of a backend that returns grows: long enough for an engine that compiles kernels
	// and fills its cache on its first requests, short against the life of one.
	DefaultSlowStart = 30 * time.Second
	// coldShare is the part of its full share that a backend begins with: something must be learned of it.
	coldShare = 0.1
	// coldCredit bounds the requests a backend may catch up on that it was not chosen for.
	coldCredit = 4
	// oneRequest is the unit of slot.credit.
	oneRequest = 1_000_000
)

// sticky is a strategy that leads a request to the first backend in the order of a key. While a backend begins, its keys move
// to it one after the other and stay: let in and turned away in turn, a session would leave half of its cache in two places.
type sticky interface {
	key(s *Scene) (key uint64, ok bool)
}

// begins notes that the backend begins anew at a time: nothing is known of it, and it looks idle. Its share grows from there.
func (r *Router) begins(s *slot, at prefixtree.Time) {
	if r.slowStart <= 0 || at <= 0 {
		return
	}
	raise(&s.began, int64(at))
	raise(&r.coldUntil, int64(at)+r.slowStart)
}

// warmth is the part of its full share that a backend may have now: 1 unless it has begun just now.
func (r *Router) warmth(s *slot, now prefixtree.Time) float64 {
	began := s.began.Load()
	if began == 0 || int64(now)-began >= r.slowStart {
		return 1
	}
	return coldShare + (1-coldShare)*max(float64(int64(now)-began), 0)/float64(r.slowStart)
}

// easeIn takes those candidates out of the scene that have begun just now and have had their share. A cold engine has
// no queue, so that by load alone it would be the best choice for every new prompt until it has as many requests as the
// others, all of them prefills.
//
// Of every request it is credited with its share, the parts of all candidates being in proportion to warmth and weight; one that it
// is chosen for by its load takes one request off that. A request whose own prefix it holds passes: a conversation that began here goes
// on here. If nobody else is there, all stay.
func (r *Router) easeIn(s *Scene, strategy *named) {
	var total float64
	cold := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.warmth = float32(r.warmth(c.slot, s.Now)); c.warmth < 1 {
			cold++
		}
		total += float64(c.warmth) * c.Weight
	}
	if cold == 0 {
		return
	}
	if s.sampled {
		total *= float64(s.size()) / float64(len(s.Candidates))
	}
	let := func(c *Candidate) bool { return c.credited(s, float64(c.warmth)*c.Weight/total) }
	if by, ok := strategy.Strategy.(sticky); ok {
		if key, ok := by.key(s); ok {
			let = func(c *Candidate) bool { return rendezvous(mix(key), c.key, 1, false) < float64(c.warmth) }
		}
	}
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.turnedAway = c.warmth < 1 && !c.half && !let(c); !c.turnedAway {
			n++
		}
	}
	if n == 0 || n == len(s.Candidates) {
		return
	}
	n = 0
	for i := range s.Candidates {
		if !s.Candidates[i].turnedAway {
			if n != i {
				s.Candidates[n] = s.Candidates[i]
			}
			n++
		}
	}
	s.Candidates = s.Candidates[:n]
}

// credited credits a candidate with its share of this request and says whether it may have it.
func (c *Candidate) credited(s *Scene, share float64) bool {
	if s.sampled {
		// It is credited now for the requests that it was not in the selection for.
		share *= float64(s.missed(c))
	}
	credit := int64(share * oneRequest)
	if s.peek {
		credit += c.slot.credit.Load()
	} else if credit = c.slot.credit.Add(credit); credit > coldCredit*oneRequest {
		c.slot.credit.Store(coldCredit * oneRequest)
	}
	if c.Held-s.CommonTokens >= worthwhile*float64(s.PromptTokens) {
		return true
	}
	c.charged = true
	return credit >= oneRequest
}

// missed returns how many decisions there were since the candidate of a large pool was last credited, this one included. It is counted in
// each pool: the turns of one say nothing of those of another. No more than there are backends: it may be long that it was warm.
func (s *Scene) missed(c *Candidate) uint64 {
	last := &s.pool.credited[c.at]
	var before uint64
	if s.peek {
		before = last.Load()
	} else {
		before = last.Swap(s.turn)
	}
	if s.turn <= before {
		return 1 // a later decision was here first
	}
	return min(s.turn-before, uint64(len(s.pool.entries)))
}

// key implements sticky.
func (session) key(s *Scene) (uint64, bool) {
	return hashBytes(string(s.Request.Session)), len(s.Request.Session) > 0
}

// key implements sticky.
func (p *prefixHash) key(s *Scene) (uint64, bool) {
	if len(s.Request.Hashes) == 0 {
		return 0, false
	}
	return uint64(s.Request.Hashes[min(p.blocks, len(s.Request.Hashes))-1]), true
}

// slowStartOf turns the setting into milliseconds, 0 for none.
func slowStartOf(d time.Duration) int64 {
	switch {
	case d == 0:
		d = DefaultSlowStart
	case d < 0:
		return 0
	}
	return int64(math.Max(float64(d.Milliseconds()), 1))
}

package policy

import (
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine/prefixtree"
)

const (
	// DefaultSlowStart: engines compile kernels and fill their cache with first requests.
	DefaultSlowStart = 30 * time.Second
	coldShare        = 0.1 // a few requests must measure the backend
	coldCredit       = 4   // bounds the requests that a cold backend saves up
	oneRequest       = 1_000_000
	turnedAway       = -1 // replaces the warmth of a candidate that easeIn removes
)

// sticky strategies follow a key, which moves once during slow start; alternating would split a
// session's cache.
type sticky interface {
	key(s *Scene) (key uint64, ok bool)
}

func (r *Router) begins(s *slot, at prefixtree.Time) {
	if r.slowStart <= 0 || at <= 0 {
		return
	}
	raise(&s.began, int64(at))
	raise(&r.coldUntil, int64(at)+r.slowStart)
}

func (r *Router) warmth(s *slot, now prefixtree.Time) float64 {
	began := s.began.Load()
	if began == 0 || int64(now)-began >= r.slowStart {
		return 1
	}
	return coldShare + (1-coldShare)*max(float64(int64(now)-began), 0)/float64(r.slowStart)
}

// easeIn removes cold candidates that have had their share, unless none would remain: without a
// queue they would attract every new prompt. Each request credits a candidate with its share; one
// taken by load costs a credit, follow-ups do not.
func (r *Router) easeIn(s *Scene, strategy *named) {
	var total float64
	cold := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.warmth = float32(r.warmth(c.slot, s.Now)); c.warmth < 1 {
			cold++
		}
		total += float64(c.warmth) * c.weight
	}
	if cold == 0 {
		return
	}
	if s.stats != nil {
		total *= float64(s.size()) / float64(len(s.Candidates))
	}
	let := func(c *Candidate) bool { return c.credited(s, float64(c.warmth)*c.weight/total) }
	if by, ok := strategy.Strategy.(sticky); ok {
		if key, ok := by.key(s); ok {
			let = func(c *Candidate) bool { return rendezvous(mix(key), c.key, 1, false) < float64(c.warmth) }
		}
	}
	n := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.warmth < 1 && !c.half && !let(c) {
			c.warmth = turnedAway
			continue
		}
		n++
	}
	if n == 0 || n == len(s.Candidates) {
		return
	}
	n = 0
	for i := range s.Candidates {
		if s.Candidates[i].warmth != turnedAway {
			if n != i {
				s.Candidates[n] = s.Candidates[i]
			}
			n++
		}
	}
	s.Candidates = s.Candidates[:n]
}

func (c *Candidate) credited(s *Scene, share float64) bool {
	if s.stats != nil {
		// Also for the decisions that did not select it.
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

// missed returns the decisions since the candidate was last credited, at most one per backend.
func (s *Scene) missed(c *Candidate) uint64 {
	last := &s.pool.credited[c.at]
	var before uint64
	if s.peek {
		before = last.Load()
	} else {
		before = last.Swap(s.turn)
	}
	if s.turn <= before {
		return 1
	}
	return min(s.turn-before, uint64(len(s.pool.entries)))
}

func (session) key(s *Scene) (uint64, bool) {
	return xxh3.Hash(s.Request.Session), len(s.Request.Session) > 0
}

func (p *prefixHash) key(s *Scene) (uint64, bool) {
	if len(s.Request.Hashes) == 0 {
		return 0, false
	}
	return uint64(s.Request.Hashes[min(p.blocks, len(s.Request.Hashes))-1]), true
}

func slowStartOf(d time.Duration) int64 {
	switch {
	case d == 0:
		d = DefaultSlowStart
	case d < 0:
		return 0
	}
	return int64(math.Max(float64(d.Milliseconds()), 1))
}

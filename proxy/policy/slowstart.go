package policy

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

const (
	// DefaultSlowStart: engines compile kernels and fill their cache with first requests.
	DefaultSlowStart = 30 * time.Second
	// coldShare is the warmth of a new engine, since a few requests must measure it. Engines whose warmth differs by less count as equally
	// warm: with DefaultSlowStart those that start within 3.3 s of each other, and beside old engines one that started 26.7 s ago.
	coldShare  = 0.1
	worthwhile = 0.2 // the share of a prompt whose cache makes it a follow-up
)

// sticky strategies follow a key, which moves once during slow start; alternating would split a
// session's cache.
type sticky interface {
	key(s *Scene) (key uint64, ok bool)
}

func (r *Router) begins(e *books.Engine, at prefixtree.Time) {
	if at <= 0 {
		return
	}
	e.Begins(at)
	raise(&r.coldUntil, int64(at)+r.tuning.Load().slowStart)
}

func raise(value *atomic.Int64, v int64) {
	for {
		was := value.Load()
		if was >= v || value.CompareAndSwap(was, v) {
			return
		}
	}
}

func (r *Router) warmth(e *books.Engine, now prefixtree.Time) float64 {
	began, slowStart := int64(e.Began()), r.tuning.Load().slowStart
	if began == 0 || int64(now)-began >= slowStart {
		return 1
	}
	return coldShare + (1-coldShare)*max(float64(int64(now)-began), 0)/float64(slowStart)
}

// easeIn removes most cold candidates, unless none would remain: without a queue they would attract
// every new prompt. Each stays with the probability of its share of the requests, or of its warmth
// if the strategy ignores load, and always for the follow-ups of what it holds, or if the warmest is
// hardly warmer: load decides among engines that started together.
func (r *Router) easeIn(s *Scene, strategy *named) {
	var total, warmest float64
	cold := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.warmth = r.warmth(c.engine, s.Now); c.warmth < 1 {
			cold++
		}
		total += c.warmth * c.weight
		warmest = max(warmest, c.warmth)
	}
	if cold == 0 {
		return
	}
	chance := func(c *Candidate) bool { return unit(s.Rand()) < c.warmth*c.weight/total }
	switch by := strategy.Strategy.(type) {
	case roundRobin, random:
		chance = func(c *Candidate) bool { return unit(s.Rand()) < c.warmth }
	case sticky:
		if key, ok := by.key(s); ok {
			chance = func(c *Candidate) bool { return rendezvous(mix(key), c.key, 1, false) < c.warmth }
		}
	}
	s.keep(func(c *Candidate) bool {
		return c.warmth >= warmest-coldShare || c.half || c.Held-s.CommonTokens >= worthwhile*float64(s.PromptTokens) || chance(c)
	})
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
	if d < 0 {
		return 0
	}
	return max(cmp.Or(d, DefaultSlowStart).Milliseconds(), 1)
}

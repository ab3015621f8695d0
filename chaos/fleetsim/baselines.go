package fleetsim

import (
	"math"
	"sync/atomic"

	"grapevine.example/proxy/policy"
)

// Baselines returns rules of the literature and other routers, one set per router, because some
// keep counts.
func Baselines() map[string]policy.Strategy {
	return map[string]policy.Strategy{
		"argmin":     cheapest(tokens),
		"lmetric":    cheapest(lmetric),
		"two-choice": twoChoice{},
		"sglang":     newSGLang(),
	}
}

func tokens(c *policy.Candidate) float64 { return c.Queued + c.Uncached }

// lmetric is the product of new prefill tokens, the queue's included, and batch size (LMetric, OSDI
// 2026, arXiv 2603.15202).
func lmetric(c *policy.Candidate) float64 { return tokens(c) * float64(c.Active+1) }

// cheapest takes the backend of the least price.
type cheapest func(*policy.Candidate) float64

func (price cheapest) Choose(s *policy.Scene) (int, policy.Rung) {
	best, ties := 0, uint64(0)
	least := math.Inf(1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = price(c)
		switch {
		case c.Cost < least:
			best, least, ties = i, c.Cost, 1
		case c.Cost == least:
			if ties++; s.Rand()%ties == 0 {
				best = i
			}
		}
	}
	return best, rungOf(s, best)
}

func rungOf(s *policy.Scene, chosen int) policy.Rung {
	for i := range s.Candidates {
		if s.Candidates[i].Held < s.Candidates[chosen].Held {
			return policy.Cache
		}
	}
	return policy.Load
}

const twoChoiceTarget = 5.0

// twoChoice maps the branch to two backends and takes the one with affinity unless it would miss
// the target, else the sooner one (DualMap, ICLR 2026, arXiv 2602.06502, without migration of
// queued requests).
type twoChoice struct{}

func (twoChoice) Choose(s *policy.Scene) (int, policy.Rung) {
	if s.Branch == 0 {
		return cheapest(func(c *policy.Candidate) float64 { return c.Queued }).Choose(s)
	}
	a := first(s, uint64(s.Branch), -1)
	b := first(s, ^uint64(s.Branch), a)
	for _, i := range [2]int{a, b} {
		c := &s.Candidates[i]
		c.Cost = tokens(c) / c.Rate
	}
	near, far := a, b
	if s.Candidates[b].Held > s.Candidates[a].Held {
		near, far = b, a
	}
	n, f := &s.Candidates[near], &s.Candidates[far]
	if n.Held == f.Held {
		if f.Cost < n.Cost {
			return far, policy.Hash
		}
		return near, policy.Hash
	}
	if n.Cost > twoChoiceTarget && f.Cost < n.Cost {
		return far, policy.Load
	}
	return near, policy.Cache
}

func first(s *policy.Scene, key uint64, except int) int {
	best, rank := max(except, 0), math.Inf(-1)
	for i := range s.Candidates {
		if i == except {
			continue
		}
		if r := s.Rendezvous(key, i); r > rank {
			best, rank = i, r
		}
	}
	return best
}

// Defaults of vllm-project/router and SMG, cache_aware.
const (
	sglangCacheThreshold = 0.3
	sglangAbsThreshold   = 64
	sglangRelThreshold   = 1.5
)

// sglang is the rule of the SGLang family: if the spread of this router's requests exceeds both
// thresholds, the shortest queue; else the longest match, if above the cache threshold; else the
// least loaded, ties to the fewest processed.
type sglang struct {
	processed []atomic.Int64
}

const maxBackendID = 1 << 16

func newSGLang() *sglang { return &sglang{processed: make([]atomic.Int64, maxBackendID)} }

func (g *sglang) Choose(s *policy.Scene) (int, policy.Rung) {
	i, rung := g.choose(s)
	g.processed[s.Candidates[i].Backend].Add(1)
	return i, rung
}

func (g *sglang) choose(s *policy.Scene) (int, policy.Rung) {
	lo, hi := int64(math.MaxInt64), int64(0)
	deepest := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = float64(c.OwnActive)
		lo, hi = min(lo, c.OwnActive), max(hi, c.OwnActive)
		if c.HeldBlocks > s.Candidates[deepest].HeldBlocks {
			deepest = i
		}
	}
	if hi-lo > sglangAbsThreshold && float64(hi) > sglangRelThreshold*float64(lo) {
		return g.leastLoaded(s, lo), policy.Load
	}
	matched := float64(s.Candidates[deepest].HeldBlocks) * s.TokensPerBlock
	if matched > sglangCacheThreshold*float64(s.PromptTokens) {
		return deepest, policy.Cache
	}
	return g.leastLoaded(s, lo), policy.Load
}

func (g *sglang) leastLoaded(s *policy.Scene, least int64) int {
	best, fewest := 0, int64(math.MaxInt64)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.OwnActive != least {
			continue
		}
		if n := g.processed[c.Backend].Load(); n < fewest {
			best, fewest = i, n
		}
	}
	return best
}

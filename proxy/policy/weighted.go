package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

type scorer uint8

const (
	scorePrefix scorer = iota
	scoreLoad
	scoreKV
	scoreQueue
	scoreSession
	scoreLoRA
	scorers
)

// Names in configuration, and default weights as in llm-d.
var (
	scorerNames   = [scorers]string{"prefix", "load", "kv-usage", "queue", "session", "lora"}
	scorerDefault = [scorers]float64{scorePrefix: 2, scoreLoad: 1}
)

// maxWeight keeps sums of scores finite and exact enough to compare.
const maxWeight = 1e6

// weighted takes the highest weighted sum of scores between 0 and 1; docs/weighted.md has them. Ties
// go to the first in the branch key's order, else in turn.
type weighted struct {
	w [scorers]float64
}

func newWeighted(weights map[string]float64) (*weighted, error) {
	if len(weights) == 0 {
		return &weighted{w: scorerDefault}, nil
	}
	s := &weighted{}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		w := weights[name]
		i := slices.Index(scorerNames[:], name)
		if i < 0 {
			return nil, fmt.Errorf("weights: unknown scorer %q: use some of %v", name, scorerNames)
		}
		if !(w >= 0 && w <= maxWeight) {
			return nil, fmt.Errorf("weights: %s: weight %v: use a number from 0 to %v", name, w, maxWeight)
		}
		s.w[i] = w
	}
	return s, nil
}

func (w *weighted) Choose(s *Scene) (int, Rung) {
	minA, maxA := math.Inf(1), math.Inf(-1)
	minQ, maxQ := math.Inf(1), math.Inf(-1)
	minHeld := math.Inf(1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		a := float64(c.Active) / c.weight
		minA, maxA = min(minA, a), max(maxA, a)
		q := c.Queued / c.weight
		minQ, maxQ = min(minQ, q), max(maxQ, q)
		minHeld = min(minHeld, c.Held)
	}
	pin := -1
	if w.w[scoreSession] > 0 && len(s.Request.Session) > 0 {
		pin = pinned(s, xxh3.Hash(s.Request.Session))
	}
	var adapter uint64
	if w.w[scoreLoRA] > 0 {
		adapter = s.adapter()
	}
	meanUsed := s.meanKVUsage()
	best := math.Inf(-1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		score := w.w[scorePrefix]*min(c.Held/float64(max(s.PromptTokens, 1)), 1) +
			w.w[scoreLoad]*least(float64(c.Active)/c.weight, minA, maxA) +
			w.w[scoreQueue]*least(c.Queued/c.weight, minQ, maxQ)
		used := c.KVUsage()
		if used < 0 {
			used = meanUsed // an engine that reports no use is neither sought nor avoided
		}
		score += w.w[scoreKV] * (1 - used)
		if i == pin {
			score += w.w[scoreSession]
		}
		if adapter != 0 && c.engine.HoldsAdapter(adapter) {
			score += w.w[scoreLoRA]
		}
		c.Cost = -score
		best = max(best, score)
	}
	i, tied := s.firstAmong(-best, uint64(s.Branch))
	c := &s.Candidates[i]
	switch {
	case w.w[scorePrefix] > 0 && c.Held > minHeld:
		return i, Cache
	case tied && len(s.Request.Hashes) > 0, i == pin:
		return i, Hash
	case minA == maxA && minQ == maxQ:
		return i, Rotate
	}
	return i, Load
}

// meanKVUsage returns the mean used share of the KV caches of which it is known, or 0.
func (s *Scene) meanKVUsage() float64 {
	sum, n := 0.0, 0.0
	for i := range s.Candidates {
		if used := s.Candidates[i].KVUsage(); used >= 0 {
			sum, n = sum+used, n+1
		}
	}
	return sum / max(n, 1)
}

func least(x, lo, hi float64) float64 {
	if hi <= lo {
		return 1
	}
	return (hi - x) / (hi - lo)
}

package policy

import "math"

const (
	// worthwhile is the share of a prompt a match must cover for its holder to become a candidate beyond the rendezvous
	// choice: a common system prompt does not (following it piles everything on one backend).
	worthwhile = 0.25
	// freshChoices is K, the rendezvous candidates considered while knowledge is fresh.
	freshChoices = 2
	// staleAfter is the age of knowledge in milliseconds at which the bounded-load test has been relaxed to staleEpsilon.
	staleAfter = 3_000
	// blindAfter is the age beyond which only the first choice and the holder remain: loads that old are noise.
	blindAfter   = 10_000
	staleEpsilon = 1.0
	// maxHolders bounds the holders of equal depth that are added to the rendezvous choices.
	maxHolders = 4
)

// prefix estimates the time to first token on every candidate and takes the least: see DESIGN.md, "Cost".
type prefix struct {
	work    float64 // W
	epsilon float64
}

func (p *prefix) cost(c *Candidate) float64 {
	return (c.Queued + p.work*c.Uncached) / c.Rate
}

func (p *prefix) Choose(s *Scene) (int, Rung) {
	if s.Nodes > 1 && s.Branch != 0 {
		return p.chooseFew(s)
	}
	best := math.Inf(1)
	idle := true
	minHeld := math.Inf(1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = p.cost(c)
		best = min(best, c.Cost)
		minHeld = min(minHeld, c.Held)
		idle = idle && c.Outstanding == s.Candidates[0].Outstanding
	}
	i, tied := s.firstAmong(best)
	switch {
	case s.Candidates[i].Held > minHeld:
		return i, Cache
	case tied && s.Branch != 0:
		return i, Hash
	case idle:
		return i, Rotate
	}
	return i, Load
}

// chooseFew is the choice of a node that is not alone: views of other nodes' work are late, and an argmin over all
// backends would send every node to the same one.
func (p *prefix) chooseFew(s *Scene) (int, Rung) {
	var sum, deepest float64
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = math.Inf(1)
		sum += c.Queued
		deepest = max(deepest, c.Held)
	}
	n := float64(s.PromptTokens)
	stale := min(float64(s.Staleness)/staleAfter, 1)
	limit := (1+p.epsilon+stale*max(staleEpsilon-p.epsilon, 0))*sum/float64(len(s.Candidates)) + n
	best, cost := -1, math.Inf(1)
	consider := func(i int) {
		c := &s.Candidates[i]
		c.Cost = p.cost(c)
		if c.Cost < cost {
			best, cost = i, c.Cost
		}
	}
	choices, k := s.firstFitting(limit, s.choices())
	for _, i := range choices[:k] {
		consider(int(i))
	}
	held := false
	if deepest >= worthwhile*n {
		added := 0
		for i := 0; i < len(s.Candidates) && added < maxHolders; i++ {
			if s.Candidates[i].Held == deepest {
				consider(i)
				added++
			}
		}
		held = s.Candidates[best].Held >= worthwhile*n
	}
	if held {
		return best, Cache
	}
	return best, Hash
}

// maxChoices bounds K.
const maxChoices = 4

func (s *Scene) choices() int {
	if s.Staleness > blindAfter {
		return 1
	}
	return freshChoices
}

// firstFitting returns the first k candidates in rendezvous order of the branch key whose queue is within limit, best
// first. At least one fits whenever limit is at least the mean.
func (s *Scene) firstFitting(limit float64, k int) (at [maxChoices]int32, n int) {
	var ranks [maxChoices]float64
	for i := range s.Candidates {
		if s.Candidates[i].Queued > limit {
			continue
		}
		r := s.Rendezvous(uint64(s.Branch), i)
		if n == k && r <= ranks[n-1] {
			continue
		}
		j := min(n, k-1)
		for ; j > 0 && ranks[j-1] < r; j-- {
			ranks[j], at[j] = ranks[j-1], at[j-1]
		}
		ranks[j], at[j] = r, int32(i)
		n = min(n+1, k)
	}
	return at, n
}

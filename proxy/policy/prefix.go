package policy

import "math"

// The price of a choice; DESIGN.md, "Cost", has the measurements that chose every number.
const (
	// DefaultWorkWeight is W for requests with a worthwhile match: waiting this many times what a recomputation takes is
	// cheaper than making it, because the copy it makes also evicts somebody else's prefix. The two terms below bound the
	// wait, so that W can be large where waits are short.
	DefaultWorkWeight = 32.0
	// plainWork is W for the others: no copy of theirs is worth a detour, only the tokens themselves count, and the
	// memory they take.
	plainWork = 2.0
	// worthwhile is the share of a prompt that the deepest match must cover to be worth a detour. A system prompt common to
	// all mostly does not: following it would pile everything on one backend.
	worthwhile = 0.4
	// patience scales the quadratic price of waiting, in mean whole prefills.
	patience = 4.0
	// slowShare, slowRest: a request may wait for its cache as long as its first token still comes within 0.75 of the time in
	// which all but 2 % of recent requests could have theirs at best; beyond that mark every second costs slowPrice.
	// The slowest prompts set that mark, not the waiting, so that following caches does not lengthen the tail.
	slowShare, slowRest, slowPrice = 0.75, 0.02, 100.0
	// slowUncached is the uncached share of a prompt from which that price is full; below, it falls in proportion. Leaving a
	// cache that holds nearly all of a long prompt makes more work than any wait it saves, evicts as much again, and so
	// sends others away from theirs: at full price for all, agent traffic near its memory limit tips into a state in
	// which everybody recomputes.
	slowUncached = 0.25
)

// Candidates among several nodes.
const (
	// DefaultEpsilon is e of the bounded-load test among several nodes (facts of simulations: 0.1 to 1 differ by less than 10 %).
	DefaultEpsilon = 0.25
	// freshChoices is K, the rendezvous candidates considered while knowledge is fresh.
	freshChoices = 2
	// maxChoices bounds K.
	maxChoices = 4
	// staleAfter is the age of knowledge in milliseconds at which the bounded-load test has been relaxed to staleEpsilon.
	staleAfter, staleEpsilon = 3_000, 1.0
	// blindAfter is the age beyond which only the first choice and the holders remain: loads that old are noise.
	blindAfter = 10_000
	// maxHolders bounds the holders of equal depth that are added to the rendezvous choices.
	maxHolders = 4
)

// prefix prices every candidate by the first-token time expected there and the work it makes, and takes the cheapest.
type prefix struct {
	work    float64 // W
	epsilon float64
}

func (p *prefix) Choose(s *Scene) (int, Rung) {
	few := s.Nodes > 1 && s.Branch != 0
	if few {
		p.preselect(s)
	} else {
		for i := range s.Candidates {
			s.Candidates[i].Cost = 0
		}
	}
	best := p.price(s)
	i, tied := s.firstAmong(best)
	return i, p.rung(s, i, tied || few)
}

// price sets the cost of every candidate that is not ruled out (+Inf), and returns the least. The cost is in seconds:
//
//	T + (W-1) U / v' + T^2 / (patience m) + slowPrice min(1, U / (slowUncached n)) max(0, T - max(slow, T*))
//
// T is the expected time to first token there, T* the least of them, U the uncached of the prompt's n tokens, v' the
// fleet's prefill rate, m the mean whole prefill, slow the mark from pace. More match makes a backend never less
// attractive: it lowers its own T and U, and where it turns W up, it is the deepest and has the least U.
func (p *prefix) price(s *Scene) float64 {
	n := float64(s.PromptTokens)
	deepest := 0.0
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			deepest = max(deepest, c.Held)
		}
	}
	work, free := p.work, 0.0
	if deepest < worthwhile*n {
		// What all prompts share is taken for held everywhere: computing it once more is an investment, and without it a
		// new backend would look dearer than the others for ever.
		work, free = plainWork, s.CommonTokens
	}
	soonest := math.Inf(1)
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			c.Cost = (c.Queued+c.uncached(n, free))/c.Rate + s.memoryWait(c)
			soonest = min(soonest, c.Cost)
		}
	}
	mean, slow := s.pool.pace.observe(n/s.FleetRate, soonest, s.peek)
	best := math.Inf(1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if t := c.Cost; !math.IsInf(t, 1) {
			late := min(1, c.Uncached/(slowUncached*n)) * max(0, t-max(slow, soonest))
			c.Cost += (work-1)*c.uncached(n, free)/s.FleetRate + t*t/(patience*mean) + slowPrice*late
			best = min(best, c.Cost)
		}
	}
	return best
}

// uncached returns the tokens of a prompt of n that count as work on the candidate, if the first free ones do not.
func (c *Candidate) uncached(n, free float64) float64 { return min(c.Uncached, max(n-free, 1)) }

// memoryWait returns the seconds until the candidate's engine has the KV memory to admit the request: engines admit in
// order and never more than fits, so that one long prompt can hold up all behind it. What is missing is given back at the
// rate at which requests end. 0 where the capacity is not known.
func (s *Scene) memoryWait(c *Candidate) float64 {
	if c.KVTokens == 0 || c.Resident == 0 {
		return 0
	}
	missing := float64(c.Resident) + float64(s.PromptTokens) - float64(c.KVTokens)
	return max(missing, 0) / float64(c.Resident) * s.HoldSeconds
}

// rung tells what made the choice: a cache that others lack, the rendezvous order, or the load.
func (p *prefix) rung(s *Scene, chosen int, ordered bool) Rung {
	even := true
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.Held < s.Candidates[chosen].Held {
			return Cache
		}
		even = even && c.Outstanding == s.Candidates[0].Outstanding
	}
	switch {
	case ordered && s.Branch != 0:
		return Hash
	case even:
		return Rotate
	}
	return Load
}

// preselect rules out all but the first K in rendezvous order of the branch key whose queue is not above the others', and
// the deepest holders. A node that is not alone needs it: views of other nodes' work are late, and an argmin over all
// backends would send every node to the same one.
func (p *prefix) preselect(s *Scene) {
	var sum, deepest float64
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = math.Inf(1)
		sum += c.Queued
		deepest = max(deepest, c.Held)
	}
	n := float64(s.PromptTokens)
	stale := min(float64(s.Staleness)/staleAfter, 1)
	epsilon := p.epsilon + stale*max(staleEpsilon-p.epsilon, 0)
	k := freshChoices
	if s.Staleness > blindAfter {
		k = 1
	}
	at, k := s.firstFitting((1+epsilon)*sum/float64(len(s.Candidates))+n, k)
	for _, i := range at[:k] {
		s.Candidates[i].Cost = 0
	}
	if deepest < worthwhile*n {
		return
	}
	added := 0
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.Held == deepest && added < maxHolders {
			c.Cost = 0
			added++
		}
	}
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

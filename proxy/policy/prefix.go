package policy

import "math"

// The price of a choice; DESIGN.md, "Cost", has the measurements that chose every number.
const (
	// DefaultWorkWeight is W for requests with a worthwhile match, while the fleet lives on its caches: waiting this many times
	// what a recomputation takes is cheaper than making it, because the copy it makes also evicts somebody else's prefix.
	// The mark below bounds the wait, so that W can be large where waits are short.
	DefaultWorkWeight = 100.0
	// plainWork is W for the others: no copy of theirs is worth a detour, but the tokens and the memory they take count.
	plainWork = 4.0
	// worthwhile is the share of a prompt that the deepest match must cover to be worth a detour. A system prompt common to
	// all mostly does not: following it would pile everything on one backend.
	worthwhile = 0.4
	// patience scales the quadratic price of waiting, in mean whole prefills.
	patience = 20.0
	// calmDemand is the demand (see outlook) below which W fades away, quadratically: a fleet that could compute three times
	// what it is asked for gains nothing from a queue.
	calmDemand = 0.3
	// tightDemand is the demand from which the work of a late choice counts more than once, quadratically.
	tightDemand = 2.0
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

// price sets the cost of every candidate that is not ruled out (+Inf), and returns the least. T is the expected time to
// first token, U the uncached tokens, v' the fleet's prefill rate, m the mean whole prefill; all costs are in seconds.
//
// A candidate whose T is below the slow mark is timely: following a cache there does not lengthen the tail, since the slowest
// prompts take as long anyway. Its cost is T + (W-1) U/v' + T^2/(patience m).
//
// A late candidate competes with the best timely one at W' instead, which grows with the demand: 1 for a fleet that could
// nearly do without its caches, more for one in which every recomputation makes others miss. Its cost is that of the
// best timely one plus its disadvantage in T + (W'-1) U/v'.
func (p *prefix) price(s *Scene) float64 {
	n := float64(s.PromptTokens)
	deepest := 0.0
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			deepest = max(deepest, c.Held)
		}
	}
	follow := deepest >= worthwhile*n
	free := 0.0
	if !follow {
		// What all prompts share is taken for held everywhere: computing it once more is an investment, and without it a
		// new backend would look dearer than the others for ever.
		free = s.CommonTokens
	}
	soonest := math.Inf(1)
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			// What is overdue is expected to take as long again.
			c.Cost = (c.Queued+c.uncached(n, free))/c.Rate + s.memoryWait(c) + c.Overdue
			soonest = min(soonest, c.Cost)
		}
	}
	o := s.pool.pace.observe(n/s.FleetRate, soonest, s.Now, s.peek)
	mark := max(o.slow, soonest)
	timely, late := p.weights(follow, o.demand*float64(s.Nodes)/float64(max(len(s.pool.entries), 1)))

	best, reference := math.Inf(1), 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if t := c.Cost; t <= mark {
			u := c.uncached(n, free) / s.FleetRate
			if cost := t + (timely-1)*u + t*t/(patience*o.mean); cost < best {
				best, reference = cost, t+(late-1)*u
			}
		}
	}
	least := best
	for i := range s.Candidates {
		c := &s.Candidates[i]
		t, u := c.Cost, c.uncached(n, free)/s.FleetRate
		switch {
		case math.IsInf(t, 1):
			continue
		case t <= mark:
			c.Cost = t + (timely-1)*u + t*t/(patience*o.mean)
		default:
			c.Cost = best + t + (late-1)*u - reference
		}
		least = min(least, c.Cost)
	}
	return least
}

// weights returns W for timely and for late candidates at a demand.
func (p *prefix) weights(follow bool, demand float64) (timely, late float64) {
	if !follow {
		return plainWork, plainWork
	}
	busy := min(demand/calmDemand, 1)
	timely = 1 + max(p.work-1, 0)*busy*busy
	tight := max(demand/tightDemand, 1)
	return timely, min(tight*tight, timely)
}

// uncached returns the tokens of a prompt of n that count as work on the candidate, if the first free ones do not.
func (c *Candidate) uncached(n, free float64) float64 { return min(c.Uncached, max(n-free, 1)) }

// memoryWait returns the seconds until the candidate's engine has the KV memory to admit the request: engines admit in
// order and never more than fits, so that one long prompt can hold up all behind it. A full engine gives its whole memory
// back once in the time that requests keep theirs. 0 where the capacity is not known.
func (s *Scene) memoryWait(c *Candidate) float64 {
	if c.KVTokens == 0 {
		return 0
	}
	missing := float64(c.Resident) + float64(s.PromptTokens) - float64(c.KVTokens)
	return max(missing, 0) / float64(c.KVTokens) * s.HoldSeconds
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

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
	worthwhile = 0.2
	// patience scales the quadratic price of waiting, in mean whole prefills.
	patience = 20.0
	// tightDemand is the demand from which the work of a late choice counts more than once, quadratically.
	tightDemand = 2.0
	// easyWork is what the work of a late choice counts in a fleet without demand; it falls to 1 at a demand of 1, from where on the
	// fleet cannot do without its caches, and so without queues.
	easyWork = 8.0
	// crowding is the price of an active request on the backend, in mean whole prefills: it slows the batch, holds memory, and
	// spreads new work while nobody waits.
	crowding = 0.03
)

// prefix prices every candidate by the first-token time expected there and the work it makes, and takes the cheapest.
type prefix struct {
	work    float64 // W
	epsilon float64
}

func (p *prefix) Choose(s *Scene) (int, Rung) {
	n := float64(s.PromptTokens)
	if !s.sampled {
		s.foresee()
	}
	o, out := &s.outlook, &s.outsight
	out.weigh(s)
	deepest := 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = 0
		deepest = max(deepest, c.Held)
	}
	// What is common property is held everywhere or soon will be: only what goes beyond makes a match worth a detour.
	follow := deepest-s.CommonTokens >= worthwhile*n
	key, leads := s.orderKey()
	gathered := s.Replicas > 0 && p.gather(s, out, deepest)
	if !out.all {
		if key == 0 {
			key = s.Rand()
		}
		p.preselect(s, out, key)
	}
	best, soonest := p.price(s, o, out, follow)
	if !s.peek {
		s.pool.pace.count(n/s.FleetRate, soonest, s.Now)
	}
	i, tied := s.firstAmong(best, key)
	if gathered && s.Candidates[i].Held <= s.CommonTokens {
		return i, Hot
	}
	return i, p.rung(s, i, leads && (tied || !out.all))
}

// foresee asks the pace what the past says of this request, and what that makes of the other nodes.
func (s *Scene) foresee() {
	s.outlook = s.pool.pace.outlook(float64(s.PromptTokens)/s.FleetRate, s.Nodes, s.Now)
	s.outsight = s.look(&s.outlook)
}

// gather rules out the candidates that are not of the hot prefix's replica set, but for the deepest holders of what only this prompt's
// conversation has. It reports whether there are any to rule out.
func (p *prefix) gather(s *Scene, out *outsight, deepest float64) bool {
	sum, all := s.queues()
	within := s.gather((1+p.epsilon)*sum/float64(all) + float64(s.PromptTokens))
	if within == all {
		return false
	}
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.outside && (c.Held < deepest || deepest <= s.CommonTokens) {
			c.Cost = math.Inf(1)
		}
	}
	out.narrow(within, all)
	return true
}

// queues returns the sum of the queues of all there are to choose from, and how many they are.
func (s *Scene) queues() (sum float64, n int) {
	if s.sampled {
		return s.overview.mean * float64(s.overview.eligible), s.overview.eligible
	}
	for i := range s.Candidates {
		sum += s.Candidates[i].queue
	}
	return sum, len(s.Candidates)
}

// price sets the cost of every candidate that is not ruled out (+Inf), and returns the least, and the soonest first token in
// seconds. T is the expected time to first token, U the uncached tokens, v' the fleet's prefill rate, m the mean whole
// prefill; all costs are in seconds, and to each comes the price of the active requests.
//
// A candidate whose T is below the slow mark is timely: following a cache there does not lengthen the tail, since the slowest
// prompts take as long anyway. Its cost is T + (W-1) U/v' + T^2/(patience m).
//
// A late candidate competes with the best timely one at W' instead: 1 for a fleet that could just do without its caches, more
// for a calm one, where queues are short, and for one in which every recomputation makes others miss. Its cost is that of the
// best timely one plus its disadvantage in T + (W'-1) U/v'.
func (p *prefix) price(s *Scene, o *outlook, out *outsight, follow bool) (least, soonest float64) {
	n := float64(s.PromptTokens)
	free := 0.0
	if !follow {
		// What all prompts share is taken for held everywhere: computing it once more is an investment, and without it a
		// new backend would look dearer than the others for ever.
		free = s.CommonTokens
	}
	soonest = math.Inf(1)
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			// What is overdue is expected to take as long again.
			c.Cost = (c.queue+c.uncached(n, free))/out.rateSeen(s, c) + s.memoryWait(c) + c.Overdue
			soonest = min(soonest, c.Cost)
		}
	}
	mark := max(o.slow, soonest)
	timely, late := p.weights(follow, out.seen, o.fleetDemand/float64(max(len(s.pool.entries), 1)))

	best, reference := math.Inf(1), 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if t := c.Cost; t <= mark {
			u, a := c.uncached(n, free)/s.FleetRate, crowding*o.mean*c.crowd/c.Weight
			if cost := t + (timely-1)*u + t*t/(patience*o.mean) + a; cost < best {
				best, reference = cost, t+(late-1)*u+a
			}
		}
	}
	least = best
	for i := range s.Candidates {
		c := &s.Candidates[i]
		t := c.Cost
		if math.IsInf(t, 1) {
			continue
		}
		u, a := c.uncached(n, free)/s.FleetRate, crowding*o.mean*c.crowd/c.Weight
		if t <= mark {
			c.Cost = t + (timely-1)*u + t*t/(patience*o.mean) + a
		} else {
			c.Cost = best + t + (late-1)*u + a - reference
		}
		least = min(least, c.Cost)
	}
	return least, soonest
}

// weights returns W for timely and for late candidates at a demand, where so much of the others' work is seen. A first
// token that is timely only as far as one can see is no reason for a long wait.
func (p *prefix) weights(follow bool, seen, demand float64) (timely, late float64) {
	timely = min(plainWork, p.work)
	if follow {
		timely += (p.work - timely) * seen
	}
	tight := demand / tightDemand
	return timely, min(max(tight*tight, easyWork-(easyWork-1)*demand, 1), timely)
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
	case ordered:
		return Hash
	case even:
		return Rotate
	}
	return Load
}

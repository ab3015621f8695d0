package policy

import (
	"math"

	"grapevine.example/proxy/demand"
)

// Parameters of the price; see DESIGN.md, "Cost".
const (
	// eviction prices a token's computation beyond its time: it evicts about as much that another
	// request would have found.
	eviction = 2.0
	// crowding is the price of an active request, in mean whole prefills.
	crowding = 0.1
	// leastIdle bounds the price of work in a pool that never rests.
	leastIdle = 0.3
)

// prefix weighs the engines that hold more of the prompt than is common, and one place for a prompt
// that none holds, and takes the cheaper. Where several hold as much as the cheapest, they take turns.
type prefix struct{}

func (p prefix) Choose(s *Scene) (int, Rung) {
	s.hear()
	s.foresee()
	s.await()
	s.equip()
	gathered := s.hot.Replicas > 0 && s.gather(s.meanQueue()+float64(s.PromptTokens)) < s.size
	s.shut()
	s.price()
	key := s.orderKey()
	place, tied := s.pour(key)
	chosen, inTurn := place, key == 0
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.Held > s.CommonTokens && c.Cost < s.Candidates[chosen].Cost {
			chosen = i
		}
	}
	if chosen != place {
		chosen, inTurn = s.spread(chosen)
	}
	if !s.peek && !s.Candidates[chosen].full {
		if inTurn {
			s.takeTurn(chosen)
		}
		s.pool.traffic.Count(s.prefill(chosen, place), s.later, s.Now)
	}
	if gathered && chosen == place && s.Candidates[chosen].Held <= s.CommonTokens {
		return chosen, Hot
	}
	return chosen, s.rung(chosen, key != 0 && tied && chosen == place)
}

// prefill returns what the choice costs the pool, and gains over the place without a cache.
func (s *Scene) prefill(chosen, place int) demand.Prefill {
	c, p := &s.Candidates[chosen], &s.Candidates[place]
	return demand.Prefill{
		Whole: float64(s.PromptTokens) / s.FleetRate, Uncached: c.Uncached / s.FleetRate,
		Saved: max(p.Uncached-c.Uncached, 0) / s.FleetRate, Waited: max(c.wait-p.wait, 0),
	}
}

// uncommon returns the tokens to compute without a cache of the prompt's own.
func (s *Scene) uncommon() float64 { return max(float64(s.PromptTokens)-s.CommonTokens, 1) }

func (s *Scene) meanQueue() float64 {
	sum := 0.0
	for i := range s.Candidates {
		sum += s.Candidates[i].Queued
	}
	return sum / float64(len(s.Candidates))
}

// price sets the cost of every candidate, in seconds: until its first token, and for the requests
// that its work delays. A second of work delays those that arrive while the engine is busy with it
// and with what waits there, which is counted for the place where new work lands, so that one long
// queue does not make all caches dear.
func (s *Scene) price() {
	o, engines := &s.traffic, float64(max(len(s.pool.entries), 1))
	least := math.Inf(1)
	for i := range s.Candidates {
		least = min(least, s.Candidates[i].wait)
	}
	unseen := s.unseen
	if s.blind() {
		unseen = 0 // a blind node has no reports to add them to, and engines have computed most of them
	}
	backlog := least + (unseen*o.Uncached+s.behind())/engines
	s.later = eviction + (o.Own+o.Others)/engines*backlog/max(1-o.Prefill/engines, leastIdle)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.compute, c.later = c.lacks/c.Rate, s.later*c.lacks/s.FleetRate
		c.Cost = c.start + c.compute + c.later
	}
}

func (s *Scene) rung(chosen int, ordered bool) Rung {
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

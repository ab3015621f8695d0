package policy

import "math"

// Parameters of the cost; see DESIGN.md, "Cost".
const (
	// DefaultWorkWeight is W for requests with a worthwhile match: recomputing it also evicts
	// another prefix.
	DefaultWorkWeight = 100.0
	plainWork         = 4.0 // W for other requests
	// worthwhile is the least share of a prompt that a match must cover; common system prompts stay
	// below.
	worthwhile  = 0.2
	patience    = 20.0 // scales the quadratic price of waiting, in mean whole prefills
	tightDemand = 2.0  // above this, late work weighs more, quadratically
	easyWork    = 8.0  // weight of late work without demand; 1 at a demand of 1
	crowding    = 0.03 // the price of an active request, in mean whole prefills
)

type prefix struct {
	work    float64
	epsilon float64
}

func (p *prefix) Choose(s *Scene) (int, Rung) {
	n := float64(s.PromptTokens)
	if s.stats == nil {
		s.foresee()
	}
	o, out := &s.traffic, &s.unseen
	out.weigh(s)
	deepest := 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = 0
		deepest = max(deepest, c.Held)
	}
	// All backends soon hold common prefixes.
	follow := deepest-s.CommonTokens >= worthwhile*n
	key, leads := s.orderKey()
	gathered := s.hot.Replicas > 0 && p.gather(s, deepest)
	if !out.all {
		if key == 0 {
			key = s.Rand()
		}
		p.preselect(s, out, key)
	}
	best, soonest := p.price(s, o, out, follow)
	if !s.peek {
		s.pool.load.count(n/s.FleetRate, soonest, s.Now)
	}
	i, tied := s.firstAmong(best, key)
	if gathered && s.Candidates[i].Held <= s.CommonTokens {
		return i, Hot
	}
	return i, p.rung(s, i, leads && (tied || !out.all))
}

// foresee sets what the pool's requests and the other nodes are expected to do.
func (s *Scene) foresee() {
	s.traffic = s.pool.load.now(float64(s.PromptTokens)/s.FleetRate, s.Nodes, s.Now)
	s.unseen = s.look(&s.traffic)
}

// gather rules out candidates outside the hot prefix's set, except the deepest holders of an
// uncommon prefix, and reports whether any were.
func (p *prefix) gather(s *Scene, deepest float64) bool {
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
	return true
}

func (s *Scene) queues() (sum float64, n int) {
	if s.stats != nil {
		return s.stats.mean * float64(s.stats.eligible), s.stats.eligible
	}
	for i := range s.Candidates {
		sum += s.Candidates[i].queue
	}
	return sum, len(s.Candidates)
}

// price sets the cost of candidates not ruled out, in seconds, and returns the least and the
// soonest first token; DESIGN.md, "Cost". Those below the slow mark are timely: waiting for a cache
// does not lengthen the tail.
func (p *prefix) price(s *Scene, o *traffic, out *unseenWork, follow bool) (least, soonest float64) {
	n := float64(s.PromptTokens)
	free := 0.0
	if !follow {
		// Common prefixes count as held, or a new backend would always look expensive.
		free = s.CommonTokens
	}
	soonest = math.Inf(1)
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !math.IsInf(c.Cost, 1) {
			// Overdue work takes as long again.
			c.Cost = (c.queue+c.uncached(n, free))/out.rateSeen(s, c) + s.memoryWait(c) + c.Overdue
			soonest = min(soonest, c.Cost)
		}
	}
	mark := max(o.slow, soonest)
	timely, late := p.weights(follow, o.fleetDemand/float64(max(len(s.pool.entries), 1)))

	best, reference := math.Inf(1), 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if t := c.Cost; t <= mark {
			u, a := c.uncached(n, free)/s.FleetRate, crowding*o.mean*c.crowd/c.weight
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
		u, a := c.uncached(n, free)/s.FleetRate, crowding*o.mean*c.crowd/c.weight
		if t <= mark {
			c.Cost = t + (timely-1)*u + t*t/(patience*o.mean) + a
		} else {
			c.Cost = best + t + (late-1)*u + a - reference
		}
		least = min(least, c.Cost)
	}
	return least, soonest
}

func (p *prefix) weights(follow bool, demand float64) (timely, late float64) {
	if timely = p.work; !follow {
		timely = min(plainWork, p.work)
	}
	tight := demand / tightDemand
	return timely, min(max(tight*tight, easyWork-(easyWork-1)*demand, 1), timely)
}

func (c *Candidate) uncached(n, free float64) float64 { return min(c.Uncached, max(n-free, 1)) }

// memoryWait estimates the seconds until the engine admits the request: in order, only what fits,
// and a full one turns over its memory once per hold.
func (s *Scene) memoryWait(c *Candidate) float64 {
	if c.kv == 0 {
		return 0
	}
	missing := c.slot.resident.Load() + int64(s.PromptTokens-c.kv)
	return float64(max(missing, 0)) / float64(c.kv) * s.hold
}

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

package policy

import (
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/proxy/books"
)

// maxStaleness in ms is the greatest age of reports that counts, and the age of missing ones.
const maxStaleness = 10_000

type fleetState struct {
	nodes     int
	staleness int64 // ms
}

// SetFleet sets the number of routers and their reports' staleness. Reports count as missing until
// the first SetPeerLoad.
func (r *Router) SetFleet(nodes int, staleness time.Duration) {
	r.fleet.Store(&fleetState{nodes: max(nodes, 1), staleness: max(staleness, 0).Milliseconds()})
}

// foresee sets what the pool's requests ask of it, and how many of them other nodes have placed
// since their reports.
func (s *Scene) foresee() {
	s.traffic = s.pool.traffic.Rates(float64(s.PromptTokens)/s.FleetRate, s.Nodes, s.Now)
	s.unseen = s.traffic.Others * float64(s.Staleness) / 1000
}

// blind means that a fleet's node has no recent reports of the others.
func (s *Scene) blind() bool { return s.Nodes > 1 && s.Staleness >= maxStaleness }

// await sets the seconds until each candidate would begin with the request, and until it would have computed it with no cache of the
// prompt's own, as far as reports show.
func (s *Scene) await() {
	uncommon, most, usual := s.uncommon(), max(float64(s.PromptTokens)-s.everywhere, 1), s.usualActive()
	s.ways = false
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.wait = c.Queued/c.Rate + c.Overdue
		if c.way = s.way(c); c.way > 0 {
			s.ways = true
		}
		c.start = c.wait + s.aheadAtRouters(c) + crowding*s.traffic.Mean*float64(c.Active)/c.weight + c.way
		c.lacks = min(c.Uncached, most)
		c.place = c.start + max(s.excessWait(c, usual*c.weight)-c.wait, 0) + max(c.lacks, uncommon)/c.Rate
	}
}

// usualActive returns the mean number of active requests per weight, and +Inf where an excess shows nothing that the queues do not: on one
// node, for a blind one, which sees no others' requests, where the queues in use are the engines' own, and in a pool with decode engines,
// which have many by their nature.
func (s *Scene) usualActive() float64 {
	if s.Nodes == 1 || s.blind() || s.FromEngines || s.pool.decodes {
		return math.Inf(1)
	}
	active, weight := 0.0, 0.0
	for i := range s.Candidates {
		active += float64(max(s.Candidates[i].Active, 0))
		weight += s.Candidates[i].weight
	}
	return active / weight
}

// excessWait returns the seconds to compute the requests that an engine has beyond its share by weight, usual, and beyond chance, the
// square root of their number; each counts as a mean uncached prefill. An engine that slows down accumulates active requests before other
// routers learn how long its prefills take. It may also have longer answers, so only new work avoids it: what its cache holds stays.
func (s *Scene) excessWait(c *Candidate, usual float64) float64 {
	active := float64(max(c.Active, 0))
	if active <= usual {
		return 0
	}
	return max(active-usual-math.Sqrt(active), 0) * s.traffic.Uncached * s.FleetRate / c.Rate
}

// level returns up to which place so many requests fill the candidates, in seconds.
func (s *Scene) level(requests float64) float64 {
	poured := requests * s.traffic.Uncached * float64(len(s.Candidates)) / float64(s.size)
	level, least := math.Inf(1), math.Inf(1)
	for {
		sum, n := poured, 0.0
		for i := range s.Candidates {
			if c := &s.Candidates[i]; c.place <= level && !c.outside {
				least = min(least, c.place)
				sum += c.place
				n++
			}
		}
		if n == 0 || sum/n >= level {
			return max(level, least) // a mean of equals may be rounded down
		}
		level = sum / n
	}
}

// damping is how many times the unseen requests are poured. All nodes learn late, and together, that
// an engine was filled or has drained, so that they swing between engines. Deeper water evens the
// engines' shares, and the swing dies out.
const damping = 3

// pour returns a candidate for a prompt that no engine's cache holds. All nodes see the same reports,
// and would all choose the candidate with the least place, which would become the busiest. So this
// request and those that other nodes have sent since their reports fill the candidates like water, and
// each gets requests in proportion to its water, in turn. Without reports the order key decides, so
// that all nodes send a conversation to the same engine.
//
// An engine in another zone takes part only if the other nodes' requests alone reach it, since a
// nearer one begins sooner with this request.
func (s *Scene) pour(key uint64) (at int, tied bool) {
	return s.fill(damping*s.unseen+1, s.unseen, key)
}

// fill pours so many requests, and returns the candidate that comes next by its turn or by the key, and whether others have water.
func (s *Scene) fill(requests, others float64, key uint64) (at int, tied bool) {
	level, reached := s.level(requests), math.Inf(1)
	if s.ways {
		reached = s.level(others)
	}
	among, first := 0, math.Inf(1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.water = 0; c.outside || c.place > level || c.way > 0 && c.place > reached {
			continue
		}
		c.water = max(level-c.place, leastWater) * c.weight
		turn := 0.0
		if key != 0 {
			turn = -rendezvous(key, c.key, c.water, true)
		} else {
			turn = c.engine.UntilTurn(c.water)
		}
		if among++; turn < first {
			at, first = i, turn
		}
	}
	return at, among > 1
}

// spread returns one of the candidates that hold as much of the prompt as the cheapest one, and are open if it is, and whether these
// take turns. All nodes would choose the cheapest until they hear of each other's choices, so the other nodes' requests fill these
// candidates, too: as many as these are of all.
func (s *Scene) spread(cheapest int) (at int, inTurn bool) {
	if s.unseen == 0 || s.blind() || s.Candidates[cheapest].full {
		return cheapest, false
	}
	held, among := s.Candidates[cheapest].Held, 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.place, c.outside = c.Cost, c.Held < held || c.full; !c.outside {
			among++
		}
	}
	if among == 1 {
		return cheapest, false
	}
	others := s.unseen * among / float64(len(s.Candidates))
	at, _ = s.fill(others, others, 0)
	return at, true
}

// leastWater, in seconds, leaves a share to an engine whose place is the level.
const leastWater = 1e-9

// takeTurn fills the buckets (see books.FullBucket) until that of the poured candidate is full, and empties this one.
func (s *Scene) takeTurn(at int) {
	until := s.Candidates[at].engine.UntilTurn(s.Candidates[at].water)
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.water > 0 {
			c.engine.FillBucket(int64(until * c.water))
		}
	}
	s.Candidates[at].engine.FillBucket(-books.FullBucket)
}

// orderKey returns the key of the order that places a conversation without reports, and 0 with them:
// the session, else the branch.
func (s *Scene) orderKey() uint64 {
	switch {
	case !s.blind():
		return 0
	case len(s.Request.Session) > 0:
		return xxh3.Hash(s.Request.Session)
	}
	return uint64(s.Branch)
}

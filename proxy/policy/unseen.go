package policy

import (
	"math"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	maxStaleness = 10_000 // ms; the greatest age that counts, and the age of missing reports
	// DefaultEpsilon is the slack of the bounded-load test.
	DefaultEpsilon = 0.25
	fewChoices     = 2 // two let a node avoid the busier one
	maxChoices     = 64
	maxHolders     = 4
)

type fleetState struct {
	nodes     int
	staleness int64 // ms
}

// SetFleet sets the number of routers and their reports' staleness. Reports count as missing until
// the first SetPeerLoad.
func (r *Router) SetFleet(nodes int, staleness time.Duration) {
	r.fleet.Store(&fleetState{nodes: max(nodes, 1), staleness: max(staleness, 0).Milliseconds()})
}

// unseenWork estimates what other nodes placed since their reports.
type unseenWork struct {
	count float64 // expected placements of other nodes since their reports
	sure  float64 // probability of none
	flood float64 // expected prefill tokens of the unseen placements
	crowd float64
	queue float64 // water level of the queues, prefill tokens
	k     int
	all   bool
}

// look estimates what other nodes placed since their reports: m placements on B backends. If all
// took the backend that looks best, m requests would follow within one staleness; each chooses
// among K = B/(1+m) instead, in an order that differs between prompts.
func (s *Scene) look(o *traffic) unseenWork {
	b := float64(s.size())
	if s.Nodes <= 1 {
		return unseenWork{sure: 1, all: true}
	}
	m := o.others * float64(s.Staleness) / 1000
	out := unseenWork{count: m, sure: math.Exp(-m), flood: m * o.mean * s.FleetRate}
	k := max(b/(1+m), fewChoices)
	out.k, out.all = int(min(k+0.5, maxChoices)), k+0.5 >= b
	return out
}

// weigh sets expected queues and crowds. Unseen work fills the backends like water up to a level,
// and a report, less the progress since, counts only above it. Own work, which peers cannot see,
// comes on top.
func (o *unseenWork) weigh(s *Scene) {
	if s.Nodes <= 1 {
		for i := range s.Candidates {
			c := &s.Candidates[i]
			c.queue, c.crowd = c.Queued, float64(c.Active)
		}
		return
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.queue = float64(c.Active - c.OwnActive)
	}
	o.crowd = s.level(o.count, func(st *poolStats) float64 { return st.crowd })
	late := float64(s.Staleness) / 1000
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.crowd = max(c.queue, o.crowd) + float64(c.OwnActive)
		c.queue = max(c.Queued-c.OwnQueued-c.Rate*late, 0)
	}
	o.queue = s.level(o.flood, func(st *poolStats) float64 { return st.queue })
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.queue = max(c.queue, o.queue) + c.OwnQueued
	}
}

// level returns the level to which flood fills the queues from the lowest up, or the pool's in a
// selection.
func (s *Scene) level(flood float64, ofPool func(*poolStats) float64) float64 {
	if s.stats != nil {
		return ofPool(s.stats)
	}
	level := math.Inf(1)
	for {
		sum, n := flood, 0.0
		for i := range s.Candidates {
			if q := s.Candidates[i].queue; q <= level {
				sum += q
				n++
			}
		}
		if n == 0 || sum/n >= level {
			return level
		}
		level = sum / n
	}
}

// rateSeen: small differences count only by the chance that no peer has acted on them.
func (o *unseenWork) rateSeen(s *Scene, c *Candidate) float64 {
	return s.FleetRate + (c.Rate-s.FleetRate)*o.sure
}

// orderKey returns the key that breaks ties and selects candidates, 0 if the whole prompt is
// common, and whether it leads the conversation's next request to the same backends. Before enough
// requests the branch may be common to all: the session or the whole prompt's hash replaces it.
func (s *Scene) orderKey() (key uint64, leads bool) {
	session := len(s.Request.Session) > 0 && s.Nodes > 1
	switch {
	case session && (s.Staleness >= maxStaleness || s.Branch != 0 && !s.judged):
		return xxh3.Hash(s.Request.Session), true
	case s.Branch == 0, s.judged && s.nameless:
		return 0, false
	case s.judged:
		return uint64(s.Branch), true
	}
	return uint64(s.Request.Hashes[len(s.Request.Hashes)-1]), true
}

// preselect rules out all but the first K candidates within the bounded load, and the deepest
// holders of an uncommon prefix.
func (p *prefix) preselect(s *Scene, o *unseenWork, key uint64) {
	var sum, deepest float64
	within := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = math.Inf(1)
		if !c.outside {
			sum += c.queue
			within++
		}
		deepest = max(deepest, c.Held)
	}
	if s.stats != nil && within == len(s.Candidates) {
		sum, within = s.queues()
	}
	limit := (1 + p.epsilon) * sum / float64(within)
	at, k := s.choices(key, limit, o.k)
	for _, i := range at[:k] {
		s.Candidates[i].Cost = 0
	}
	if deepest <= s.CommonTokens {
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

// choices returns 1 to k candidates, best first, within limit unless all exceed it.
func (s *Scene) choices(key uint64, limit float64, k int) (at [maxChoices]int32, n int) {
	var ranks [maxChoices]float64
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.queue > limit || c.outside {
			continue
		}
		r := s.place(key, i)
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
	if n == 0 && !math.IsInf(limit, 1) {
		return s.choices(key, math.Inf(1), k)
	}
	return at, n
}

package policy

import (
	"math"

	"grapevine.example/proxy/books"
)

// reportedWait returns the least seconds until an engine will have computed the requests that wait there by its report and what this
// node placed since: 0 without such a report. vLLM counts these requests, not their tokens, so each stands for the traffic's mean. Sizes
// vary about as much as their mean is, so that n of them may be short of n means by twice the square root of n. It shows an engine that
// has become slow before the answers do, and only adds to the wait that the nodes count: the report lags.
func (s *Scene) reportedWait(c *Candidate) float64 {
	t := c.engine.Report()
	if t == nil || t.Waiting <= 0 || t.Queued >= 0 || int64(s.Now-t.At) >= books.ReportsLast {
		return 0
	}
	n := float64(t.Waiting)
	least := max(n-2*math.Sqrt(n), 0) * s.traffic.Uncached * s.FleetRate
	return max((least+float64(c.engine.Placed()-t.Placed))/c.Rate-t.Since(s.Now), 0)
}

// hear replaces what nodes report of each other's work by what the engines report, if that is newer for
// all candidates. To an engine's queue it adds what this node placed since, and takes out what the
// engine has computed since.
func (s *Scene) hear() {
	if s.Nodes == 1 || s.blind() { // blind, the order of the key leads conversations to their caches
		return
	}
	age := int64(0)
	for i := range s.Candidates {
		t := s.Candidates[i].engine.Report()
		if t == nil || t.Queued < 0 {
			return
		}
		if age = max(age, int64(s.Now-t.At)); age >= s.Staleness {
			return
		}
	}
	s.Staleness, s.FromEngines = age, true
	for i := range s.Candidates {
		c := &s.Candidates[i]
		t := c.engine.Report()
		left := float64(t.Queued+c.engine.Placed()-t.Placed) - c.Rate*t.Since(s.Now)
		c.Queued = max(c.OwnQueued, left)
		c.Active = max(c.OwnActive, int64(t.Running+t.Waiting)+c.OwnActive-t.Active)
	}
}

package policy

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

package policy

// stageStored makes the backend that stores the conversation the only candidate. It may be draining,
// down or avoided: no other backend has the response, so its own answer is the best there is. It
// returns false if the view lacks the backend.
func (s *Scene) stageStored(t *table) bool {
	at, known := t.view.byKey[s.Request.Holder]
	if !known {
		return false
	}
	s.alone = t.entry(at)
	s.Candidates = append(s.Candidates, Candidate{})[:0] // an empty pool has room for none
	s.stand(&s.alone, false)
	s.Candidates[0].Cost, s.size = 0, 1
	return true
}

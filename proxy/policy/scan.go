package policy

import (
	"math"

	"github.com/zeebo/xxh3"
)

// scanner is a strategy that needs one number per backend: in a large pool only its choice, equal
// to Choose's, becomes a candidate.
type scanner interface {
	// scan returns the chosen entry, or -1 if Choose must see the candidates.
	scan(s *Scene) (int, Rung)
}

// scan reports whether the strategy made a choice. Slow start needs all candidates, and an
// unhealthy choice needs Choose.
func (r *Router) scan(s *Scene, strategy *named) bool {
	by, ok := strategy.Strategy.(scanner)
	if !ok || int64(s.Now) < r.coldUntil.Load() {
		return false
	}
	at, rung := by.scan(s)
	if at < 0 || s.pool.entries[at].slot.health(s.Now) != healthy {
		return false
	}
	s.Candidates = s.Candidates[:0]
	s.add(at, &s.pool.entries[at], false)
	c := &s.Candidates[0]
	c.Cost = float64(c.Active) / c.Weight
	s.sampled, s.scanned, s.rung = true, true, rung
	s.overview = overview{}
	for i := range s.pool.entries {
		if s.may(i) {
			s.overview.eligible++
		}
	}
	return true
}

func (s *Scene) may(at int) bool {
	e := &s.pool.entries[at]
	return e.slot.health(s.Now) != avoided && !excluded(s.Request.Exclude, e.id)
}

// all reports whether turns and draws can index the pool.
func (s *Scene) all() bool {
	if len(s.Request.Exclude) > 0 {
		return false
	}
	for i := range s.pool.entries {
		if s.pool.entries[i].slot.health(s.Now) != healthy {
			return false
		}
	}
	return true
}

// firstOf returns the first eligible entry in the key's order, or -1.
func (s *Scene) firstOf(key uint64) int {
	best, rank := -1, math.Inf(-1)
	for i := range s.pool.entries {
		e := &s.pool.entries[i]
		if r := rendezvous(key, e.key, e.weight, s.pool.weighted); r > rank && s.may(i) {
			best, rank = i, r
		}
	}
	return best
}

func (s *Scene) activeOf(at int) int64 {
	slot := s.pool.entries[at].slot
	return slot.active.Load() + slot.peerActive.Load()
}

func (session) scan(s *Scene) (int, Rung) {
	if len(s.Request.Session) == 0 {
		return roundRobin{}.scan(s)
	}
	return s.firstOf(xxh3.Hash(s.Request.Session)), Hash
}

func (roundRobin) scan(s *Scene) (int, Rung) {
	if s.pool.weighted || !s.all() {
		return -1, Rotate
	}
	return int(s.Turn() % uint64(len(s.pool.entries))), Rotate
}

func (random) scan(s *Scene) (int, Rung) {
	if s.pool.weighted || !s.all() {
		return -1, Rotate
	}
	return int(s.Rand() % uint64(len(s.pool.entries))), Rotate
}

func (leastRequest) scan(s *Scene) (int, Rung) {
	least, most, n, trials := math.Inf(1), math.Inf(-1), 0, false
	if cap(s.ranks) < len(s.pool.entries) {
		s.ranks = make([]float64, 0, len(s.pool.entries))
	}
	s.ranks = s.ranks[:len(s.pool.entries)]
	for i := range s.ranks {
		if s.ranks[i] = math.Inf(1); !s.may(i) {
			continue
		}
		x := float64(s.activeOf(i)) / s.pool.entries[i].weight
		switch {
		case x < least:
			least, n, trials = x, 1, false
		case x == least:
			n++
		}
		trials = trials || x == least && s.pool.entries[i].slot.health(s.Now) != healthy
		s.ranks[i], most = x, max(most, x)
	}
	if n == 0 || least == most {
		return roundRobin{}.scan(s)
	}
	if trials {
		return -1, Load // Choose has to claim the trial; it also takes the turn
	}
	nth := int(s.Turn() % uint64(n))
	for i, x := range s.ranks {
		if x != least {
			continue
		}
		if nth == 0 {
			return i, Load
		}
		nth--
	}
	return -1, Load
}

func (p *prefixHash) scan(s *Scene) (int, Rung) {
	key, ok := p.key(s)
	if !ok {
		return leastRequest{}.scan(s)
	}
	var active int64
	var weights float64
	for i := range s.pool.entries {
		if s.may(i) {
			active += s.activeOf(i)
			weights += s.pool.entries[i].weight
		}
	}
	best, rank := -1, math.Inf(-1)
	for i := range s.pool.entries {
		e := &s.pool.entries[i]
		r := rendezvous(key, e.key, e.weight, s.pool.weighted)
		if r <= rank || !s.may(i) {
			continue
		}
		if limit := math.Ceil(p.bound * float64(active+1) * e.weight / weights); float64(s.activeOf(i)+1) <= limit {
			best, rank = i, r
		}
	}
	return best, Hash
}

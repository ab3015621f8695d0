package policy

import "math"

// leastRequest takes the fewest active requests per weight, in turn among equals.
type leastRequest struct{}

func (leastRequest) Choose(s *Scene) (int, Rung) {
	least := math.Inf(1)
	equal := true
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = float64(c.Active) / c.weight
		if i > 0 && c.Cost != s.Candidates[0].Cost {
			equal = false
		}
		least = min(least, c.Cost)
	}
	if equal {
		return rotate(s), Rotate
	}
	i, _ := s.firstAmong(least, 0)
	return i, Load
}

type roundRobin struct{}

func (roundRobin) Choose(s *Scene) (int, Rung) { return rotate(s), Rotate }

// rotate takes turns. Unequal weights follow the golden ratio's low-discrepancy sequence.
func rotate(s *Scene) int {
	turn := s.Turn()
	if !s.pool.weighted {
		return int(turn % uint64(len(s.Candidates)))
	}
	_, frac := math.Modf(float64(turn%(1<<40)) * 0.6180339887498949)
	return byWeight(s, frac)
}

type random struct{}

func (random) Choose(s *Scene) (int, Rung) {
	if !s.pool.weighted {
		return int(s.Rand() % uint64(len(s.Candidates))), Rotate
	}
	return byWeight(s, unit(s.Rand())), Rotate
}

func byWeight(s *Scene, fraction float64) int {
	var sum float64
	for i := range s.Candidates {
		sum += s.Candidates[i].weight
	}
	at := fraction * sum
	for i := range s.Candidates {
		if at -= s.Candidates[i].weight; at < 0 {
			return i
		}
	}
	return len(s.Candidates) - 1
}

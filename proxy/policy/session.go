package policy

import (
	"math"

	"github.com/zeebo/xxh3"
)

// session pins a session key by rendezvous hashing. Requests without one take turns.
type session struct{}

func (session) Choose(s *Scene) (int, Rung) {
	if len(s.Request.Session) == 0 {
		return rotate(s), Rotate
	}
	return pinned(s, xxh3.Hash(s.Request.Session)), Hash
}

func pinned(s *Scene, key uint64) int {
	best, rank := 0, math.Inf(-1)
	for i := range s.Candidates {
		if r := s.Rendezvous(key, i); r > rank {
			best, rank = i, r
		}
	}
	return best
}

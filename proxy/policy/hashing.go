package policy

import (
	"math"

	"github.com/zeebo/xxh3"
)

// mix is the finaliser of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// unit returns a number in [0, 1).
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// rendezvous returns the rank of a backend for a key; the highest wins. With unequal weights
// -w/ln(u) gives each its share (Schindelhauer and Schomaker, SPAA 2005); both forms are monotone
// in one hash.
func rendezvous(key, backend uint64, weight float64, weighted bool) float64 {
	h := mix(key ^ backend)
	u := unit(h) + 1.0/(1<<54)
	if !weighted {
		return u
	}
	return -weight / math.Log(u)
}

// hashBound limits an engine's load to this multiple of the mean, the usual value.
const hashBound = 1.25

// prefixHash is rendezvous hashing of the first blocks with bounded loads (Mirrokni et al., SODA
// 2018).
type prefixHash struct {
	blocks int
	bound  float64
}

func (p *prefixHash) Choose(s *Scene) (int, Rung) {
	key, ok := p.key(s)
	if !ok {
		return leastRequest{}.Choose(s)
	}
	var active int64
	var weights float64
	for i := range s.Candidates {
		active += s.Candidates[i].Active
		weights += s.Candidates[i].weight
	}
	best, rank := -1, math.Inf(-1)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		limit := math.Ceil(p.bound * float64(active+1) * c.weight / weights)
		c.Cost = float64(c.Active)
		if float64(c.Active+1) > limit {
			continue
		}
		if r := s.Rendezvous(key, i); r > rank {
			best, rank = i, r
		}
	}
	return best, Hash // the least loaded candidate is always within its limit
}

// keyOf prefers the name, because ids are not stable.
func keyOf(b *Backend) uint64 {
	if b.Name == "" {
		return mix(uint64(b.ID) + 0x9e3779b97f4a7c15)
	}
	return xxh3.HashString(b.Name)
}

package policy

import "slices"

const (
	Prefix       = "prefix"
	PrefixHash   = "prefix-hash"
	LeastRequest = "least-request"
	Session      = "session"
	RoundRobin   = "round-robin"
	Random       = "random"
	Weighted     = "weighted"
)

func Strategies() []string { return slices.Clone(builtin) }

var builtin = []string{Prefix, PrefixHash, LeastRequest, Session, RoundRobin, Random, Weighted}

// Strategy chooses among eligible backends. Choose runs concurrently and must not keep the scene,
// block or allocate. It returns an index into s.Candidates, never empty, and what decided, and sets
// their Cost (any unit, lower is better).
type Strategy interface {
	Choose(s *Scene) (int, Rung)
}

type Rung uint8

// Rungs, best first.
const (
	Stored Rung = iota // the backend that stores the response to go on from
	Cache              // what backends hold
	Hot                // replica set of a hot prefix
	Hash               // rendezvous order of the prompt or session
	Load
	Rotate // round robin without knowledge
	rungs
)

var rungNames = [rungs]string{"stored", "cache", "hot", "hash", "load", "rotate"}

func (r Rung) String() string {
	if r < rungs {
		return rungNames[r]
	}
	return "unknown"
}

func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

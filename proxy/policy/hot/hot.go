// Package hot decides which prefixes of prompts a fleet holds on several backends on purpose, and on how many. One node decides for
// all, by what all count together; which backends hold a prefix is computed from its anchor by everybody.
//
// Pure: time is a parameter; there are no goroutines, clocks, sockets or logs.
package hot

import (
	"slices"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// Pool is the backends that serve one model, or any.
type Pool struct {
	Key      uint64 // as in policy.Work
	Backends int    // that are eligible
	KVTokens int64  // that their caches hold together; 0: not known
}

// Prefix is a hot prefix as it has been agreed on.
type Prefix struct {
	policy.HotPrefix
	Since   prefixtree.Time // when it became hot
	Changed prefixtree.Time // when the number of replicas last changed
	Expires prefixtree.Time
}

// Change is what is to be agreed on about one prefix.
type Change struct {
	policy.HotPrefix
	Remove  bool
	Expires prefixtree.Time
	Why     string
}

// Sum is the work of several nodes together. The zero value is none.
type Sum map[Key]Total

// Total is the work of a prefix, or of a pool, of all nodes that tell of it.
type Total struct {
	policy.Work           // Tokens as the middle one of them tells
	lengths     []float64 // as each of them tells, sorted
}

// Key names the work of a prefix, or all the work of a pool (anchor 0).
type Key struct {
	Pool   uint64
	Anchor prefixtree.Hash
}

// Add takes in what one node has told, in which no prefix of a pool is twice. A node's prefixes of a pool together count for no more than
// all its work there, those first that it tells first: rates of prefixes that are new are told too high, and what a node that is not sound
// tells of one has to be in what it tells of all. How long a prefix is, the middle one of the tellers says.
func (s Sum) Add(works []policy.Work) {
	rest := make(map[uint64]policy.Work)
	for _, w := range works {
		if w.Anchor == 0 {
			rest[w.Pool] = w
		}
	}
	for _, w := range works {
		if w.Anchor != 0 {
			left := rest[w.Pool]
			w.Requests, left.Requests = part(w.Requests, left.Requests)
			w.Prefill, left.Prefill = part(w.Prefill, left.Prefill)
			w.Active, left.Active = part(w.Active, left.Active)
			w.Fresh = min(w.Fresh, w.Requests)
			rest[w.Pool] = left
		}
		k := Key{w.Pool, w.Anchor}
		t := s[k]
		t.Pool, t.Anchor = w.Pool, w.Anchor
		at, _ := slices.BinarySearch(t.lengths, w.Tokens)
		t.lengths = slices.Insert(t.lengths, at, w.Tokens)
		t.Tokens = t.lengths[(len(t.lengths)-1)/2]
		t.Requests += w.Requests
		t.Fresh += w.Fresh
		t.Prefill += w.Prefill
		t.Active += w.Active
		s[k] = t
	}
}

// part takes from what is left as much as is claimed of it.
func part(claim, of float64) (got, left float64) {
	got = min(claim, of)
	return got, of - got
}

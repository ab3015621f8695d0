// Package hot decides which prefixes of prompts a fleet holds on several backends on purpose, and on how many. One node decides for
// all, by what all count together; which backends hold a prefix is computed from its anchor by everybody.
//
// Pure: time is a parameter; there are no goroutines, clocks, sockets or logs.
package hot

import (
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
type Sum map[Key]policy.Work

// Key names the work of a prefix, or all the work of a pool (anchor 0).
type Key struct {
	Pool   uint64
	Anchor prefixtree.Hash
}

// Add takes in what one node has told.
func (s Sum) Add(works []policy.Work) {
	for _, w := range works {
		k := Key{w.Pool, w.Anchor}
		t := s[k]
		t.Pool, t.Anchor, t.Tokens = w.Pool, w.Anchor, max(t.Tokens, w.Tokens)
		t.Requests += w.Requests
		t.Fresh += w.Fresh
		t.Prefill += w.Prefill
		t.Active += w.Active
		s[k] = t
	}
}

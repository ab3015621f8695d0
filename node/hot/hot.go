// Package hot decides which prompt prefixes a fleet keeps on how many backends. Every node derives
// the backends from the anchor. Sizer decides, with time as a parameter; Replicator commits on the
// leader and applies everywhere.
package hot

import (
	"cmp"
	"slices"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
)

type Prefix struct {
	policy.HotPrefix
	Since   prefixtree.Time
	Changed prefixtree.Time // last change of the number of replicas
	Expires prefixtree.Time
}

type Change struct {
	policy.HotPrefix
	Remove  bool
	Expires prefixtree.Time
	Why     string
}

// Sum is the work of several nodes.
type Sum map[Key]Total

// Total is the summed work of a prefix or pool.
type Total struct {
	demand.Work // Tokens is the median of the reports
	lengths     []float64
}

// Key identifies the work of a prefix, or with anchor 0 of a whole pool.
type Key struct {
	Pool   uint64
	Anchor prefixtree.Hash
}

// Add adds one node's report. Its prefixes count at most its total work in the pool: rates of new
// prefixes are too high, and this bounds a faulty node.
func (s Sum) Add(works []demand.Work) {
	rest := make(map[uint64]demand.Work)
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

func part(claim, of float64) (got, left float64) {
	got = min(claim, of)
	return got, of - got
}

// owners returns for each prefix the pool with most of its requests: nodes may count a model in
// different pools while backends change.
func (s Sum) owners() map[prefixtree.Hash]uint64 {
	owners := make(map[prefixtree.Hash]uint64, len(s))
	for k, w := range s {
		pool, told := owners[k.Anchor]
		if most := s[Key{pool, k.Anchor}].Requests; !told || w.Requests > most || w.Requests == most && k.Pool < pool {
			owners[k.Anchor] = k.Pool
		}
	}
	return owners
}

// ofPool returns the work of a pool's prefixes, largest first.
func (s Sum) ofPool(pool uint64) (list []demand.Work) {
	for k, w := range s {
		if k.Pool == pool && k.Anchor != 0 {
			list = append(list, w.Work)
		}
	}
	slices.SortFunc(list, func(a, b demand.Work) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(a.Anchor, b.Anchor))
	})
	return list
}

package hot

import (
	"math"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

const (
	// Every is the interval of decisions and of the nodes' reports, in ms.
	Every = 5_000
	// lifetime, in ms: a set that is not hot enough to be renewed halfway ends with it.
	lifetime = 120_000
	// evidence, in requests, is the greatest weight of the past against the requests of one interval,
	// because the share of few is chance.
	evidence = 100
	// Decisions in a row that must find a prefix hot, its need twice its set, or its set too large.
	looksNew, looksMore, looksLoose = 2, 2, 12
	// A new set has the size of its need. One that is too small gets room times its mean need, or its
	// need at once if that has doubled; one of more than loose times its mean need shrinks to room times
	// that.
	room, loose = 1.25, 2
	// MaxPrefixes bounds the sets; while all have one, a further prefix waits until one ends.
	MaxPrefixes = 64
	forgetAfter = 120 // decisions without a report
)

// Sizer decides which prefixes get sets. Not safe for concurrent use.
type Sizer struct {
	// Fixed, if positive, is the size of every set, for experiments.
	Fixed int

	seen map[Key]*past
	look int // number of decisions
}

// past is a prefix at recent decisions.
type past struct {
	need     float64 // mean over requests; see Need
	requests float64 // behind the mean, at most evidence
	// Decisions in a row that found it hot, its need twice its set, and its set too large.
	hot, more, large int
	last             int // the latest decision with a report
}

func (h *past) add(n *Need, warm bool, look int) {
	if requests := n.Requests * Every / 1000; requests > 0 {
		h.need += requests / (h.requests + requests) * (float64(n.Replicas) - h.need)
		h.requests = min(h.requests+requests, evidence)
	}
	if h.hot++; !warm {
		h.hot = 0
	}
	h.last = look
}

// Decide returns at most one change per prefix. Call it at interval Every.
func (z *Sizer) Decide(now prefixtree.Time, pools []policy.PoolSize, sum Sum, agreed []Prefix) (changes []Change) {
	if z.seen == nil {
		z.seen = map[Key]*past{}
	}
	z.look++
	owners := sum.owners()
	held, used := make(map[prefixtree.Hash]Prefix, len(agreed)), len(agreed)
	for _, p := range agreed {
		if held[p.Anchor] = p; now >= p.Expires {
			changes = append(changes, Change{HotPrefix: p.HotPrefix, Remove: true, Why: "no longer hot"})
			used--
		}
	}
	for _, pool := range pools {
		if pool.Backends < 2 {
			continue
		}
		for _, w := range sum.ofPool(pool.Pool) {
			p, is := held[w.Anchor]
			if owners[w.Anchor] != pool.Pool || is && now >= p.Expires {
				continue
			}
			n := Size(w, sum[Key{pool.Pool, 0}].Work, pool.Backends)
			h := z.record(Key{pool.Pool, w.Anchor}, &n, n.warm(w.Tokens, pool.Backends, is), is)
			c := Change{HotPrefix: policy.HotPrefix{Anchor: w.Anchor, Tokens: int(w.Tokens)}, Expires: now + lifetime, Why: n.Why()}
			switch {
			case is:
				c.Tokens = p.Tokens
				c.Replicas = z.resized(h, n.Replicas, p.Replicas, pool.Backends)
				left := p.Expires - now
				// A set that is not hot ends with its lifetime. A former leader's clock may have been ahead.
				if h.hot > 0 && (c.Replicas != p.Replicas || left < lifetime/2 || left > lifetime) {
					changes = append(changes, c)
				}
			case h.hot >= looksNew && used < MaxPrefixes:
				c.Replicas = z.size(h.need, pool.Backends)
				changes = append(changes, c)
				used++
			}
		}
	}
	for k, h := range z.seen {
		if z.look-h.last > forgetAfter {
			delete(z.seen, k)
		}
	}
	return changes
}

// record adds a decision to the past of a prefix. One that has never been warm has none.
func (z *Sizer) record(k Key, n *Need, warm, agreed bool) *past {
	h := z.seen[k]
	if h == nil {
		h = new(past)
		if warm || agreed {
			z.seen[k] = h
		}
	}
	h.add(n, warm, z.look)
	return h
}

// resized returns the size of a set that has so many replicas.
func (z *Sizer) resized(h *past, need, replicas, backends int) int {
	if h.hot == 0 {
		return replicas
	}
	if h.large++; h.need*loose >= float64(replicas) {
		h.large = 0
	}
	if h.more++; need < 2*replicas {
		h.more = 0
	}
	switch {
	case h.more >= looksMore:
		return z.size(float64(need), backends)
	case h.need > float64(replicas), h.large >= looksLoose:
		return z.size(room*h.need, backends)
	}
	return replicas
}

func (z *Sizer) size(need float64, backends int) int {
	if z.Fixed > 0 {
		need = float64(z.Fixed)
	}
	return int(max(min(math.Ceil(need), float64(backends)), 1))
}

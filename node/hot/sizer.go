package hot

import (
	"cmp"
	"math"
	"slices"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

const (
	// Every is the interval of decisions and of the nodes' reports, in ms.
	Every = 5_000
	// lifetime, in ms: a set that is not hot enough to be renewed halfway ends with it.
	lifetime = 120_000
	// evidence, in requests, is the greatest weight of the past against the requests of one interval,
	// because the share of few is chance.
	evidence = 100
	// Decisions in a row that must find a prefix hot, its need twice its set, or its set too large; and
	// decisions that must have seen a prefix before it takes the place of another or yields its own.
	looksNew, looksMore, looksLoose, looksKnown = 2, 2, 12, 12
	// A new set has the size of its need. One that is too small gets room times its mean need, or its
	// need at once if that has doubled; one of more than loose times its mean need shrinks to room times
	// that.
	room, loose = 1.25, 2
	MaxPrefixes = 64
	// displaceBy is how many times hotter than the coolest set a prefix must be to replace it.
	displaceBy  = 2
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
	need, heat float64 // means over requests; see Need
	requests   float64 // behind the means, at most evidence
	// Decisions in a row that found it hot, its need twice its set, and its set too large.
	hot, more, large int
	looks            int // decisions with a report
	last             int // the latest of them
}

func (h *past) add(n *Need, backends int, warm bool, look int) {
	if requests := n.Requests * Every / 1000; requests > 0 {
		weight := requests / (h.requests + requests)
		h.need += weight * (float64(n.Replicas) - h.need)
		h.heat += weight * (n.heat(backends) - h.heat)
		h.requests = min(h.requests+requests, evidence)
	}
	if h.hot++; !warm {
		h.hot = 0
	}
	h.looks++
	h.last = look
}

// Decide returns at most one change per prefix. Call it at interval Every.
func (z *Sizer) Decide(now prefixtree.Time, pools []policy.PoolSize, sum Sum, agreed []Prefix) []Change {
	if z.seen == nil {
		z.seen = map[Key]*past{}
	}
	z.look++
	r := round{
		Sizer: z, now: now, sum: sum, held: make(map[prefixtree.Hash]Prefix, len(agreed)), used: len(agreed), waiting: map[Key]Change{},
	}
	for _, p := range agreed {
		r.held[p.Anchor] = p
		if now >= p.Expires {
			r.changes = append(r.changes, Change{HotPrefix: p.HotPrefix, Remove: true, Why: "no longer hot"})
			r.used--
		}
	}
	for _, pool := range pools {
		if pool.Backends >= 2 {
			r.decide(pool, pools)
		}
	}
	if r.used >= MaxPrefixes {
		r.displace()
	}
	for k, h := range z.seen {
		if z.look-h.last > forgetAfter {
			delete(z.seen, k)
		}
	}
	return r.changes
}

type round struct {
	*Sizer
	now     prefixtree.Time
	sum     Sum
	held    map[prefixtree.Hash]Prefix
	used    int
	changes []Change
	waiting map[Key]Change // hot prefixes without a place
}

func (r *round) decide(pool policy.PoolSize, pools []policy.PoolSize) {
	all := r.sum[Key{pool.Pool, 0}].Work
	free := memoryShare * float64(pool.KVTokens)
	if pool.KVTokens <= 0 {
		free = -1
	}
	for _, w := range r.sum.ofPool(pool.Pool) {
		p, is := r.held[w.Anchor]
		if is && r.now >= p.Expires || r.sum.owner(w.Anchor, pools) != pool.Pool {
			continue
		}
		n, k := Size(w, all, pool.Backends, free), Key{pool.Pool, w.Anchor}
		warm := n.warm(w.Tokens, pool.Backends, is)
		h := r.seen[k]
		if h == nil {
			if !warm && !is {
				continue
			}
			h = new(past)
			r.seen[k] = h
		}
		h.add(&n, pool.Backends, warm, r.look)
		c := Change{HotPrefix: policy.HotPrefix{Anchor: w.Anchor, Tokens: int(w.Tokens), Replicas: p.Replicas}, Expires: r.now + lifetime, Why: n.Why()}
		switch {
		case is:
			c.Tokens = p.Tokens
			if r.keep(&c, h, n.Replicas, p, pool.Backends) {
				r.changes = append(r.changes, c)
			}
		case h.hot < looksNew:
			continue
		default:
			c.Replicas = r.size(h.need, pool.Backends)
			if r.used >= MaxPrefixes {
				r.waiting[k] = c
				continue
			}
			r.used++
			r.changes = append(r.changes, c)
		}
		if free >= 0 {
			free = max(free-float64(c.Replicas)*w.Tokens, 0)
		}
	}
}

// keep resizes and renews a set, and reports whether anything changes.
func (r *round) keep(c *Change, h *past, need int, p Prefix, backends int) bool {
	if h.hot == 0 {
		return false // it ends with its lifetime
	}
	if h.large++; h.need*loose >= float64(p.Replicas) {
		h.large = 0
	}
	if h.more++; need < 2*p.Replicas {
		h.more = 0
	}
	switch {
	case h.more >= looksMore:
		c.Replicas = r.size(float64(need), backends)
	case h.need > float64(p.Replicas), h.large >= looksLoose:
		c.Replicas = r.size(room*h.need, backends)
	}
	// A former leader's clock may have been ahead.
	left := p.Expires - r.now
	return c.Replicas != p.Replicas || left < lifetime/2 || left > lifetime
}

func (r *round) size(need float64, backends int) int {
	if r.Fixed > 0 {
		need = float64(r.Fixed)
	}
	return int(max(min(math.Ceil(need), float64(backends)), 1))
}

// displace replaces the coolest set by the hottest waiting prefix if that is displaceBy times as hot,
// so that similar prefixes do not take turns.
func (r *round) displace() {
	var coolest, hottest Key
	cooler := func(a, b Key) bool {
		return cmp.Or(cmp.Compare(r.seen[a].heat, r.seen[b].heat), cmp.Compare(a.Anchor, b.Anchor)) < 0
	}
	for k, h := range r.seen {
		if h.looks < looksKnown || h.last != r.look {
			continue
		}
		if _, is := r.held[k.Anchor]; is && (coolest == Key{} || cooler(k, coolest)) {
			coolest = k
		}
		if _, waits := r.waiting[k]; waits && (hottest == Key{} || cooler(hottest, k)) {
			hottest = k
		}
	}
	if coolest == (Key{}) || hottest == (Key{}) || r.seen[hottest].heat < displaceBy*r.seen[coolest].heat {
		return
	}
	gone := Change{HotPrefix: r.held[coolest.Anchor].HotPrefix, Remove: true, Why: "a hotter one has its place"}
	r.changes = slices.DeleteFunc(r.changes, func(c Change) bool { return c.Anchor == coolest.Anchor })
	r.changes = append(r.changes, gone, r.waiting[hottest])
}

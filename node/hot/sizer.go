package hot

import (
	"cmp"
	"math"
	"slices"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// Times are in milliseconds.
const (
	// Every is the interval of decisions and of the nodes' reports.
	Every = 5_000
	// dwell is the least time between two changes of a set, unless it must double.
	dwell = 60_000
	// A change also waits for evidence requests, because the share of few is chance, but at most
	// longest; a set's end at most longestCold, less than the lifetime left at renewal.
	evidence             = 100
	longest, longestCold = 600_000, 150_000
	lifetime, renewal    = 300_000, 120_000
	// smooth is the number of decisions over which a prefix's rate is averaged.
	smooth = 20
	// again is how long an ended set is not created again.
	again = 60_000
	// Decisions in a row that must find a prefix hot, or needing more.
	looksNew, looksMore = 2, 2
	MaxPrefixes         = 64
	// displaceBy is how many times hotter than the coolest set a prefix must be to replace it.
	displaceBy = 2
)

// Sizer decides which prefixes get sets. A new leader waits before it shrinks one, to learn recent
// needs. Not safe for concurrent use.
type Sizer struct {
	// Fixed, if positive, is the size of every set, for experiments.
	Fixed int

	seen map[Key]*past
	gone map[Key]prefixtree.Time
}

// past is a prefix at recent decisions, oldest first.
type past struct {
	needs []int
	heats []float64 // see Need.heat
	at    []prefixtree.Time
	since prefixtree.Time
	cold  prefixtree.Time // since when it is not warm; 0: it is
	rate  float64
}

// Decide returns at most one change per prefix. Call it at interval Every.
func (z *Sizer) Decide(now prefixtree.Time, pools []Pool, sum Sum, agreed []Prefix) []Change {
	if z.seen == nil {
		z.seen, z.gone = map[Key]*past{}, map[Key]prefixtree.Time{}
	}
	r := round{
		Sizer: z, now: now, sum: sum, owner: owners(pools, sum), covered: map[prefixtree.Hash]bool{},
		held: make(map[prefixtree.Hash]Prefix, len(agreed)), used: len(agreed),
	}
	for _, p := range agreed {
		r.held[p.Anchor] = p
	}
	for _, pool := range pools {
		if pool.Backends >= 2 {
			r.decide(pool)
		}
	}
	for _, p := range agreed {
		if !r.covered[p.Anchor] && now >= p.Expires {
			r.changes = append(r.changes, Change{HotPrefix: p.HotPrefix, Remove: true, Why: "expired"})
			r.used--
		}
	}
	if r.used >= MaxPrefixes {
		r.displace()
	}
	z.forget(now)
	return r.changes
}

type round struct {
	*Sizer
	now     prefixtree.Time
	sum     Sum
	held    map[prefixtree.Hash]Prefix
	owner   map[prefixtree.Hash]uint64 // see owners
	covered map[prefixtree.Hash]bool
	used    int
	changes []Change
	waiting []Change // hot prefixes without a place
}

func (r *round) decide(pool Pool) {
	all := r.sum[Key{pool.Key, 0}].Work
	free := memoryShare * float64(pool.KVTokens)
	if pool.KVTokens <= 0 {
		free = -1
	}
	for _, w := range r.ofPool(pool.Key, r.sum, r.held) {
		if by, told := r.owner[w.Anchor]; r.covered[w.Anchor] || told && by != pool.Key {
			continue
		}
		p, is := r.held[w.Anchor]
		n := Size(w, all, pool.Backends, free)
		heat := n.heat(pool.Backends)
		if !n.warm(w.Tokens, pool.Backends, is) {
			n.Replicas = 0
		} else if r.Fixed > 0 {
			n.Replicas = min(r.Fixed, pool.Backends)
		}
		c, ok := r.look(Key{pool.Key, w.Anchor}, r.now, w, n, heat, p, is)
		switch {
		case ok && !is && r.used >= MaxPrefixes:
			r.waiting = append(r.waiting, c)
			continue
		case ok && !is:
			r.used++
		case ok && c.Remove:
			r.used--
		}
		r.covered[w.Anchor] = is || ok
		if ok {
			r.changes = append(r.changes, c)
		}
		if free < 0 {
			continue
		}
		switch {
		case ok && !c.Remove:
			free = max(free-float64(c.Replicas)*w.Tokens, 0)
		case is && !ok:
			free = max(free-float64(p.Replicas)*w.Tokens, 0)
		}
	}
}

// displace replaces the coolest set if, over a pause, a waiting prefix was always displaceBy times
// as hot as the set at its peak, so similar prefixes do not take turns.
func (r *round) displace() {
	var hottest Change
	most := 0.0
	for _, c := range r.waiting {
		if h := r.seen[Key{r.owner[c.Anchor], c.Anchor}]; h.known(r.now) && slices.Min(h.heats) > most {
			hottest, most = c, slices.Min(h.heats)
		}
	}
	var coolest Prefix
	least := math.Inf(1)
	for k, h := range r.seen {
		p, is := r.held[k.Anchor]
		if by, told := r.owner[k.Anchor]; !is || told && by != k.Pool || !h.known(r.now) {
			continue
		}
		if v := slices.Max(h.heats); v < least || v == least && k.Anchor < coolest.Anchor {
			coolest, least = p, v
		}
	}
	if most == 0 || most < displaceBy*least {
		return
	}
	for k := range r.seen {
		if k.Anchor == coolest.Anchor {
			r.gone[k] = r.now
			delete(r.seen, k)
		}
	}
	r.changes = slices.DeleteFunc(r.changes, func(c Change) bool { return c.Anchor == coolest.Anchor })
	r.changes = append(r.changes, Change{HotPrefix: coolest.HotPrefix, Remove: true, Why: "a hotter one has its place"}, hottest)
}

func (h *past) known(now prefixtree.Time) bool { return h != nil && now-h.since >= h.pause() }

// owners returns the pool with most of each prefix's requests: nodes may count a model in different
// pools while backends change.
func owners(pools []Pool, sum Sum) map[prefixtree.Hash]uint64 {
	owner := make(map[prefixtree.Hash]uint64)
	for k, w := range sum {
		if k.Anchor == 0 || !slices.ContainsFunc(pools, func(p Pool) bool { return p.Key == k.Pool && p.Backends > 1 }) {
			continue
		}
		by, ok := owner[k.Anchor]
		if most := sum[Key{by, k.Anchor}].Requests; !ok || w.Requests > most || w.Requests == most && k.Pool < by {
			owner[k.Anchor] = k.Pool
		}
	}
	return owner
}

// ofPool returns the work of a pool's prefixes, largest first, and zero for unreported agreed ones.
func (z *Sizer) ofPool(pool uint64, sum Sum, held map[prefixtree.Hash]Prefix) []policy.Work {
	var list []policy.Work
	for k, w := range sum {
		if k.Pool == pool && k.Anchor != 0 {
			list = append(list, w.Work)
		}
	}
	for k := range z.seen {
		if _, told := sum[k]; k.Pool == pool && !told {
			if p, is := held[k.Anchor]; is {
				list = append(list, policy.Work{Pool: pool, Anchor: k.Anchor, Tokens: float64(p.Tokens)})
			}
		}
	}
	slices.SortFunc(list, func(a, b policy.Work) int {
		return cmp.Or(cmp.Compare(b.Prefill, a.Prefill), cmp.Compare(a.Anchor, b.Anchor))
	})
	return list
}

func (z *Sizer) look(k Key, now prefixtree.Time, w policy.Work, n Need, heat float64, p Prefix, is bool) (Change, bool) {
	h := z.seen[k]
	warm := n.Replicas > 0
	if h == nil {
		if !warm && !is {
			return Change{}, false
		}
		h = &past{since: now}
		z.seen[k] = h
	}
	if h.last() > now {
		*h = past{since: now} // the clock was set back
	}
	h.see(w.Requests, warm)
	pause := h.pause()
	h.add(n.Replicas, heat, now, pause)
	c := Change{HotPrefix: policy.HotPrefix{Anchor: k.Anchor, Tokens: int(w.Tokens), Replicas: p.Replicas}, Expires: now + lifetime, Why: n.Why()}
	if !is {
		if at, ok := z.gone[k]; ok && now-at < again {
			return c, false
		}
		c.Replicas = h.most()
		return c, h.least(looksNew) > 0
	}
	c.Tokens = p.Tokens
	if h.cold > 0 && now-h.cold >= min(pause, longestCold) {
		z.gone[k] = now
		delete(z.seen, k)
		c.Remove = true
		return c, true
	}
	up, down := h.least(looksMore), h.most()
	changed := p.Changed
	if changed > now {
		changed = h.since // set by a former leader whose clock was ahead
	}
	switch rested := now-changed >= pause; {
	case up > p.Replicas && (rested || up >= max(2*p.Replicas, p.Replicas+2)):
		c.Replicas = up
		return c, true
	case warm && rested && now-h.since >= pause && (down < p.Replicas*17/20 || down < p.Replicas && p.Replicas <= 4):
		c.Replicas = down
		return c, true
	case warm && p.Expires-now < lifetime-renewal:
		return c, true
	}
	return c, false
}

func (z *Sizer) forget(now prefixtree.Time) {
	for k, h := range z.seen {
		if now-h.last() > longest {
			delete(z.seen, k)
		}
	}
	for k, at := range z.gone {
		if now-at >= again || at > now {
			delete(z.gone, k)
		}
	}
}

func (h *past) add(need int, heat float64, now, pause prefixtree.Time) {
	keep := 0
	for keep < len(h.at) && now-h.at[keep] > pause {
		keep++
	}
	h.at, h.needs, h.heats = append(h.at[:0], h.at[keep:]...), append(h.needs[:0], h.needs[keep:]...), append(h.heats[:0], h.heats[keep:]...)
	h.at, h.needs, h.heats = append(h.at, now), append(h.needs, need), append(h.heats, heat)
	switch {
	case need > 0:
		h.cold = 0
	case h.cold == 0:
		h.cold = now
	}
}

func (h *past) see(rate float64, warm bool) {
	switch {
	case h.rate == 0:
		h.rate = rate
	case warm:
		h.rate += (rate - h.rate) / smooth
	}
}

// pause is how long a set stays as it is, and the time over which less must have sufficed.
func (h *past) pause() prefixtree.Time {
	return prefixtree.Time(min(max(evidence*1000/max(h.rate, 1e-3), dwell), longest))
}

func (h *past) last() prefixtree.Time {
	if len(h.at) == 0 {
		return 0
	}
	return h.at[len(h.at)-1]
}

func (h *past) least(n int) int {
	if len(h.needs) < n {
		return 0
	}
	return slices.Min(h.needs[len(h.needs)-n:])
}

func (h *past) most() int { return slices.Max(h.needs) }

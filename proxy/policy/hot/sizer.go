package hot

import (
	"cmp"
	"slices"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// Times in milliseconds.
const (
	// Every is how often to decide: as often as nodes tell what they count.
	Every = 5_000
	// dwell is the least time between two changes of a prefix, unless it needs twice as many backends.
	dwell = 60_000
	// evidence is the requests of a prefix that come between two changes of it, if that is longer: the share of few is chance. longest
	// bounds that, and longestCold, less than what is left when it was renewed last, the wait for its end.
	evidence             = 100
	longest, longestCold = 600_000, 150_000
	// calm is for how long less must have been enough before it is less.
	calm = 60_000
	// lifetime is how long a prefix stays agreed on without being renewed, as when nobody leads; renewal is when it is.
	lifetime, renewal = 300_000, 120_000
	// smooth is the looks over which the rate of a prefix is averaged.
	smooth = 20
	// again is how long a prefix that was given up is not taken up.
	again = 60_000
	// looksNew and looksMore are how many decisions in a row must find that a prefix is hot, and that it needs more.
	looksNew, looksMore = 2, 2
	// MaxPrefixes bounds the prefixes that are agreed on at once.
	MaxPrefixes = 64
)

// Sizer decides. It remembers what was needed lately; a node that begins to decide knows nothing of that and so waits before it makes
// anything less. Not safe for concurrent use.
type Sizer struct {
	// Fixed, if above 0, is the number of replicas of every hot prefix: for experiments.
	Fixed int

	seen map[Key]*past
	gone map[Key]prefixtree.Time // when prefixes were given up
}

// past is what was needed of a prefix at the last decisions, the latest last.
type past struct {
	needs []int
	at    []prefixtree.Time
	since prefixtree.Time // when it was first looked at
	cold  prefixtree.Time // since when it is not warm; 0 if it is
	rate  float64         // requests a second, smoothed
}

// Decide returns what is to change of what has been agreed on, at most one change of each prefix. It is to be called every Every.
func (z *Sizer) Decide(now prefixtree.Time, pools []Pool, sum Sum, agreed []Prefix) []Change {
	if z.seen == nil {
		z.seen, z.gone = map[Key]*past{}, map[Key]prefixtree.Time{}
	}
	held := make(map[prefixtree.Hash]Prefix, len(agreed))
	for _, p := range agreed {
		held[p.Anchor] = p
	}
	var changes []Change
	covered := map[prefixtree.Hash]bool{}
	owner := owners(pools, sum)
	for _, pool := range pools {
		if pool.Backends < 2 {
			continue
		}
		all := sum[Key{pool.Key, 0}]
		free := memoryShare * float64(pool.KVTokens)
		if pool.KVTokens <= 0 {
			free = -1
		}
		works := z.ofPool(pool.Key, sum, held)
		for _, w := range works {
			if by, told := owner[w.Anchor]; covered[w.Anchor] || told && by != pool.Key {
				continue
			}
			k := Key{pool.Key, w.Anchor}
			p, is := held[w.Anchor]
			n := Size(w, all, pool.Backends, free)
			if !n.warm(w.Tokens, pool.Backends, is) {
				n.Replicas = 0
			} else if z.Fixed > 0 {
				n.Replicas = min(z.Fixed, pool.Backends)
			}
			c, ok := z.look(k, now, w, n, p, is)
			if ok && !is && len(held)+len(changes) >= MaxPrefixes {
				continue
			}
			covered[w.Anchor] = is || ok
			if ok {
				changes = append(changes, c)
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
	for _, p := range agreed {
		if !covered[p.Anchor] && now >= p.Expires {
			changes = append(changes, Change{HotPrefix: p.HotPrefix, Remove: true, Why: "expired"})
		}
	}
	z.forget(now)
	return changes
}

// owners returns for each prefix that is told of the pool with most of its requests. While backends begin or cease to name their models,
// prompts of one model are of one pool here and of another there.
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

// ofPool returns the work of a pool's prefixes, and none for those agreed on that nobody tells of any more; the most work first.
func (z *Sizer) ofPool(pool uint64, sum Sum, held map[prefixtree.Hash]Prefix) []policy.Work {
	var list []policy.Work
	for k, w := range sum {
		if k.Pool == pool && k.Anchor != 0 {
			list = append(list, w)
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

// look decides about one prefix.
func (z *Sizer) look(k Key, now prefixtree.Time, w policy.Work, n Need, p Prefix, is bool) (Change, bool) {
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
	h.add(n.Replicas, now, pause)
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
		changed = h.since // by the clock of another node that led, which was ahead
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

// forget drops what was not looked at for long.
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

// add notes what is needed now, 0 if the prefix is not hot.
func (h *past) add(need int, now, pause prefixtree.Time) {
	keep := 0
	for keep < len(h.at) && now-h.at[keep] > pause {
		keep++
	}
	h.at, h.needs = append(h.at[:0], h.at[keep:]...), append(h.needs[:0], h.needs[keep:]...)
	h.at, h.needs = append(h.at, now), append(h.needs, need)
	switch {
	case need > 0:
		h.cold = 0
	case h.cold == 0:
		h.cold = now
	}
}

// see takes in the requests a second of a look. When a prefix gets cold, what it was until then says how much that means.
func (h *past) see(rate float64, warm bool) {
	switch {
	case h.rate == 0:
		h.rate = rate
	case warm:
		h.rate += (rate - h.rate) / smooth
	}
}

// pause is for how long a set stays as it is, in which less must have been enough before it is less.
func (h *past) pause() prefixtree.Time {
	return prefixtree.Time(min(max(evidence*1000/max(h.rate, 1e-3), dwell), longest))
}

// last returns when there was the latest look; 0 if there was none.
func (h *past) last() prefixtree.Time {
	if len(h.at) == 0 {
		return 0
	}
	return h.at[len(h.at)-1]
}

// least returns the least need of the latest n looks; 0 if there were fewer.
func (h *past) least(n int) int {
	if len(h.needs) < n {
		return 0
	}
	return slices.Min(h.needs[len(h.needs)-n:])
}

// most returns the greatest need of the last calm.
func (h *past) most() int { return slices.Max(h.needs) }

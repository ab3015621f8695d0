package fleetsim

import (
	"fmt"
	"time"

	"grapevine/chaos/report"
	"grapevine/node/hot"
	"grapevine/proxy/policy"
)

// hotBoard decides about hot prefixes: nodes report their work, the leader decides, and all nodes
// apply the result. Reports and decisions each take the delay.
type hotBoard struct {
	delay  time.Duration
	sizer  hot.Sizer
	pools  []hot.Pool
	next   time.Duration
	told   hot.Sum
	decide time.Duration
	agreed []hot.Prefix
	spread time.Duration // when all nodes know it; never if they do
	made   report.Hot
}

// newHotBoard returns nil if there is nothing to decide: switched off, a policy that ignores hot
// prefixes, or nodes that never hear of each other.
func newHotBoard(cfg *Config, pt point, kvTokens int) *hotBoard {
	if cfg.NoHot || pt.policy != policy.Prefix || pt.nodes > 1 && (pt.staleness == Never || pt.share == ShareNone) {
		return nil
	}
	b := &hotBoard{next: hot.Every * time.Millisecond, decide: never, spread: never}
	if pt.nodes > 1 {
		b.delay = pt.staleness
	}
	b.sizer.Fixed = cfg.HotReplicas
	b.pools = []hot.Pool{{Backends: cfg.Backends, KVTokens: int64(kvTokens) * int64(cfg.Backends)}}
	return b
}

func (b *hotBoard) pass(now time.Duration, nodes []node) {
	if b == nil {
		return
	}
	if now >= b.spread {
		b.spread = never
		list := make([]policy.HotPrefix, len(b.agreed))
		for i := range b.agreed {
			list[i] = b.agreed[i].HotPrefix
		}
		for i := range nodes {
			nodes[i].router.SetHotPrefixes(list)
		}
	}
	if now >= b.decide {
		at := b.decide
		b.decide = never
		if changes := b.sizer.Decide(clock(at), b.pools, b.told, b.agreed); len(changes) > 0 {
			b.agree(at, changes)
			b.spread = at + b.delay
		}
	}
	if now >= b.next && b.decide == never { // with a longer delay, one report is on its way at a time
		at := now / (hot.Every * time.Millisecond) * (hot.Every * time.Millisecond)
		b.next, b.decide = at+hot.Every*time.Millisecond, at+b.delay
		b.told = hot.Sum{}
		for i := range nodes {
			b.told.Add(nodes[i].router.OwnWork(1, clock(at)))
		}
	}
}

func (b *hotBoard) agree(at time.Duration, changes []hot.Change) {
	now := clock(at)
	for _, c := range changes {
		i := 0
		for i < len(b.agreed) && b.agreed[i].Anchor != c.Anchor {
			i++
		}
		before := 0
		switch {
		case i < len(b.agreed) && c.Remove:
			before = b.agreed[i].Replicas
			b.agreed = append(b.agreed[:i], b.agreed[i+1:]...)
			c.Replicas = 0
		case i < len(b.agreed):
			p := &b.agreed[i]
			before = p.Replicas
			if p.Replicas != c.Replicas {
				p.Changed = now
			}
			p.HotPrefix, p.Expires = c.HotPrefix, c.Expires
		case !c.Remove:
			b.agreed = append(b.agreed, hot.Prefix{HotPrefix: c.HotPrefix, Since: now, Changed: now, Expires: c.Expires})
		}
		if before != c.Replicas {
			b.made.Changes = append(b.made.Changes, report.HotChange{
				AtS: at.Seconds(), Anchor: fmt.Sprintf("%016x", uint64(c.Anchor)), Tokens: c.Tokens, Replicas: c.Replicas, Why: c.Why,
			})
		}
	}
}

func (b *hotBoard) report() *report.Hot {
	if b == nil {
		return nil
	}
	return &b.made
}

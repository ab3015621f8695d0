package fleetsim

import (
	"fmt"
	"slices"
	"time"

	"grapevine.example/chaos/report"
	"grapevine.example/node/hot"
	"grapevine.example/proxy/policy"
)

// hotBoard is the first node's decision about hot prefixes, half-way between the nodes' reports.
// All nodes apply it at once, because it does not travel by gossip.
type hotBoard struct {
	sizer  hot.Sizer
	next   time.Duration
	agreed []hot.Prefix
	made   report.Hot
}

const hotEvery = hot.Every * time.Millisecond

// newHotBoard returns nil if hot prefixes are off, ignored, or not shared.
func newHotBoard(cfg *Config, pt point) *hotBoard {
	if cfg.NoHot || pt.strategy != policy.Prefix || pt.nodes > 1 && !pt.shares() {
		return nil
	}
	b := &hotBoard{next: hotEvery / 2}
	b.sizer.Fixed = cfg.HotReplicas
	return b
}

func (b *hotBoard) pass(now time.Duration, nodes []node, x *exchange) {
	if b == nil || now < b.next {
		return
	}
	at := (now-hotEvery/2)/hotEvery*hotEvery + hotEvery/2
	b.next = at + hotEvery
	sum, leader := hot.Sum{}, &nodes[0]
	sum.Add(leader.router.OwnWork(hot.MaxPools, clock(at)))
	x.deliver(0, at)
	leader.shared.PeerWork(sum.Add)
	changes := b.sizer.Decide(clock(at), leader.router.Pools(), sum, b.agreed)
	if len(changes) == 0 {
		return
	}
	b.agree(at, changes)
	list := make([]policy.HotPrefix, len(b.agreed))
	for i := range b.agreed {
		list[i] = b.agreed[i].HotPrefix
	}
	for i := range nodes {
		nodes[i].router.SetHotPrefixes(list)
	}
}

func (b *hotBoard) agree(at time.Duration, changes []hot.Change) {
	now := clock(at)
	for _, c := range changes {
		i := slices.IndexFunc(b.agreed, func(p hot.Prefix) bool { return p.Anchor == c.Anchor })
		if i < 0 {
			i = len(b.agreed)
			b.agreed = append(b.agreed, hot.Prefix{Since: now})
		}
		p := &b.agreed[i]
		before := p.Replicas
		if c.Remove {
			b.agreed = slices.Delete(b.agreed, i, i+1)
			c.Replicas = 0
		} else {
			p.HotPrefix, p.Expires = c.HotPrefix, c.Expires
			if before != c.Replicas {
				p.Changed = now
			}
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

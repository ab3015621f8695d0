package fleetsim

import (
	"fmt"
	"time"

	"grapevine/chaos/report"
	"grapevine/node/hot"
	"grapevine/proxy/policy"
)

// hotBoard is the leader's decision about hot prefixes, made by the first node half-way between the
// nodes' reports. All nodes apply it at once, because it does not travel by gossip.
type hotBoard struct {
	sizer  hot.Sizer
	pools  []policy.PoolSize
	next   time.Duration
	agreed []hot.Prefix
	made   report.Hot
}

const hotEvery = hot.Every * time.Millisecond

// newHotBoard returns nil if there is nothing to decide: switched off, a policy that ignores hot
// prefixes, or nodes that share nothing.
func newHotBoard(cfg *Config, pt point, kvTokens int) *hotBoard {
	if cfg.NoHot || pt.policy != policy.Prefix || pt.nodes > 1 && !pt.shares() {
		return nil
	}
	b := &hotBoard{next: hotEvery / 2}
	b.sizer.Fixed = cfg.HotReplicas
	b.pools = []policy.PoolSize{{Backends: cfg.Backends, KVTokens: int64(kvTokens) * int64(cfg.Backends)}}
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
	if x != nil {
		x.deliver(0, at)
		leader.shared.PeerWork(sum.Add)
	}
	changes := b.sizer.Decide(clock(at), b.pools, sum, b.agreed)
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

package node

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/gossip"
	"grapevine/node/backends"
	"grapevine/node/health"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// outboxLimit is more records than a node places in its worst second, 32 bytes each.
const outboxLimit = 1 << 17

// knowledge implements gossip.Knowledge. It is safe for concurrent use and does not block.
type knowledge struct {
	tree      *prefixtree.Tree
	announced *announcer     // the policy's view of the tree; posts changes
	router    *policy.Router // set once, before gossip starts
	outbox    *prefixtree.Outbox
	numbers   *backends.Registry
	evidence  *evidence
	checker   *checker // set once, before gossip starts
	heard     heatBoard

	mu      sync.Mutex // guards the scratch below
	loads   []policy.PeerLoad
	claims  []keyedClaim
	told    map[uint32]claim // by key: last sent to peers
	reports []health.Report
	heat    heatTold

	poke      func()       // called when nodes changes; set before gossip starts; may be nil
	nodes     atomic.Int64 // alive, including this one
	staleness atomic.Int64 // of peers' actions, ns
	unknown   atomic.Uint64
	malformed atomic.Uint64
	late      atomic.Uint64 // peers' records of an old generation, or too old
}

var _ gossip.Knowledge = (*knowledge)(nil)

func newKnowledge(tree *prefixtree.Tree, numbers *backends.Registry) *knowledge {
	k := &knowledge{tree: tree, outbox: prefixtree.NewOutbox(outboxLimit), numbers: numbers, told: make(map[uint32]claim)}
	k.announced = newAnnouncer(tree, k.outbox)
	k.evidence = newEvidence(k.learn)
	k.nodes.Store(1)
	return k
}

// Drain implements gossip.Knowledge.
func (k *knowledge) Drain(dst []byte, limit int) (payload []byte, records int) {
	return k.outbox.Drain(dst, limit, k.numbers)
}

// Apply implements gossip.Knowledge.
func (k *knowledge) Apply(_ string, payload []byte, shift time.Duration) (gossip.Applied, error) {
	return k.merge(payload, shift)
}

// merge applies a batch or page. Where this node knows more it posts that; ApplyDeltaNews explains
// why this ends.
func (k *knowledge) merge(payload []byte, shift time.Duration) (gossip.Applied, error) {
	buffer := k.announced.buffer()
	applied, news, err := k.tree.ApplyDeltaNews(payload, k.numbers, shift, now(), *buffer)
	k.announced.post(buffer, news)
	k.late.Add(uint64(applied.Late))
	return gossip.Applied{Records: applied.Records, News: applied.News, Unknown: applied.Unknown}, err
}

// Snapshot implements gossip.Knowledge.
func (k *knowledge) Snapshot(limit int, yield func(page []byte, records int) bool) {
	k.tree.Snapshot(now(), k.numbers, limit, yield)
}

// SnapshotSize implements gossip.Knowledge.
func (k *knowledge) SnapshotSize() int { return k.tree.Anchors(now()) }

// ApplySnapshot implements gossip.Knowledge.
func (k *knowledge) ApplySnapshot(page []byte, shift time.Duration) (gossip.Applied, error) {
	return k.merge(page, shift)
}

// Loads implements gossip.Knowledge.
func (k *knowledge) Loads(dst []gossip.Load) []gossip.Load {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loads = k.router.OwnLoads(k.loads[:0], now())
	for _, l := range k.loads {
		if key, ok := k.numbers.Key(l.Backend); ok {
			dst = append(dst, gossip.Load{Backend: key, PrefillTokens: clamp32(l.PrefillTokens), Active: clamp32(l.Active)})
		}
	}
	return dst
}

func clamp32(v int64) uint32 { return uint32(min(max(v, 0), math.MaxUint32)) }

// PeerLoad implements gossip.Knowledge.
func (k *knowledge) PeerLoad(origin string, changed []gossip.Load, full bool) {
	loads := make([]policy.PeerLoad, 0, len(changed))
	for _, l := range changed {
		b, ok := k.numbers.Backend(l.Backend)
		if !ok {
			k.unknown.Add(1)
			continue
		}
		loads = append(loads, policy.PeerLoad{Backend: b, PrefillTokens: int64(l.PrefillTokens), Active: int64(l.Active)})
	}
	if full {
		k.router.SetPeerLoad(origin, loads)
	} else {
		k.router.UpdatePeerLoad(origin, loads)
	}
}

// DropPeer implements gossip.Knowledge.
func (k *knowledge) DropPeer(origin string) {
	k.router.DropPeer(origin)
	k.evidence.set(origin, nil)
	if k.checker != nil {
		k.checker.board.DropPeer(origin)
		k.checker.poke()
	}
	k.heard.set(origin, nil)
}

// State implements gossip.Knowledge. A claim stays as sent until it has moved enough, because
// gossip does not resend an unchanged blob.
func (k *knowledge) State(dst []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claims = k.claims[:0]
	told := make(map[uint32]claim, len(k.told))
	k.numbers.Listed(func(b prefixtree.Backend, key uint32) {
		var c claim
		c.reach, c.reachWeight = k.tree.LRUDistance(b)
		c.rate, c.rateWeight = k.router.OwnRate(b)
		if before := k.told[key]; before.near(c) {
			c = before
		}
		if c.reachWeight > 0 || c.rateWeight > 0 {
			told[key] = c
			k.claims = append(k.claims, keyedClaim{key, c})
		}
	})
	k.told = told
	k.heard.hand(k.router)
	dst = laterSections(k.heat.tell(appendState(dst, k.claims), k.router, now()))
	if k.checker == nil {
		return dst
	}
	k.reports = k.checker.board.Reports(k.reports[:0], time.Now())
	if len(k.reports) == 0 {
		return dst
	}
	return appendSection(dst, sectionHealth, health.AppendReports(nil, k.reports))
}

// PeerState implements gossip.Knowledge. After a malformed blob the previous claims stay.
func (k *knowledge) PeerState(origin string, state []byte) {
	told, err := parseState(nil, state)
	var heat policy.Heat
	if err == nil {
		heat, err = parseHeat(state)
	}
	if err != nil {
		k.malformed.Add(1)
		return
	}
	claims := make(map[uint32]claim, len(told))
	for _, c := range told {
		claims[c.key] = c.claim.bounded()
	}
	k.evidence.set(origin, claims)
	k.heard.set(origin, &heat)
	if k.checker == nil {
		return
	}
	if err := k.checker.heard(origin, sectionOf(state, sectionHealth)); err != nil {
		k.malformed.Add(1)
	}
}

func (k *knowledge) learn(key uint32, mean claim) {
	number := k.numbers.Backend
	if mean == (claim{}) {
		number = k.numbers.Lookup // an empty claim must not use up a number
	}
	b, ok := number(key)
	if !ok {
		k.unknown.Add(1)
		return
	}
	k.tree.SetPeerLRUDistance(b, mean.reach, mean.reachWeight)
	k.router.SetPeerRate(b, mean.rate, mean.rateWeight)
}

// Fleet implements gossip.Knowledge.
func (k *knowledge) Fleet(nodes int, staleness time.Duration) {
	if k.nodes.Swap(int64(nodes)) != int64(nodes) && k.poke != nil {
		k.poke()
	}
	k.staleness.Store(int64(staleness))
	k.router.SetFleet(nodes, staleness)
}

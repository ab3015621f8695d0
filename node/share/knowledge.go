// Package share holds what a node exchanges with its peers: placements, load, and measurements. It
// merges theirs into the node's tree and router. Gossip carries the bytes between real nodes,
// chaos/fleetsim between simulated ones. Time is a parameter.
package share

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/gossip/wire"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
)

// Names translates between the keys of engine names, which nodes exchange, and this node's numbers.
// Safe for concurrent use.
type Names interface {
	prefixtree.Names
	// Lookup is Backend that never assigns a number.
	Lookup(key uint32) (b prefixtree.Backend, ok bool)
	// Listed yields the engines whose measurements this node sends.
	Listed(yield func(b prefixtree.Backend, key uint32))
}

// Knowledge is one node's side of the exchange, with the contracts of gossip.Knowledge. Safe for
// concurrent use; it does not block.
type Knowledge struct {
	tree   *prefixtree.Tree
	outbox *prefixtree.Outbox
	router *policy.Router
	names  Names
	peers  peers

	unknown atomic.Uint64
	late    atomic.Uint64

	mu         sync.Mutex // guards the rest
	loads      []books.PeerLoad
	claims     []Claim
	sent       map[uint32]Claim // by key: last sent to peers
	popularity sentPopularity
}

// New takes a tree that publishes to the outbox and is the router's index.
func New(tree *prefixtree.Tree, outbox *prefixtree.Outbox, router *policy.Router, names Names) *Knowledge {
	k := &Knowledge{tree: tree, outbox: outbox, router: router, names: names, sent: make(map[uint32]Claim)}
	k.peers.learn = k.learn
	return k
}

// Drain appends queued changes of the tree and returns their number.
func (k *Knowledge) Drain(dst []byte, limit int) (payload []byte, records int) {
	return k.outbox.Drain(dst, limit, k.names)
}

// Apply merges a peer's batch or snapshot page.
func (k *Knowledge) Apply(payload []byte, shift time.Duration, now prefixtree.Time) (prefixtree.Applied, error) {
	applied, err := k.tree.ApplyDelta(payload, k.names, shift, now)
	k.late.Add(uint64(applied.Late))
	return applied, err
}

func (k *Knowledge) Snapshot(limit int, now prefixtree.Time, yield func(page []byte, records int) bool) {
	k.tree.Snapshot(now, k.names, limit, yield)
}

// SnapshotSize estimates a snapshot's facts.
func (k *Knowledge) SnapshotSize(now prefixtree.Time) int { return k.tree.Anchors(now) }

// Forget drops the queued changes of a backend.
func (k *Knowledge) Forget(b prefixtree.Backend) { k.outbox.Forget(b) }

// Loads appends this node's outstanding work.
func (k *Knowledge) Loads(dst []wire.Load, now prefixtree.Time) []wire.Load {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.loads = k.router.OwnLoads(k.loads[:0], now)
	for _, l := range k.loads {
		if key, ok := k.names.Key(l.Backend); ok {
			dst = append(dst, wire.Load{Backend: key, PrefillTokens: clamp32(l.PrefillTokens), Active: clamp32(l.Active)})
		}
	}
	return dst
}

func clamp32(v int64) uint32 { return uint32(min(max(v, 0), math.MaxUint32)) }

// PeerLoad takes all of a peer's outstanding work, or that on changed backends.
func (k *Knowledge) PeerLoad(peer string, changed []wire.Load, full bool, now prefixtree.Time) {
	var few [8]books.PeerLoad // spares most calls an allocation
	loads := few[:0]
	for _, l := range changed {
		b, ok := k.names.Backend(l.Backend)
		if !ok {
			k.unknown.Add(1)
			continue
		}
		loads = append(loads, books.PeerLoad{Backend: b, PrefillTokens: int64(l.PrefillTokens), Active: int64(l.Active)})
	}
	if full {
		k.router.SetPeerLoad(peer, loads, now)
	} else {
		k.router.UpdatePeerLoad(peer, loads, now)
	}
}

// State appends this node's state blob (see [Parse]) and updates the router's sum of the peers'
// traffic. A claim stays as sent until it moves enough, because gossip does not repeat an equal
// blob.
func (k *Knowledge) State(dst []byte, now prefixtree.Time) []byte {
	if sum, changed := k.peers.traffic(); changed { // without the lock: Loads must not wait for it
		k.router.SetPeerTraffic(sum)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claims = k.claims[:0]
	k.names.Listed(func(b prefixtree.Backend, key uint32) {
		c := Claim{Key: key}
		c.LRUDistance.Mean, c.LRUDistance.Weight = k.tree.LRUDistance(b)
		c.Rate.Mean, c.Rate.Weight = k.router.OwnRate(b)
		if before := k.sent[key]; before.near(c) {
			c = before
		}
		if c.LRUDistance.Weight > 0 || c.Rate.Weight > 0 {
			k.claims = append(k.claims, c)
		}
	})
	clear(k.sent)
	for _, c := range k.claims {
		k.sent[c.Key] = c
	}
	return k.popularity.append(appendClaims(append(dst, version), k.claims), k.router, now)
}

// PeerState replaces a peer's state.
func (k *Knowledge) PeerState(peer string, s *State) { k.peers.set(peer, s) }

// PeerWork calls add with every peer's work behind popular prefixes.
func (k *Knowledge) PeerWork(add func([]demand.Work)) { k.peers.work(add) }

// DropPeer voids a peer's load and state.
func (k *Knowledge) DropPeer(peer string) {
	k.router.DropPeer(peer)
	k.peers.set(peer, nil)
}

// learn gives the tree and the router the means of all peers' claims.
func (k *Knowledge) learn(key uint32, lruDistance, rate Measure) {
	number := k.names.Backend
	if lruDistance.Weight == 0 && rate.Weight == 0 {
		number = k.names.Lookup // an empty claim must not use up a number
	}
	b, ok := number(key)
	if !ok {
		k.unknown.Add(1)
		return
	}
	k.tree.SetPeerLRUDistance(b, lruDistance.Mean, lruDistance.Weight)
	k.router.SetPeerRate(b, rate.Mean, rate.Weight)
}

// Stats are totals since New, except Outbox.Pending.
type Stats struct {
	Outbox  prefixtree.OutboxStats
	Queued  map[string]uint64 // changes of the tree for peers, by kind
	Unknown uint64            // peers' loads and claims of engines without a number
	Late    uint64            // peers' records of an old generation, or too old
}

func (k *Knowledge) Stats() Stats {
	return Stats{Outbox: k.outbox.Stats(), Queued: k.outbox.Added(), Unknown: k.unknown.Load(), Late: k.late.Load()}
}

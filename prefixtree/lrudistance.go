package prefixtree

import "math"

// Nodes use the mean of all nodes' LRU distances; a received value never returns as evidence.

const (
	// MaxEvidence bounds one node's evidence; an LRU distance follows its last twenty or so observations.
	MaxEvidence = 64

	evidenceHalfLife = 10 * 60_000 // ms; lets a changed cache size show soon

	maxDistance = 1e12 // blocks; bounds what a faulty peer can report
)

type weight struct {
	count float64
	at    Time
}

func (w *weight) add(now Time) {
	w.count, w.at = min(w.value(now)+1, MaxEvidence), max(w.at, now)
}

func (w *weight) value(now Time) float64 {
	return w.count * math.Exp2(-float64(max(0, now-w.at))/evidenceHalfLife)
}

type peerDistance struct{ distance, evidence float64 }

// combine computes believed from own and peers' LRU distance. A configured capacity has no weight against
// evidence.
func (u *usage) combine() {
	u.believed = u.distance
	if u.peers.distance == 0 || u.peers.evidence == 0 {
		return
	}
	own := 0.0
	if u.distance > 0 && u.taught {
		own = u.weight.value(u.now)
	}
	u.believed = (own*u.distance + u.peers.evidence*u.peers.distance) / (own + u.peers.evidence)
}

// LRUDistance returns the number of distinct blocks after whose use a block is evicted from b, and the
// weight of this node's evidence (at most MaxEvidence); 0 without evidence. Safe for concurrent
// use.
func (t *Tree) LRUDistance(b Backend) (blocks, evidence float64) {
	if int(b) >= len(t.ledgers) {
		return 0, 0
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	if evidence = l.usage.weight.value(Time(t.clock.Load())); evidence == 0 || l.usage.distance == 0 {
		return 0, 0
	}
	return l.usage.distance, evidence
}

// SetPeerLRUDistance replaces the other nodes' mean LRUDistance of b and their total evidence; 0 removes it.
// NaN and negative values are ignored. Safe for concurrent use.
func (t *Tree) SetPeerLRUDistance(b Backend, blocks, evidence float64) {
	if int(b) >= len(t.ledgers) || !(blocks >= 0 && evidence >= 0) {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.peers = peerDistance{min(blocks, maxDistance), min(evidence, maxDistance)}
	l.usage.combine()
	t.limits[b].span.Store(l.usage.span())
}

package prefixtree

import "math"

// Nodes share what they have learned of a backend's reach: each tells its own reach and the weight of its own evidence, and
// goes by the mean of all, weighted. What others say never enters its own, so nothing is heard back as if it were new.

const (
	// MaxEvidence bounds the weight of one node's evidence. A reach follows its last twenty or so observations
	// (shrinkRate), so more of them make it no surer.
	MaxEvidence = 64

	// evidenceHalfLife, ms, of an observation: an engine restarted with another cache size is known by those who have asked
	// it since.
	evidenceHalfLife = 10 * 60_000

	// maxReach, blocks, is far above any cache; a peer's nonsense shall not become infinity.
	maxReach = 1e12
)

// weight is a count of observations, halved every evidenceHalfLife.
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

// peerReach is what the other nodes have learned, as last told.
type peerReach struct{ reach, evidence float64 }

// combine sets the reach to go by. Whoever has no reach by evidence takes that of the others; a configured capacity weighs
// nothing against evidence.
func (u *usage) combine() {
	u.believed = u.reach
	if u.peers.reach == 0 || u.peers.evidence == 0 {
		return
	}
	own := 0.0
	if u.reach > 0 && u.taught {
		own = u.weight.value(u.now)
	}
	u.believed = (own*u.reach + u.peers.evidence*u.peers.reach) / (own + u.peers.evidence)
}

// Reach returns after how many distinct blocks touched since an untouched one is gone from b's cache, by this node's own
// evidence alone, and the weight of that evidence: observations, recent ones counting more, at most MaxEvidence. Both are
// zero where there is none. This is what to tell the others. Safe for concurrent use.
func (t *Tree) Reach(b Backend) (blocks, evidence float64) {
	if int(b) >= len(t.ledgers) {
		return 0, 0
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	if evidence = l.usage.weight.value(Time(t.clock.Load())); evidence == 0 || l.usage.reach == 0 {
		return 0, 0
	}
	return l.usage.reach, evidence
}

// SetPeerReach tells what the other nodes have learned of b: the mean of their Reach, weighted by their evidence, and the sum
// of that. It replaces what was told before; evidence 0 takes it back. Horizon and Match go by this and the own reach,
// weighted. Values that are no numbers or below zero are ignored. Safe for concurrent use.
func (t *Tree) SetPeerReach(b Backend, blocks, evidence float64) {
	if int(b) >= len(t.ledgers) || !(blocks >= 0 && evidence >= 0) {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.peers = peerReach{min(blocks, maxReach), min(evidence, maxReach)}
	l.usage.combine()
	t.limits[b].span.Store(l.usage.span())
}

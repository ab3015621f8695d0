package prefixtree

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A learned horizon stays within these: below a second no match could be trusted for even one think time, above a
	// day nothing is left to learn from an engine's cache.
	minHorizon = time.Second
	maxHorizon = 24 * time.Hour

	// retention is how many horizons a fact is kept: survivals past the horizon must be seen for it to grow.
	retention = 3

	// goneAfter is the age, in horizons, at which a block is expected to be gone for certain.
	goneAfter = 2
)

// limits is what every reader needs to know about a backend: 16 bytes, so that 64 backends are 1 KiB.
type limits struct {
	floor   atomic.Int64 // facts with time <= floor are dead
	horizon atomic.Int64 // ms
}

// raiseFloor fences everything at or before at. Merges by maximum.
func (l *limits) raiseFloor(at Time) {
	for {
		old := l.floor.Load()
		if int64(at) <= old || l.floor.CompareAndSwap(old, int64(at)) {
			return
		}
	}
}

// dead says whether a fact of the given time is behind the fence or past retention.
func (l *limits) dead(at, now Time) bool {
	return int64(at) <= l.floor.Load() || int64(now-at) > retention*l.horizon.Load()
}

// residency is the probability that a block untouched for age is still in the engine's cache: 1 up to the horizon,
// falling linearly to 0 at twice that.
func residency(age, horizon int64) float32 {
	switch {
	case age <= horizon:
		return 1
	case age >= goneAfter*horizon:
		return 0
	}
	return float32(goneAfter*horizon-age) / float32((goneAfter-1)*horizon)
}

// ledger is what is learned about one backend; see learn.go. Guarded by mu, except generation, which Apply reads.
type ledger struct {
	generation atomic.Uint32

	mu       sync.Mutex
	capacity int     // engine KV capacity in blocks, 0 = unknown
	blocks   float64 // new blocks since the window began
	began    Time    // start of the window, 0 = nothing recorded yet
	newest   Time    // latest placement
	learned  bool    // the horizon rests on evidence, no longer on capacity and rate

	surprises     int   // consecutive ones
	surpriseFirst Time  // placement of the first of them
	surpriseFrom  int64 // horizon when the streak began, ms
	restored      Time  // when a horizon was last restored after amnesia
}

func (t *Tree) setHorizon(b Backend, ms int64) {
	ms = max(minHorizon.Milliseconds(), min(ms, maxHorizon.Milliseconds()))
	t.limits[b].horizon.Store(ms)
}

// Horizon returns the age after which an untouched prefix is believed to be gone from b's cache; zero for an id out of
// range. Safe for concurrent use.
func (t *Tree) Horizon(b Backend) time.Duration {
	if int(b) >= len(t.limits) {
		return 0
	}
	return time.Duration(t.limits[b].horizon.Load()) * time.Millisecond
}

// SetCapacity tells how many blocks b's KV cache holds (0 = unknown). Until the first evidence from responses, the horizon
// is then the time in which b receives that many new blocks. Safe for concurrent use.
func (t *Tree) SetCapacity(b Backend, blocks int) {
	if int(b) >= len(t.ledgers) || blocks < 0 {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.capacity = blocks
	t.estimateHorizonLocked(b, l)
}

// noteNewBlocks counts blocks new to b towards its rate.
func (t *Tree) noteNewBlocks(b Backend, blocks int, now Time) {
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began == 0 {
		l.began = now
	}
	l.newest = max(l.newest, now)
	l.blocks += float64(blocks)
	// Halving the window once it is two horizons old keeps the rate that of about the last horizon.
	if span := l.newest - l.began; int64(span) > 2*t.limits[b].horizon.Load() {
		l.blocks /= 2
		l.began += span / 2
	}
	t.estimateHorizonLocked(b, l)
}

// estimateHorizonLocked derives the first horizon: the cache turns over once in capacity / rate. Before the cache has been
// filled for the first time this is never less than the time elapsed, as it must be. A rate over less than a second is
// noise and left alone.
func (t *Tree) estimateHorizonLocked(b Backend, l *ledger) {
	elapsed := l.newest - l.began
	if l.learned || l.capacity == 0 || l.blocks < 1 || elapsed < 1000 {
		return
	}
	t.setHorizon(b, int64(float64(l.capacity)*float64(elapsed)/l.blocks))
}

// Forget clears b: every fact on it up to now is dead, in O(1). A fence merges by maximum, so facts that arrive late
// cannot come back from behind it. Safe for concurrent use.
func (t *Tree) Forget(b Backend, now Time) {
	if int(b) >= len(t.limits) {
		return
	}
	now = clampTime(now)
	t.advance(now)
	t.limits[b].raiseFloor(now)
}

// SetGeneration tells b's generation as the membership issued it. A newer one clears b (its engine restarted or its cache
// was reset) and makes Apply refuse facts of the old one; an older or equal one is ignored. Safe for concurrent use.
func (t *Tree) SetGeneration(b Backend, gen uint32, now Time) {
	if int(b) >= len(t.ledgers) {
		return
	}
	now = clampTime(now)
	t.advance(now)
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	if gen <= l.generation.Load() {
		return
	}
	l.generation.Store(gen)
	l.surprises = 0
	// Late facts of the old generation are refused by number, so the fence need not reach past the latest one known. This
	// keeps a backend's very first generation from fencing placements of the same millisecond.
	t.limits[b].raiseFloor(min(now, Time(t.newest[b].Load())))
}

package prefixtree

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A learned horizon stays within these: below a second no match could be trusted for even one think time, above a
	// day nothing is left to learn from an engine's cache.
	minHorizon   = time.Second
	maxHorizon   = 24 * time.Hour
	minHorizonMs = int64(minHorizon / time.Millisecond)
	maxHorizonMs = int64(maxHorizon / time.Millisecond)

	// retention is how many horizons a fact is kept: survivals past the horizon must be seen for it to grow.
	retention = 3

	// goneAfter is the age, in horizons, at which a block is expected to be gone for certain. The horizon follows use, where
	// an LRU's edge is sharp: on replayed traces 1.1 gives half the prediction error of 2 at the same or more hits
	// (DESIGN.md, Learning).
	goneAfter = 1.1

	// grainsPerHorizon: a fact younger than a horizon's 64th (10 s of 10 minutes) is left as it is by a touch. So a fact's
	// time is its last touch to within a grain, far below what residency can tell apart, and the many requests that follow
	// another on the same prefix, as well as the end of one that did not last, write nothing. The price: an ancestor may
	// be up to a grain older than its descendants.
	grainsPerHorizon = 64
)

// limits is what every reader needs to know about a backend: 16 bytes, so that 64 backends are 1 KiB.
type limits struct {
	floor atomic.Int64 // facts with time <= floor are dead
	// span is the horizon: if positive, an age in ms; if negative, the negated time before which untouched blocks have been
	// displaced, an edge that stands still while nothing new comes in. See usage.go.
	span atomic.Int64
}

// horizon returns the age of probable eviction at the time now, ms.
func (l *limits) horizon(now Time) int64 {
	h := l.span.Load()
	if h < 0 {
		h = max(minHorizonMs, min(int64(now)+h, maxHorizonMs))
	}
	return h
}

// raiseFloor fences everything at or before at. Merges by maximum.
func (l *limits) raiseFloor(at Time) { raise(&l.floor, int64(at)) }

// settled returns the time after which a live fact needs no touch now.
func (l *limits) settled(now Time) Time {
	return max(Time(l.floor.Load()), now-Time(l.horizon(now)/grainsPerHorizon)-1)
}

// dead says whether a fact of the given time is behind the fence or past retention.
func (l *limits) dead(at, now Time) bool {
	return int64(at) <= l.floor.Load() || int64(now-at) > retention*l.horizon(now)
}

// residency is the probability that a block untouched for age is still in the engine's cache: 1 up to the horizon,
// falling linearly to 0 at goneAfter horizons.
func residency(age, horizon int64) float32 {
	if age <= horizon {
		return 1
	}
	over := float64(age)/float64(horizon) - 1
	return float32(max(0, 1-over/(goneAfter-1)))
}

// ledger is what is learned about one backend; see learn.go and usage.go. Guarded by mu, except generation and placed, which
// Apply uses.
type ledger struct {
	generation atomic.Uint32
	placed     atomic.Int64 // see Placed

	mu    sync.Mutex
	usage usage
	heard heard

	surprises     int  // consecutive ones
	surpriseFirst Time // placement of the first of them
	misses        misses
	cleared       Time // when the last amnesia was concluded
}

// heardFor is how long the first fact of a generation is remembered that is not known here yet: the membership announces it within
// seconds, and a faulty peer must not keep a fence from being drawn for longer.
const heardFor = Time(time.Minute / time.Millisecond)

// heard is what peers' facts of generations newer than a backend's own have shown: since when the caches they describe exist.
type heard struct {
	generation uint32 // the newest; 0 none
	oldest     uint32 // the oldest
	since      Time   // the earliest time of facts of the newest
	at         Time   // when a fact of the newest came first
}

// hear takes in a live fact of a generation that is newer than the backend's.
func (t *Tree) hear(f *Fact, now Time) {
	l := &t.ledgers[f.Backend]
	l.mu.Lock()
	defer l.mu.Unlock()
	switch h := &l.heard; {
	case f.Generation <= l.generation.Load(): // the membership was faster
	case h.generation == 0:
		*h = heard{f.Generation, f.Generation, f.Time, now}
	case f.Generation > h.generation, now-h.at > heardFor:
		*h = heard{f.Generation, min(h.oldest, f.Generation), f.Time, now}
	case f.Generation == h.generation:
		h.since = min(h.since, f.Time)
	default:
		h.oldest = min(h.oldest, f.Generation)
	}
}

// older says whether facts of a generation before the given one have been taken.
func (h *heard) older(generation uint32) bool { return h.generation != 0 && h.oldest < generation }

// settle forgets what the generation, now known, has answered.
func (h *heard) settle(generation uint32) {
	if h.generation <= generation {
		*h = heard{}
	}
}

// fence returns up to when facts are older than a generation that becomes known now; newest is the time of the latest of all.
func (h *heard) fence(generation uint32, newest, now Time) Time {
	if h.generation >= generation && now-h.at <= heardFor {
		return min(newest, h.since-1)
	}
	return newest
}

// Placed returns how many blocks facts of other nodes have newly placed on b since the start, as far as this tree has heard:
// what b's engine had to compute for their requests. It only grows; 0 for an id out of range. Safe for concurrent use.
func (t *Tree) Placed(b Backend) int64 {
	if int(b) >= len(t.ledgers) {
		return 0
	}
	return t.ledgers[b].placed.Load()
}

// Horizon returns the age after which an untouched prefix is believed to be gone from b's cache, as of the latest time the
// tree has heard of; zero for an id out of range. Safe for concurrent use.
func (t *Tree) Horizon(b Backend) time.Duration {
	if int(b) >= len(t.limits) {
		return 0
	}
	return time.Duration(t.limits[b].horizon(Time(t.clock.Load()))) * time.Millisecond
}

// SetCapacity tells how many blocks b's KV cache holds (0 = unknown). Until the first evidence from responses, what b is
// believed to hold is then the latest that many distinct blocks placed on it. Safe for concurrent use.
func (t *Tree) SetCapacity(b Backend, blocks int) {
	if int(b) >= len(t.ledgers) || blocks < 0 {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.setCapacity(float64(blocks))
	t.limits[b].span.Store(l.usage.span())
}

// use counts total blocks on b as touched, of which the trail's were known and those settled stay as they are, and notes in
// the trail how many other blocks had been touched since each of its steps.
func (t *Tree) use(b Backend, tr *Trail, total int, now Time) {
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range tr.n {
		tr.steps[i].displaced = l.usage.since(tr.steps[i].at)
	}
	above, left := 0, 0
	for _, step := range tr.steps[:tr.n] {
		if step.at > tr.settled {
			left = step.depth
		} else {
			l.usage.leave(step.at, float64(step.depth-above))
		}
		above = step.depth
	}
	if total > left {
		l.usage.touch(now, float64(total-left))
	}
	t.limits[b].span.Store(l.usage.span())
}

// use is blocks last touched at one time.
type use struct {
	at     Time
	blocks float64
}

// useAgain counts blocks of b as touched, and no longer as touched earlier. It is one lock for a run of anchors.
func (t *Tree) useAgain(b Backend, left []use, touched use) {
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range left {
		l.usage.leave(u.at, u.blocks)
	}
	l.usage.touch(touched.at, touched.blocks)
	t.limits[b].span.Store(l.usage.span())
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
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.clear()
}

// SetGeneration sets b's generation as the membership issued it, from 1 up; 0 is unknown. A newer one clears b (its engine restarted
// or its cache was reset) and makes Apply refuse facts of older ones; an older or equal one is ignored. What peers who knew the
// generation earlier have placed on it stays. The first generation of a backend clears nothing, unless peers' facts of an older one
// have been taken: what was placed before it was known was placed on the present engine. Safe for concurrent use.
func (t *Tree) SetGeneration(b Backend, gen uint32, now Time) {
	if int(b) >= len(t.ledgers) {
		return
	}
	now = clampTime(now)
	t.advance(now)
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.generation.Load()
	if gen <= before {
		return
	}
	l.generation.Store(gen)
	if before == 0 && !l.heard.older(gen) {
		l.heard.settle(gen)
		return
	}
	l.surprises, l.misses = 0, misses{}
	// Late facts of the old generation are refused by number, so the fence reaches up to the latest one known and no further.
	// That may lie after now, if the clock was set back since.
	fence := l.heard.fence(gen, Time(t.newest[b].Load()), now)
	l.heard.settle(gen)
	l.usage.forget(fence)
	t.limits[b].raiseFloor(fence)
}

// Reset makes b a backend of which nothing is known: its id stands for another engine from now on. Facts up to the latest one known
// are dead. No request of the engine before may still be running. Safe for concurrent use.
func (t *Tree) Reset(b Backend) {
	if int(b) >= len(t.ledgers) {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation.Store(0)
	l.heard, l.surprises, l.misses, l.cleared = heard{}, 0, misses{}, 0
	l.usage = usage{}
	l.usage.horizon = int64(t.turn)
	t.limits[b].span.Store(int64(t.turn))
	t.limits[b].raiseFloor(Time(t.newest[b].Load()))
}

package prefixtree

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Bounds of a learned horizon: shorter than a second is useless for follow-ups, and beyond a
	// day nothing remains to learn.
	minHorizon   = time.Second
	maxHorizon   = 24 * time.Hour
	minHorizonMs = int64(minHorizon / time.Millisecond)
	maxHorizonMs = int64(maxHorizon / time.Millisecond)

	// retention is the age in horizons up to which facts are kept, so that late survivals can raise
	// the horizon.
	retention = 3

	// goneAfter is the age in horizons at which a block is certainly gone. On replayed traces 1.1
	// has half the error of 2 (DESIGN.md, "Learning").
	goneAfter = 1.1

	// grainsPerHorizon: facts touched within the last 1/64 horizon (10 s of 10 minutes) are not
	// written again, which spares most touches. An ancestor may thus be up to a grain older than
	// its descendants.
	grainsPerHorizon = 64
)

// limits is what readers need of a backend, 16 bytes.
type limits struct {
	floor atomic.Int64 // facts with time <= floor are dead
	// span is the horizon: if positive, an age in ms; if negative, the negated time before which
	// untouched blocks are displaced. See usage.go.
	span atomic.Int64
}

// horizon returns the age of probable eviction in ms.
func (l *limits) horizon(now Time) int64 {
	h := l.span.Load()
	if h < 0 {
		h = max(minHorizonMs, min(int64(now)+h, maxHorizonMs))
	}
	return h
}

// raiseFloor kills every fact up to at.
func (l *limits) raiseFloor(at Time) { raise(&l.floor, int64(at)) }

// settled returns the time after which a fact needs no touch.
func (l *limits) settled(now Time) Time {
	return max(Time(l.floor.Load()), now-Time(l.horizon(now)/grainsPerHorizon)-1)
}

// dead reports whether a fact of that time is behind the fence or past retention.
func (l *limits) dead(at, now Time) bool {
	return int64(at) <= l.floor.Load() || int64(now-at) > retention*l.horizon(now)
}

// residency is the probability that a block of that age is cached: 1 up to the horizon, falling
// linearly to 0 at goneAfter horizons.
func residency(age, horizon int64) float32 {
	if age <= horizon {
		return 1
	}
	over := float64(age)/float64(horizon) - 1
	return float32(max(0, 1-over/(goneAfter-1)))
}

// ledger is what is learned about one backend; see learn.go and usage.go. mu guards it, except
// generation and placed.
type ledger struct {
	generation atomic.Uint32
	placed     atomic.Int64 // see Placed

	mu    sync.Mutex
	usage usage
	heard heard

	surprises     int  // consecutive ones
	surpriseFirst Time // earliest placement among them
	misses        misses
	cleared       Time // last lost cache
}

// heardFor is how long the start of an unannounced generation is remembered: the membership
// announces it within seconds, and a faulty peer must not prevent a fence for longer.
const heardFor = Time(time.Minute / time.Millisecond)

// heard is when generations newer than the backend's own began, according to peers' facts.
type heard struct {
	generation uint32 // the newest; 0: none
	oldest     uint32 // the oldest
	since      Time   // earliest time of facts of the newest
	at         Time   // first arrival of a fact of the newest
}

// hear records a live fact of a newer generation.
func (t *Tree) hear(f *Fact, now Time) {
	l := &t.ledgers[f.Backend]
	l.mu.Lock()
	defer l.mu.Unlock()
	switch h := &l.heard; {
	case f.Generation <= l.generation.Load(): // announced meanwhile
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

// older reports whether facts of an earlier generation were applied.
func (h *heard) older(generation uint32) bool { return h.generation != 0 && h.oldest < generation }

// settle forgets generations up to the given one.
func (h *heard) settle(generation uint32) {
	if h.generation <= generation {
		*h = heard{}
	}
}

// fence returns the time up to which facts belong to earlier generations; newest is the time of the
// latest fact.
func (h *heard) fence(generation uint32, newest, now Time) Time {
	if h.generation >= generation && now-h.at <= heardFor {
		return min(newest, h.since-1)
	}
	return newest
}

// Placed returns the number of blocks that other nodes' facts newly placed on b since the start, 0
// for an id out of range. Safe for concurrent use.
func (t *Tree) Placed(b Backend) int64 {
	if int(b) >= len(t.ledgers) {
		return 0
	}
	return t.ledgers[b].placed.Load()
}

// Horizon returns the age after which an untouched prefix is believed to be evicted from b, 0 for
// an id out of range. Safe for concurrent use.
func (t *Tree) Horizon(b Backend) time.Duration {
	if int(b) >= len(t.limits) {
		return 0
	}
	return time.Duration(t.limits[b].horizon(Time(t.clock.Load()))) * time.Millisecond
}

// SetCapacity sets how many blocks b's KV cache holds (0: unknown), which bounds what b is believed
// to hold until responses give evidence. Safe for concurrent use.
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

// use counts total blocks on b as touched, except those already settled, and sets the displaced
// blocks of the trail's steps.
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

// useAgain counts blocks of b as touched and removes their earlier touches, under one lock.
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

// Forget clears b up to now in O(1). Facts that arrive late stay behind the fence. Safe for
// concurrent use.
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

// SetGeneration sets b's generation, from 1; 0 is unknown. A newer one clears b (restart or reset
// cache) and makes Apply refuse facts of older ones; an older or equal one is ignored. Facts that
// peers placed in the new generation stay. The first generation clears nothing, unless facts of an
// older one were applied. Safe for concurrent use.
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
	// Apply refuses late facts of the old generation by number, so the fence needs to reach only
	// the latest known fact. That may lie after now if the clock was set back.
	fence := l.heard.fence(gen, Time(t.newest[b].Load()), now)
	l.heard.settle(gen)
	l.usage.forget(fence)
	t.limits[b].raiseFloor(fence)
}

// Reset makes b an unknown backend, for an id that is reused. All its facts die. No request of the
// former engine may run. Safe for concurrent use.
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

package prefixtree

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Bounds of a learned horizon in which follow-ups profit and responses give evidence.
	minHorizon   = time.Second
	maxHorizon   = 24 * time.Hour
	minHorizonMs = int64(minHorizon / time.Millisecond)
	maxHorizonMs = int64(maxHorizon / time.Millisecond)

	retention = 3 // in horizons: late survivals raise the horizon

	goneAfter = 1.1 // horizons until a block is certainly gone; 1.1 has half the error of 2 on replayed traces

	// grainsPerHorizon spares most touches: facts touched within 1/64 horizon are not written
	// again.
	grainsPerHorizon = 64
)

type limits struct {
	floor atomic.Int64 // facts with time <= floor are dead
	// span: if positive, the horizon in ms; if negative, the negated time before which untouched
	// blocks are displaced.
	span atomic.Int64
}

func (l *limits) horizon(now Time) int64 {
	h := l.span.Load()
	if h < 0 {
		h = max(minHorizonMs, min(int64(now)+h, maxHorizonMs))
	}
	return h
}

func (l *limits) raiseFloor(at Time) { raise(&l.floor, int64(at)) }

func (l *limits) settled(now Time) Time {
	return max(Time(l.floor.Load()), now-Time(l.horizon(now)/grainsPerHorizon)-1)
}

func (l *limits) dead(at, now Time) bool {
	return int64(at) <= l.floor.Load() || int64(now-at) > retention*l.horizon(now)
}

// residency is 1 up to the horizon and falls to 0 at goneAfter horizons.
func residency(age, horizon int64) float32 {
	if age <= horizon {
		return 1
	}
	over := float64(age)/float64(horizon) - 1
	return float32(max(0, 1-over/(goneAfter-1)))
}

// ledger is what is learned about one backend. mu guards all but generation.
type ledger struct {
	generation atomic.Uint32

	mu    sync.Mutex
	usage usage
	heard heard

	surprises     int  // consecutive ones
	surpriseFirst Time // earliest placement among them
	misses        misses
	cleared       Time // last lost cache
}

// heardFor: the membership announces a generation within seconds, and a faulty peer must not
// prevent a fence.
const heardFor = Time(time.Minute / time.Millisecond)

// heard is when generations newer than the backend's began, by peers' facts.
type heard struct {
	generation uint32 // the newest; 0: none
	oldest     uint32
	since      Time // earliest time of facts of the newest
	at         Time // first arrival of a fact of the newest
}

func (t *Tree) hear(f *Fact, now Time) {
	l := &t.ledgers[f.Backend]
	l.mu.Lock()
	defer l.mu.Unlock()
	switch h := &l.heard; {
	case f.Generation <= l.generation.Load():
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

func (h *heard) older(generation uint32) bool { return h.generation != 0 && h.oldest < generation }

func (h *heard) settle(generation uint32) {
	if h.generation <= generation {
		*h = heard{}
	}
}

// fence returns the time up to which facts belong to earlier generations.
func (h *heard) fence(generation uint32, newest, now Time) Time {
	if h.generation >= generation && now-h.at <= heardFor {
		return min(newest, h.since-1)
	}
	return newest
}

// Horizon returns the age of probable eviction from b. Safe for concurrent use.
func (t *Tree) Horizon(b Backend) time.Duration {
	if int(b) >= len(t.limits) {
		return 0
	}
	return time.Duration(t.limits[b].horizon(Time(t.clock.Load()))) * time.Millisecond
}

// SetCapacity sets how many blocks b's KV cache holds (0: unknown), until there is evidence. Safe
// for concurrent use.
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

// use counts total blocks as touched, except settled ones, and sets the history's displaced blocks.
func (t *Tree) use(b Backend, tr *TouchHistory, total int, now Time) {
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

type use struct {
	at     Time
	blocks float64
}

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

// SetGeneration sets b's generation, from 1. A newer one clears b, except what peers placed in it,
// and makes ApplyDelta refuse facts of older ones; the first clears nothing, unless older facts
// were applied. Safe for concurrent use.
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
	// ApplyDelta refuses late facts of the old generation, so fence only the latest known one.
	fence := l.heard.fence(gen, Time(t.newest[b].Load()), now)
	l.heard.settle(gen)
	l.usage.forget(fence)
	t.limits[b].raiseFloor(fence)
}

// Reset makes b unknown, for a reused id on which no request runs. Safe for concurrent use.
func (t *Tree) Reset(b Backend) {
	if int(b) >= len(t.ledgers) {
		return
	}
	l := &t.ledgers[b]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation.Store(0)
	t.retractions.forget(b)
	l.heard, l.surprises, l.misses, l.cleared = heard{}, 0, misses{}, 0
	l.usage = usage{}
	l.usage.horizon = int64(t.turn)
	t.limits[b].span.Store(int64(t.turn))
	t.limits[b].raiseFloor(Time(t.newest[b].Load()))
}

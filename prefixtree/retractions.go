package prefixtree

import (
	"maps"
	"sync"
	"sync/atomic"
)

const (
	maxRetractions = 1 << 14 // facts; 3 MiB
	apart          = 4       // retractions of one fact that do not overlap
)

// retraction of a fact of up to that generation: its times in (from, upTo] count as from, or as no
// fact if from is 0.
type retraction struct {
	from, upTo Time
	generation uint32
}

// retractions remember what crosses placements on their way between nodes: one from before a
// retraction that arrives after it would count at some nodes only.
type retractions struct {
	latest atomic.Int64 // end of the latest; a newer placement takes no lock

	mu    sync.RWMutex
	byKey map[retracted][apart]retraction
	ring  []retracted // keys by first use; the oldest is at next once it is full
	next  int
}

type retracted struct {
	hash    Hash
	backend Backend
}

// add joins overlapping retractions of the fact, which does not depend on their order, and returns
// the union.
func (r *retractions) add(h Hash, b Backend, now retraction) retraction {
	key := retracted{h, b}
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.byKey[key]
	switch {
	case ok:
	case len(r.ring) < maxRetractions:
		if r.byKey == nil {
			r.byKey = make(map[retracted][apart]retraction)
		}
		r.ring = append(r.ring, key)
	default:
		delete(r.byKey, r.ring[r.next])
		r.ring[r.next] = key
		r.next = (r.next + 1) % maxRetractions
	}
	earliest := &known[0]
	for i := range known {
		o := &known[i]
		if o.generation == now.generation && o.upTo > 0 && now.from <= o.upTo && o.from <= now.upTo {
			now.from, now.upTo = min(now.from, o.from), max(now.upTo, o.upTo)
			*o = retraction{}
		}
		if o.upTo < earliest.upTo {
			earliest = o
		}
	}
	if earliest.upTo <= now.upTo {
		*earliest = now
	}
	raise(&r.latest, int64(now.upTo))
	r.byKey[key] = known
	return now
}

func (r *retractions) covering(h Hash, b Backend, generation uint32, at Time) (now retraction, covered bool) {
	if int64(at) > r.latest.Load() {
		return now, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, now = range r.byKey[retracted{h, b}] {
		if generation <= now.generation && now.covers(at) {
			return now, true
		}
	}
	return now, false
}

func (r *retractions) forget(b Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byKey, func(key retracted, _ [apart]retraction) bool { return key.backend == b })
}

func (r retraction) covers(at Time) bool { return at > r.from && at <= r.upTo }

func (r retraction) apply(e entry) (to entry, remove bool) {
	if !r.covers(entryTime(e)) {
		return e, false
	}
	return entryAt(e, max(r.from, 1)), r.from == 0
}

// retract remembers a retraction before it edits the fact: a placement that is merged meanwhile is
// either edited here or sees the retraction.
func (t *Tree) retract(p *place, h Hash, b Backend, r retraction) (changed bool) {
	was, is, _ := t.edit(p, b, uint64(h), t.retractions.add(h, b, r).apply)
	return is != was
}

// crossed applies the retraction that covers a placement, if any.
func (t *Tree) crossed(h Hash, b Backend, generation uint32, at Time) bool {
	r, covered := t.retractions.covering(h, b, generation, at)
	if covered {
		t.edit(&place{shard: t.shard(uint64(h))}, b, uint64(h), r.apply)
	}
	return covered
}

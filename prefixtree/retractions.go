package prefixtree

import (
	"sync"
	"sync/atomic"
)

// maxRetractions bounds what is remembered: 0.9 MiB. Only retractions that cross placements on their
// way between nodes need it.
const maxRetractions = 1 << 14

// retraction of a fact: its times in (from, upTo] count as from, or as no fact if from is 0.
type retraction struct{ from, upTo Time }

// retractions are the latest, merged by block and engine. Without them a placement that happened
// before a retraction, but arrives after it, would count at some nodes only.
type retractions struct {
	latest atomic.Int64 // time of the latest; none covers a later placement, which needs no lock

	mu    sync.RWMutex
	byKey map[retracted]retraction
	ring  []retracted // keys of byKey; the oldest is at next once it is full
	next  int
}

type retracted struct {
	hash    Hash
	backend Backend
}

// add returns the union with what is remembered of this fact.
func (r *retractions) add(h Hash, b Backend, from, upTo Time) retraction {
	key := retracted{h, b}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch old, ok := r.byKey[key]; {
	case ok:
		from, upTo = min(from, old.from), max(upTo, old.upTo)
	case r.byKey == nil:
		r.byKey = make(map[retracted]retraction)
		fallthrough
	case len(r.ring) < maxRetractions:
		r.ring = append(r.ring, key)
	default:
		delete(r.byKey, r.ring[r.next])
		r.ring[r.next] = key
		r.next = (r.next + 1) % maxRetractions
	}
	raise(&r.latest, int64(upTo))
	now := retraction{from, upTo}
	r.byKey[key] = now
	return now
}

func (r *retractions) covering(h Hash, b Backend, at Time) (now retraction, covered bool) {
	if int64(at) > r.latest.Load() {
		return now, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	now = r.byKey[retracted{h, b}]
	return now, now.covers(at)
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
func (t *Tree) retract(p *place, h Hash, b Backend, from, upTo Time) (changed bool) {
	r := t.retractions.add(h, b, from, upTo)
	was, is, _ := t.edit(p, b, uint64(h), r.apply)
	return is != was
}

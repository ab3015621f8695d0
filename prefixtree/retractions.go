package prefixtree

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	maxRetractions = 1 << 14 // facts; 1.5 MiB, 2.7 if all have several
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

	mu      sync.RWMutex
	table   *table // by key, position in the ring plus one; a table's 0 is no entry
	ring    []kept // by first use; the oldest is at next once it is full
	next    int
	fetched uint64 // unused; keeps the compiler from removing add's reads
}

type retracted struct {
	hash    Hash
	backend Backend
}

// key is not 0. Two facts have the same one with a probability of 2^-64.
func (f retracted) key() uint64 {
	return max(1, uint64(f.hash)^bits.Reverse64(uint64(f.backend)))
}

// kept are the retractions of a fact, almost always one.
type kept struct {
	retracted
	first retraction
	more  *[apart - 1]retraction
}

func (k *kept) all(yield func(*retraction) bool) {
	if !yield(&k.first) || k.more == nil {
		return
	}
	for i := range k.more {
		if !yield(&k.more[i]) {
			return
		}
	}
}

// add joins overlapping retractions of a fact, which does not depend on their order, and returns
// their union for each fact of a run.
func (r *retractions) add(b Backend, run []Hash, now retraction) (joined [lookahead]retraction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table == nil {
		r.table = newTable(2*maxRetractions, 0)
	}
	raise(&r.latest, int64(now.upTo))
	var any uint64
	for _, h := range run { // load all before the first is looked at, so that the loads overlap
		any ^= r.table.key(r.table.home(retracted{h, b}.key()))
	}
	r.fetched = any
	for i, h := range run {
		joined[i] = r.entryLocked(retracted{h, b}).join(now)
	}
	return joined
}

func (k *kept) join(now retraction) retraction {
	for o := range k.all {
		if o.generation == now.generation && o.upTo > 0 && now.from <= o.upTo && o.from <= now.upTo {
			now.from, now.upTo = min(now.from, o.from), max(now.upTo, o.upTo)
			*o = retraction{}
		}
	}
	if k.first.upTo > 0 && k.more == nil {
		k.more = new([apart - 1]retraction)
	}
	earliest := &k.first
	for o := range k.all {
		if o.upTo < earliest.upTo {
			earliest = o
		}
	}
	if earliest.upTo <= now.upTo {
		*earliest = now
	}
	return now
}

func (r *retractions) entryLocked(f retracted) *kept {
	slot, at := r.table.find(f.key())
	switch {
	case at > 0:
		if k := &r.ring[at-1]; k.retracted == f {
			return k
		}
	case len(r.ring) < maxRetractions:
		r.ring = append(r.ring, kept{})
		at = uint64(len(r.ring))
	default:
		old, _ := r.table.find(r.ring[r.next].key())
		r.table.deleteSlot(old)
		slot, _ = r.table.find(f.key())
		at = uint64(r.next) + 1
		r.next = (r.next + 1) % maxRetractions
	}
	r.table.setSlot(slot, f.key(), at)
	r.ring[at-1] = kept{retracted: f}
	return &r.ring[at-1]
}

func (r *retractions) covering(h Hash, b Backend, generation uint32, at Time) (now retraction, covered bool) {
	if int64(at) > r.latest.Load() {
		return now, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.table == nil {
		return now, false
	}
	f := retracted{h, b}
	_, i := r.table.find(f.key())
	if i == 0 || r.ring[i-1].retracted != f {
		return now, false
	}
	for now := range r.ring[i-1].all {
		if generation <= now.generation && now.covers(at) {
			return *now, true
		}
	}
	return now, false
}

func (r *retractions) forget(b Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.ring {
		if k := &r.ring[i]; k.backend == b {
			k.first, k.more = retraction{}, nil
		}
	}
}

func (r retraction) covers(at Time) bool { return at > r.from && at <= r.upTo }

func (r retraction) apply(e entry) (to entry, remove bool) {
	if !r.covers(entryTime(e)) {
		return e, false
	}
	return entryAt(e, max(r.from, 1)), r.from == 0
}

// retract remembers a retraction of a run of facts before it edits them: a placement that is merged
// meanwhile is either edited here or sees the retraction. It returns the number of facts changed.
func (t *Tree) retract(b Backend, run []Hash, places []place, r retraction) (changed int) {
	if len(run) == 0 {
		return 0
	}
	joined := t.retractions.add(b, run, r)
	for i, h := range run {
		if was, is, _ := t.edit(&places[i], b, uint64(h), joined[i].apply); is != was {
			changed++
		}
	}
	return changed
}

// crossed applies the retraction that covers a placement, if any.
func (t *Tree) crossed(h Hash, b Backend, generation uint32, at Time) bool {
	r, covered := t.retractions.covering(h, b, generation, at)
	if covered {
		t.edit(&place{shard: t.shard(uint64(h))}, b, uint64(h), r.apply)
	}
	return covered
}

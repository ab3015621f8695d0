package prefixtree

import (
	"maps"
	"slices"
	"sync"
)

// Outbox collects a tree's news until they are drained to be sent. It is bounded; what does not fit is lost and counted, the
// least valuable first: touches (a later touch tells the same again), then the oldest adds, a whole placement at a time.
// Adds leave before touches and in the order they came, chains root first, so that what has been sent when it ends is a
// usable prefix. Fences are never lost, and leave first.
//
// A retraction stays behind what it retracts: the revert of an add is queued with the adds, all others with the touches.
//
// Safe for concurrent use. See NewOutbox.
type Outbox struct {
	limit int

	mu      sync.Mutex
	fences  map[Backend]Fact
	adds    queue
	touches queue
	stats   OutboxStats
}

// defaultOutbox is 2 MiB of facts, half a megabyte on the wire.
const defaultOutbox = 1 << 16

// OutboxStats are an Outbox' figures: totals since NewOutbox, but for Pending.
type OutboxStats struct {
	Pending     int    // records waiting
	Sent        uint64 // records drained
	LostAdds    uint64 // records that found no room, by kind
	LostTouches uint64
	LostDrops   uint64 // drops and reverts
	Unnamed     uint64 // records of backends that had no key when they were to be sent
}

// NewOutbox returns an outbox for at most limit facts, 32 bytes each; 0 is 65536. Fences, one per backend, come on top.
func NewOutbox(limit int) *Outbox {
	if limit <= 0 {
		limit = defaultOutbox
	}
	return &Outbox{limit: limit, fences: map[Backend]Fact{}}
}

// Add takes news in the order they came about. The slice stays the caller's.
func (o *Outbox) Add(news []Fact) {
	if len(news) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range news {
		f := &news[i]
		if f.Kind == Fence {
			if old := o.fences[f.Backend]; f.Generation > old.Generation || f.Generation == old.Generation && f.Time > old.Time {
				o.fences[f.Backend] = *f
			}
			continue
		}
		to := &o.touches
		if f.Kind == Add || f.Kind == Revert && f.Before == 0 {
			to = &o.adds
		}
		if o.adds.n+o.touches.n < o.limit || o.makeRoomLocked(f, to) {
			to.push(f)
		}
	}
}

// makeRoomLocked drops what is worth least. It reports false if that is f itself.
func (o *Outbox) makeRoomLocked(f *Fact, to *queue) bool {
	if o.touches.n > 0 {
		o.lostLocked(o.touches.first())
		o.touches.drop(1)
		return true
	}
	oldest := *o.adds.first()
	if to != &o.adds || oldest.Backend == f.Backend && oldest.Time == f.Time {
		o.lostLocked(f) // the end of the one placement that fills it, rather than its root
		return false
	}
	for o.adds.n > 0 {
		g := o.adds.first()
		if g.Backend != oldest.Backend || g.Time != oldest.Time {
			break
		}
		o.lostLocked(g)
		o.adds.drop(1)
	}
	return true
}

func (o *Outbox) lostLocked(f *Fact) {
	switch f.Kind {
	case Add:
		o.stats.LostAdds++
	case Touch:
		o.stats.LostTouches++
	default:
		o.stats.LostDrops++
	}
}

// Drain appends at most limit bytes of encoded news to dst, MaxPayload at most, and returns that with the number of records in
// it. What does not fit stays for the next Drain, which goes on in the middle of a chain if need be. With nothing to send, or
// limit below MinPayload, dst is returned as it was.
func (o *Outbox) Drain(dst []byte, limit int, names Names) (payload []byte, records int) {
	if limit < MinPayload {
		return dst, 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	w := encoder{dst: dst, limit: len(dst) + min(limit, MaxPayload), names: names}
	records += o.encodeFencesLocked(&w)
	records += o.encodeLocked(&w, &o.adds)
	records += o.encodeLocked(&w, &o.touches)
	o.stats.Sent += uint64(records)
	return w.dst, records
}

// encodeFencesLocked writes them by backend, so that equal runs send equal bytes.
func (o *Outbox) encodeFencesLocked(w *encoder) (records int) {
	if len(o.fences) == 0 {
		return 0 // as mostly, and at no cost
	}
	for _, b := range slices.Sorted(maps.Keys(o.fences)) {
		if w.room() < 1 {
			break
		}
		f := o.fences[b]
		if w.head(&f, 0) {
			records++
		} else {
			o.stats.Unnamed++
		}
		delete(o.fences, b)
	}
	return records
}

func (o *Outbox) encodeLocked(w *encoder, from *queue) (records int) {
	for from.n > 0 {
		room := w.room()
		if room < 1 {
			break
		}
		f := from.first()
		n := from.run(room)
		if w.head(f, n) {
			for i := range n {
				w.hash(from.at(i).Hash)
			}
			records += n
		} else {
			o.stats.Unnamed += uint64(n)
		}
		from.drop(n)
	}
	return records
}

// Forget drops what waits to be sent about b: its id stands for another engine from now on.
func (o *Outbox) Forget(b Backend) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.fences, b)
	for _, q := range []*queue{&o.adds, &o.touches} {
		for range q.n {
			if f := *q.first(); f.Backend == b {
				q.drop(1)
			} else {
				q.drop(1)
				q.push(&f)
			}
		}
	}
}

// Stats returns the current figures.
func (o *Outbox) Stats() OutboxStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.stats
	st.Pending = len(o.fences) + o.adds.n + o.touches.n
	return st
}

// queue is a ring of facts that grows by doubling, and shrinks when it has run empty after it was large.
type queue struct {
	ring    []Fact // a power of two
	head, n int
}

// keptRing facts of memory stay with an empty queue.
const keptRing = 1 << 12

func (q *queue) at(i int) *Fact { return &q.ring[(q.head+i)&(len(q.ring)-1)] }
func (q *queue) first() *Fact   { return q.at(0) }

func (q *queue) push(f *Fact) {
	if q.n == len(q.ring) {
		ring := make([]Fact, max(64, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.n++
	*q.at(q.n - 1) = *f
}

func (q *queue) drop(n int) {
	q.head = (q.head + n) & (len(q.ring) - 1)
	if q.n -= n; q.n == 0 && len(q.ring) > keptRing {
		q.ring, q.head = nil, 0
	}
}

// run returns how many facts at the front, at most limit, differ in their hashes alone.
func (q *queue) run(limit int) int {
	first := *q.first()
	n := 1
	for n < q.n && n < limit {
		f := *q.at(n)
		f.Hash = first.Hash
		if f != first {
			break
		}
		n++
	}
	return n
}

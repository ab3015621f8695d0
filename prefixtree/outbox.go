package prefixtree

import (
	"maps"
	"slices"
	"sync"
)

// Outbox queues a tree's changes until they are sent. When full, it drops touches, which repeat,
// then the oldest placement's adds. Fences leave first and are never dropped; adds leave before
// touches, so that any sent part is a usable prefix; a retraction stays behind what it retracts.
// Safe for concurrent use.
type Outbox struct {
	limit int

	mu      sync.Mutex
	fences  map[Backend]Fact
	adds    queue
	touches queue
	stats   OutboxStats
	added   [len(kindNames)]uint64
}

var kindNames = [...]string{Add: "add", Touch: "touch", Drop: "drop", Revert: "revert", Fence: "fence"}

const defaultOutbox = 1 << 17 // more than a node's worst second: 4 MiB, one on the wire

// OutboxStats are totals since NewOutbox, except Pending.
type OutboxStats struct {
	Pending     int
	Sent        uint64
	LostAdds    uint64 // dropped when full, by kind
	LostTouches uint64
	LostDrops   uint64 // drops and reverts
	Unnamed     uint64 // records of backends without a key
}

// NewOutbox returns an outbox for limit facts of 32 bytes, 0 for 131072, and one fence per backend.
func NewOutbox(limit int) *Outbox {
	if limit <= 0 {
		limit = defaultOutbox
	}
	return &Outbox{limit: limit, fences: map[Backend]Fact{}}
}

// Add queues changes in order. It does not retain the slice.
func (o *Outbox) Add(news []Fact) {
	if len(news) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range news {
		f := &news[i]
		o.added[f.Kind]++
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

func (o *Outbox) makeRoomLocked(f *Fact, to *queue) bool {
	if o.touches.n > 0 {
		o.lostLocked(o.touches.first())
		o.touches.drop(1)
		return true
	}
	oldest := *o.adds.first()
	if to != &o.adds || oldest.Backend == f.Backend && oldest.Time == f.Time {
		o.lostLocked(f) // drops the end of a placement that fills the outbox, not its root
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

// Drain appends at most limit bytes of encoded changes, at most MaxPayload, and returns dst and the
// number of records. A limit below MinPayload drains nothing.
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

func (o *Outbox) encodeFencesLocked(w *encoder) (records int) {
	if len(o.fences) == 0 {
		return 0
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

// Forget drops all changes about b, for a reused id.
func (o *Outbox) Forget(b Backend) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.fences, b)
	for _, q := range []*queue{&o.adds, &o.touches} {
		for range q.n {
			f := *q.first()
			q.drop(1)
			if f.Backend != b {
				q.push(&f)
			}
		}
	}
}

func (o *Outbox) Stats() OutboxStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.stats
	st.Pending = len(o.fences) + o.adds.n + o.touches.n
	return st
}

// Added returns the number of added facts by kind.
func (o *Outbox) Added() map[string]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]uint64, len(kindNames))
	for kind, name := range kindNames {
		out[name] = o.added[kind]
	}
	return out
}

// queue is a ring; a large one is freed when empty.
type queue struct {
	ring    []Fact // length is a power of two
	head, n int
}

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

// run returns how many facts at the front differ only in their hashes.
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

package gossip

import (
	"sort"
	"sync"
	"time"
)

const (
	// journalAge is how long a node keeps its own batches. A subscriber that was away for longer
	// takes a snapshot, which costs about as much: facts live for minutes.
	journalAge = 10 * time.Minute
	// entryBytes is what an entry costs beside its body.
	entryBytes = 64
)

// processID names one process of a node. A restarted node is a new process with a higher
// incarnation.
type processID struct {
	name        string
	incarnation uint64
}

// journal keeps the latest batches that this node published, for subscribers to send from.
// Sequences in it are consecutive. It is bounded in bytes and age; the newest batch always stays.
// Safe for concurrent use; no call blocks.
type journal struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	next    uint64 // sequence of the next batch
	entries []entry
}

// entry is one batch: its encoded body, which never changes, and when it was published on this
// node's clock.
type entry struct {
	body []byte
	at   int64 // Unix milliseconds, not before its predecessor's
}

// newJournal returns an empty journal of at most limit bytes, whose first batch will have sequence
// 1.
func newJournal(limit int64) *journal { return &journal{limit: limit, next: 1} }

// append keeps a copy of a batch's body as the one with sequence next. Old batches make room for
// it.
func (j *journal) append(body []byte, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{append(make([]byte, 0, len(body)), body...), at})
	j.bytes += int64(len(body)) + entryBytes
	j.next++
	drop := 0
	for bytes := j.bytes; bytes > j.limit && drop < len(j.entries)-1; drop++ {
		bytes -= int64(len(j.entries[drop].body)) + entryBytes
	}
	j.dropLocked(drop)
}

// age drops the batches that are too old at now (Unix ms), except the newest.
func (j *journal) age(now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cutoff, drop := now-journalAge.Milliseconds(), 0
	for drop < len(j.entries)-1 && j.entries[drop].at < cutoff {
		drop++
	}
	j.dropLocked(drop)
}

// dropLocked drops the oldest n batches. Their memory is freed with the array that append leaves
// behind when it grows.
func (j *journal) dropLocked(n int) {
	for i := range j.entries[:n] {
		j.bytes -= int64(len(j.entries[i].body)) + entryBytes
		j.entries[i].body = nil
	}
	j.entries = j.entries[n:]
}

// position returns the sequences of the oldest batch that is kept and of the next one to be
// published. They are equal if nothing is kept.
func (j *journal) position() (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - uint64(len(j.entries)), j.next
}

// since returns the sequence of the oldest kept batch that was published at or after at (Unix ms),
// or the next to come.
func (j *journal) since(at int64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := sort.Search(len(j.entries), func(i int) bool { return j.entries[i].at >= at })
	return j.next - uint64(len(j.entries)-i)
}

// read calls each with the bodies of the kept batches from a sequence on, in order, while it
// returns true. A body may be kept and must not be changed. next is the first sequence that each
// did not take; ok is false if from is not kept any more.
func (j *journal) read(from uint64, each func(body []byte) bool) (next uint64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	oldest := j.next - uint64(len(j.entries))
	if from < oldest {
		return from, false
	}
	for ; from < j.next && each(j.entries[from-oldest].body); from++ {
	}
	return from, true
}

// size returns the memory that the journal takes, in bytes, and the number of batches in it.
func (j *journal) size() (bytes, batches int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes, int64(len(j.entries))
}

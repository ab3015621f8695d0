package gossip

import (
	"sort"
	"sync"
	"time"
)

const (
	// journalAge is how long a node keeps its own batches. Facts live for minutes, so a snapshot
	// costs a subscriber that was away for longer about as much.
	journalAge = 10 * time.Minute
	// entryBytes is the memory of an entry without its body.
	entryBytes = 64
)

// processID names one process of a node. A restart has a higher incarnation.
type processID struct {
	name        string
	incarnation uint64
}

// journal keeps the latest batches that this node published, with consecutive sequences, bounded in
// bytes and age; the newest batch always stays. Safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	next    uint64 // sequence of the next batch
	entries []entry
}

// entry is one batch: its immutable encoded body and its time on this node's clock.
type entry struct {
	body []byte
	at   int64 // Unix ms, never decreasing
}

// newJournal returns an empty journal of at most limit bytes; the first batch gets sequence 1.
func newJournal(limit int64) *journal { return &journal{limit: limit, next: 1} }

// append keeps a copy of body as the batch with sequence next, and drops old batches beyond the
// limit.
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

// age drops all batches older than journalAge at now (Unix ms), except the newest.
func (j *journal) age(now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cutoff, drop := now-journalAge.Milliseconds(), 0
	for drop < len(j.entries)-1 && j.entries[drop].at < cutoff {
		drop++
	}
	j.dropLocked(drop)
}

// dropLocked drops the oldest n batches. Their entries are freed when append next grows the array.
func (j *journal) dropLocked(n int) {
	for i := range j.entries[:n] {
		j.bytes -= int64(len(j.entries[i].body)) + entryBytes
		j.entries[i].body = nil
	}
	j.entries = j.entries[n:]
}

// position returns the sequences of the oldest kept batch and of the next one to be published; they
// are equal if the journal is empty.
func (j *journal) position() (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - uint64(len(j.entries)), j.next
}

// since returns the sequence of the oldest kept batch published at or after at (Unix ms), or the
// next sequence.
func (j *journal) since(at int64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := sort.Search(len(j.entries), func(i int) bool { return j.entries[i].at >= at })
	return j.next - uint64(len(j.entries)-i)
}

// read calls each with the bodies from sequence from on while each returns true. Bodies may be kept
// but not changed. It returns the first sequence that each did not take; ok is false if from was
// dropped.
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

// size returns the journal's memory in bytes and its number of batches.
func (j *journal) size() (bytes, batches int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes, int64(len(j.entries))
}

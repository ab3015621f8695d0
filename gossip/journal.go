package gossip

import (
	"sort"
	"sync"
	"time"
)

const (
	// journalAge is ten minutes, because facts live for minutes: after that a snapshot costs no
	// more.
	journalAge = 10 * time.Minute
	// entryBytes is the memory of an entry without its body.
	entryBytes = 64
)

// processID names one process of a node; a restart has a higher incarnation.
type processID struct {
	name        string
	incarnation uint64
}

// journal keeps this node's latest batches, with consecutive sequences, bounded in bytes and age.
// Safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	next    uint64 // sequence of the next batch
	entries []entry
}

// entry is one batch: its immutable body and its time on this node's clock.
type entry struct {
	body []byte
	at   int64 // Unix ms, never decreasing
}

func newJournal(limit int64) *journal { return &journal{limit: limit, next: 1} }

// append keeps a copy of body as the batch with sequence next and drops old batches beyond the
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

// age drops batches older than journalAge, except the newest.
func (j *journal) age(now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cutoff, drop := now-journalAge.Milliseconds(), 0
	for drop < len(j.entries)-1 && j.entries[drop].at < cutoff {
		drop++
	}
	j.dropLocked(drop)
}

// dropLocked drops the oldest n batches. Append frees their entries when it next grows the array.
func (j *journal) dropLocked(n int) {
	for i := range j.entries[:n] {
		j.bytes -= int64(len(j.entries[i].body)) + entryBytes
		j.entries[i].body = nil
	}
	j.entries = j.entries[n:]
}

// position returns the sequences of the oldest kept batch and of the next one.
func (j *journal) position() (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - uint64(len(j.entries)), j.next
}

// since returns the sequence of the oldest kept batch from at (Unix ms) on, or the next one.
func (j *journal) since(at int64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := sort.Search(len(j.entries), func(i int) bool { return j.entries[i].at >= at })
	return j.next - uint64(len(j.entries)-i)
}

// read calls each with the bodies from sequence from on while each returns true, and returns the
// first sequence not taken; ok is false if from was dropped. Bodies may be kept but not changed.
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

func (j *journal) size() (bytes, batches int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes, int64(len(j.entries))
}

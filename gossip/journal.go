package gossip

import (
	"sort"
	"sync"
	"time"
)

const (
	journalAge = 10 * time.Minute // facts live for minutes; after that a snapshot costs no more
	entryBytes = 64               // without the body
)

// processID names one process of a node; a restart has a higher incarnation.
type processID struct {
	name        string
	incarnation uint64
}

// journal keeps this node's latest batches, bounded in bytes and age. Safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	next    uint64 // sequence of the next batch
	entries []entry
}

// entry is an immutable batch.
type entry struct {
	body []byte
	at   int64 // Unix ms, never decreasing
}

func newJournal(limit int64) *journal { return &journal{limit: limit, next: 1} }

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

// age always keeps the newest batch.
func (j *journal) age(now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cutoff, drop := now-journalAge.Milliseconds(), 0
	for drop < len(j.entries)-1 && j.entries[drop].at < cutoff {
		drop++
	}
	j.dropLocked(drop)
}

// append frees dropped entries when it next grows the array.
func (j *journal) dropLocked(n int) {
	for i := range j.entries[:n] {
		j.bytes -= int64(len(j.entries[i].body)) + entryBytes
		j.entries[i].body = nil
	}
	j.entries = j.entries[n:]
}

func (j *journal) position() (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - uint64(len(j.entries)), j.next
}

// since returns the first kept sequence from at (Unix ms) on, or the next one.
func (j *journal) since(at int64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := sort.Search(len(j.entries), func(i int) bool { return j.entries[i].at >= at })
	return j.next - uint64(len(j.entries)-i)
}

// read passes bodies from a sequence on, while each returns true, and returns the first one not
// taken; ok is false if from was dropped. Bodies are immutable.
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

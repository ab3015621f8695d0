package gossip

import (
	"slices"
	"sync"
	"time"

	"grapevine/gossip/wire"
)

const (
	// journalAge is how long batches are kept for repairs: longer than partitions that are repaired by people usually
	// last, and what lasts longer is made good by a snapshot.
	journalAge = 10 * time.Minute
	// maxAhead is how far another clock may be ahead for its batches to take part in digests.
	maxAhead = time.Minute
	// sealAfter is how long after its end a bucket is taken for complete: time for a gap to be noticed and repaired.
	sealAfter = time.Second
	// maxStreams bounds the streams in a journal: several times the largest fleet, restarts included.
	maxStreams = 4096
	// evictShare is how far below its bound the journal goes when it is full, so that this is rare.
	evictShare = 16
)

// verdict is what the journal says to a batch.
type verdict uint8

const (
	fresh     verdict = iota // not known until now: apply it
	duplicate                // known
	outdated                 // older than what is kept: it may have been applied
	refused                  // beyond the bound of streams
)

// journal keeps the batches of all origins, this node's own included, for those who lack them, and says which have
// been applied. It is bounded in bytes and time. Safe for concurrent use; no call blocks.
type journal struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	count   int64
	streams map[streamID]*stream
	buckets map[int64]*wire.Bucket
	from    int64 // first bucket in which nothing is missing that was once here
}

// newJournal returns a journal whose digests begin with the first bucket after now.
func newJournal(limit int64, now int64) *journal {
	return &journal{
		limit: limit, from: now/wire.BucketMillis + 1,
		streams: map[streamID]*stream{}, buckets: map[int64]*wire.Bucket{},
	}
}

// openLocked returns a stream, creating it; nil if there are too many.
func (j *journal) openLocked(id streamID, floor uint64, now int64) *stream {
	s := j.streams[id]
	if s == nil {
		if len(j.streams) >= maxStreams {
			return nil
		}
		s = &stream{id: id, key: wire.StreamKey(id.origin, id.incarnation), floor: floor, next: max(floor, 1), used: now}
		j.streams[id] = s
		j.bytes += streamBytes
	}
	return s
}

// open makes sure that a stream is there. Its batches below floor are of no interest if it is new.
func (j *journal) open(id streamID, floor uint64, now int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.openLocked(id, floor, now) != nil
}

// unheard reports whether nothing of a stream has come from its origin itself yet; what others have repaired of it here says
// nothing of what was before.
func (j *journal) unheard(id streamID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[id]
	return s == nil || !s.heard
}

// hear notes that a stream comes from its origin itself. Its batches below floor are of no interest if it is new; whole says that
// all of it is looked for, whatever began it here.
func (j *journal) hear(id streamID, floor uint64, whole bool, now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.openLocked(id, floor, now); s != nil {
		s.heard = true
		if whole {
			s.floor = max(s.floor, 1) // 0 is for what only repairs have come of
		}
	}
}

// own opens the stream this node publishes, which is kept however long it is silent.
func (j *journal) own(id streamID, now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.openLocked(id, 1, now).own = true
}

// add keeps a batch unless it is known. Body is what AppendBody wrote, and is copied. Shift is what to add to the
// origin's times, in ms.
func (j *journal) add(id streamID, b *wire.Batch, body []byte, shift, now int64) verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.openLocked(id, 0, now)
	switch {
	case s == nil:
		return refused
	case b.Sequence < s.floor:
		return outdated
	case s.entry(b.Sequence) != nil:
		return duplicate
	}
	s.used, s.shift = now, shift
	at := b.Time
	// A clock that is wrong by more than the journal's age would keep its batches too long or not at all. They age by
	// their coming here, and no digest names them.
	if at < now-journalAge.Milliseconds() || at > now+maxAhead.Milliseconds() {
		at = now
	} else if n := at / wire.BucketMillis; n >= j.from {
		d := j.buckets[n]
		if d == nil {
			d = &wire.Bucket{Number: uint64(n)}
			j.buckets[n] = d
		}
		d.Count++
		d.XOR ^= wire.BatchID(s.key, b.Sequence)
	}
	j.bytes += s.put(b.Sequence, body, at)
	j.count++
	if j.bytes > j.limit {
		j.shrinkLocked()
	}
	return fresh
}

// poison forgets the body of a batch that turned out to be malformed, so that it is not served to others.
func (j *journal) poison(id streamID, sequence uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.streams[id]; s != nil {
		if e := s.entry(sequence); e != nil {
			e.body = nil // its memory is the chunk's
		}
	}
}

// shrinkLocked makes room. It takes from whoever has most, so that a node that floods does not cost the others' batches
// their repair.
func (j *journal) shrinkLocked() {
	for target := j.limit - j.limit/evictShare; j.bytes > target; {
		var most *stream
		for _, s := range j.streams {
			if s.spare() > 0 && (most == nil || s.bytes > most.bytes) {
				most = s
			}
		}
		if most == nil {
			return // nothing left but empty streams, whose number is bounded, and what is yet to be sent
		}
		// Down to half before the next look, so that a single flood does not mean a look per chunk.
		for half := most.bytes / 2; most.spare() > 0 && most.bytes > half && j.bytes > target; {
			j.cutLocked(most)
		}
	}
}

// cutLocked drops a stream's lowest chunk. Buckets that had batches in it are no longer complete.
func (j *journal) cutLocked(s *stream) {
	count := s.count
	freed, latest := s.cut()
	j.bytes -= freed
	j.count -= count - s.count
	j.completeFromLocked(latest/wire.BucketMillis + 1)
}

func (j *journal) completeFromLocked(bucket int64) {
	if bucket <= j.from {
		return
	}
	j.from = bucket
	for n := range j.buckets {
		if n < bucket {
			delete(j.buckets, n)
		}
	}
}

// age drops what is too old at now (Unix ms): chunks whose every batch is, and streams that are empty and unused.
func (j *journal) age(now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cutoff := now - journalAge.Milliseconds()
	// If the clock was set back, what it has yet to come to again is not waited for: no batch in a digest is from there.
	j.from = min(j.from, (now+maxAhead.Milliseconds())/wire.BucketMillis+1)
	j.completeFromLocked(cutoff/wire.BucketMillis + 1)
	for id, s := range j.streams {
		for len(s.chunks) > 0 && s.chunks[0].max < cutoff {
			j.cutLocked(s)
		}
		if len(s.chunks) == 0 && s.used < cutoff && !s.own {
			delete(j.streams, id)
			j.bytes -= streamBytes
		}
	}
}

// position is how far a stream is known: next is after its highest batch, floor its lowest that may be known.
func (j *journal) position(id streamID) (floor, next uint64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[id]
	if s == nil {
		return 0, 0, false
	}
	return s.floor, s.next, true
}

// since is the first sequence of a stream whose time is not before at (Unix ms), or the next to come.
func (j *journal) since(id streamID, at int64) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[id]
	if s == nil {
		return 1
	}
	for _, c := range s.chunks {
		if c.max < at {
			continue
		}
		for i := range c.entries {
			if e := &c.entries[i]; e.known && e.at >= at {
				return c.number*chunkSize + uint64(i)
			}
		}
	}
	return s.next
}

// read calls each for the batches of a stream from a sequence on, in order, as long as it returns true. The body is
// immutable and may be kept. Next is the first sequence that was not looked at; below through.
func (j *journal) read(id streamID, from, through uint64, each func(sequence uint64, body []byte) bool) (next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[id]
	if s == nil {
		return through
	}
	through = min(through, max(s.next, from))
	for seq := max(from, s.floor); seq < through; seq++ {
		if e := s.entry(seq); e != nil && e.body != nil && !each(seq, e.body) {
			return seq
		}
	}
	return max(from, through)
}

// gaps lists what of [from, from+count) is missing of a stream, as at most limit spans. A stream that is not known lacks all of it.
func (j *journal) gaps(id streamID, from, count uint64, limit int) []span {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[id]
	if s == nil {
		return []span{{from, count}}
	}
	return s.gaps(nil, from, count, limit)
}

// shift is what to add to the times of a stream, in ms, as last known.
func (j *journal) shift(id streamID) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.streams[id]; s != nil {
		return s.shift
	}
	return 0
}

// digest lists the complete and sealed buckets that are not empty, in ascending order, and the numbers between which
// that is all there is. None are sealed yet if through < from.
func (j *journal) digest(now int64) (from, through int64, buckets []wire.Bucket) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from, through = j.from, sealed(now)
	for n, b := range j.buckets {
		if n <= through {
			buckets = append(buckets, *b)
		}
	}
	slices.SortFunc(buckets, func(a, b wire.Bucket) int { return int(int64(a.Number) - int64(b.Number)) })
	if through-from >= wire.MaxBuckets {
		from = through - wire.MaxBuckets + 1 // cannot happen: the journal is a third as old
	}
	return from, through, buckets
}

// sealed is the last bucket that is sealed at now (Unix ms).
func sealed(now int64) int64 { return (now-sealAfter.Milliseconds())/wire.BucketMillis - 1 }

// list copies all complete buckets, for people and tests.
func (j *journal) list(now int64) []Bucket {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := sealed(now)
	out := make([]Bucket, 0, len(j.buckets))
	for n, b := range j.buckets {
		out = append(out, Bucket{Start: n * wire.BucketMillis, Sealed: n <= last, Count: b.Count, XOR: b.XOR})
	}
	slices.SortFunc(out, func(a, b Bucket) int { return int(a.Start - b.Start) })
	return out
}

// runs lists the batches of a bucket.
func (j *journal) runs(bucket int64) []wire.Run {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []wire.Run
	for _, s := range j.streams {
		out = s.runs(out, bucket)
	}
	return out
}

// size is what the journal holds, and from when on (Unix ms) it is complete.
func (j *journal) size() (bytes, batches, from int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes, j.count, j.from * wire.BucketMillis
}

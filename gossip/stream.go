package gossip

import (
	"slices"
	"sort"

	"grapevine/gossip/wire"
)

// streamID names the batches of one process of a node. A restarted node is another stream: batches of the one before
// stay as true as they were, only its load and state are void.
type streamID struct {
	origin      string
	incarnation uint64
}

const (
	chunkSize = 64
	// Bodies are allocated in slabs, of which a chunk has a few, each twice as large as the one before. They are the chunk's
	// alone and go with it, so that what is counted is what is freed.
	minSlab, maxSlab = 512, 16 << 10
	// chunkBytes is what a chunk costs beside its bodies.
	chunkBytes = chunkSize*40 + 128
	// streamBytes is what an empty stream costs, names and maps included.
	streamBytes = 512
)

// entry is a batch in the journal. A body of nil with known set is one whose payload was malformed, or has no place: it is
// not asked for again and cannot be served.
type entry struct {
	body  []byte
	at    int64 // Unix ms by which it ages: its time, or when it came if that is absurd
	known bool
}

// chunk holds entries of chunkSize consecutive sequences.
type chunk struct {
	number   uint64 // sequence / chunkSize
	min, max int64  // of the times of its entries
	slab     []byte // the latest; filled to its length
	bytes    int64  // of all slabs
	entries  [chunkSize]entry
}

// stream is the known batches of one process. Guarded by the journal.
type stream struct {
	id     streamID
	key    uint64
	chunks []*chunk // by number, ascending
	floor  uint64   // sequences below are neither kept nor taken nor missed
	next   uint64   // after the highest known
	bytes  int64
	count  int64
	used   int64 // Unix ms of the last batch that came
	own    bool
	heard  bool  // from the origin itself, not by repairs alone
	shift  int64 // ms to add to the origin's times, as last known
}

// find returns the index of the chunk with the number, or where it would be inserted.
func (s *stream) find(number uint64) (int, bool) {
	if n := len(s.chunks); n > 0 && s.chunks[n-1].number <= number {
		if s.chunks[n-1].number == number {
			return n - 1, true
		}
		return n, false
	}
	i := sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].number >= number })
	return i, i < len(s.chunks) && s.chunks[i].number == number
}

func (s *stream) entry(sequence uint64) *entry {
	i, ok := s.find(sequence / chunkSize)
	if !ok {
		return nil
	}
	e := &s.chunks[i].entries[sequence%chunkSize]
	if !e.known {
		return nil
	}
	return e
}

// put notes a batch that is not known yet and returns how many bytes of memory that takes.
func (s *stream) put(sequence uint64, body []byte, at int64) int64 {
	before := s.bytes
	number := sequence / chunkSize
	i, ok := s.find(number)
	if !ok {
		s.chunks = slices.Insert(s.chunks, i, &chunk{number: number, min: at, max: at})
		s.bytes += chunkBytes
	}
	c := s.chunks[i]
	c.min, c.max = min(c.min, at), max(c.max, at)
	s.bytes -= c.bytes
	c.entries[sequence%chunkSize] = entry{body: c.keep(body), at: at, known: true}
	s.bytes += c.bytes
	s.count++
	s.next = max(s.next, sequence+1)
	return s.bytes - before
}

// keep copies a body into the current slab, or into one of its own if it is large.
func (c *chunk) keep(body []byte) []byte {
	if len(body) > maxSlab/4 {
		c.bytes += int64(len(body))
		return append(make([]byte, 0, len(body)), body...)
	}
	if len(c.slab)+len(body) > cap(c.slab) {
		size := max(minSlab, min(maxSlab, 2*cap(c.slab)))
		for size < len(body) {
			size *= 2
		}
		c.slab = make([]byte, 0, size)
		c.bytes += int64(size)
	}
	n := len(c.slab)
	c.slab = append(c.slab, body...)
	return c.slab[n:len(c.slab):len(c.slab)]
}

// spare is how many chunks may go when room is needed. The newest of this node's own stays: feeds have yet to send from it, and
// nobody else could repair what they did not.
func (s *stream) spare() int {
	if s.own {
		return max(len(s.chunks)-1, 0)
	}
	return len(s.chunks)
}

// cut drops the lowest chunk and returns the bytes that frees and the latest time in it.
func (s *stream) cut() (freed, latest int64) {
	before := s.bytes
	c := s.chunks[0]
	for i := range c.entries {
		if c.entries[i].known {
			s.count--
		}
	}
	s.bytes -= c.bytes + chunkBytes
	s.chunks[0] = nil
	s.chunks = s.chunks[1:]
	// Not beyond next: the stream goes on there, even if its latest chunk had to go.
	s.floor = max(s.floor, min((c.number+1)*chunkSize, s.next))
	if len(s.chunks) == 0 {
		s.chunks = nil
	}
	return before - s.bytes, c.max
}

// gaps appends the runs of [from, from+count) that are neither known nor below the floor, at most limit of them; more
// that remain are part of the last.
func (s *stream) gaps(dst []span, from, count uint64, limit int) []span {
	through := from + count
	for seq := max(from, s.floor); seq < through; {
		if s.entry(seq) != nil {
			seq++
			continue
		}
		start := seq
		seq = s.nextKnown(seq, through)
		if len(dst) == limit {
			last := &dst[limit-1]
			last.count = seq - last.from
			continue
		}
		dst = append(dst, span{start, seq - start})
	}
	return dst
}

// nextKnown is the first known sequence from seq on, or through.
func (s *stream) nextKnown(seq, through uint64) uint64 {
	for seq < through {
		i, ok := s.find(seq / chunkSize)
		switch {
		case !ok && i == len(s.chunks):
			return through
		case !ok:
			seq = s.chunks[i].number * chunkSize
		case s.chunks[i].entries[seq%chunkSize].known:
			return seq
		default:
			seq++
		}
	}
	return through
}

// span is a run of sequences.
type span struct{ from, count uint64 }

// runs appends the stream's batches whose time lies in the bucket as runs.
func (s *stream) runs(dst []wire.Run, bucket int64) []wire.Run {
	from, through := bucket*wire.BucketMillis, (bucket+1)*wire.BucketMillis
	name, open := []byte(s.id.origin), -1
	for _, c := range s.chunks {
		if c.max < from || c.min >= through {
			continue
		}
		for i := range c.entries {
			e := &c.entries[i]
			if !e.known || e.at < from || e.at >= through {
				continue
			}
			seq := c.number*chunkSize + uint64(i)
			if open >= 0 && dst[open].From+dst[open].Count == seq && dst[open].Count < wire.MaxRun {
				dst[open].Count++
				continue
			}
			open = len(dst)
			dst = append(dst, wire.Run{Origin: name, Incarnation: s.id.incarnation, From: seq, Count: 1})
		}
	}
	return dst
}

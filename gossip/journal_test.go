package gossip

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"grapevine/gossip/wire"
)

const t0 = int64(1_795_232_000_000) // the beginning of a bucket, Unix ms

func put(j *journal, id streamID, sequence uint64, at int64, size int) verdict {
	b := wire.Batch{Sequence: sequence, Time: at, Records: 1, Payload: make([]byte, size)}
	return j.add(id, &b, b.AppendBody(nil), 0, at)
}

func TestJournalTakesEachBatchOnce(t *testing.T) {
	j := newJournal(1<<20, t0)
	id := streamID{"a", 1}
	for _, seq := range []uint64{5, 1, 900, 3, 64, 63, 65} {
		if v := put(j, id, seq, t0, 10); v != fresh {
			t.Errorf("%d: %v", seq, v)
		}
		if v := put(j, id, seq, t0, 10); v != duplicate {
			t.Errorf("%d again: %v", seq, v)
		}
	}
	if got := j.gaps(id, 1, 66, 8); !slices.Equal(got, []span{{2, 1}, {4, 1}, {6, 57}, {66, 1}}) {
		t.Errorf("gaps %v", got)
	}
	if got := j.gaps(id, 1, 66, 2); !slices.Equal(got, []span{{2, 1}, {4, 63}}) {
		t.Errorf("gaps %v, the last to hold the rest", got)
	}
	var read []uint64
	next := j.read(id, 2, 1000, func(seq uint64, _ []byte) bool {
		read = append(read, seq)
		return len(read) < 4
	})
	if !slices.Equal(read, []uint64{3, 5, 63, 64}) || next != 64 {
		t.Errorf("read %v, next %d", read, next)
	}
	if got := j.gaps(id, 60, 2000, 8); !slices.Equal(got, []span{{60, 3}, {66, 834}, {901, 1159}}) {
		t.Errorf("gaps %v", got)
	}
	if v := put(j, streamID{"a", 2}, 5, t0, 10); v != fresh {
		t.Errorf("another process of the same node: %v", v)
	}
}

func TestJournalDigestIsThatOfTheSet(t *testing.T) {
	a, b := newJournal(1<<20, t0-1), newJournal(1<<20, t0-1)
	ids := []streamID{{"a", 1}, {"b", 1}, {"a", 2}}
	for i := range 300 {
		put(a, ids[i%3], uint64(1+i/3), t0+int64(i)*100, 10)
		i = 299 - i
		put(b, ids[i%3], uint64(1+i/3), t0+int64(i)*100, 10)
	}
	now := t0 + 40_000
	from, through, da := a.digest(now)
	_, _, db := b.digest(now)
	if !slices.Equal(da, db) || len(da) != 3 || da[0].Count != 100 {
		t.Errorf("digests %v and %v", da, db)
	}
	if from != t0/wire.BucketMillis || through != now/wire.BucketMillis-2 {
		t.Errorf("sealed from %d to %d", from, through)
	}
	put(a, ids[0], 500, t0+5000, 10)
	if _, _, da := a.digest(now); slices.Equal(da, db) {
		t.Error("one batch more does not show")
	}
	// The runs of a bucket are its batches.
	count := uint64(0)
	for _, r := range a.runs(t0 / wire.BucketMillis) {
		count += r.Count
	}
	if count != 101 {
		t.Errorf("%d batches listed", count)
	}
}

func TestJournalKeepsItsBounds(t *testing.T) {
	const limit = 1 << 20
	j := newJournal(limit, t0-20_000)
	small, large := streamID{"small", 1}, streamID{"large", 1}
	for i := range uint64(2000) {
		at := t0 + int64(i)*50
		put(j, large, 1+i, at, 4000)
		if i%10 == 0 {
			put(j, small, 1+i/10, at, 100)
		}
		if bytes, _, _ := j.size(); bytes > limit {
			t.Fatalf("%d bytes, bound %d", bytes, limit)
		}
	}
	if gaps := j.gaps(small, 1, 200, 8); len(gaps) > 0 {
		t.Errorf("who says little lost %v to who says much", gaps)
	}
	floor, next, _ := j.position(large)
	if next != 2001 || floor < 1700 || floor > 2000 {
		t.Errorf("floor %d, next %d", floor, next)
	}
	if v := put(j, large, 3, t0, 10); v != outdated {
		t.Errorf("a batch from before the floor: %v", v)
	}
	if v := put(j, large, 2001, t0+100_000, 10); v != fresh {
		t.Errorf("the next one: %v", v)
	}
	// What is no longer complete is no longer compared.
	from, _, buckets := j.digest(t0 + 200_000)
	if from <= t0/wire.BucketMillis || len(buckets) > 0 && int64(buckets[0].Number) < from {
		t.Errorf("buckets %v from %d", buckets, from)
	}
	var sum int64
	for _, s := range j.streams {
		sum += s.bytes + streamBytes
	}
	if bytes, _, _ := j.size(); sum != bytes {
		t.Errorf("accounted %d, streams hold %d", bytes, sum)
	}
}

// A full journal makes room for what its own node says by what others said, and not by what it has just put in, which no feed
// has sent yet.
func TestFullJournalKeepsWhatIsYetToBeSent(t *testing.T) {
	j := newJournal(1<<20, t0)
	self := streamID{"self", 1}
	j.own(self, t0)
	for i := range uint64(3000) {
		at := t0 + int64(i)*50
		for o := range uint64(20) {
			put(j, streamID{"other", o}, 1+i, at, 100)
		}
		put(j, self, 1+i, at, 12_000) // one chunk of this stream is more than all that any other has
		var sent []uint64
		j.read(self, 1+i, 2+i, func(sequence uint64, _ []byte) bool {
			sent = append(sent, sequence)
			return true
		})
		if len(sent) != 1 {
			t.Fatalf("batch %d is gone before it could be sent", 1+i)
		}
	}
	if bytes, _, _ := j.size(); bytes > 1<<20 {
		t.Errorf("%d bytes", bytes)
	}
}

func TestJournalForgetsByAge(t *testing.T) {
	j := newJournal(64<<20, t0-20_000)
	own := streamID{"own", 1}
	j.own(own, t0)
	id := streamID{"a", 1}
	for i := range uint64(1000) {
		put(j, id, 1+i, t0+int64(i)*50, 100)
	}
	j.age(t0 + journalAge.Milliseconds() + 25_000) // half of it is too old
	floor, next, _ := j.position(id)
	if floor <= 500-chunkSize || floor > 500 || next != 1001 {
		t.Errorf("floor %d, next %d", floor, next)
	}
	j.age(t0 + 2*journalAge.Milliseconds())
	if _, batches, _ := j.size(); batches != 0 {
		t.Errorf("%d batches left", batches)
	}
	if _, _, ok := j.position(id); ok {
		t.Error("an empty stream of a node long gone is still there")
	}
	if _, next, ok := j.position(own); !ok || next != 1 {
		t.Error("the node's own stream is gone")
	}
	if bytes, _, _ := j.size(); bytes != streamBytes {
		t.Errorf("%d bytes for one empty stream", bytes)
	}
}

func TestJournalStreamsAreBounded(t *testing.T) {
	j := newJournal(64<<20, t0)
	for i := range uint64(maxStreams) {
		put(j, streamID{"a", i + 1}, 1, t0, 1)
	}
	if v := put(j, streamID{"b", 1}, 1, t0, 1); v != refused {
		t.Errorf("one stream more: %v", v)
	}
}

func TestJournalAgesAbsurdTimesByTheirComing(t *testing.T) {
	j := newJournal(1<<20, t0-20_000)
	id := streamID{"a", 1}
	for i, at := range []int64{0, 1 << 47, t0 + 2*maxAhead.Milliseconds(), t0 - 2*journalAge.Milliseconds()} {
		b := wire.Batch{Sequence: uint64(i + 1), Time: at, Records: 1}
		if v := j.add(id, &b, b.AppendBody(nil), 0, t0); v != fresh {
			t.Errorf("%d: %v", at, v)
		}
	}
	if _, _, buckets := j.digest(t0 + time.Hour.Milliseconds()); len(buckets) > 0 {
		t.Errorf("absurd times are in digests: %v", buckets)
	}
	j.age(t0 + journalAge.Milliseconds() + 1)
	if _, batches, _ := j.size(); batches != 0 {
		t.Errorf("%d of them never go", batches)
	}
}

func TestJournalSurvivesAClockThatIsSet(t *testing.T) {
	j := newJournal(1<<20, t0-20_000)
	hour := time.Hour.Milliseconds()
	j.age(t0 + hour) // wrong by an hour for a while
	j.age(t0)
	// As soon as clocks that may be ahead cannot have said anything before, digests begin again.
	soon := t0 + maxAhead.Milliseconds() + 2*wire.BucketMillis
	put(j, streamID{"a", 1}, 1, soon, 10)
	from, through, buckets := j.digest(soon + 2*wire.BucketMillis)
	if from > through || len(buckets) != 1 {
		t.Errorf("buckets %v from %d through %d", buckets, from, through)
	}
}

func TestPoisonedBatchIsKnownButNotServed(t *testing.T) {
	j := newJournal(1<<20, t0)
	id := streamID{"a", 1}
	put(j, id, 1, t0, 10)
	put(j, id, 2, t0, 10)
	j.poison(id, 1)
	var read []uint64
	j.read(id, 1, 3, func(seq uint64, _ []byte) bool { read = append(read, seq); return true })
	if !slices.Equal(read, []uint64{2}) || len(j.gaps(id, 1, 2, 1)) > 0 {
		t.Errorf("read %v", read)
	}
}

func TestJournalBodiesDoNotMixUp(t *testing.T) {
	j := newJournal(8<<20, t0)
	id := streamID{"a", 1}
	want := map[uint64][]byte{}
	for i := range uint64(500) {
		b := wire.Batch{Sequence: 1 + i*7%500, Time: t0, Records: 1, Payload: bytes.Repeat([]byte{byte(i)}, int(i*37%10_000))}
		body := b.AppendBody(nil)
		want[b.Sequence] = bytes.Clone(body)
		j.add(id, &b, body, 0, t0)
		clear(body)
	}
	j.read(id, 1, 501, func(seq uint64, body []byte) bool {
		if !bytes.Equal(body, want[seq]) {
			t.Errorf("batch %d has changed", seq)
		}
		delete(want, seq)
		return true
	})
	if len(want) > 0 {
		t.Errorf("%d batches missing", len(want))
	}
}

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The bound of the journal is one of memory, however its batches came.
func TestJournalHoldsNoMoreMemoryThanItCounts(t *testing.T) {
	const limit = 8 << 20
	for name, pour := range map[string]func(j *journal){
		"a batch of each of many streams": func(j *journal) {
			for i := range uint64(maxStreams) {
				put(j, streamID{"a", i + 1}, 1, t0, 10)
			}
		},
		"what stays between what goes": func(j *journal) {
			low, high := uint64(1), uint64(1<<40)
			for range 1500 {
				for range 4 {
					put(j, streamID{"a", 1}, low, t0, 7000)
					low++
				}
				put(j, streamID{"a", 1}, high, t0, 10)
				high += chunkSize
			}
		},
		"small ones": func(j *journal) {
			for i := range uint64(60_000) {
				put(j, streamID{"a", 1 + i%10}, 1+i/10, t0, 100)
			}
		},
	} {
		j := newJournal(limit, t0)
		before := heap()
		pour(j)
		got := heap() - before
		bytes, batches, _ := j.size()
		if batches == 0 || got > limit+limit/2 {
			t.Errorf("%s: %d bytes in use, %d counted, bound %d", name, got, bytes, int64(limit))
		}
		runtime.KeepAlive(j)
	}
}

// Any subscriber that is sent what the table says is new has what the table has, whatever it missed.
func TestLoadTableAgainstAMap(t *testing.T) {
	rnd := seeded(t)
	var table loadTable
	truth := map[uint32]Load{}
	type subscriber struct {
		version uint64
		has     map[uint32]Load
	}
	subs := make([]subscriber, 5)
	for i := range subs {
		subs[i].has = map[uint32]Load{}
	}
	for step := range 3000 {
		for range rnd.IntN(4) {
			if b := rnd.Uint32N(40); rnd.IntN(2) == 0 {
				delete(truth, b)
			} else {
				truth[b] = load(b, rnd.Uint32N(5), 1+rnd.Uint32N(3))
			}
		}
		table.update(slices.Collect(maps.Values(truth)), int64(step))
		for i := range subs {
			s := &subs[i]
			if i > 0 && rnd.IntN(i*200) > 0 {
				continue // the later ones come ever more rarely
			}
			loads, version, _, full := table.since(nil, s.version, s.version == 0)
			if full {
				clear(s.has)
			}
			for _, l := range loads {
				if l.PrefillTokens|l.Active == 0 {
					delete(s.has, l.Backend)
				} else {
					s.has[l.Backend] = l
				}
			}
			s.version = version
			if !maps.Equal(s.has, truth) {
				t.Fatalf("step %d, subscriber %d: has %v, truth %v", step, i, s.has, truth)
			}
		}
	}
	clear(truth)
	for range 2 * keepIdle {
		table.update(nil, 0)
	}
	if len(table.slots) != 0 || len(table.index) != 0 {
		t.Errorf("%d idle backends are remembered for ever", len(table.slots))
	}
	many := make([]Load, wire.MaxLoads+5)
	for i := range many {
		many[i] = load(uint32(i), 1, 1)
	}
	if _, beyond := table.update(many, 0); beyond != 5 {
		t.Errorf("%d beyond the bound", beyond)
	}
}

func TestBudgetIsHeld(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newBudget(1000, now)
	if n := b.left(now); n != 1000 {
		t.Errorf("%d left at the beginning", n)
	}
	b.spend(now, 5000) // what cannot wait
	if n := b.left(now.Add(time.Second)); n != 0 {
		t.Errorf("%d left in debt", n)
	}
	if n := b.left(now.Add(1500 * time.Millisecond)); n != 500 {
		t.Errorf("%d left, the debt is bounded", n)
	}
	if wait := b.bulk(now.Add(1500*time.Millisecond), 100); wait != 0 {
		t.Errorf("bulk waits %v", wait)
	}
	b.spend(now.Add(1500*time.Millisecond), 500)
	if wait := b.bulk(now.Add(1500*time.Millisecond), 100); wait != 0 {
		t.Errorf("bulk waits %v for its share", wait)
	}
	b.bulked(350)
	if wait := b.bulk(now.Add(1500*time.Millisecond), 100); wait < 300*time.Millisecond || wait > 400*time.Millisecond {
		t.Errorf("bulk waits %v", wait)
	}
	if n := b.left(now); n != 0 { // a clock set back gives nothing and takes nothing
		t.Errorf("%d left", n)
	}
}

package gossip

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"grapevine.example/gossip/wire"
)

const t0 = int64(1_795_232_000_000)

func put(j *journal, at int64, size int) { j.append(bytes.Repeat([]byte{byte(j.next)}, size), at) }

func read(j *journal, from uint64, most int) (got []byte, next uint64, ok bool) {
	next, ok = j.read(from, func(body []byte) bool {
		if len(got) == most {
			return false
		}
		got = append(got, body[0])
		return true
	})
	return got, next, ok
}

func TestJournalIsReadFromACursor(t *testing.T) {
	j := newJournal(1 << 20)
	if oldest, next := j.position(); oldest != 1 || next != 1 {
		t.Errorf("empty: %d to %d", oldest, next)
	}
	if got, next, ok := read(j, 1, 9); len(got) > 0 || next != 1 || !ok {
		t.Errorf("empty: %v, next %d, %v", got, next, ok)
	}
	for i := range int64(9) {
		put(j, t0+i*1000, 10)
	}
	for _, c := range []struct {
		from uint64
		most int
		want string
		next uint64
	}{
		{1, 99, "\x01\x02\x03\x04\x05\x06\x07\x08\x09", 10}, {4, 2, "\x04\x05", 6}, {9, 5, "\x09", 10}, {10, 5, "", 10}, {12, 5, "", 12},
	} {
		if got, next, ok := read(j, c.from, c.most); string(got) != c.want || next != c.next || !ok {
			t.Errorf("from %d at most %d: %v, next %d, %v", c.from, c.most, got, next, ok)
		}
	}
	for at, want := range map[int64]uint64{t0 - 5: 1, t0: 1, t0 + 1: 2, t0 + 8000: 9, t0 + 8001: 10} {
		if got := j.since(at); got != want {
			t.Errorf("since %d: %d, want %d", at-t0, got, want)
		}
	}
}

// The newest batch stays even if too large: it has not been sent.
func TestJournalKeepsItsBounds(t *testing.T) {
	const limit = 100 << 10
	j := newJournal(limit)
	for i := range int64(2000) {
		put(j, t0+i*50, 4000)
		bytes, batches := j.size()
		if bytes > limit || bytes != batches*(4000+entryBytes) {
			t.Fatalf("%d bytes for %d batches, bound %d", bytes, batches, limit)
		}
	}
	oldest, next := j.position()
	if next != 2001 || oldest != 2001-limit/(4000+entryBytes) {
		t.Errorf("%d to %d", oldest, next)
	}
	if _, _, ok := read(j, oldest-1, 9); ok {
		t.Error("a batch that was dropped can be read")
	}
	if got, next, ok := read(j, oldest, 1); len(got) != 1 || next != oldest+1 || !ok {
		t.Errorf("the oldest: %v, next %d, %v", got, next, ok)
	}
	put(j, t0+200_000, 2*limit)
	if got, _, ok := read(j, 2001, 9); len(got) != 1 || !ok {
		t.Errorf("the newest: %v, %v", got, ok)
	}
}

func TestJournalForgetsByAge(t *testing.T) {
	j := newJournal(1 << 20)
	for i := range int64(100) {
		put(j, t0+i*10_000, 10)
	}
	j.age(t0 + 990_000)
	if oldest, next := j.position(); oldest != 40 || next != 101 {
		t.Errorf("%d to %d", oldest, next)
	}
	j.age(t0 - 990_000) // a clock set back
	if oldest, _ := j.position(); oldest != 40 {
		t.Errorf("from %d after the clock was set back", oldest)
	}
	j.age(t0 + 9_000_000)
	bytes, batches := j.size()
	if oldest, next := j.position(); oldest != 100 || next != 101 || batches != 1 || bytes != 10+entryBytes {
		t.Errorf("%d to %d, %d batches of %d bytes after an hour", oldest, next, batches, bytes)
	}
}

func TestJournalCopiesBodies(t *testing.T) {
	j := newJournal(1 << 20)
	body := make([]byte, 100)
	for i := range 500 {
		for k := range body {
			body[k] = byte(i)
		}
		j.append(body[:1+i%100], t0)
	}
	i := 0
	j.read(1, func(got []byte) bool {
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 1+i%100)) {
			t.Errorf("batch %d has changed", i)
		}
		i++
		return true
	})
	if i != 500 {
		t.Errorf("%d batches", i)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestJournalHoldsNoMoreMemoryThanItCounts(t *testing.T) {
	const limit = 8 << 20
	for _, size := range []int{20, 100, 7000} {
		j := newJournal(limit)
		before := heap()
		for range 3 * limit / size {
			put(j, t0, size)
		}
		got := heap() - before
		if bytes, batches := j.size(); batches == 0 || got > limit+limit/2 {
			t.Errorf("batches of %d: %d bytes in use, %d counted, bound %d", size, got, bytes, int64(limit))
		}
		runtime.KeepAlive(j)
	}
}

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
				continue // later subscribers ask ever more rarely
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
	b.spend(now, 5000)
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
	if n := b.left(now); n != 0 { // a clock set back gives and takes nothing
		t.Errorf("%d left", n)
	}
}

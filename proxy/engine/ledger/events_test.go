package ledger

import (
	"encoding/binary"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

func newLedger(t testing.TB, blocks int) *Ledger {
	t.Helper()
	l := New(Config{Stamps: NewStamps([]byte("secret")), BlockBytes: 256, Blocks: blocks, Seed: 1})
	l.State(events.Live, "")
	return l
}

func stored(session []byte, parent uint64, hashes ...uint64) events.Event {
	return events.Event{Kind: events.Stored, Hashes: hashes, Parent: parent, HasParent: parent != 0, BlockSize: 16, Session: session}
}

func removed(hashes ...uint64) events.Event {
	return events.Event{Kind: events.Removed, Hashes: hashes}
}

// prompt has no full block and ends at one mark.
func prompt(end uint64) *Prompt {
	return &Prompt{Marks: []prefixtree.Mark{{Hash: prefixtree.Hash(end), Bytes: 200}}, BlockBytes: 256}
}

func (l *Ledger) send(id uint64, q *Prompt) []byte {
	l.Sent(id, q)
	return l.cfg.Stamps.Append(nil, Stamp{ID: id, End: q.Marks[0].Hash, Bytes: q.bytes()})
}

func wantHeld(t *testing.T, l *Ledger, q *Prompt, want Held) {
	t.Helper()
	if got := l.Held(q, 0); got != want {
		t.Errorf("held %+v, want %+v", got, want)
	}
}

func TestCopiesAreCounted(t *testing.T) {
	l, q := newLedger(t, 100), prompt(7)
	l.Batch([]events.Event{stored(l.send(1, q), 0, 1, 2, 3)})
	l.Ended(1, 50, 0, 1)
	l.Batch([]events.Event{stored(l.send(2, q), 2, 3)}) // vLLM computes the last block of the same prompt again
	l.Batch([]events.Event{removed(3)})
	wantHeld(t, l, q, Held{Known: true, Tokens: 48})
	l.Batch([]events.Event{removed(3)})
	wantHeld(t, l, q, Held{Known: true, Tokens: 32})
	l.Batch([]events.Event{removed(9, 3)})
	if st := l.Stats(); st.Unmatched != 2 || st.Blocks != 2 {
		t.Errorf("%+v: want two unmatched removals and two blocks", st)
	}
}

func TestLowerTiers(t *testing.T) {
	l, q := newLedger(t, 100), prompt(7)
	l.Batch([]events.Event{stored(l.send(1, q), 0, 1, 2, 3)})
	l.Ended(1, 50, 0, 1)
	below := events.Event{Kind: events.Stored, Hashes: []uint64{2, 3}, BlockSize: 16, Tier: events.CPU}
	disk := events.Event{Kind: events.Stored, Hashes: []uint64{3}, BlockSize: 16, Tier: events.Disk}
	l.Batch([]events.Event{below, disk, removed(2, 3)})
	wantHeld(t, l, q, Held{Known: true, Tokens: 48, Below: [3]int{events.CPU: 32}})
	l.Batch([]events.Event{{Kind: events.Removed, Hashes: []uint64{3}, Tier: events.CPU}})
	wantHeld(t, l, q, Held{Known: true, Tokens: 48, Below: [3]int{events.CPU: 16, events.Disk: 16}})
}

func TestClearedAndReset(t *testing.T) {
	l, q := newLedger(t, 100), prompt(7)
	fill := func(id uint64) {
		l.Batch([]events.Event{stored(l.send(id, q), 0, 1, 2, 3)})
		l.Ended(id, 50, 0, 1)
		wantHeld(t, l, q, Held{Known: true, Tokens: 48})
	}
	fill(1)
	l.Batch([]events.Event{{Kind: events.Cleared}})
	wantHeld(t, l, q, Held{Known: true})
	fill(2)
	l.Reset("lost 2,000 batches")
	wantHeld(t, l, q, Held{}) // the engine may still hold it
	fill(3)
	l.State(events.Down, "connection refused")
	wantHeld(t, l, q, Held{})
	l.State(events.Live, "")
	wantHeld(t, l, q, Held{Known: true, Tokens: 48})
	l.State(events.Degraded, "3 batches are lost")
	wantHeld(t, l, q, Held{}) // uncertain until the engine uses it
	l.Batch([]events.Event{stored(l.send(4, prompt(8)), 3, 4)})
	wantHeld(t, l, q, Held{Known: true, Tokens: 48})
}

// Blocks that were cached before the stream began have no event. The first answer below tells their depth.
func TestBlocksFromBeforeTheStream(t *testing.T) {
	l, q := newLedger(t, 100), prompt(7)
	l.Batch([]events.Event{stored(nil, 0, 50)}) // another client's
	l.Batch([]events.Event{stored(l.send(1, q), 10, 11, 12)})
	wantHeld(t, l, q, Held{})
	l.Ended(1, 16*12+4, 160, 1)
	wantHeld(t, l, q, Held{Known: true, Tokens: 192})
	if st := l.Stats(); st.Orphans != 2 || st.Foreign != 1 || st.Agreed != 1 {
		t.Errorf("%+v: want two orphans, a foreign event and an agreed count", st)
	}
}

// conversation is a shared beginning of 2,000 bytes and a question that ends so many bytes later.
func conversation(end uint64, bytes int) *Prompt {
	return &Prompt{Marks: []prefixtree.Mark{{Hash: 1, Bytes: 2000}, {Hash: prefixtree.Hash(end), Bytes: 2000 + bytes}}, BlockBytes: 256}
}

func (l *Ledger) sendQuestion(id uint64, q *Prompt) []byte {
	l.Sent(id, q)
	return l.cfg.Stamps.Append(nil, Stamp{ID: id, End: q.Marks[1].Hash, Bytes: q.bytes()})
}

func blocksFrom(first, last uint64) (hashes []uint64) {
	for h := first; h <= last; h++ {
		hashes = append(hashes, h)
	}
	return hashes
}

// The shared beginning has 45 blocks, but its share of the bytes makes it 40. A question of few bytes tells.
func TestBranchFarFromItsInterpolation(t *testing.T) {
	l := newLedger(t, 1000)
	l.Batch([]events.Event{stored(l.sendQuestion(1, conversation(7, 1000)), 0, blocksFrom(1, 60)...)})
	l.Ended(1, 60*16+4, 0, 1)
	wantHeld(t, l, conversation(9, 10), Held{Known: true, Tokens: 40 * 16})
	l.Batch([]events.Event{stored(l.sendQuestion(2, conversation(8, 10)), 45, 146)})
	wantHeld(t, l, conversation(9, 10), Held{Known: true, Tokens: 45 * 16})
}

// foreign is the stamp of another node's request.
func (l *Ledger) foreign(id uint64, q *Prompt) []byte {
	return l.cfg.Stamps.Append(nil, Stamp{ID: id, End: q.Marks[len(q.Marks)-1].Hash, Bytes: q.bytes(), Inner: InnerMarks(q.Marks)})
}

// Of another node's prompts the stamps tell where messages end, and the next one shows it exactly.
func TestBranchOfOtherNodes(t *testing.T) {
	l := newLedger(t, 1000)
	l.Batch([]events.Event{stored(l.foreign(1, conversation(7, 1000)), 0, blocksFrom(1, 60)...)})
	wantHeld(t, l, conversation(9, 10), Held{Known: true, Tokens: 40 * 16})
	l.Batch([]events.Event{stored(l.foreign(2, conversation(8, 10)), 41, 146)})
	wantHeld(t, l, conversation(9, 10), Held{Known: true, Tokens: 41 * 16})
}

// SGLang stores an answer at once. Once that is seen, what comes behind a whole prompt of another node is its answer, what comes behind a
// part of it the next chunk.
func TestAnswersThatComeTogether(t *testing.T) {
	l := newLedger(t, 1000)
	l.Batch([]events.Event{stored(l.sendQuestion(1, conversation(7, 1000)), 0, blocksFrom(1, 60)...)})
	l.Batch([]events.Event{stored(l.sendQuestion(1, conversation(7, 1000)), 60, 61, 62, 63)})
	l.Ended(1, 60*16+4, 0, 60)
	for _, c := range []struct {
		id          uint64
		first, then int // blocks of two events
		want        int // of the prompt
	}{
		{2, 15, 3, 15},
		{3, 8, 7, 15},
	} {
		q, from := conversation(c.id*10, 750), c.id*1000
		l.Batch([]events.Event{stored(l.foreign(c.id, q), 40, blocksFrom(from, from+uint64(c.first)-1)...)})
		l.Batch([]events.Event{stored(l.foreign(c.id, q), from+uint64(c.first)-1, blocksFrom(from+500, from+499+uint64(c.then))...)})
		wantHeld(t, l, q, Held{Known: true, Tokens: (40 + c.want) * 16})
	}
}

// A prompt that begins behind the first chunk of another one, before its second chunk is there, does not part from it there.
func TestNoBranchInAPromptUnderWay(t *testing.T) {
	l := newLedger(t, 1000)
	first := l.sendQuestion(1, conversation(7, 1000))
	l.Batch([]events.Event{stored(first, 0, blocksFrom(1, 30)...)})
	l.Batch([]events.Event{stored(l.sendQuestion(2, conversation(8, 1000)), 30, append(blocksFrom(31, 45), blocksFrom(146, 160)...)...)})
	l.Batch([]events.Event{stored(first, 30, blocksFrom(31, 60)...)})
	l.Ended(1, 60*16+4, 0, 1)
	l.Ended(2, 60*16+4, 30*16, 1)
	wantHeld(t, l, conversation(9, 10), Held{Known: true, Tokens: 40 * 16})
}

// While an engine computes a prompt in chunks, its places are not where they would be if it ended with the present chunk.
func TestPlacesInAPromptUnderWay(t *testing.T) {
	l := newLedger(t, 1000)
	l.Batch([]events.Event{stored(l.send(1, prompt(5)), 0, 901, 902, 903)})
	l.Ended(1, 50, 0, 1)               // four bytes a token
	long := func(end uint64) *Prompt { // eight blocks of text, 64 tokens each
		q := &Prompt{Marks: []prefixtree.Mark{{Hash: prefixtree.Hash(end), Bytes: 2200}}, BlockBytes: 256}
		for h := range prefixtree.Hash(8) {
			q.Blocks = append(q.Blocks, 100+h)
		}
		return q
	}
	l.Batch([]events.Event{stored(l.send(2, long(7)), 0, blocksFrom(1, 16)...)})
	for blocks, want := range map[int]Held{4: {Known: true, Tokens: 4 * 64}, 8: {Known: true, Tokens: 4 * 64}} {
		if got := l.Held(long(8), blocks); got != want {
			t.Errorf("with %d blocks in the tree held %+v, want %+v", blocks, got, want)
		}
	}
}

func TestGone(t *testing.T) {
	l := newLedger(t, 100)
	q := &Prompt{Blocks: []prefixtree.Hash{101, 102}, Marks: []prefixtree.Mark{{Hash: 7, Bytes: 600}}, BlockBytes: 256}
	l.Batch([]events.Event{stored(l.send(1, q), 0, 1, 2, 3, 4, 5, 6)})
	l.Ended(1, 98, 0, 1)
	if gone := l.Gone(nil, 0, 1); gone != nil {
		t.Errorf("%v gone, want none", gone)
	}
	l.Batch([]events.Event{removed(6, 5)})
	if gone := l.Gone(nil, 0, 1); len(gone) != 1 || gone[0] != 102 {
		t.Errorf("%v gone, want the second block of the text", gone)
	}
	if gone := l.Gone(nil, 0, 1); gone != nil {
		t.Errorf("%v gone, want it told once", gone)
	}
}

func TestStamps(t *testing.T) {
	ours, theirs := NewStamps([]byte("secret")), NewStamps([]byte("another"))
	marks := []prefixtree.Mark{{Hash: 11, Bytes: 100}, {Hash: 12, Bytes: 200}, {Hash: 1<<64 - 1, Bytes: 300}, {Hash: 14, Bytes: 400}, {Hash: 15, Bytes: 500}}
	for n := range marks {
		want := Stamp{ID: 1<<48 - 2, End: 1<<64 - 3, Block: 5, Bytes: 1 << 31, Inner: InnerMarks(marks[:n+1])}
		text := ours.Append(nil, want)
		if got, ok := ours.Parse(text); !ok || got != want || len(text) > MaxStamp {
			t.Errorf("%q of %d bytes reads as %+v, %v; want %+v of at most %d bytes", text, len(text), got, ok, want, MaxStamp)
		}
		if _, ok := theirs.Parse(text); ok {
			t.Errorf("%q passes the check of another fleet", text)
		}
		for i := range text {
			for _, c := range []byte{'A', 'b', '.', '-', '\n', 0, 0xff} {
				forged := append([]byte(nil), text...)
				if forged[i] == c {
					continue
				}
				forged[i] = c
				if got, ok := ours.Parse(forged); ok {
					t.Errorf("forged %q reads as %+v", forged, got)
				}
			}
			if got, ok := ours.Parse(text[:i]); ok {
				t.Errorf("the beginning %q of a stamp reads as %+v", text[:i], got)
			}
		}
	}
	want := [mostInner]prefixtree.Mark{marks[0], marks[2], marks[3]}
	if got := InnerMarks(marks); got != want {
		t.Errorf("inner marks %v, want the first and the last two: %v", got, want)
	}
}

// A block of the engine costs at most 24 bytes, however many of them come and go.
func TestBytesPerBlock(t *testing.T) {
	const limit = 50_000
	l := newLedger(t, limit)
	for i := uint64(1); i < 5*limit; i += 50 {
		hashes := make([]uint64, 50)
		for j := range hashes {
			hashes[j] = i + uint64(j)
		}
		l.Batch([]events.Event{stored(nil, 0, hashes...)})
		if old := int64(i) - limit + 100; old > 0 {
			for j := range hashes {
				hashes[j] = uint64(old) - uint64(old-1)%50 + uint64(49-j)
			}
			l.Batch([]events.Event{removed(hashes...)})
		}
	}
	st := l.Stats()
	bytes := 16*cap(l.blocks.entries) + 8*cap(l.blocks.there) + 4*cap(l.blocks.index.words)
	t.Logf("%+v, %.1f bytes per block", st, float64(bytes)/limit)
	if bytes > 24*limit || st.Refused > 0 || st.Unmatched > 0 || st.Blocks < limit*9/10 {
		t.Errorf("%d bytes, %+v: want at most 24 bytes per block, none refused", bytes, st)
	}
}

func TestBeyondTheLimit(t *testing.T) {
	l := newLedger(t, 1000)
	for i := uint64(1); i < 5000; i++ {
		l.Batch([]events.Event{stored(nil, i-1, i)})
	}
	st := l.Stats()
	if st.Blocks > 1200 || st.Refused+st.Orphans == 0 {
		t.Errorf("%+v: want at most 1,200 blocks", st)
	}
}

// A copy on a lower tier may be of a block whose parent is gone, and that is freed when the table needs room for the copy.
func TestParentFreedForItsChild(t *testing.T) {
	l := newLedger(t, 100)
	l.Batch([]events.Event{stored(nil, 0, blocksFrom(1, 10)...), stored(nil, 0, blocksFrom(11, 10+uint64(l.blocks.most-10))...)})
	for h := uint64(10); h > 0; h-- {
		l.Batch([]events.Event{removed(h)})
	}
	if !l.blocks.full() || !l.blocks.sweepable() {
		t.Fatal("the table has room")
	}
	below := stored(nil, 10, 200)
	below.Tier = events.CPU
	gone := removed(200)
	gone.Tier = events.CPU
	l.Batch([]events.Event{below, stored(nil, 200, 201), removed(201), gone, removed(200)})
	l.keep() // follows all chains to what is left of them
	for id := range l.blocks.entries {
		l.blocks.left(blockID(id))
	}
	if st := l.Stats(); st.Orphans != 2 {
		t.Errorf("%+v: want the copy and its child unplaced", st)
	}
}

// FuzzBatch plays events that no engine sends.
func FuzzBatch(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		l := newLedger(t, 64)
		q := &Prompt{Blocks: []prefixtree.Hash{101, 102}, Marks: []prefixtree.Mark{{Hash: 7, Bytes: 300}, {Hash: 8, Bytes: 600}}, BlockBytes: 256}
		var batch []events.Event
		for len(script) >= 8 {
			n := binary.LittleEndian.Uint64(script)
			script = script[8:]
			id, hash := n>>56&3, n>>8&31
			e := events.Event{Kind: events.Kind(n & 3), Hashes: []uint64{hash, n >> 13 & 31}[:n>>40&1+1], Parent: n >> 18 & 31, HasParent: n>>23&1 == 0,
				BlockSize: int(n >> 24 & 16), Group: int32(n >> 29 & 1), Tier: events.Tier(n >> 30 % 3)}
			switch n >> 32 & 7 {
			case 0:
				l.send(id, q)
			case 1:
				l.Ended(id, int(n>>36&255)-1, int(n>>44&255)-1, int(n>>52&15)-1)
			case 2:
				l.State(events.State(n>>36%3), "")
			case 3:
				for _, h := range q.Blocks {
					l.Placed(h, int(n>>36&3), prefixtree.Time(n>>40&1))
				}
			case 4:
				e.Session = l.cfg.Stamps.Append(nil, Stamp{ID: id, End: 8, Block: 102, Bytes: int(n >> 36 & 1023)})
				fallthrough
			default:
				if batch = append(batch, e); n>>35&1 == 0 {
					l.Batch(batch)
					batch = nil
				}
			}
			if h := l.Held(q, int(n>>36&3)); h.Tokens < 0 || h.Below[events.CPU]+h.Below[events.Disk] > h.Tokens {
				t.Fatalf("held %+v", h)
			}
			l.Gone(nil, 0, 1)
		}
		if held, dead := l.blocks.held, l.blocks.dead; held < 0 || dead < 0 || held+dead > l.blocks.most {
			t.Fatalf("%d blocks and %d tombstones of at most %d", held, dead, l.blocks.most)
		}
	})
}

// BenchmarkBatch stores a prompt of 64 blocks and removes one per turn, as an engine with a full cache does.
func BenchmarkBatch(b *testing.B) {
	const held = 90_000
	l := newLedger(b, held+200)
	text := make([]prefixtree.Hash, 8)
	for _, stamped := range []bool{false, true} {
		b.Run(map[bool]string{false: "foreign", true: "stamped"}[stamped], func(b *testing.B) {
			b.ReportAllocs()
			hashes, old := make([]uint64, 64), make([]uint64, 64)
			l.Reset("")
			var session []byte
			for i := range uint64(b.N) {
				for j := range hashes {
					hashes[j] = (i*64+uint64(j))*0x9e3779b97f4a7c15 | 1
					old[j] = ((i-held/64)*64+uint64(63-j))*0x9e3779b97f4a7c15 | 1
				}
				if stamped {
					for j := range text {
						text[j] = prefixtree.Hash(hashes[j])
					}
					q := &Prompt{Blocks: text, Marks: []prefixtree.Mark{{Hash: prefixtree.Hash(i), Bytes: 2100}}, BlockBytes: 256}
					session = l.send(i, q)
				}
				batch := []events.Event{stored(session, 0, hashes...)}
				if i >= held/64 {
					batch = append(batch, removed(old...))
				}
				l.Batch(batch)
				if stamped {
					l.Ended(i, 1030, 0, 1)
				}
				if i%20 == 0 {
					l.Gone(nil, 0, 1)
				}
			}
		})
	}
}

// An answer may arrive before the events of its request.
func TestAnswerBeforeItsEvents(t *testing.T) {
	l, q := newLedger(t, 100), prompt(7)
	l.Batch([]events.Event{stored(l.send(1, prompt(8)), 0, 1, 2, 3)}) // so that the block size is known
	session := l.send(2, q)
	l.Ended(2, 50, 0, 1)
	wantHeld(t, l, q, Held{})
	l.Batch([]events.Event{stored(session, 0, 11, 12, 13)})
	wantHeld(t, l, q, Held{Known: true, Tokens: 48})
	session = l.send(3, prompt(9))
	l.Ended(3, 80, 48, 1)
	l.Batch([]events.Event{stored(session, 0, 21, 22)}) // is not what the engine reported: one is lost
	wantHeld(t, l, prompt(9), Held{})
}

// What is gone must be known to be gone as long as the tree believes in it.
func TestGoneUntilTheTreeBelievesIt(t *testing.T) {
	l := newLedger(t, 100)
	q := &Prompt{Blocks: []prefixtree.Hash{101, 102}, Marks: []prefixtree.Mark{{Hash: 7, Bytes: 600}}, BlockBytes: 256}
	l.Batch([]events.Event{stored(l.send(1, q), 0, 1, 2, 3, 4, 5, 6)})
	l.Batch([]events.Event{removed(6, 5)})
	other := &Prompt{Blocks: q.Blocks, Marks: []prefixtree.Mark{{Hash: 8, Bytes: 800}}, BlockBytes: 256}
	for call := range 3 {
		if gone := l.Gone(nil, 0, 3); len(gone) != 1 || gone[0] != 102 {
			t.Errorf("%v gone at call %d, want the second block of the text", gone, call)
		}
		if call < 2 {
			if h := l.Held(other, 2); h != (Held{Known: true, Tokens: 64}) {
				t.Errorf("held %+v after call %d, want 64 tokens", h, call)
			}
		}
	}
	if gone := l.Gone(nil, 0, 3); gone != nil {
		t.Errorf("%v gone, want it listed three times", gone)
	}
	l.Batch([]events.Event{stored(l.send(2, q), 4, 5, 6)})
	l.Batch([]events.Event{removed(6, 5)})
	if gone := l.Gone(nil, 0, 3); len(gone) != 1 {
		t.Errorf("%v gone, want the block that was computed again and evicted", gone)
	}
}

// A later follower lists what is gone after the earlier ones have had their calls.
func TestGoneAfterOtherFollowers(t *testing.T) {
	l := newLedger(t, 100)
	q := &Prompt{Blocks: []prefixtree.Hash{101, 102}, Marks: []prefixtree.Mark{{Hash: 7, Bytes: 600}}, BlockBytes: 256}
	l.Batch([]events.Event{stored(l.send(1, q), 0, 1, 2, 3, 4, 5, 6)})
	l.Batch([]events.Event{removed(6, 5)})
	for call, want := range []int{0, 0, 0, 1, 1, 0} {
		if gone := l.Gone(nil, 3, 2); len(gone) != want {
			t.Errorf("%v gone at call %d, want %d blocks", gone, call, want)
		}
	}
}

package streams

import (
	"encoding/binary"
	"runtime"
	"syscall"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/policy"
)

// BenchmarkBatches is what a node does with the batches of one engine, without the socket: a batch stores 64 blocks of a new prompt and, as vLLM does
// once its cache is full, removes as many one by one. Twice a second what is gone is told.
func BenchmarkBatches(b *testing.B) {
	const held, blocks, size, perTurn = 90_000, 64, 16, 500
	tree, err := prefixtree.New(prefixtree.Config{Budget: 64 << 20, Changed: func([]prefixtree.Fact) {}})
	if err != nil {
		b.Fatal(err)
	}
	id := uint64(0)
	c := NewCaches("self", tree, []byte("secret"), 4*size*blocks/8, func() uint64 { id += 1 << 16; return id })
	l := c.NewLedger(held + 2*blocks)
	l.State(events.Live, "")
	c.Set([]*Cache{{Engine: 1, Followers: []string{"self"}, Carrier: events.InHeader, Ledger: l}})
	tree.SetGeneration(1, 1, 1)
	var decoder events.Decoder
	q := &policy.Request{Hashes: make([]prefixtree.Hash, 8), Marks: make([]prefixtree.Mark, 1)}
	hash := func(batch, i uint64) uint64 { return (batch*blocks+i)*0x9e3779b97f4a7c15 | 1<<63 }
	type sent struct {
		payload []byte
		request uint64
	}
	now, i := prefixtree.Time(1_700_000_000_000), uint64(0)
	turn := func() time.Duration {
		var list []sent
		for range perTurn { // the requests, and what the engine writes
			for k := range q.Hashes {
				q.Hashes[k] = prefixtree.Hash(hash(i, uint64(k)) ^ 0xfeed)
			}
			q.Marks[0] = prefixtree.Mark{Hash: prefixtree.Hash(i + 1), Bytes: 4*size*blocks + 10}
			var touched prefixtree.TouchHistory
			tree.Record(1, q.Hashes, now, &touched)
			stamp, request, _ := c.Stamp(nil, 1, q, true)
			list = append(list, sent{wireBatch(string(stamp), i, blocks, size, held/blocks, hash), request})
			i++
			now++
		}
		before := threadTime(b)
		for _, x := range list {
			batch, _, err := decoder.Decode(x.payload)
			if err != nil {
				b.Fatal(err)
			}
			l.Batch(batch)
			c.Ended(1, x.request, engine.Usage{PromptTokens: size*blocks + 2, OutputTokens: 1})
		}
		c.TellEvicted(now)
		return threadTime(b) - before
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 4 { // until the cache is full
		turn()
	}
	var took time.Duration
	turns := 0
	for b.Loop() {
		took += turn()
		turns++
	}
	perBatch := float64(took.Nanoseconds()) / float64(turns*perTurn)
	b.ReportMetric(0, "ns/op") // of a turn, with its preparation
	b.ReportMetric(perBatch, "cpu-ns/64-stored-and-64-removed")
	b.ReportMetric(perBatch*1000/1e9*100/2, "%-of-a-core/1000-times-64-blocks/s")
	if st := l.Stats(); st.Refused > 0 || st.Orphans > 0 {
		b.Fatalf("%+v", st)
	}
}

// threadTime is the CPU time of this thread: the wall clock counts what others take of the machine.
func threadTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wireBatch is vLLM's: a stored event of so many blocks, and so many removals of those stored before.
func wireBatch(session string, i uint64, blocks, size, before int, hash func(batch, i uint64) uint64) []byte {
	b := []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0}
	number := func(v uint64) { b = binary.BigEndian.AppendUint64(append(b, 0xcf), v) }
	gone := 0
	if i >= uint64(before) {
		gone = blocks
	}
	b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(1+gone))
	b = text(text(append(b, 0x87), "type"), "BlockStored")
	b = binary.BigEndian.AppendUint16(append(text(b, "block_hashes"), 0xdc), uint16(blocks))
	for k := range blocks {
		number(hash(i, uint64(k)))
	}
	b = append(text(b, "parent_block_hash"), 0xc0)
	b = binary.BigEndian.AppendUint16(append(text(b, "token_ids"), 0xdc), uint16(blocks*size))
	for k := range blocks * size {
		b = binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(1000+k))
	}
	b = append(text(b, "block_size"), byte(size))
	b = text(text(b, "medium"), "GPU")
	b = text(text(b, "session_id"), session)
	for k := range gone {
		b = text(text(append(b, 0x83), "type"), "BlockRemoved")
		b = append(text(b, "block_hashes"), 0x91)
		number(hash(i-uint64(before), uint64(blocks-1-k)))
		b = text(text(b, "medium"), "GPU")
	}
	return append(b, 0)
}

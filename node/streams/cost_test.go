package streams

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/engine/ledger"
	"grapevine.example/proxy/policy"
)

// burden is an engine whose cache is full: each batch stores the blocks of a new prompt and, as vLLM does, removes as many one by one.
type burden struct {
	*Caches
	tree   *prefixtree.Tree
	blocks int // of a batch
	next   uint64
	now    prefixtree.Time
	last   uint64 // of the random numbers, so that two processes have the same
	q      *policy.Request
}

// Until so many blocks are stored, none is removed.
const heldBlocks, blockSize = 90_000, 16

func newBurden(tb testing.TB, blocks int) *burden {
	tree, err := prefixtree.New(prefixtree.Config{Budget: 64 << 20, Changed: func([]prefixtree.Fact) {}})
	if err != nil {
		tb.Fatal(err)
	}
	u := &burden{
		tree: tree, blocks: blocks, now: 1_700_000_000_000,
		q: &policy.Request{Hashes: make([]prefixtree.Hash, 8), Marks: make([]prefixtree.Mark, 1)},
	}
	u.Caches = NewCaches("self", tree, []byte("secret"), 4*blockSize*blocks/8, func() uint64 { u.last += 1 << 16; return u.last })
	l := u.NewLedger(1, heldBlocks+2*blocks)
	u.Set([]*Cache{{Engine: 1, Followers: []string{"self"}, Carrier: events.InHeader, Ledger: l}})
	tree.SetGeneration(1, 1, 1)
	return u
}

func (u *burden) ledger() *ledger.Ledger { return u.of(1).Ledger }

// fill is how many batches fill the cache.
func (u *burden) fill() int { return heldBlocks / u.blocks }

func (u *burden) hash(batch, i uint64) uint64 {
	return mixed(batch*uint64(u.blocks) + i + 1)
}

// mixed is the finalizer of SplitMix64, for hashes that are spread as the engines' and the tree's are.
func mixed(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// request sends the next one to the engine, and returns its stamp.
func (u *burden) request() (stamp []byte, id uint64) {
	for k := range u.q.Hashes {
		u.q.Hashes[k] = prefixtree.Hash(u.hash(u.next, uint64(k)) ^ 0xfeed)
	}
	u.q.Marks[0] = prefixtree.Mark{Hash: prefixtree.Hash(mixed(u.next + 1)), Bytes: 4*blockSize*u.blocks + 10}
	var touched prefixtree.TouchHistory
	u.tree.Record(1, u.q.Hashes, u.now, &touched)
	stamp, id, _ = u.Stamp(nil, 1, u.q, true)
	u.next++
	u.now++
	return stamp, id
}

// published is what the engine then publishes for the latest request.
func (u *burden) published(stamp []byte) []byte {
	return wireBatch(string(stamp), u.next-1, u.blocks, blockSize, u.fill(), u.hash)
}

func (u *burden) ended(id uint64) {
	u.Ended(1, id, engine.Usage{PromptTokens: blockSize*u.blocks + 2, OutputTokens: 1})
}

func (u *burden) check(b *testing.B) {
	if st := u.ledger().Stats(); st.Refused > 0 || st.Orphans > 0 || st.Blocks < heldBlocks*9/10 {
		b.Fatalf("%+v", st)
	}
}

// BenchmarkBatches is what a node does with the batches of one engine, without the socket. Twice a second it retracts what is gone.
func BenchmarkBatches(b *testing.B) {
	const perTurn = 500
	u := newBurden(b, 64)
	u.ledger().State(events.Live, "")
	var decoder events.Decoder
	type sent struct {
		payload []byte
		request uint64
	}
	turn := func() time.Duration {
		var list []sent
		for range perTurn { // the requests, and what the engine writes
			stamp, id := u.request()
			list = append(list, sent{u.published(stamp), id})
		}
		before := threadTime(b)
		for _, x := range list {
			batch, _, err := decoder.Decode(x.payload)
			if err != nil {
				b.Fatal(err)
			}
			u.ledger().Batch(batch)
			u.ended(x.request)
		}
		u.TellEvicted(u.now)
		return threadTime(b) - before
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 1 + u.fill()/perTurn { // until the cache is full
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
	u.check(b)
}

// publisherBlocks makes the test binary the engine of a burden with batches of so many blocks.
const publisherBlocks = "GRAPEVINE_PUBLISHER_BLOCKS"

// batchesPerTurn are 1,000 a second.
const batchesPerTurn = int(Turn / time.Millisecond)

// publishBurden publishes a turn's batches, one in a millisecond, for every byte that it reads.
func publishBurden(blocks int) error {
	pub, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(pub.Addr())
	conn, err := pub.Accept()
	if err != nil {
		return err
	}
	if err := greet(conn); err != nil {
		return err
	}
	u := newBurden(nil, blocks)
	for {
		if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
			return nil //nolint:nilerr // the benchmark has ended
		}
		begun := time.Now()
		for i := range batchesPerTurn {
			stamp, _ := u.request()
			payload := u.published(stamp)
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Millisecond)))
			if _, err := conn.Write(message(u.next-1, payload)); err != nil {
				return nil //nolint:nilerr // likewise
			}
		}
	}
}

// BenchmarkStream is what a node's process uses for 1,000 batches/s that another process publishes, the socket and waking up for each
// included, requests as such left out.
func BenchmarkStream(b *testing.B) {
	for _, blocks := range []int{32, 64} {
		b.Run(fmt.Sprintf("%d-stored-and-%d-removed", blocks, blocks), func(b *testing.B) { benchmarkStream(b, blocks) })
	}
}

func benchmarkStream(b *testing.B, blocks int) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	engine := exec.Command(self)
	engine.Env = append(os.Environ(), fmt.Sprintf("%s=%d", publisherBlocks, blocks))
	engine.Stderr = os.Stderr
	grants, err := engine.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := engine.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = grants.Close()
		if err := engine.Wait(); err != nil {
			b.Error(err)
		}
	}()
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		b.Fatal(err)
	}
	u := newBurden(b, blocks)
	stream := events.Stream{Source: events.Source{Endpoint: address, Session: events.InHeader}, Sink: u.ledger()}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { stream.Run(ctx) })
	defer running.Wait()
	defer stop()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tick := time.NewTicker(Turn)
	defer tick.Stop()
	var begun []uint64
	turn := func() (prepared time.Duration) {
		before := threadTime(b)
		ended := begun
		begun = nil
		for range batchesPerTurn {
			_, id := u.request()
			begun = append(begun, id)
		}
		prepared = threadTime(b) - before
		if _, err := grants.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		<-tick.C
		for _, id := range ended {
			u.ended(id)
		}
		u.TellEvicted(u.now)
		return prepared
	}
	for range 2 + u.fill()/batchesPerTurn {
		turn()
	}
	before, came, since := cpuTime(b, syscall.RUSAGE_SELF), stream.Counters.Batches.Load(), time.Now()
	var prepared time.Duration
	for b.Loop() {
		prepared += turn()
	}
	took, batches := cpuTime(b, syscall.RUSAGE_SELF)-before-prepared, float64(stream.Counters.Batches.Load()-came)
	rate := batches / time.Since(since).Seconds()
	b.ReportMetric(0, "ns/op") // of a turn
	b.ReportMetric(rate, "batches/s")
	b.ReportMetric(float64(took.Nanoseconds())/batches, "cpu-ns/batch")
	b.ReportMetric(100*took.Seconds()/batches*1000, "%-of-a-core/1000-batches/s")
	if b.N > 2 && rate < 900 { // the first turns are not enough to tell
		b.Errorf("%.0f batches/s, want 1,000", rate)
	}
	u.check(b)
}

// threadTime is the CPU time of this thread: the wall clock counts what others take of the machine.
func threadTime(b *testing.B) time.Duration { return cpuTime(b, syscall.RUSAGE_THREAD) }

func cpuTime(b *testing.B, of int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(of, &u); err != nil {
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

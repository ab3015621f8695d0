package gossip

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/virtual"
	"grapevine.example/gossip/wire"
	"grapevine.example/prefixtree"
)

// virtualFleet is a fleet of real nodes in virtual time. The seed does not determine the order of
// goroutines, so a failing seed may pass on a rerun.
type virtualFleet struct {
	t     *testing.T
	r     *rand.Rand
	seed  uint64
	net   *memnet
	truth *truth
	nodes []*virtualNode

	logMu sync.Mutex
	log   []string

	generations [virtualBackends]uint32
	requests    uint64
	open        []openRequest
	cuts        map[[2]string]int // number of faults per cut direction
	breaks      int               // per tick and 1,000 nodes
	jitter      atomic.Int64      // ns, the most
	exact       bool              // no fault makes trees disagree for good
	restless    bool              // clocks are set
	journal     int64
	budget      int64
	flush       time.Duration
	pending     []pending
}

type openRequest struct {
	node *virtualNode
	life uint64
	end  func(failed bool)
	at   time.Time
}

type pending struct {
	at time.Time
	do func()
}

type virtualNode struct {
	index  int
	name   string
	offset atomic.Int64
	life   uint64
	node   *testNode
	know   *treeKnowledge
	last   Stats
}

func (n *virtualNode) wall(at time.Time) time.Time {
	return at.Add(time.Duration(n.offset.Load()))
}

func (n *virtualNode) now() prefixtree.Time {
	return prefixtree.Time(n.wall(time.Now()).UnixMilli())
}

func newVirtualFleet(t *testing.T, seed uint64, size int) *virtualFleet {
	v := &virtualFleet{
		t: t, r: virtual.Rand(seed, 0), seed: seed, net: newMemnet(t), truth: newTruth(), cuts: map[[2]string]int{},
	}
	v.exact, v.restless = v.r.IntN(3) > 0, v.r.IntN(4) == 0
	v.truth.skewed = v.restless
	v.journal = []int64{smallJournal, 64 << 20, 64 << 20, 64 << 20}[v.r.IntN(4)]
	v.budget = []int64{64 << 10, defaultBudget}[v.r.IntN(2)] // the smaller delays resumed batches
	v.flush = []time.Duration{50 * time.Millisecond, 200 * time.Millisecond}[v.r.IntN(2)]
	v.net.buffer = []int{16 << 10, 256 << 10}[v.r.IntN(2)]
	v.net.slow = func(string, string) time.Duration { return time.Duration(rand.Int64N(v.jitter.Load() + 1)) }
	for i := range v.generations {
		v.generations[i] = 1
	}
	for i := range size {
		v.nodes = append(v.nodes, &virtualNode{index: i, name: fmt.Sprintf("n%03d", i)})
	}
	return v
}

func (v *virtualFleet) note(format string, args ...any) {
	v.logMu.Lock()
	defer v.logMu.Unlock()
	v.log = append(v.log, fmt.Sprintf("%7.2fs ", time.Since(virtualStart).Seconds())+fmt.Sprintf(format, args...))
}

var virtualStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (v *virtualFleet) fail(format string, args ...any) {
	v.t.Helper()
	v.note(format, args...)
	v.t.Fatal(strings.Join(v.log, "\n"))
}

func (v *virtualFleet) begin(n *virtualNode) {
	n.life++
	know, err := newTreeKnowledge(n.name, n.index, n.now, v.truth)
	if err != nil {
		v.t.Fatal(err)
	}
	know.begin(v.generations)
	n.know, n.last = know, Stats{}
	n.node = v.net.start(n.name, func(c *Config) {
		c.Log = zerolog.New(said{v, n.name}).Level(zerolog.WarnLevel)
		c.Knowledge, c.clock, c.FlushInterval, c.Budget = know, n.wall, v.flush, v.budget
	})
	n.node.journal.mu.Lock()
	defer n.node.journal.mu.Unlock()
	n.node.journal.limit = v.journal
}

// smallJournal is a few seconds, so that subscribers fall behind.
const smallJournal = 8 << 10

type said struct {
	v    *virtualFleet
	name string
}

func (s said) Write(line []byte) (int, error) {
	s.v.note("%s says %s", s.name, strings.TrimSpace(string(line)))
	return len(line), nil
}

func (v *virtualFleet) up() (list []*virtualNode) {
	for _, n := range v.nodes {
		if n.node != nil {
			list = append(list, n)
		}
	}
	return list
}

func (v *virtualFleet) any() *virtualNode {
	up := v.up()
	if len(up) == 0 {
		return nil
	}
	return up[v.r.IntN(len(up))]
}

func (v *virtualFleet) later(d time.Duration, do func()) {
	v.pending = append(v.pending, pending{time.Now().Add(d), do})
}

func (v *virtualFleet) between(least, most time.Duration) time.Duration {
	return least + time.Duration(v.r.Int64N(int64(most-least)+1))
}

func (v *virtualFleet) tick(step time.Duration, rate int) {
	time.Sleep(step)
	now := time.Now()
	due := v.pending
	v.pending = nil
	for _, p := range due {
		if p.at.After(now) {
			v.pending = append(v.pending, p)
			continue
		}
		p.do()
	}
	open := v.open[:0]
	for _, q := range v.open {
		switch {
		case q.at.After(now):
			open = append(open, q)
		case q.node.node != nil && q.node.life == q.life:
			q.end(!v.exact && v.r.IntN(10) == 0)
		}
	}
	v.open = open
	for range v.r.IntN(rate + 1) {
		if n := v.any(); n != nil {
			v.request(n)
		}
	}
	for _, n := range v.up() {
		if v.r.IntN(1000) < v.breaks {
			n.node.breakStream(v.r)
		}
	}
	if n := v.any(); n != nil && v.r.IntN(4) == 0 {
		n.know.setLoad(uint32(v.r.IntN(virtualBackends)), uint32(v.r.IntN(3)*100), uint32(v.r.IntN(2)))
	}
}

var errBroken = errors.New("broken by the test")

func (n *testNode) breakStream(r *rand.Rand) {
	if peers := n.alive(); len(peers) > 0 {
		peers[r.IntN(len(peers))].endStream(errBroken)
	}
}

func (v *virtualFleet) request(n *virtualNode) {
	v.requests++
	b := v.r.IntN(virtualBackends - 1)
	family := uint64(v.r.IntN(6))<<8 | uint64(v.generations[b])
	blocks := 1 + v.r.IntN(40)
	own := v.requests
	if v.r.IntN(2) == 0 && v.requests > 20 {
		own = v.requests - uint64(v.r.IntN(20))
	}
	chain := virtualChain(family, own, int(own%20), blocks)
	cached := -1
	if !v.exact && v.r.IntN(3) == 0 {
		cached = v.r.IntN(blocks + 1)
	}
	end := n.know.request(b, chain, cached)
	v.open = append(v.open, openRequest{n, n.life, end, time.Now().Add(v.between(0, 20*time.Second))})
}

func (v *virtualFleet) inspect() {
	v.t.Helper()
	for _, n := range v.up() {
		if _, err := n.know.believes(); err != nil {
			v.fail("%s (clock %v): %v", n.name, time.Duration(n.offset.Load()), err)
		}
		var err error
		if n.last, err = account(n.node.Exchange, n.know, n.last, v.journal); err != nil {
			v.fail("%s: %v", n.name, err)
		}
	}
}

// sendsLaterFrames reports whether this is the newer build, which adds a frame behind a ping.
func sendsLaterFrames() bool {
	ping := wire.AppendPing(nil, 1)
	_, size := wire.Split(ping)
	return len(ping) > size
}

// account checks counters and bounds; old is the previous sample.
func account(f *Exchange, k *treeKnowledge, old Stats, journal int64) (s Stats, err error) {
	s = f.Stats() // before the knowledge's counts, which run ahead
	k.counting.Lock()
	applied, batches, drained, twice := k.applied, k.batches, k.drained, k.twice
	k.counting.Unlock()
	box := k.outbox.Stats()
	switch {
	case twice != nil:
		err = twice
	case s.AppliedBatches > batches, s.AppliedRecords > uint64(applied.Records), s.AppliedNews > uint64(applied.News):
		err = fmt.Errorf("counts %d batches, %d records, %d news; %d, %d, %d were applied",
			s.AppliedBatches, s.AppliedRecords, s.AppliedNews, batches, applied.Records, applied.News)
	case s.PublishedRecords > drained, drained > box.Sent:
		err = fmt.Errorf("published %d records, drained %d, the outbox has sent %d", s.PublishedRecords, drained, box.Sent)
	case s.SkippedFrames > 0 && !sendsLaterFrames():
		err = fmt.Errorf("skipped %d frames", s.SkippedFrames)
	case s.Malformed+s.Violations+s.Refused+s.UnknownRecords > 0:
		err = fmt.Errorf("malformed %d, violations %d, refused %d, unknown %d", s.Malformed, s.Violations, s.Refused, s.UnknownRecords)
	case s.AppliedBatches < old.AppliedBatches, s.Resumes < old.Resumes, s.MissedBatches < old.MissedBatches, s.SentBytes < old.SentBytes:
		err = fmt.Errorf("a counter went back: %+v, was %+v", s, old)
	case s.AppliedNews > s.AppliedRecords:
		err = fmt.Errorf("a part is more than the whole: %+v", s)
	case s.JournalBatches > int64(s.PublishedBatches)+1: // one is being counted
		err = fmt.Errorf("%d batches in the journal, of %d", s.JournalBatches, s.PublishedBatches)
	case s.JournalBytes > max(journal, batchPayload+wire.MaxName), box.Pending > 1<<16:
		err = fmt.Errorf("journal of %d bytes, %d waiting in the outbox", s.JournalBytes, box.Pending)
	case box.LostAdds+box.LostTouches+box.LostDrops+box.Unnamed > 0:
		err = fmt.Errorf("the outbox lost: %+v", box)
	}
	return s, err
}

// settled returns what keeps the fleet from rest, or "".
func (v *virtualFleet) settled() string {
	up := v.up()
	var first map[spot]prefixtree.Time
	var running []*testNode
	for i, n := range up {
		running = append(running, n.node)
		held, err := n.know.believes()
		if err != nil {
			v.fail("%s: %v", n.name, err)
		}
		if i == 0 {
			first = held
		} else if v.exact && !v.restless {
			if d := v.truth.difference(first, held); d != "" {
				return n.name + " against " + up[0].name + ": " + d
			}
		}
		s := n.node.Stats()
		n.know.counting.Lock()
		applied, batches := n.know.applied, n.know.batches
		n.know.counting.Unlock()
		if s.AppliedBatches != batches || s.AppliedRecords != uint64(applied.Records) || s.AppliedNews != uint64(applied.News) {
			return fmt.Sprintf("%s counts %d batches, %d records, %d news; %d, %+v were applied", n.name, s.AppliedBatches, s.AppliedRecords, s.AppliedNews, batches, applied)
		}
		if box := n.know.outbox.Stats(); box.Pending > 0 {
			return fmt.Sprintf("%s has %d records to publish", n.name, box.Pending)
		}
		for _, o := range up {
			if o == n {
				continue
			}
			if got := n.know.peerLoad(o.name); got == nil || !maps.Equal(o.know.ownLoad(), got) {
				return fmt.Sprintf("%s knows the load %v of %s, which is %v", n.name, got, o.name, o.know.ownLoad())
			}
		}
	}
	if !positionsAgree(running) {
		return "not all batches were applied everywhere"
	}
	return ""
}

func (m *model) ownLoad() map[uint32]Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.loads)
}

func (v *virtualFleet) rest(limit time.Duration) time.Duration {
	v.t.Helper()
	v.note("quiet")
	began := time.Now()
	for {
		why := v.settled()
		if why == "" {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			v.fail("not settled after %v: %s", limit, why)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

func (v *virtualFleet) probe(limit time.Duration) time.Duration {
	v.t.Helper()
	want := map[spot]string{}
	for _, n := range v.up() {
		v.requests++
		chain := virtualChain(0, 1<<30|v.requests, 0, 8)
		n.know.request(virtualBackends-1, chain, -1)(false)
		for _, h := range chain {
			want[spot{h, virtualKeys[virtualBackends-1]}] = n.name
		}
	}
	began := time.Now()
	for {
		missing := ""
		for _, n := range v.up() {
			held := map[spot]bool{}
			n.know.tree.Range(n.now(), func(f prefixtree.Fact) bool {
				key, _ := n.know.names.Key(f.Backend)
				held[spot{f.Hash, key}] = true
				return true
			})
			for p, by := range want {
				if !held[p] {
					missing = n.name + " has not heard of what " + by + " placed"
				}
			}
		}
		if missing == "" {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			v.fail("after %v %s", limit, missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (v *virtualFleet) stop() {
	for _, n := range v.up() {
		n.node.stop(v.t)
		n.node = nil
	}
}

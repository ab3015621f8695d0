package gossip

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grapevine/gossip/wire"
)

// A gap that is known when this node is cut off is not given up because there is nobody to ask.
func TestGapOutlastsThatNobodyCanBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(2, func(c *Config) {
			c.Faults = func(_ string, b *wire.Batch) (bool, int, time.Duration) { return b.Sequence == 1, 1, 0 }
		})
		defer stopAll(t, nodes)
		a, b := nodes[0], nodes[1]
		taken := b.Stats().SnapshotsTaken
		a.know.learn(1, 1)
		time.Sleep(2 * defaultFlush)
		a.know.learn(2, 1)
		until(t, time.Second, "the batch after the gap", func() bool { return b.know.knows(2) })
		net.partition(func(name string) bool { return name == "n1" })
		time.Sleep(30 * time.Second)
		if b.know.knows(1) || b.Stats().Gaps != 1 {
			t.Fatalf("%d gaps: nothing is tested", b.Stats().Gaps)
		}
		net.setCut(nil)
		until(t, 10*time.Second, "the gap is closed", func() bool { return b.know.knows(1) })
		if s := b.Stats(); s.LostBatches != 0 || s.SnapshotsTaken != taken {
			t.Errorf("%d batches lost, %d snapshots taken", s.LostBatches, s.SnapshotsTaken-taken)
		}
	})
}

// patient is a publisher that answers one range after the other, each batch of it after a pause.
type patient struct {
	pause time.Duration
	queue chan wire.Range
	most  atomic.Int64 // ranges that waited at a time
}

func (p *patient) serve(h *hostile, c net2, head uint64) {
	var mu sync.Mutex
	write := func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		c.Write(b)
	}
	write(wire.AppendBatch(h.start(), batchOf(head, fact(head))))
	done := make(chan struct{})
	defer close(done)
	var waiting atomic.Int64
	go func() {
		for {
			var q wire.Range
			select {
			case q = <-p.queue:
			case <-done:
				return
			}
			for seq := q.From; seq < q.From+q.Count; seq++ {
				select {
				case <-time.After(p.pause):
				case <-done:
					return
				}
				write(wire.AppendRepair(nil, &wire.Repair{
					Request: q.Request, Origin: q.Origin, Incarnation: q.Incarnation, Body: batchOf(seq, fact(seq)),
				}))
			}
			waiting.Add(-1)
			write(wire.AppendRangeDone(nil, q.Request, q.From+q.Count))
		}
	}()
	r := wire.NewReader(c, wire.RequestSize)
	for {
		kind, body, _, err := r.Next()
		if err != nil {
			return
		}
		switch kind {
		case wire.KindPing:
			sent, _ := wire.DecodePing(body)
			now := time.Now().UnixNano()
			write(wire.AppendPong(nil, wire.Pong{Sent: sent, Received: now, Replied: now, Next: head + 1}))
		case wire.KindRange:
			q, _ := wire.DecodeRange(body)
			q.Origin = []byte(h.self.Name)
			p.most.Store(max(p.most.Load(), waiting.Add(1)))
			p.queue <- q
		}
	}
}

// A publisher whose budget is short answers late, but it answers, and what it sends late is no less wanted.
func TestSlowAnswersAreWaitedForAndTaken(t *testing.T) {
	for name, c := range map[string]struct {
		pause    time.Duration
		requests uint64
	}{
		"steadily":      {5 * time.Millisecond, 5},
		"after a pause": {rangeTimeout + time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				node := net.start("n0", nil)
				until(t, time.Second, "warm", node.warming.warm)
				head, p := uint64(5*wire.MaxRange), &patient{pause: c.pause, queue: make(chan wire.Range, 1000)}
				if c.pause > time.Second {
					head = 20
				}
				slow := net.intrude("slow", func(h *hostile, c net2) { p.serve(h, c, head) })
				defer func() {
					node.stop(t)
					slow.Stop(context.Background())
				}()
				until(t, 5*time.Minute, "every batch", func() bool {
					count, _ := node.know.digest()
					return uint64(count) == head
				})
				s := node.Stats()
				if s.LostBatches != 0 || s.Violations != 0 || s.Duplicates != 0 || s.RepairRequests != c.requests {
					t.Errorf("%d lost, %d violations, %d duplicates, %d requests", s.LostBatches, s.Violations, s.Duplicates, s.RepairRequests)
				}
				if n := p.most.Load(); n > rangesPerPeer {
					t.Errorf("%d ranges asked for at a time, at most %d", n, rangesPerPeer)
				}
			})
		})
	}
}

// What others have repaired meanwhile does not hide from a stream that comes back what is missing below.
func TestStreamThatComesBackFindsWhatIsMissingBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.notice = time.Hour
		nodes := net.startAll(3, nil)
		defer stopAll(t, nodes)
		origin, lacking := nodes[0], nodes[2]
		net.setCut(func(a, b string) bool { return a != "n1" && b != "n1" })
		key := uint64(0)
		// From the bucket in which the nodes began, which is in no digest, into the ones after.
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			key++
			origin.know.learn(key, 1)
		}
		until(t, time.Minute, "later ones by way of another node", func() bool { return lacking.know.knows(key / 2) })
		if lacking.know.knows(1) {
			t.Fatal("the first came as well: nothing is tested")
		}
		net.setCut(nil)
		until(t, 20*time.Second, "all", func() bool { return allKnow(nodes) })
	})
}

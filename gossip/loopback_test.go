package gossip

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/chaos/bubble"
	"grapevine.example/gossip/member"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		var err error
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err = goleak.Find(); err == nil {
				break
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const patience = 90 * time.Second

func loopback(t testing.TB, name string, join ...string) *testNode {
	t.Helper()
	know := newModel(name)
	f, err := New(Config{
		Knowledge: know, Log: zerolog.Nop(), SnapshotDeadline: patience,
		Member: member.Config{
			Self: member.Info{Name: name, Cluster: "test", KeyID: 1, BlockBytes: 512},
			Bind: "127.0.0.1:0", Join: join, Keys: [][]byte{bytes.Repeat([]byte{7}, 32)}, Log: zerolog.Nop(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
	n := &testNode{Exchange: f, name: name, know: know}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.Stop(ctx); err != nil {
			t.Errorf("%s: stop: %v", name, err)
		}
	})
	return n
}

func wallClock(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func loopbackFleet(t testing.TB, count int) []*testNode {
	t.Helper()
	nodes := []*testNode{loopback(t, "n0")}
	seed := nodes[0].Members().Self().Addr
	for i := 1; i < count; i++ {
		nodes = append(nodes, loopback(t, fmt.Sprintf("n%d", i), seed))
	}
	for _, n := range nodes {
		wallClock(t, n.name+" hears all others and is warm", func() bool {
			return len(n.streams()) == count-1 && n.warming.warm()
		})
	}
	return nodes
}

func TestEightNodesOverTLS(t *testing.T) {
	nodes := loopbackFleet(t, 8)
	for i, n := range nodes {
		for k := range 50 {
			n.know.learn(uint64(i*1000+k), uint64(k))
		}
		n.know.setLoad(uint32(i), 100, 1)
	}
	wallClock(t, "all know the same", func() bool {
		count, _ := nodes[0].know.digest()
		return count == 400 && allKnow(nodes)
	})
	wallClock(t, "all know every load", func() bool {
		for i, n := range nodes {
			for j, o := range nodes {
				if i != j && o.know.peerLoad(n.name)[uint32(i)] != load(uint32(i), 100, 1) {
					return false
				}
			}
		}
		return true
	})
	joiner := loopback(t, "n8", nodes[3].Members().Self().Addr)
	wallClock(t, "a ninth is warm", joiner.warming.warm)
	if count, _ := joiner.know.digest(); count != 400 {
		t.Errorf("warm with %d of 400 facts", count)
	}
	for _, n := range nodes {
		s := n.Stats()
		if twice := n.know.appliedTwice(); twice != "" || s.Violations > 0 || s.MissedBatches > 0 {
			t.Errorf("%s: applied %s, violations %d, missed %d", n.name, twice, s.Violations, s.MissedBatches)
		}
		for _, p := range n.Peers() {
			if p.Name != "n8" && (p.RTT <= 0 || p.Offset > time.Second || p.Offset < -time.Second || p.State != member.StateAlive) {
				t.Errorf("%s sees %s: rtt %v, offset %v, %v", n.name, p.Name, p.RTT, p.Offset, p.State)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := nodes[7].Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wallClock(t, "one that leaves is gone, its load is void, its facts stay", func() bool {
		return nodes[0].know.peerLoad("n7") == nil && nodes[0].know.knows(7001) && joiner.know.peerLoad("n7") == nil
	})
}

const (
	placementsPerSecond = 125
	placementBytes      = 150
	tlsRecord           = 22 // header, tag and type of a TLS 1.3 record
)

func (m *model) place(key uint64) {
	for i := range uint64((placementBytes + recordSize/2) / recordSize) {
		m.learn(key*16+i, uint64(time.Now().UnixMicro()))
	}
}

func (m *model) busy(step int) {
	m.setLoad(uint32(step%40), uint32(1000+step), uint32(1+step%3))
	m.setLoad(uint32((step+20)%40), 0, 0)
}

func TestBytesAgainstPayload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(8, nil)
		defer stopAll(t, nodes)
		count := func() (frames, records, payload, news float64) {
			for _, n := range nodes {
				s := n.Stats()
				frames += float64(s.SentBytes)
				records += float64(s.Writes)
				payload += float64(s.PublishedBytes) * 7
				news += float64(s.SentByKind["batch"])
			}
			return frames, records, payload, news
		}
		f0, r0, p0, n0 := count()
		const seconds = 8
		for step := range seconds * placementsPerSecond {
			for i, n := range nodes {
				n.know.place(uint64(i)<<32 + uint64(step))
				n.know.busy(step)
			}
			time.Sleep(time.Second / placementsPerSecond)
		}
		f1, r1, p1, n1 := count()
		frames, records, payload := f1-f0, r1-r0, p1-p0
		wire := frames + records*tlsRecord
		t.Logf("payload %.0f B/s per node, wire %.0f B/s: %.3f (batch frames alone %.3f, all frames %.3f)",
			payload/seconds/8, wire/seconds/8, wire/payload, (n1-n0)/payload, frames/payload)
		if wire > 1.3*payload {
			t.Errorf("%.3f bytes on the wire for one of payload, load included", wire/payload)
		}
	})
}

func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// One iteration is one second of a busy fleet over TLS; latency includes the flush.
func BenchmarkFleet(b *testing.B) {
	for _, count := range []int{2, 8} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			nodes := loopbackFleet(b, count)
			var mu sync.Mutex
			var lat []time.Duration
			for _, n := range nodes {
				n.know.mu.Lock()
				n.know.applied = func(_ string, payload []byte) {
					now := time.Now().UnixMicro()
					mu.Lock()
					defer mu.Unlock()
					for ; len(payload) >= recordSize; payload = payload[recordSize:] {
						at := binary.LittleEndian.Uint64(payload[8:])
						lat = append(lat, time.Duration(now-int64(at))*time.Microsecond)
					}
				}
				n.know.mu.Unlock()
			}
			sum := func() (applied, payload, sent, writes uint64) {
				for _, n := range nodes {
					s := n.Stats()
					applied += s.AppliedBatches
					payload += s.AppliedBytes
					sent += s.SentBytes
					writes += s.Writes
				}
				return
			}
			b.ReportAllocs()
			a0, p0, s0, w0 := sum()
			cpu := cpuTime(b)
			tick := time.NewTicker(time.Second / placementsPerSecond)
			defer tick.Stop()
			step := 0
			for b.Loop() {
				for range placementsPerSecond {
					<-tick.C
					for i, n := range nodes {
						n.know.place(uint64(i)<<40 + uint64(step))
						n.know.busy(step)
					}
					step++
				}
			}
			cpu = cpuTime(b) - cpu
			a1, p1, s1, w1 := sum()
			mu.Lock()
			defer mu.Unlock()
			if len(lat) == 0 {
				b.Fatal("nothing was applied")
			}
			slices.Sort(lat)
			quantile := func(q float64) float64 {
				return float64(lat[int(q*float64(len(lat)-1))]) / float64(time.Millisecond)
			}
			b.ReportMetric(quantile(0.5), "p50-ms")
			b.ReportMetric(quantile(0.99), "p99-ms")
			b.ReportMetric(float64(cpu.Microseconds())/float64(a1-a0), "cpu-us/batch")
			b.ReportMetric(100*cpu.Seconds()/b.Elapsed().Seconds()/float64(count), "cpu-%/node")
			b.ReportMetric((float64(s1-s0)+tlsRecord*float64(w1-w0))/float64(p1-p0), "wire/payload")
		})
	}
}

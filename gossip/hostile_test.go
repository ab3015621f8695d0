package gossip

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// hostile is a member that speaks as it likes: it has the key, a name and an address, and no manners.
type hostile struct {
	*memnode
	t *testing.T
}

// intrude adds a member whose accepted streams are handled by serve.
func (n *memnet) intrude(name string, serve func(h *hostile, c net.Conn)) *hostile {
	n.t.Helper()
	m := n.node(name, uint64(time.Now().UnixMilli()))
	h := &hostile{m, n.t}
	m.onEvent = func(member.Event) {}
	m.serve = func(c net.Conn, _ member.Info) {
		if serve != nil {
			serve(h, c)
		}
	}
	if err := m.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	return h
}

func (h *hostile) dial(to *testNode) net.Conn {
	h.t.Helper()
	c, _, err := h.connect(context.Background(), to.inner.self)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// start is the least a publisher says before it may say anything else.
func (h *hostile) start() []byte {
	return wire.AppendStart(nil, wire.Start{Version: 1, Incarnation: h.self.Incarnation, Next: 1})
}

func batchOf(sequence uint64, payload []byte) []byte {
	b := wire.Batch{Sequence: sequence, Time: time.Now().UnixMilli(), Records: 1, Payload: payload}
	return b.AppendBody(nil)
}

func fact(key uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, key), 1)
}

// closed waits until the other side has closed the stream, reading and dropping what it sends.
func (h *hostile) closed(c net.Conn) {
	h.t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, c); err != nil && err != io.EOF {
		h.t.Errorf("stream is still open: %v", err)
	}
}

// Each of these is said by a publisher and must end the stream, leave the others unharmed, and teach nothing.
func TestHostilePublisherIsCutOff(t *testing.T) {
	frame := func(k wire.Kind, body ...byte) []byte {
		return append(binary.AppendUvarint([]byte{byte(k)}, uint64(len(body))), body...)
	}
	repair := func(origin string, incarnation, request, sequence uint64) []byte {
		return wire.AppendRepair(nil, &wire.Repair{
			Request: request, Origin: []byte(origin), Incarnation: incarnation, Body: batchOf(sequence, fact(666)),
		})
	}
	for name, say := range map[string]func(h *hostile, honest *testNode) []byte{
		"noise": func(*hostile, *testNode) []byte { return bytes.Repeat([]byte{0x99, 0xff, 0xee}, 5000) },
		"a huge length": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), byte(wire.KindBatch), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f)
		},
		"a length without end": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), bytes.Repeat([]byte{0xff}, 40)...)
		},
		"a payload longer than its frame": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), frame(wire.KindBatch, 1, 1, 1, 200, 1, 0)...)
		},
		"news before its start": func(*hostile, *testNode) []byte { return wire.AppendBatch(nil, batchOf(1, fact(666))) },
		"another process's start": func(h *hostile, _ *testNode) []byte {
			return wire.AppendStart(nil, wire.Start{Version: 1, Incarnation: h.self.Incarnation + 1, Next: 1})
		},
		"two starts": func(h *hostile, _ *testNode) []byte { return append(h.start(), h.start()...) },
		"a later version": func(h *hostile, _ *testNode) []byte {
			return wire.AppendStart(nil, wire.Start{Version: 9, Incarnation: h.self.Incarnation, Next: 1})
		},
		"news that is bad": func(h *hostile, _ *testNode) []byte { return wire.AppendBatch(h.start(), batchOf(1, []byte("bad"))) },
		"a repair nobody asked for": func(h *hostile, honest *testNode) []byte {
			return append(h.start(), repair(honest.name, honest.self.incarnation, 900, 5000)...)
		},
		"a repair of a stranger": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), repair("nobody", 1, 900, 1)...)
		},
		"a name that is none": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), repair("a\nb", 1, 1, 1)...)
		},
		"runs nobody asked for": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), first(wire.AppendRuns(nil, 900, 5, []wire.Run{{Origin: []byte("x"), Incarnation: 1, From: 1, Count: 9}}))...)
		},
		"a page nobody asked for": func(h *hostile, _ *testNode) []byte {
			return append(h.start(), wire.AppendPage(nil, 900, 1, fact(666))...)
		},
		"load without the whole of it": func(h *hostile, _ *testNode) []byte {
			return wire.AppendLoad(h.start(), 1, false, []Load{load(1, 1, 1)})
		},
		"a subscriber's frame": func(h *hostile, _ *testNode) []byte { return wire.AppendPing(h.start(), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				nodes := net.startAll(2, nil)
				defer stopAll(t, nodes)
				evil := net.intrude("evil", func(h *hostile, c net2) {
					c.Write(say(h, nodes[1]))
					h.closed(c)
				})
				defer evil.Stop(context.Background())
				until(t, 5*time.Second, "the stream is closed as a violation", func() bool {
					for _, p := range nodes[0].Peers() {
						if p.Name == "evil" && p.Violations > 0 && !p.Connected {
							return true
						}
					}
					return false
				})
				if nodes[0].know.knows(666) {
					t.Error("it taught something")
				}
				nodes[1].know.learn(5, 1)
				until(t, time.Second, "the others go on", func() bool { return nodes[0].know.knows(5) })
			})
		})
	}
}

type net2 = net.Conn // where net is a memnet

func first(b []byte, _ []wire.Run) []byte { return b }

// Each of these is said by a subscriber and must end the stream.
func TestHostileSubscriberIsCutOff(t *testing.T) {
	for name, say := range map[string][]byte{
		"noise":         bytes.Repeat([]byte{0x98, 0xff, 0xee}, 5000),
		"a huge length": {byte(wire.KindDigest), 0xff, 0xff, 0xff, 0xff, 0x0f},
		"two subscriptions": bytes.Repeat(
			wire.AppendSubscribe(nil, wire.Subscribe{Version: 1}), 2),
		"a publisher's frame": wire.AppendPong(nil, wire.Pong{}),
		"two snapshots at a time": append(wire.AppendSubscribe(nil, wire.Subscribe{Version: 1}),
			append(wire.AppendSnapshot(nil, 1), wire.AppendSnapshot(nil, 2)...)...),
		"a thousand requests": append(wire.AppendSubscribe(nil, wire.Subscribe{Version: 1}),
			bytes.Repeat(wire.AppendRange(nil, wire.Range{Request: 1, Origin: []byte("n0"), Incarnation: 1, From: 1, Count: 1000}), 1000)...),
		"a thousand pings": bytes.Repeat(wire.AppendPing(nil, 1), 1000),
		"a digest with buckets out of order": {byte(wire.KindDigest), 24, 1, 5, 9, 2,
			3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newMemnet(t)
				nodes := net.startAll(2, nil)
				fill(nodes, 100_000)
				defer stopAll(t, nodes)
				evil := net.intrude("evil", nil)
				defer evil.Stop(context.Background())
				c := evil.dial(nodes[0])
				defer c.Close()
				go c.Write(say)
				evil.closed(c)
				until(t, time.Second, "it is counted", func() bool { return nodes[0].Stats().Violations > 0 })
				nodes[1].know.learn(5, 1)
				until(t, time.Second, "the others go on", func() bool { return nodes[0].know.knows(5) })
			})
		})
	}
}

func TestSlowReaderIsGivenUpAndCostsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.buffer = 8 << 10
		nodes := net.startAll(2, nil)
		fill(nodes[:1], 20_000)
		defer stopAll(t, nodes)
		evil := net.intrude("evil", nil)
		defer evil.Stop(context.Background())
		c := evil.dial(nodes[0])
		defer c.Close()
		// It subscribes, wants everything, goes on pinging, and reads nothing.
		c.Write(wire.AppendSubscribe(nil, wire.Subscribe{Version: 1}))
		c.Write(wire.AppendSnapshot(nil, 1))
		began := time.Now()
		for i := 0; ; i++ {
			if _, err := c.Write(wire.AppendPing(nil, 1)); err != nil {
				break
			}
			nodes[0].know.learn(uint64(i), 1)
			until(t, defaultFlush+5*time.Millisecond, "news to others", func() bool { return nodes[1].know.knows(uint64(i)) })
			time.Sleep(500 * time.Millisecond)
			if time.Since(began) > time.Minute {
				t.Fatal("still served after a minute")
			}
		}
		// Either it takes nothing for the write timeout, or its unanswered pings pile up.
		until(t, time.Second, "it is counted", func() bool { s := nodes[0].Stats(); return s.SlowPeers+s.Violations > 0 })
		until(t, time.Second, "its snapshot has ended", func() bool { return len(nodes[0].snapshots) == 0 })
	})
}

func TestEndlessSnapshotIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		good := net.start("good", nil)
		until(t, time.Second, "warm", good.warming.warm)
		fill([]*testNode{good}, 1000)
		page := make([]byte, 60<<10)
		evil := net.intrude("evil", func(h *hostile, c net2) {
			c.Write(h.start())
			r := wire.NewReader(c, wire.NewsSize)
			for {
				kind, body, _, err := r.Next()
				if err != nil {
					return
				}
				if kind != wire.KindSnapshot {
					continue
				}
				request, _ := wire.DecodeRequest(body)
				for {
					if _, err := c.Write(wire.AppendPage(nil, request, 1, page)); err != nil {
						return
					}
				}
			}
		})
		// The name is chosen so that evil is asked first.
		name := "joiner"
		for (&Fleet{self: streamID{name, 1}}).attraction("evil") > (&Fleet{self: streamID{name, 1}}).attraction("good") {
			name += "x"
		}
		joiner := net.start(name, nil)
		until(t, 30*time.Second, "warm", joiner.warming.warm)
		until(t, 3*time.Minute, "the end of it", func() bool { return joiner.WarmFraction() == 1 })
		if n, _ := joiner.know.digest(); n < 1000 {
			t.Errorf("%d facts", n)
		}
		if s := joiner.Stats(); s.Violations == 0 || s.SnapshotBytes > maxIntake+(1<<20) {
			t.Errorf("violations %d, %d bytes taken", s.Violations, s.SnapshotBytes)
		}
		stopAll(t, []*testNode{good, joiner})
		evil.Stop(context.Background())
	})
}

// A peer may hand on others' batches when it is asked for them, but only the ones it was asked for.
func TestRepairsComeFromOthersButNotUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		node := net.start("n0", nil)
		defer node.stop(t)
		until(t, time.Second, "warm", node.warming.warm)
		ghost := streamID{"ghost", 7} // died before anybody here was born
		helper := net.intrude("helper", func(h *hostile, c net2) {
			c.Write(h.start())
			r := wire.NewReader(c, wire.NewsSize)
			for {
				kind, body, _, err := r.Next()
				if err != nil {
					return
				}
				switch kind {
				case wire.KindDigest:
					var d wire.Digest
					wire.DecodeDigest(&d, body)
					runs, _ := wire.AppendRuns(nil, d.Request, d.Through, []wire.Run{{Origin: []byte(ghost.origin), Incarnation: ghost.incarnation, From: 3, Count: 2}})
					c.Write(wire.AppendDigestDone(runs, d.Request, 1, 1))
				case wire.KindRange:
					q, _ := wire.DecodeRange(body)
					if string(q.Origin) != ghost.origin || q.From != 3 || q.Count != 2 {
						t.Errorf("asked for %s %d+%d", q.Origin, q.From, q.Count)
					}
					rep := wire.Repair{Request: q.Request, Origin: q.Origin, Incarnation: q.Incarnation, Shift: 5}
					rep.Body = batchOf(3, fact(3))
					out := wire.AppendRepair(nil, &rep)
					rep.Body = batchOf(4, fact(4))
					out = wire.AppendRepair(out, &rep)
					c.Write(wire.AppendRangeDone(out, q.Request, 5))
					until(t, time.Second, "asked-for batches of a dead origin", func() bool { return node.know.knows(3) && node.know.knows(4) })
					// The same again is late, and harmless; what lies beside it was never asked for.
					c.Write(wire.AppendRepair(nil, &rep))
					rep.Request += 100
					rep.Body = batchOf(5, fact(5))
					c.Write(wire.AppendRepair(nil, &rep))
				}
			}
		})
		defer helper.Stop(context.Background())
		until(t, time.Minute, "the unasked one is a violation", func() bool { return node.Stats().Violations > 0 })
		if node.know.knows(5) || !node.know.knows(4) {
			t.Error("took what it had not asked for, or lost what it had")
		}
	})
}

func TestFloodStaysWithinTheJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		const limit = 2 << 20
		nodes := net.startAll(2, func(c *Config) { c.JournalBytes = limit })
		defer stopAll(t, nodes)
		for i := range 20 {
			nodes[1].know.learn(uint64(i), 1)
			time.Sleep(defaultFlush)
		}
		payload := bytes.Repeat(fact(9), 1000)
		var total atomic.Int64
		evil := net.intrude("evil", func(h *hostile, c net2) {
			out := h.start()
			// Every sequence a chunk of its own, the dearest for the journal; times all over the place.
			for i := uint64(1); total.Load() < 16<<20; i++ {
				b := wire.Batch{Sequence: i * 97, Time: time.Now().UnixMilli() + int64(i%7)*9000, Records: 1000, Payload: payload}
				out = wire.AppendBatch(out, b.AppendBody(nil))
				total.Add(int64(len(out)))
				if _, err := c.Write(out); err != nil {
					return
				}
				out = out[:0]
			}
			h.closed(c)
		})
		defer evil.Stop(context.Background())
		most := int64(0)
		for range 20_000 {
			bytes, _, _ := nodes[0].journal.size()
			most = max(most, bytes)
			time.Sleep(time.Millisecond)
		}
		if n := total.Load(); n < 16<<20 {
			t.Fatalf("only %d bytes of the flood were taken", n)
		}
		if most > limit {
			t.Errorf("journal grew to %d bytes, bound %d", most, limit)
		}
		r := &nodes[0].repairs
		r.mu.Lock()
		wants := r.count
		r.mu.Unlock()
		if wants > maxWants {
			t.Errorf("%d gaps looked for, bound %d", wants, maxWants)
		}
		// What an honest node published can still be repaired.
		if gaps := nodes[0].journal.gaps(nodes[1].self, 1, 10, 8); len(gaps) > 0 {
			t.Errorf("the flood cost an honest node its batches %v", gaps)
		}
		nodes[1].know.learn(500, 1)
		until(t, time.Second, "the others go on", func() bool { return nodes[0].know.knows(500) })
	})
}

func TestFramesOfLaterVersionsAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		node := net.start("n0", nil)
		defer node.stop(t)
		later := net.intrude("later", func(h *hostile, c net2) {
			out := append(h.start(), 0x7e, 3, 1, 2, 3)
			body := append(batchOf(1, fact(1)), "said at the end by a later version"...)
			out = append(wire.AppendBatch(out, body), 0x1f, 0)
			c.Write(wire.AppendBatch(out, batchOf(2, fact(2))))
			h.closed(c)
		})
		defer later.Stop(context.Background())
		until(t, 5*time.Second, "what it does understand", func() bool { return node.know.knows(1) && node.know.knows(2) })
		if s := node.Stats(); s.Violations != 0 || s.SkippedFrames < 1 {
			t.Errorf("violations %d, skipped %d", s.Violations, s.SkippedFrames)
		}
	})
}

// A joiner that takes a snapshot just fast enough not to be given up does not keep others from theirs.
func TestSnapshotIsNotServedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		net.buffer = 8 << 10
		node := net.start("n0", nil)
		until(t, time.Second, "warm", node.warming.warm)
		fill([]*testNode{node}, 200_000) // 3.2 MB
		evil := net.intrude("evil", nil)
		c := evil.dial(node)
		c.Write(wire.AppendSubscribe(nil, wire.Subscribe{Version: 1}))
		c.Write(wire.AppendSnapshot(nil, 1))
		began := time.Now()
		b := make([]byte, 1<<10)
		for i := 0; len(node.snapshots) > 0 || i == 0; i++ { // 10 kB/s: five minutes
			if _, err := c.Read(b); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			if i%10 == 0 {
				c.Write(wire.AppendPing(nil, 1))
			}
			time.Sleep(100 * time.Millisecond)
			if time.Since(began) > intakeTimeout+2*writeTimeout {
				t.Fatalf("still served after %v", time.Since(began))
			}
		}
		if took := time.Since(began); took < intakeTimeout {
			t.Errorf("ended after %v", took)
		}
		c.Close()
		node.stop(t)
		evil.Stop(context.Background())
	})
}

// Who lied in a repair about how far another node has come does not part that node from this one.
func TestForgedSequenceDoesNotPartHonestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		nodes := net.startAll(2, nil)
		defer stopAll(t, nodes)
		forged := wire.Batch{Sequence: 1<<62 - 1, Time: time.Now().UnixMilli(), Records: 1, Payload: fact(666)}
		if v := nodes[1].journal.add(nodes[0].self, &forged, forged.AppendBody(nil), 0, forged.Time); v != fresh {
			t.Fatal(v)
		}
		nodes[1].peer("n0").endSession(errGone)
		nodes[0].know.learn(5, 1)
		until(t, 5*time.Second, "news of the node that was lied about", func() bool { return nodes[1].know.knows(5) })
		if n := nodes[0].Stats().Violations; n > 0 {
			t.Errorf("%d violations of an honest node", n)
		}
	})
}

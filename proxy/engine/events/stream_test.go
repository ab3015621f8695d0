package events

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder keeps what the sink was given: the first hash of each event since the last reset, resets and states.
type recorder struct {
	mu      sync.Mutex
	batches []uint64
	resets  int
	state   string
	reason  string
	states  []string
}

func (r *recorder) Batch(events []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		if e.Kind == Cleared {
			r.batches = append(r.batches, 0)
		} else {
			r.batches = append(r.batches, e.Hashes[0])
		}
	}
}

func (r *recorder) Reset(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches, r.reason = nil, why
	r.resets++
}

func (r *recorder) State(s State, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.reason = s.String(), why
	r.states = append(r.states, r.state)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%v resets=%d %s", r.batches, r.resets, r.state)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batches)
}

// why is the last reason.
func (r *recorder) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// want waits until the recorder has seen exactly this.
func (r *recorder) want(t *testing.T, batches []uint64, resets int, state string) {
	t.Helper()
	want := fmt.Sprintf("%v resets=%d %s", batches, resets, state)
	var got string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = r.String(); got == want {
			return
		}
	}
	same := 0
	for same < min(len(got), len(want)) && got[same] == want[same] {
		same++
	}
	same = max(0, same-20)
	t.Fatalf("got  ... %.300s (%s)\nwant ... %.300s", got[min(same, len(got)):], r.why(), want[min(same, len(want)):])
}

func subscribe(t *testing.T, source Source) (*Stream, *recorder) {
	t.Helper()
	r := &recorder{}
	s := &Stream{Source: source, Sink: r}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if !strings.HasSuffix(r.String(), "down") {
			t.Errorf("after the end: %.300s", r)
		}
	})
	return s, r
}

// follow subscribes a stream, publishes the marks 1 to n and waits until its recorder has them.
func (p *publisher) follow(n int) (*Stream, *recorder) {
	p.t.Helper()
	s, r := subscribe(p.t, p.source())
	p.await(1)
	if n > 0 {
		p.sendMarks(1, n, nil)
		r.want(p.t, upTo(n), 0, "live")
	}
	return s, r
}

// mark is an event whose hash is n.
func mark(n int) pairs {
	return pairs{"type", "BlockRemoved", "block_hashes", []any{n}, "medium", "GPU"}
}

func upTo(n int) (list []uint64) {
	for i := range n {
		list = append(list, uint64(i+1))
	}
	return list
}

// sendMarks publishes the marks from..to, and loses those for which lost is true.
func (p *publisher) sendMarks(from, to int, lost func(int) bool) {
	for i := from; i <= to; i++ {
		p.send(lost != nil && lost(i), mark(i))
	}
}

func TestStreamFromTheStart(t *testing.T) {
	p := newPublisher(t, false)
	s, _ := p.follow(50)
	c := &s.Counters
	if c.Batches.Load() != 50 || c.Events.Load() != 50 || c.Connects.Load() != 1 || c.Gaps.Load() != 0 || p.topics[0] != "kv" {
		t.Errorf("%d batches, %d events, %d connects, %d gaps, topic %q",
			c.Batches.Load(), c.Events.Load(), c.Connects.Load(), c.Gaps.Load(), p.topics[0])
	}
}

func TestStreamJoinsLate(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%v", old), func(t *testing.T) {
			p := newPublisher(t, true)
			p.old = old
			p.sendMarks(1, 30, nil) // before the subscription
			s, r := subscribe(t, p.source())
			r.want(t, upTo(30), 0, "live")
			p.await(1)
			p.sendMarks(31, 35, nil)
			r.want(t, upTo(35), 0, "live")
			if n := s.Counters.Replayed.Load(); n < 30 {
				t.Errorf("%d replayed", n)
			}
		})
	}
}

func TestStreamJoinsLateWithoutReplay(t *testing.T) {
	p := newPublisher(t, false)
	p.sendMarks(1, 30, nil)
	_, r := p.follow(0)
	p.sendMarks(31, 32, nil)
	r.want(t, []uint64{31, 32}, 0, "live")
}

func TestReplayFillsAGap(t *testing.T) {
	p := newPublisher(t, true)
	s, r := p.follow(0)
	p.sendMarks(1, 100, func(i int) bool { return i%7 == 0 || i > 40 && i < 60 })
	p.send(false, mark(101))
	r.want(t, upTo(101), 0, "live")
	if s.Counters.Gaps.Load() != 0 || s.Counters.Replayed.Load() == 0 {
		t.Errorf("%d gaps, %d replayed", s.Counters.Gaps.Load(), s.Counters.Replayed.Load())
	}
}

// An engine's replay socket drops what its queue does not hold.
func TestReplayWithHoles(t *testing.T) {
	p := newPublisher(t, true)
	p.answer = func(from uint64, ring []numbered) (list []numbered) {
		for _, b := range ring {
			if b.seq >= from && (b.seq < from+10 || b.seq%5 == 0) {
				list = append(list, b)
			}
		}
		return list
	}
	p.sendMarks(1, 60, nil)
	_, r := subscribe(t, p.source())
	r.want(t, upTo(60), 0, "live")
}

func TestReplayOutOfOrder(t *testing.T) {
	p := newPublisher(t, true)
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	p.answer = func(from uint64, ring []numbered) (list []numbered) {
		for _, b := range ring {
			if b.seq >= from {
				list = append(list, b)
			}
		}
		if len(list) > 3 { // two neighbours behind the first change places
			i := 1 + rng.IntN(len(list)-2)
			list[i], list[i+1] = list[i+1], list[i]
		}
		return list
	}
	_, r := p.follow(0)
	p.sendMarks(1, 30, func(i int) bool { return i > 20 && i < 28 })
	r.want(t, upTo(30), 0, "live")
}

func seedOf(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEED=%d", seed)
	return seed
}

func TestSmallGapDegrades(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			p := newPublisher(t, replay)
			p.answer = func(uint64, []numbered) []numbered { return nil }
			s, r := p.follow(0)
			p.sendMarks(1, 10, func(i int) bool { return i >= 4 && i <= 6 })
			r.want(t, []uint64{1, 2, 3, 7, 8, 9, 10}, 0, "degraded")
			if s.Counters.Gaps.Load() != 1 || s.Counters.Missing.Load() != 3 {
				t.Errorf("%d gaps, %d missing", s.Counters.Gaps.Load(), s.Counters.Missing.Load())
			}
			p.send(false, pairs{"type", "AllBlocksCleared"})
			r.want(t, []uint64{1, 2, 3, 7, 8, 9, 10, 0}, 0, "live")
		})
	}
}

func TestLargeGapResets(t *testing.T) {
	p := newPublisher(t, true)
	p.ringSize = 5
	s, r := p.follow(3)
	p.sendMarks(4, MaxGap+20, func(i int) bool { return i < MaxGap+20 })
	r.want(t, upTo(MaxGap + 20)[MaxGap+15:], 1, "live") // the ring has the last five
	if s.Counters.Resets.Load() != 1 || s.Counters.Missing.Load() != MaxGap+12 {
		t.Errorf("%d resets, %d missing", s.Counters.Resets.Load(), s.Counters.Missing.Load())
	}
}

func TestManySmallGapsReset(t *testing.T) {
	p := newPublisher(t, false)
	_, r := p.follow(0)
	p.sendMarks(1, MaxGap, func(i int) bool { return i%2 == 0 })
	p.send(false, mark(MaxGap+1))
	eventually(t, "end of its use", func() bool { return strings.HasSuffix(r.String(), "resets=0 down") })
	p.sendMarks(MaxGap+2, 2*MaxGap+10, func(i int) bool { return i%2 == 0 })
	eventually(t, "reset", func() bool { return strings.Contains(r.String(), "resets=1") })
}

// A stream that loses batches again and again is not used until enough have come in a row.
func TestManyGapsEndTheUse(t *testing.T) {
	p := newPublisher(t, false)
	_, r := p.follow(0)
	p.sendMarks(1, 4, func(i int) bool { return i == 2 })
	eventually(t, "degraded state", func() bool { return strings.HasSuffix(r.String(), "degraded") })
	p.sendMarks(5, 10, func(i int) bool { return i%2 == 0 })
	p.sendMarks(11, 11, nil)
	eventually(t, "end of its use", func() bool {
		return strings.HasSuffix(r.String(), "down") && strings.Contains(r.why(), "again and again")
	})
	p.sendMarks(12, 60, nil)
	r.want(t, append([]uint64{1, 3, 4, 5, 7, 9}, upTo(60)[10:]...), 0, "down")
	p.sendMarks(61, 11+fewGood, nil)
	eventually(t, "use again", func() bool { return strings.HasSuffix(r.String(), "degraded") })
	p.send(false, pairs{"type", "AllBlocksCleared"})
	eventually(t, "live state", func() bool { return strings.HasSuffix(r.String(), "live") })
}

func TestDuplicates(t *testing.T) {
	p := newPublisher(t, true)
	s, r := p.follow(10)
	p.send(false, mark(11)) // behind the copies of batches that the replay on connecting has brought
	r.want(t, upTo(11), 0, "live")
	before := s.Counters.Duplicates.Load()
	for _, i := range []int{9, 5, 7, 9, 9} {
		p.publish(p.ring[i])
	}
	p.send(false, mark(12))
	r.want(t, upTo(12), 0, "live")
	if n := s.Counters.Duplicates.Load() - before; n != 5 {
		t.Errorf("%d duplicates", n)
	}
}

func TestReconnect(t *testing.T) {
	p := newPublisher(t, true)
	s, r := p.follow(10)
	p.cut()
	p.sendMarks(11, 20, nil)
	r.want(t, upTo(20), 0, "live")
	p.await(2)
	if s.Counters.Connects.Load() < 2 || s.Counters.Gaps.Load() != 0 {
		t.Errorf("%d connects, %d gaps", s.Counters.Connects.Load(), s.Counters.Gaps.Load())
	}
}

// A silent stream connects again: a replay that has more makes it live at once, otherwise the next batch does.
func TestSilent(t *testing.T) {
	p := newPublisher(t, true)
	s, r := p.follow(3)
	p.sendMarks(4, 5, func(int) bool { return true })
	s.Silent("silence")
	r.want(t, upTo(5), 0, "live")
	s.Silent("silence")
	r.want(t, upTo(5), 0, "down")
	p.await(3)
	p.send(false) // a batch without events
	r.want(t, upTo(5), 0, "live")
	if got := strings.Join(r.states, " "); got != "down live down live down live" {
		t.Errorf("states %s", got)
	}
}

func TestReconnectWithoutReplay(t *testing.T) {
	p := newPublisher(t, false)
	_, r := p.follow(10)
	p.cut()
	p.await(2)
	// Another process may have taken the port: the next batch shows it.
	r.want(t, upTo(10), 0, "down")
	p.send(false, mark(11))
	r.want(t, upTo(11), 0, "live")
	p.cut()
	p.sendMarks(12, 13, func(int) bool { return true }) // while it connects again
	p.await(3)
	p.send(false, mark(14))
	r.want(t, append(upTo(11), 14), 0, "degraded")
}

func TestRestart(t *testing.T) {
	for _, c := range []struct {
		name   string
		replay bool
		during int // batches of the new process before the subscriber is back
	}{
		{"no replay", false, 0}, {"no replay, late", false, 3}, {"replay", true, 0}, {"replay, late", true, 3},
		{"replay, same number", true, 10}, {"replay, later number", true, 25},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPublisher(t, c.replay)
			s, r := p.follow(10)
			p.mu.Lock()
			p.seq, p.ring, p.subs = 0, nil, nil // what the old process had connected gets nothing
			p.mu.Unlock()
			p.sendMarks(101, 100+c.during, nil)
			p.cut()
			p.await(2)
			p.send(false, mark(500))
			var want []uint64
			if c.replay {
				for i := range c.during {
					want = append(want, uint64(101+i))
				}
			}
			r.want(t, append(want, 500), 1, "live")
			if n := s.Counters.Resets.Load(); n != 1 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

// A forwarder may keep the connection while the engine behind it starts again.
func TestRestartBehindOneConnection(t *testing.T) {
	for _, c := range []struct {
		name  string
		seq   uint64
		event any
	}{
		{"first batch", 0, mark(500)}, {"far below", 3, mark(500)}, {"a clear", 1990, pairs{"type", "AllBlocksCleared"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPublisher(t, false)
			_, r := p.follow(2000)
			p.publish(numbered{c.seq, payload(c.event)})
			p.publish(numbered{c.seq + 1, payload(mark(501))})
			eventually(t, "reset", func() bool { return strings.HasSuffix(r.String(), " 501] resets=1 live") })
		})
	}
}

// The engine starts again behind one connection, and its new process has come further than the old one: its batches do not continue
// those of the old one.
func TestRestartBeforeAReplay(t *testing.T) {
	p := newPublisher(t, true)
	_, r := p.follow(10)
	p.mu.Lock()
	p.seq, p.ring = 0, nil
	p.mu.Unlock()
	p.sendMarks(101, 115, func(int) bool { return true })
	p.send(false, mark(116)) // batch 15
	var want []uint64
	for i := range 16 {
		want = append(want, uint64(101+i))
	}
	r.want(t, want, 1, "live")
}

func TestNothingListens(t *testing.T) {
	p := newPublisher(t, false)
	_, r := p.follow(10)
	addr := p.pub.Addr().String()
	_ = p.pub.Close()
	p.cut()
	r.want(t, nil, 1, "down")
	p.pub = p.serve(addr, "PUB", p.subscriber)
	p.await(2)
	p.send(false, mark(11))
	r.want(t, []uint64{11}, 1, "live")
}

// If nothing listens at the replay endpoint, the stream dials it once for each gap and loses the gap's batches; it keeps the blocks
// that it knows.
func TestReplayOutOfReach(t *testing.T) {
	p := newPublisher(t, false)
	source := p.source()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source.Replay = closed.Addr().String()
	_ = closed.Close()
	s, r := subscribe(t, source)
	p.await(1)
	p.sendMarks(1, 5, func(i int) bool { return i == 3 || i == 5 }) // 5 while it connects again
	p.await(2)
	p.send(false, mark(6))
	r.want(t, []uint64{1, 2, 6}, 0, "degraded")
	if n := s.Counters.Missing.Load(); n != 3 {
		t.Errorf("%d missing", n)
	}
}

func TestMalformedBatchIsAGap(t *testing.T) {
	p := newPublisher(t, true)
	s, r := p.follow(0)
	p.sendMarks(1, 2, nil)
	p.send(false, "no event")
	p.send(false, mark(3))
	r.want(t, upTo(3), 0, "degraded")
	if s.Counters.Refused.Load() != 1 || s.Counters.Missing.Load() != 1 {
		t.Errorf("%d refused, %d missing", s.Counters.Refused.Load(), s.Counters.Missing.Load())
	}
}

// Whatever is lost, repeated or cut: a stream with replay gives every batch once and in order. A cut replay and an old batch after
// it look like another process; then all is given again.
func TestRandomFaultsWithReplay(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	p := newPublisher(t, true)
	s, r := p.follow(0)
	sent := 2000
	for i := 1; i <= sent; i++ {
		p.send(rng.Float64() < 0.2, mark(i))
		switch {
		case rng.IntN(20) == 0:
			p.publish(p.ring[max(0, len(p.ring)-1-rng.IntN(5))])
		case rng.IntN(500) == 0:
			p.cut()
		}
	}
	eventually(t, "whole stream", func() bool {
		if s.Counters.Missing.Load() > 0 {
			t.Fatalf("%s, %v", r.why(), r.states)
		}
		if r.count() >= sent {
			return true
		}
		sent++
		p.send(false, mark(sent)) // a later batch shows that the last ones are missing
		time.Sleep(10 * time.Millisecond)
		return false
	})
	r.want(t, upTo(sent), int(s.Counters.Resets.Load()), "live")
}

// An engine cannot make the router ask for replays without end.
func TestFailedReplaysRest(t *testing.T) {
	p := newPublisher(t, true)
	p.answer = func(uint64, []numbered) []numbered { return nil }
	s, _ := p.follow(0)
	began := time.Now()
	p.sendMarks(1, 501, func(i int) bool { return i%2 == 0 })
	eventually(t, "last batch", func() bool { return s.Counters.Batches.Load() == 251 })
	p.mu.Lock()
	defer p.mu.Unlock()
	if most := 3 + 2*int(time.Since(began)/replayRest); len(p.asked) > most {
		t.Errorf("%d replays in %v", len(p.asked), time.Since(began))
	}
}

func TestHostilePeers(t *testing.T) {
	frame := func(flags byte, body []byte) []byte { return append([]byte{flags, byte(len(body))}, body...) }
	long := func(flags byte, size uint64) []byte {
		b := []byte{flags | flagLong}
		for i := 7; i >= 0; i-- {
			b = append(b, byte(size>>(8*i)))
		}
		return b
	}
	end := slices.Repeat([]byte{0xff}, 8)
	hello := slices.Concat(greeting(), frame(flagCommand, ready("PUB")))
	for name, c := range map[string]struct {
		bytes []byte
		why   string
	}{
		"not ZeroMQ":        {[]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 9)), "greeting"},
		"old":               {append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1}, make([]byte, 60)...), "version 3"},
		"curve":             {append(append(greeting()[:12], "CURVE"...), make([]byte, 47)...), "CURVE"},
		"no ready":          {append(greeting(), frame(flagCommand, []byte("\x05ERROR\x02no"))...), "ERROR"},
		"empty ready":       {append(greeting(), frame(flagCommand, nil)...), "READY"},
		"wrong socket":      {append(greeting(), frame(flagCommand, ready("ROUTER"))...), "exchanged"},
		"large command":     {append(greeting(), long(flagCommand, 1<<20)...), "at most 1024"},
		"huge frame":        {slices.Concat(hello, long(0, 1<<62)), "accepted"},
		"huge message":      {slices.Concat(hello, frame(flagMore, make([]byte, 200)), long(0, maxMessage)), "accepted"},
		"reserved flag":     {slices.Concat(hello, []byte{0x80}), "flags"},
		"one frame":         {slices.Concat(hello, frame(0, []byte("kv"))), "want a message of"},
		"many frames":       {slices.Concat(hello, slices.Repeat(frame(flagMore, nil), 9)), "more than 4"},
		"short number":      {slices.Concat(hello, frame(flagMore, nil), frame(flagMore, make([]byte, 7)), frame(0, nil)), "want a message of"},
		"number of the end": {slices.Concat(hello, frame(flagMore, nil), frame(flagMore, end), frame(0, nil)), "sequence number"},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					nc, err := ln.Accept()
					if err != nil {
						return
					}
					_, _ = nc.Write(c.bytes)
					_ = nc.SetReadDeadline(time.Now().Add(time.Second))
					for b := make([]byte, 1000); err == nil; {
						_, err = nc.Read(b)
					}
					_ = nc.Close()
				}
			}()
			defer func() {
				_ = ln.Close()
				<-done
			}()
			s, r := subscribe(t, Source{Endpoint: ln.Addr().String()})
			eventually(t, "refusal because of "+c.why, func() bool { return strings.Contains(r.why(), c.why) })
			if s.Counters.Refused.Load() == 0 || s.Counters.Batches.Load() != 0 {
				t.Errorf("%d refused, %d batches", s.Counters.Refused.Load(), s.Counters.Batches.Load())
			}
		})
	}
}

// A peer may check with pings that the subscriber is alive.
func TestPing(t *testing.T) {
	client, server := net.Pipe()
	defer func() { _, _ = client.Close(), server.Close() }()
	_ = server.SetDeadline(time.Now().Add(20 * time.Second))
	c := &conn{net: &gatherer{Conn: client}, in: bufio.NewReader(client)}
	answered := make(chan []byte, 1)
	go func() {
		_, _ = server.Write([]byte("\x04\x0a\x04PING\x00\x64abc"))
		b := make([]byte, 10)
		_, _ = server.Read(b)
		answered <- b
		_, _ = server.Write([]byte("\x00\x01x"))
	}()
	frames, err := c.receive()
	if err != nil || len(frames) != 1 || string(frames[0]) != "x" {
		t.Fatalf("%q, %v", frames, err)
	}
	if got := string(<-answered); got != "\x04\x08\x04PONGabc" {
		t.Errorf("%q", got)
	}
}

// FuzzReceive reads messages from a connection's bytes: no panic, and no more memory than arrived.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x02kv\x01\x0812345678\x00\x03abc"))
	f.Add([]byte("\x04\x0a\x04PING\x00\x64abc\x02\x00\x00\x00\x00\x00\x00\x00\x02ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		client, server := net.Pipe()
		defer func() { _, _ = client.Close(), server.Close() }()
		go func() { _, _ = io.Copy(io.Discard, server) }() // what is sent
		c := &conn{net: &gatherer{Conn: client}, in: bufio.NewReader(bytes.NewReader(b))}
		for {
			frames, err := c.receive()
			if err != nil {
				break
			}
			if len(frames) == 0 || len(frames) > maxFrames {
				t.Fatalf("%d frames", len(frames))
			}
		}
		if most := 2*(len(b)+readStep) + 4096; cap(c.message) > most {
			t.Fatalf("room for %d bytes of a message after %d bytes", cap(c.message), len(b))
		}
	})
}

// BenchmarkStream receives batches of 64 stored blocks as fast as a socket brings them.
func BenchmarkStream(b *testing.B) {
	message := func(seq uint64, body []byte) []byte {
		m := append([]byte{flagMore, 2, 'k', 'v', flagMore, 8}, binary.BigEndian.AppendUint64(nil, seq)...)
		m = binary.BigEndian.AppendUint64(append(m, flagLong), uint64(len(body)))
		return append(m, body...)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	body := payload(storedMap(1, 64, "gv1.abcdefghijklmnopqrstuvwxyz0123456789"))
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		_, _ = nc.Write(append(greeting(), append([]byte{flagCommand, byte(len(ready("PUB")))}, ready("PUB")...)...))
		for seq := range uint64(b.N) {
			if _, err := nc.Write(message(seq, body)); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, nc)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stream{Source: Source{Endpoint: ln.Addr().String(), Topic: "kv"}, Sink: stopAfter{b.N, new(int), cancel}}
	b.ResetTimer()
	s.Run(ctx)
	b.StopTimer()
	<-sent
}

type stopAfter struct {
	n    int
	seen *int
	stop func()
}

func (s stopAfter) Batch([]Event) {
	if *s.seen++; *s.seen == s.n {
		s.stop()
	}
}
func (stopAfter) Reset(string)        {}
func (stopAfter) State(State, string) {}

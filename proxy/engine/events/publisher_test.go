package events

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// publisher is the PUB and ROUTER side of an engine.
type publisher struct {
	t        *testing.T
	pub      net.Listener
	replay   net.Listener // nil without replay
	work     sync.WaitGroup
	ringSize int
	old      bool // replays without the topic, as before vLLM 0.32
	// answer, if not nil, chooses the batches of a replay.
	answer func(from uint64, ring []numbered) []numbered

	mu     sync.Mutex // guards the fields below
	seq    uint64
	ring   []numbered
	subs   []*conn
	open   []net.Conn // all connections
	topics []string   // of the subscriptions, in turn
	asked  []uint64   // sequence numbers that replays began with
}

type numbered struct {
	seq     uint64
	payload []byte
}

func newPublisher(t *testing.T, withReplay bool) *publisher {
	p := &publisher{t: t, ringSize: 10_000}
	p.pub = p.serve("127.0.0.1:0", "PUB", p.subscriber)
	if withReplay {
		p.replay = p.serve("127.0.0.1:0", "ROUTER", p.replayer)
	}
	t.Cleanup(p.stop)
	return p
}

func (p *publisher) source() Source {
	s := Source{Endpoint: p.pub.Addr().String(), Topic: "kv"}
	if p.replay != nil {
		s.Replay = p.replay.Addr().String()
	}
	return s
}

func (p *publisher) serve(addr, socket string, handle func(*conn)) net.Listener {
	p.t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.work.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open = append(p.open, nc)
			p.mu.Unlock()
			p.work.Go(func() {
				defer func() { _ = nc.Close() }()
				c := &conn{net: &gatherer{Conn: nc}, in: bufio.NewReader(nc)}
				_ = nc.SetReadDeadline(time.Now().Add(30 * time.Second))
				var peer [greetingSize]byte
				if _, err := nc.Write(greeting()); err != nil {
					return
				}
				if _, err := io.ReadFull(c.in, peer[:]); err != nil {
					return
				}
				if c.write(flagCommand, ready(socket)) != nil {
					return
				}
				if _, _, err := c.frame(nil, maxCommand); err == nil {
					handle(c)
				}
			})
		}
	})
	return ln
}

func (p *publisher) subscriber(c *conn) {
	frames, err := c.receive()
	if err != nil {
		return
	}
	if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] != 1 {
		p.t.Errorf("subscription %q", frames)
		return
	}
	p.mu.Lock()
	p.topics = append(p.topics, string(frames[0][1:]))
	p.subs = append(p.subs, c)
	p.mu.Unlock()
	_, _ = c.receive() // until the end of the connection
}

func (p *publisher) replayer(c *conn) {
	for {
		frames, err := c.receive()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			p.t.Errorf("replay request %q", frames)
			return
		}
		from := binary.BigEndian.Uint64(frames[1])
		p.mu.Lock()
		p.asked = append(p.asked, from)
		var list []numbered
		for _, b := range p.ring {
			if b.seq >= from {
				list = append(list, b)
			}
		}
		if p.answer != nil {
			list = p.answer(from, p.ring)
		}
		p.mu.Unlock()
		for _, b := range append(list, numbered{seq: 1<<64 - 1}) {
			if c.write(flagMore, nil) != nil || !transmit(c, p.replayTopic(b), b) {
				return
			}
		}
	}
}

// replayTopic is the second frame of a replay's message: the topic, empty at the end; nil if there is none.
func (p *publisher) replayTopic(b numbered) []byte {
	switch {
	case p.old:
		return nil
	case b.payload == nil:
		return []byte{}
	}
	return []byte("kv")
}

// transmit sends a topic, if it is not nil, a sequence number and a payload.
func transmit(c *conn, topic []byte, b numbered) bool {
	if topic != nil && c.write(flagMore, topic) != nil {
		return false
	}
	return c.write(flagMore, binary.BigEndian.AppendUint64(nil, b.seq)) == nil && c.write(0, b.payload) == nil
}

// send publishes a batch of events under the next number; a lost batch is in the ring only.
func (p *publisher) send(lost bool, events ...any) {
	p.mu.Lock()
	b := numbered{p.seq, payload(events...)}
	p.seq++
	p.ring = append(p.ring, b)
	if len(p.ring) > p.ringSize {
		p.ring = p.ring[1:]
	}
	p.mu.Unlock()
	if !lost {
		p.publish(b)
	}
}

func (p *publisher) publish(b numbered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = slices.DeleteFunc(p.subs, func(c *conn) bool { return !transmit(c, []byte("kv"), b) })
}

// await waits for n subscriptions since the start.
func (p *publisher) await(n int) {
	p.t.Helper()
	eventually(p.t, "subscriptions", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.topics) >= n
	})
}

// cut closes all connections.
func (p *publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open, p.subs = nil, nil
}

func (p *publisher) stop() {
	_ = p.pub.Close()
	if p.replay != nil {
		_ = p.replay.Close()
	}
	stopped := make(chan struct{})
	go func() {
		p.work.Wait()
		close(stopped)
	}()
	for {
		p.cut() // also what was accepted meanwhile
		select {
		case <-stopped:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within 20 s", what)
		}
	}
}

package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// Bounds of a publisher.
const (
	bufferSteps   = 10_000 // batches kept for replay, as the engines' default
	publishQueue  = 10_000 // messages that wait for a subscriber; more are lost, as at ZeroMQ's high-water mark
	maxPeers      = 256    // connections
	maxTopics     = 64     // subscriptions of one connection
	maxPeerFrame  = 1024   // bytes
	peerHandshake = 10 * time.Second
	peerWrite     = 10 * time.Second
)

const eventTopic = "kv"

// publisher is the PUB socket of an engine's cache events, and the ROUTER socket that replays them: ZMTP 3.0 with mechanism NULL,
// written for the emulator alone, so that it can judge the router's. Safe for concurrent use.
type publisher struct {
	pub    net.Listener
	router net.Listener // nil: no replay
	twice  float64      // share of batches sent twice

	mu     sync.Mutex // guards the fields below
	loss   float64    // share of batches that only a replay brings
	rng    *rand.Rand
	next   uint64   // sequence number
	ring   [][]byte // the latest messages as they were sent, the last one numbered next-1
	peers  map[*peer]struct{}
	muted  chan struct{} // closed when the mute ends; nil: not muted
	closed bool
	work   sync.WaitGroup
}

// peer is a connection.
type peer struct {
	conn   net.Conn
	in     *bufio.Reader
	out    chan []byte // of a subscriber; closed when it is gone
	topics [][]byte
}

func newPublisher(cfg EventsConfig) (*publisher, error) {
	p := &publisher{
		loss: cfg.EventsLoss / 100, twice: cfg.EventsDuplicates / 100,
		rng: rand.New(rand.NewPCG(1, 2)), peers: make(map[*peer]struct{}),
	}
	var lc net.ListenConfig
	var err error
	if p.pub, err = lc.Listen(context.Background(), "tcp", cfg.Events); err != nil {
		return nil, fmt.Errorf("cache events: %w", err)
	}
	if cfg.EventsReplay != "" {
		if p.router, err = lc.Listen(context.Background(), "tcp", cfg.EventsReplay); err != nil {
			_ = p.pub.Close()
			return nil, fmt.Errorf("replay of cache events: %w", err)
		}
		p.serve(p.router, "ROUTER", p.replay)
	}
	p.serve(p.pub, "PUB", p.subscriber)
	return p, nil
}

func (p *publisher) serve(ln net.Listener, socket string, handle func(*peer) error) {
	p.work.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					time.Sleep(10 * time.Millisecond) // out of file descriptors
					continue
				}
				return
			}
			c := &peer{conn: conn, in: bufio.NewReader(conn)}
			p.mu.Lock()
			if muted := p.muted; p.closed || len(p.peers) >= maxPeers {
				_ = conn.Close()
			} else {
				p.peers[c] = struct{}{}
				p.work.Go(func() {
					if muted != nil {
						<-muted
					}
					if c.shake(socket) == nil {
						_ = handle(c) // peers leave at will
					}
					p.drop(c)
				})
			}
			p.mu.Unlock()
		}
	})
}

func (p *publisher) drop(c *peer) {
	_ = c.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.peers[c]; there {
		delete(p.peers, c)
		if c.out != nil {
			close(c.out)
		}
	}
}

// publish sends a batch under the next sequence number.
func (p *publisher) publish(batch []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	message := appendFrame(nil, true, []byte(eventTopic))
	message = appendFrame(message, true, binary.BigEndian.AppendUint64(nil, p.next))
	message = appendFrame(message, false, batch)
	p.next++
	p.ring = append(p.ring, message)
	if len(p.ring) > bufferSteps {
		p.ring[0] = nil
		p.ring = p.ring[1:]
	}
	if p.rng.Float64() < p.loss || p.muted != nil {
		return
	}
	times := 1
	if p.rng.Float64() < p.twice {
		times = 2
	}
	for c := range p.peers {
		if !slices.ContainsFunc(c.topics, func(t []byte) bool { return bytes.HasPrefix([]byte(eventTopic), t) }) {
			continue
		}
		for range times {
			select {
			case c.out <- message:
			default:
			}
		}
	}
}

// restart ends all connections and begins with sequence number 0, as a new process would.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.ring = 0, nil
	for c := range p.peers {
		_ = c.conn.Close()
	}
}

func (p *publisher) lose(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loss = share
}

// mute is what a partition from the subscribers looks like to them: connections stay open, or open, and bring nothing. Only a replay
// brings what is published meanwhile.
func (p *publisher) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.muted == nil && !p.closed {
		p.muted = make(chan struct{})
	}
}

// unmute ends all connections, as TCP does that gave up.
func (p *publisher) unmute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.muted == nil {
		return
	}
	close(p.muted)
	p.muted = nil
	for c := range p.peers {
		_ = c.conn.Close()
	}
}

// close returns when all goroutines have ended.
func (p *publisher) close() {
	p.unmute()
	p.mu.Lock()
	p.closed = true
	_ = p.pub.Close()
	if p.router != nil {
		_ = p.router.Close()
	}
	for c := range p.peers {
		_ = c.conn.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// subscriber reads subscriptions until the connection ends, and sends what is published meanwhile.
func (p *publisher) subscriber(c *peer) error {
	c.out = make(chan []byte, publishQueue)
	p.work.Go(func() {
		for message := range c.out {
			if c.send(message) != nil {
				_ = c.conn.Close()
			}
		}
	})
	for {
		frames, err := c.receive()
		if err != nil {
			return err
		}
		if len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1 {
			return errPeer
		}
		topic := frames[0][1:]
		p.mu.Lock()
		if frames[0][0] == 1 {
			c.topics = append(c.topics, topic)
		} else if i := slices.IndexFunc(c.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
			c.topics = slices.Delete(c.topics, i, i+1)
		}
		tooMany := len(c.topics) > maxTopics
		p.mu.Unlock()
		if tooMany {
			return errPeer
		}
	}
}

// replay answers requests of an empty frame and a sequence number with the messages from that on, each behind an empty frame, and
// with an end.
func (p *publisher) replay(c *peer) error {
	end := appendFrame(nil, true, nil)
	end = appendFrame(end, true, nil)
	end = appendFrame(end, true, bytes.Repeat([]byte{0xff}, 8))
	end = appendFrame(end, false, nil)
	for {
		frames, err := c.receive()
		if err != nil {
			return err
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			return errPeer
		}
		from := binary.BigEndian.Uint64(frames[1])
		p.mu.Lock()
		kept := slices.Clone(p.ring)
		if oldest := p.next - uint64(len(kept)); from > oldest {
			kept = kept[min(from-oldest, uint64(len(kept))):]
		}
		p.mu.Unlock()
		for _, message := range kept {
			if err := c.send(append(appendFrame(nil, true, nil), message...)); err != nil {
				return err
			}
		}
		if err := c.send(end); err != nil {
			return err
		}
	}
}

var errPeer = errors.New("engine: the subscriber breaks ZMTP 3, or its frames are too long")

const (
	frameMore    = 1
	frameLong    = 2
	frameCommand = 4
)

func appendFrame(b []byte, more bool, body []byte) []byte {
	var flags byte
	if more {
		flags = frameMore
	}
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|frameLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

func (c *peer) send(b []byte) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(peerWrite))
	_, err := c.conn.Write(b)
	return err
}

// shake exchanges greetings and READY commands.
func (c *peer) shake(socket string) error {
	_ = c.conn.SetDeadline(time.Now().Add(peerHandshake))
	hello := make([]byte, 64)
	hello[0], hello[9] = 0xff, 0x7f // signature
	hello[10] = 3                   // version 3.0
	copy(hello[12:], "NULL")
	if err := c.send(hello); err != nil {
		return err
	}
	var peer [64]byte
	if _, err := io.ReadFull(c.in, peer[:]); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[10] < 3 || !bytes.Equal(peer[12:32], hello[12:32]) {
		return errPeer
	}
	property := func(b []byte, name, value string) []byte {
		b = append(append(b, byte(len(name))), name...)
		return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
	}
	body := property(append([]byte{5}, "READY"...), "Socket-Type", socket)
	if err := c.send(append([]byte{frameCommand, byte(len(body))}, body...)); err != nil {
		return err
	}
	flags, body, err := c.frame()
	if err != nil {
		return err
	}
	if flags != frameCommand || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return errPeer
	}
	return c.conn.SetDeadline(time.Time{})
}

// receive returns the frames of the next message, at most two. It answers a PING, and passes over other commands.
func (c *peer) receive() (frames [][]byte, err error) {
	for {
		flags, body, err := c.frame()
		switch {
		case err != nil:
			return nil, err
		case flags&frameCommand != 0:
			if context, ping := bytes.CutPrefix(body, []byte("\x04PING")); ping && len(context) >= 2 && len(context) <= 2+16 {
				pong := append([]byte("\x04PONG"), context[2:]...) // behind the time to live
				if err := c.send(append([]byte{frameCommand, byte(len(pong))}, pong...)); err != nil {
					return nil, err
				}
			}
			continue
		case len(frames) == 2:
			return nil, errPeer
		}
		frames = append(frames, body)
		if flags&frameMore == 0 {
			return frames, nil
		}
	}
}

func (c *peer) frame() (flags byte, body []byte, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	width := 1
	if flags&frameLong != 0 {
		width = 8
	}
	var head [8]byte
	if _, err = io.ReadFull(c.in, head[8-width:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint64(head[:])
	if size > maxPeerFrame {
		return 0, nil, errPeer
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.in, body)
	return flags, body, err
}

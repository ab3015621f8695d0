package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

const (
	pingInterval     = 500 * time.Millisecond
	publisherSilence = 3 * time.Second // publishers answer pings
	dialTimeout      = 5 * time.Second // connect, TLS handshake and hello together
	// Pauses between dials, before jitter; short, to use a healed network soon.
	firstPause     = 50 * time.Millisecond
	maxPause       = 2 * time.Second
	violationPause = 10 * time.Second
	maxOut         = 64 << 10
	maxShift       = 365 * 24 * time.Hour
)

// subscription is one stream from a peer. Its reader and its writer never wait for each other.
type subscription struct {
	x     *Exchange
	p     *peer
	conn  net.Conn
	id    processID // of the publisher
	began time.Time

	started  atomic.Bool // Start was received
	requests atomic.Uint64
	done     chan struct{}
	wake     chan struct{} // capacity 1

	mu       sync.Mutex
	why      error // why the stream ended; nil while it is open
	out      []byte
	incoming *incoming

	// Used by the reader only.
	asked  wire.Resume
	loaded bool // a full vector came
	loads  []Load
	used   bool // a full vector came
	uses   []Usage

	figured bool // a full vector came
	figures []Figure
}

func (x *Exchange) subscribe(ctx context.Context, p *peer, info member.Info) {
	pause := firstPause
	for {
		began := time.Now()
		err := x.follow(ctx, p, info)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errViolation) {
			x.count(&x.stats.Violations, 1)
			p.count(&p.Violations, 1)
			pause = violationPause
			x.log.Warn().Str("peer", p.name).Err(err).Msg("stream from peer closed")
		} else {
			if time.Since(began) > maxPause {
				pause = firstPause
			}
			x.log.Debug().Str("peer", p.name).Err(err).Msg("stream from peer ended")
		}
		if !sleep(ctx, jitter(pause)) {
			return
		}
		pause = min(2*pause, maxPause)
	}
}

func (x *Exchange) follow(ctx context.Context, p *peer, info member.Info) error {
	conn, peer, err := x.dial(ctx, info)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			x.ended(p, info)
		}
		p.failed(err)
		return err
	}
	s := &subscription{
		x: x, p: p, conn: conn, id: processID{peer.Name, peer.Incarnation},
		began: time.Now(), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	p.mu.Lock()
	if ctx.Err() != nil {
		p.mu.Unlock()
		conn.Close()
		return ctx.Err()
	}
	p.stream, p.Reported = s, false
	p.mu.Unlock()
	p.count(&p.Connects, 1)
	if !x.spawn(s.write) {
		s.end(errStopped)
	}
	s.request()
	err = x.readFrames(conn, wire.NewsSize, publisherSilence, s.receive)
	s.end(err)
	close(s.done)
	p.mu.Lock()
	if p.stream == s {
		p.stream = nil
	}
	p.mu.Unlock()
	s.mu.Lock()
	err = s.why // the first reason: closing the connection fails the reader, too
	s.mu.Unlock()
	p.failed(err)
	s.finishIncoming(wire.Cancelled)
	return err
}

func (x *Exchange) dial(ctx context.Context, info member.Info) (net.Conn, member.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, peer, err := x.members.connect(ctx, info)
	if err != nil {
		return nil, peer, err
	}
	switch {
	case peer.Name != info.Name:
		err = fmt.Errorf("%w: %s answers at the address of %s", errViolation, peer.Name, info.Name)
	case peer.Incarnation < info.Incarnation:
		err = fmt.Errorf("an older process of %s answers", info.Name)
	default:
		return conn, peer, nil
	}
	conn.Close()
	return nil, peer, err
}

func (p *peer) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.LastError = err.Error()
}

func (s *subscription) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
		s.conn.Close()
	}
}

// sendLocked returns false if the queue is full. s.mu is held.
func (s *subscription) sendLocked(add func([]byte) []byte) bool {
	if len(s.out) > maxOut {
		return false
	}
	s.out = add(s.out)
	wake(s.wake)
	return true
}

func (s *subscription) send(add func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendLocked(add)
}

// The ping goes first: the first batch's times need the clock offset.
func (s *subscription) request() {
	s.ping()
	s.asked = wire.Resume{Version: wire.Version}
	next := s.x.cursorAt(s.p, s.id)
	switch {
	case next > 0:
		s.asked.Incarnation, s.asked.Next = s.id.incarnation, next
	case !s.x.warming.learning():
		// The process is new, and this node is no joiner.
		s.asked.Incarnation, s.asked.Next = s.id.incarnation, 1
	}
	s.send(func(b []byte) []byte { return wire.AppendResume(b, wire.KindSubscribe, s.asked) })
}

func (s *subscription) ping() {
	s.send(func(b []byte) []byte { return wire.AppendPing(b, s.x.wall(time.Now()).UnixNano()) })
}

func (s *subscription) write() {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	var spare []byte
	for {
		select {
		case <-s.wake:
		case <-tick.C:
			s.ping()
			continue
		case <-s.done:
			return
		case <-s.x.ctx.Done():
			s.end(errStopped)
			return
		}
		s.mu.Lock()
		out := s.out
		s.out, spare = spare[:0], out
		s.mu.Unlock()
		if len(out) == 0 {
			continue
		}
		n, err := s.x.writeFrames(s.conn, time.Now(), out)
		s.p.count(&s.p.SentBytes, uint64(n))
		if err != nil {
			return // the reader may still receive the last batches
		}
	}
}

func (s *subscription) receive(kind wire.Kind, body []byte, size int, now time.Time) error {
	s.p.mu.Lock()
	s.p.ReceivedBytes += uint64(size)
	s.p.LastHeard = now
	s.p.mu.Unlock()
	return s.take(kind, body, now)
}

func (s *subscription) take(kind wire.Kind, body []byte, now time.Time) error {
	switch kind {
	case wire.KindPong:
		return s.takePong(body, now)
	case wire.KindStart:
		return s.takeStart(body)
	}
	if !s.started.Load() {
		return errUnexpected
	}
	switch kind {
	case wire.KindBatch:
		return s.takeBatch(body, now)
	case wire.KindLoad:
		return s.takeLoad(body, now)
	case wire.KindUsage:
		return s.takeUsage(body, now)
	case wire.KindFigures:
		return s.takeFigures(body)
	case wire.KindClaims:
		return s.takeClaims(body, now)
	case wire.KindState:
		return s.takeState(body)
	case wire.KindSnapshotHead, wire.KindPage, wire.KindSnapshotDone:
		return s.takeSnapshot(kind, body, now)
	}
	return errUnexpected
}

func (s *subscription) takePong(body []byte, now time.Time) error {
	p, err := wire.DecodePong(body)
	if err != nil {
		return err
	}
	s.p.measured(p.Sent, p.Received, p.Replied, s.x.wall(now).UnixNano())
	s.lagged(time.Unix(0, p.Replied), now) // an idle peer gives no other sample
	return nil
}

// If batches before the stream's first were dropped, a snapshot must replace them.
func (s *subscription) takeStart(body []byte) error {
	st, err := wire.DecodeResume(body)
	if err != nil {
		return err
	}
	if s.started.Load() || st.Version > wire.Version || st.Incarnation != s.id.incarnation || st.Next == 0 {
		return errUnexpected
	}
	missed := s.x.startAt(s, max(s.asked.Next, 1), st.Next)
	switch {
	case s.asked.Next == 0: // a joiner takes a snapshot anyway
	case missed == 0 && s.asked.Next > 1:
		s.x.count(&s.x.stats.Resumes, 1)
	case missed > 0:
		s.x.count(&s.x.stats.MissedBatches, missed)
		s.p.count(&s.p.Missed, missed)
		s.x.log.Info().Str("peer", s.p.name).Uint64("batches", missed).Msg("the peer's journal dropped the next batch: this node takes a snapshot")
	}
	s.started.Store(true)
	return nil
}

// Streams neither lose nor reorder.
func (s *subscription) takeBatch(body []byte, now time.Time) error {
	b, err := wire.DecodeBatch(body)
	if err != nil {
		return err
	}
	s.lagged(time.UnixMilli(b.Time), now)
	s.p.count(&s.p.Received, uint64(b.Records))
	s.p.applying.Lock()
	defer s.p.applying.Unlock()
	s.p.mu.Lock()
	if s.p.stream != s {
		s.p.mu.Unlock()
		return nil // a newer stream has asked for this batch again
	}
	if b.Sequence != s.p.cursor.next {
		s.p.mu.Unlock()
		return errUnexpected
	}
	s.p.mu.Unlock()
	err = s.apply(&b)
	// The cursor moves after Apply, as snapshots promise all batches below it, and also past a
	// malformed batch.
	s.p.mu.Lock()
	s.p.cursor.next++
	s.p.mu.Unlock()
	return err
}

func (s *subscription) apply(b *wire.Batch) error {
	x, p := s.x, s.p
	got, err := x.knowledge.Apply(p.name, b.Payload, p.shift())
	if err != nil {
		x.count(&x.stats.Malformed, 1)
		p.count(&p.Dropped, uint64(b.Records))
		return fmt.Errorf("batch %d of %s: %w", b.Sequence, p.name, err)
	}
	x.counting.Lock()
	x.stats.AppliedBatches++
	x.stats.AppliedRecords += uint64(got.Records)
	x.stats.AppliedNews += uint64(got.News)
	x.stats.AppliedBytes += uint64(len(b.Payload))
	x.stats.UnknownRecords += uint64(got.Unknown)
	x.counting.Unlock()
	p.mu.Lock()
	p.Applied += uint64(got.Records)
	p.News += uint64(got.News)
	p.Unknown += uint64(got.Unknown)
	p.mu.Unlock()
	return nil
}

func (s *subscription) takeLoad(body []byte, now time.Time) error {
	loads, ms, full, err := wire.DecodeLoad(s.loads[:0], body)
	if err != nil {
		return err
	}
	s.loads = loads
	if !full && !s.loaded {
		return errUnexpected
	}
	s.loaded = true
	s.lagged(time.UnixMilli(ms), now)
	s.pass(func() {
		s.x.knowledge.PeerLoad(s.p.name, loads, full)
		s.p.reported(s)
	})
	return nil
}

func (s *subscription) takeUsage(body []byte, now time.Time) error {
	uses, ms, full, err := wire.DecodeUsage(s.uses[:0], body)
	if err != nil {
		return err
	}
	s.uses = uses
	if !full && !s.used {
		return errUnexpected
	}
	s.used = true
	s.lagged(time.UnixMilli(ms), now)
	s.pass(func() { s.x.knowledge.PeerUsage(s.p.name, s.id.incarnation, uses, full) })
	return nil
}

func (s *subscription) takeFigures(body []byte) error {
	figures, ms, full, err := wire.DecodeFigures(s.figures[:0], body)
	if err != nil {
		return err
	}
	s.figures = figures
	if !full && !s.figured {
		return errUnexpected
	}
	s.figured = true
	s.pass(func() { s.x.knowledge.PeerFigures(s.p.name, s.id.incarnation, ms, figures, full) })
	return nil
}

func (s *subscription) takeClaims(body []byte, now time.Time) error {
	ms, claims, err := wire.DecodeClaims(body)
	if err != nil {
		return err
	}
	s.lagged(time.UnixMilli(ms), now)
	s.pass(func() { s.x.knowledge.PeerClaims(s.p.name, claims) })
	return nil
}

func (s *subscription) takeState(body []byte) error {
	_, state, err := wire.DecodeState(body)
	if err != nil {
		return err
	}
	s.pass(func() { s.x.knowledge.PeerState(s.p.name, state) })
	return nil
}

// pass keeps dropped load dropped: the peer may be gone, or have a newer stream.
func (s *subscription) pass(what func()) {
	p := s.p
	p.order.Lock()
	defer p.order.Unlock()
	p.mu.Lock()
	if p.stream != s || p.Status.State != member.StateAlive {
		p.mu.Unlock()
		return
	}
	void, left := p.void, p.left
	p.passed, p.void = true, false
	p.mu.Unlock()
	if void {
		s.x.knowledge.DropPeer(p.name, left)
	}
	what()
}

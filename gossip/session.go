package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

const (
	// pingInterval is how often a publisher is asked for a sign of life, the time, and how far it has sent.
	pingInterval = 500 * time.Millisecond
	// publisherSilence is how long a publisher, who answers pings, may be silent.
	publisherSilence = 3 * time.Second
	// dialTimeout bounds connecting, encryption and hello.
	dialTimeout = 5 * time.Second
	// firstPause, maxPause and violationPause are the pauses between attempts to open a stream, before jitter. A peer that is a
	// member and does not answer is tried every two seconds, so that a healed network is used soon; one that breaks the protocol
	// is left alone for longer.
	firstPause     = 50 * time.Millisecond
	maxPause       = 2 * time.Second
	violationPause = 10 * time.Second
	// maxOut bounds what waits to be sent to a publisher: requests, which are small, and asked for again if refused.
	maxOut = 64 << 10
	// maxShift bounds how far clocks of members may be apart for their times to be used.
	maxShift = 365 * 24 * time.Hour
)

// session is one stream on which this node is sent another's knowledge. Its reader applies what comes, its writer sends
// requests and pings; neither waits for the other.
type session struct {
	f     *Fleet
	p     *peer
	conn  net.Conn
	id    streamID // of the publisher
	began time.Time

	started  atomic.Bool     // Start has come
	requests atomic.Uint64   // numbered so far
	asked    map[uint64]*ask // ranges not answered yet; guarded by repairs.mu
	answered time.Time       // when something of them came last, or the first was asked for; guarded by repairs.mu
	done     chan struct{}
	wake     chan struct{} // capacity 1

	mu       sync.Mutex
	why      error // the stream is ended, and why
	out      []byte
	exchange exchange
	intake   *intake // the snapshot that is being taken

	live sync.Mutex // orders live batches, which in tests may come late
	next uint64     // sequence that continues the live stream

	// Of the reader alone.
	resumed wire.Subscribe
	whole   bool // the full load vector has come
	loads   []Load
}

// subscribe keeps a stream from a peer open until ctx ends.
func (f *Fleet) subscribe(ctx context.Context, p *peer, info member.Info) {
	pause := firstPause
	for {
		began := time.Now()
		err := f.hear(ctx, p, info)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errViolation) {
			f.counts.violations.Add(1)
			p.violations.Add(1)
			pause = violationPause
			f.log.Warn().Str("peer", p.name).Err(err).Msg("stream from peer closed")
		} else {
			if time.Since(began) > maxPause {
				pause = firstPause
			}
			f.log.Debug().Str("peer", p.name).Err(err).Msg("stream from peer ended")
		}
		t := time.NewTimer(jitter(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// hear opens one stream and takes what comes until it ends.
func (f *Fleet) hear(ctx context.Context, p *peer, info member.Info) error {
	conn, peer, err := f.dial(ctx, info)
	if err != nil {
		p.failed(err)
		return err
	}
	s := &session{
		f: f, p: p, conn: conn, id: streamID{peer.Name, peer.Incarnation},
		began: time.Now(), asked: map[uint64]*ask{}, done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	p.mu.Lock()
	if ctx.Err() != nil {
		p.mu.Unlock()
		conn.Close()
		return ctx.Err()
	}
	p.session = s
	p.mu.Unlock()
	p.connects.Add(1)
	if !f.spawn(s.write) {
		s.end(errStopped)
	}
	s.subscribeTo()
	err = s.read()
	s.end(err)
	close(s.done)
	p.mu.Lock()
	if p.session == s {
		p.session = nil
	}
	p.mu.Unlock()
	s.mu.Lock()
	err = s.why // the first reason: closing a connection makes its reader fail, too
	s.mu.Unlock()
	p.failed(err)
	s.abandonIntake()
	f.repairs.nudge()
	return err
}

func (f *Fleet) dial(ctx context.Context, info member.Info) (net.Conn, member.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, peer, err := f.members.connect(ctx, info)
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
	if err != nil {
		p.failure = err.Error()
	}
}

// end closes the stream. The first reason is kept.
func (s *session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
		s.conn.Close()
	}
}

// over reports whether the stream has ended.
func (s *session) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// sendLocked queues a frame of a kind; false if there is no room. s.mu is held.
func (s *session) sendLocked(kind wire.Kind, add func([]byte) []byte) bool {
	if len(s.out) > maxOut {
		return false
	}
	n := len(s.out)
	s.out = add(s.out)
	s.f.counts.sent[kind].Add(uint64(len(s.out) - n))
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

func (s *session) send(kind wire.Kind, add func([]byte) []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sendLocked(kind, add)
}

// subscribeTo asks for the publisher's batches from where this node has them. The ping goes first: its answer comes before the
// first batch, whose times need it.
func (s *session) subscribeTo() {
	s.resumed = wire.Subscribe{Version: wire.Version}
	if _, next, ok := s.f.journal.position(s.id); ok {
		s.resumed.Incarnation, s.resumed.Next = s.id.incarnation, next
	}
	s.ping()
	s.send(wire.KindSubscribe, func(b []byte) []byte { return wire.AppendSubscribe(b, s.resumed) })
}

func (s *session) ping() {
	s.send(wire.KindPing, func(b []byte) []byte { return wire.AppendPing(b, s.f.wall(time.Now()).UnixNano()) })
}

// askRange asks for a want's batches. f.repairs.mu is held.
func (s *session) askRange(w *want, now time.Time) bool {
	request := s.requests.Add(1)
	r := wire.Range{Request: request, Origin: []byte(w.id.origin), Incarnation: w.id.incarnation, From: w.from, Count: w.count}
	if !s.send(wire.KindRange, func(b []byte) []byte { return wire.AppendRange(b, r) }) {
		return false
	}
	if len(s.asked) == 0 {
		s.answered = now
	}
	w.session, w.request = s, request
	s.asked[request] = &ask{id: w.id, span: span{w.from, w.count}, left: w.count, owner: w}
	return true
}

// write sends requests as they come and a ping when it is time, until the stream ends.
func (s *session) write() {
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
		case <-s.f.ctx.Done():
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
		now := time.Now()
		err := s.conn.SetWriteDeadline(now.Add(writeTimeout))
		if err == nil {
			var n int
			n, err = s.conn.Write(out)
			s.f.budget.spend(now, n)
			s.f.counts.writes.Add(1)
			s.p.sent.Add(uint64(n))
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// read takes what the publisher sends until the stream ends.
func (s *session) read() error {
	r := wire.NewReader(s.conn, wire.NewsSize)
	var limit time.Time
	var skipped uint64
	for {
		now := time.Now()
		if limit.Sub(now) < publisherSilence*9/10 {
			limit = now.Add(publisherSilence)
			if err := s.conn.SetReadDeadline(limit); err != nil {
				return err
			}
		}
		kind, body, size, err := r.Next()
		if err != nil {
			return blame(err)
		}
		s.f.counts.received[kind].Add(uint64(size))
		s.p.bytes.Add(uint64(size))
		if n := r.Skipped(); n != skipped {
			s.f.counts.skipped.Add(n - skipped)
			skipped = n
		}
		now = time.Now()
		s.p.mu.Lock()
		s.p.heard = now
		s.p.mu.Unlock()
		if err := s.take(kind, body, now); err != nil {
			return fmt.Errorf("%w: %v: %w", errViolation, kind, err)
		}
	}
}

// take acts on one frame. Every error is a violation.
func (s *session) take(kind wire.Kind, body []byte, now time.Time) error {
	switch kind {
	case wire.KindPong:
		return s.takePong(body, now)
	case wire.KindStart:
		return s.takeStart(body, now)
	}
	if !s.started.Load() {
		return errUnexpected
	}
	switch kind {
	case wire.KindBatch:
		return s.takeBatch(body, now)
	case wire.KindLoad:
		return s.takeLoad(body, now)
	case wire.KindState:
		return s.takeState(body)
	case wire.KindRepair:
		return s.takeRepair(body, now)
	case wire.KindRangeDone:
		request, next, err := wire.DecodeRangeDone(body)
		if err == nil {
			s.f.rangeDone(s, request, next, now)
		}
		return err
	case wire.KindRuns:
		return s.takeRuns(body, now)
	case wire.KindDigestDone:
		return s.digestDone(body)
	case wire.KindSnapshotHead, wire.KindPage, wire.KindSnapshotDone:
		return s.takeSnapshot(kind, body, now)
	}
	return errUnexpected
}

func (s *session) takePong(body []byte, now time.Time) error {
	p, err := wire.DecodePong(body)
	if err != nil {
		return err
	}
	s.p.measured(p.Sent, p.Received, p.Replied, s.f.wall(now).UnixNano())
	s.lagged(time.Unix(0, p.Replied), now) // an idle peer says nothing else
	if s.started.Load() {
		s.reached(p.Next, now)
	}
	return nil
}

func (s *session) takeStart(body []byte, now time.Time) error {
	st, err := wire.DecodeStart(body)
	if err != nil {
		return err
	}
	if s.started.Load() || st.Version > wire.Version || st.Incarnation != s.id.incarnation {
		return errUnexpected
	}
	s.next = st.Next
	// A joiner is on its way to a snapshot, or has just had one.
	joining := s.f.warming.fraction() < 1 || s.f.warming.fresh(now)
	unheard := s.f.journal.unheard(s.id) && st.Next > 1 && !joining
	whole := unheard && s.young(now)
	switch {
	case whole:
		// It began on the other side of a partition, where others were told the first it had to say. That is all there still.
		s.f.journal.open(s.id, 1, s.f.wall(now).UnixMilli())
		for _, g := range s.f.journal.gaps(s.id, 1, st.Next-1, splitGaps) {
			s.f.found(s.id, g, "", now)
		}
	case unheard:
		// A process that has long been telling others and was never heard here, or so long ago that the journal has
		// forgotten it: two fleets have met.
		s.f.relearn.Store(&s.p.name)
	}
	s.f.journal.hear(s.id, st.Next, whole, s.f.wall(now).UnixMilli())
	if s.resumed.Incarnation != 0 {
		s.f.findHoles(s.id, now)
		if st.Next > s.resumed.Next {
			s.f.found(s.id, span{s.resumed.Next, st.Next - s.resumed.Next}, "", now)
		}
	}
	s.started.Store(true)
	s.askDigest(now)
	return nil
}

// young reports whether the publisher's process began so late that journals still have all it has said.
func (s *session) young(now time.Time) bool {
	began := time.UnixMilli(int64(s.id.incarnation)).Add(s.shift())
	return s.f.wall(now).Sub(began) < journalAge
}

// reached notes that all live batches below next were sent: those that have not come were lost.
func (s *session) reached(next uint64, now time.Time) {
	s.live.Lock()
	from := s.next
	s.next = max(s.next, next)
	s.live.Unlock()
	if next > from {
		s.f.found(s.id, span{from, next - from}, "", now)
	}
}

func (s *session) takeBatch(body []byte, now time.Time) error {
	b, err := wire.DecodeBatch(body)
	if err != nil {
		return err
	}
	if s.f.faults != nil {
		return s.mistreat(&b, body, now)
	}
	return s.apply(&b, body, now)
}

// apply takes a live batch.
func (s *session) apply(b *wire.Batch, body []byte, now time.Time) error {
	s.reached(b.Sequence, now)
	s.live.Lock()
	s.next = max(s.next, b.Sequence+1)
	s.live.Unlock()
	s.p.received.Add(uint64(b.Records))
	shift := s.shift()
	s.lagged(time.UnixMilli(b.Time), now)
	return s.f.accept(s.id, b, body, shift, false, now)
}

// mistreat does to a live batch what the test asks for.
func (s *session) mistreat(b *wire.Batch, body []byte, now time.Time) error {
	drop, copies, delay := s.f.faults(s.p.name, b)
	if drop {
		return nil
	}
	if delay <= 0 {
		for range max(copies, 1) {
			if err := s.apply(b, body, now); err != nil {
				return err
			}
		}
		return nil
	}
	body = append([]byte(nil), body...)
	s.f.spawn(func() {
		if !s.f.sleep(delay) {
			return
		}
		b, err := wire.DecodeBatch(body)
		for range max(copies, 1) {
			if err == nil {
				err = s.apply(&b, body, time.Now())
			}
		}
		if err != nil {
			s.end(fmt.Errorf("%w: %w", errViolation, err))
		}
	})
	return nil
}

// shift is what to add to times in the publisher's knowledge.
func (s *session) shift() time.Duration {
	d, _ := s.p.shift()
	return d
}

// accept applies a batch that is not known yet, and keeps it for those who lack it. An error is a batch that its origin made
// malformed.
func (f *Fleet) accept(id streamID, b *wire.Batch, body []byte, shift time.Duration, repaired bool, now time.Time) error {
	p := f.peer(id.origin)
	if p == nil {
		p = &peer{} // of a node that was gone before this one came: counted in total only
	}
	switch f.journal.add(id, b, body, shift.Milliseconds(), f.wall(now).UnixMilli()) {
	case duplicate:
		f.counts.duplicates.Add(1)
		return nil
	case outdated, refused:
		f.counts.droppedBound.Add(1)
		p.dropped.Add(uint64(b.Records))
		return nil
	}
	got, err := f.knowledge.Apply(id.origin, b.Payload, shift)
	if err != nil {
		f.journal.poison(id, b.Sequence)
		f.counts.malformed.Add(1)
		p.dropped.Add(uint64(b.Records))
		return fmt.Errorf("batch %d of %s: %w", b.Sequence, id.origin, err)
	}
	f.counts.appliedBatches.Add(1)
	f.counts.appliedRecords.Add(uint64(got.Records))
	f.counts.appliedNews.Add(uint64(got.News))
	f.counts.appliedBytes.Add(uint64(len(b.Payload)))
	f.counts.unknownRecords.Add(uint64(got.Unknown))
	p.applied.Add(uint64(got.Records))
	p.news.Add(uint64(got.News))
	p.unknown.Add(uint64(got.Unknown))
	if repaired {
		f.counts.repairedBatches.Add(1)
		f.counts.repairedRecords.Add(uint64(got.Records))
		p.repaired.Add(uint64(got.Records))
	}
	return nil
}

// takeRepair takes a batch that was asked for, of whatever origin. Only what was asked for is taken, so that a peer can
// serve others' batches but never publish as another.
func (s *session) takeRepair(body []byte, now time.Time) error {
	rep, err := wire.DecodeRepair(body)
	if err != nil {
		return err
	}
	b, err := wire.DecodeBatch(rep.Body)
	if err != nil {
		return err
	}
	switch s.f.judge(s, &rep, b.Sequence, now) {
	case intruder:
		return errUnexpected
	case late:
		return nil
	}
	id := streamID{string(rep.Origin), rep.Incarnation}
	if err := s.f.accept(id, &b, rep.Body, s.shiftOf(id, rep.Shift), true, now); err != nil && id == s.id {
		return err
	} // else another node's fault, which was counted
	return nil
}

// shiftOf is what to add to the times of a stream that came by this peer. Own measurement is best; else the peer's, and
// ours of the peer.
func (s *session) shiftOf(id streamID, theirs int64) time.Duration {
	if id == s.id {
		return s.shift()
	}
	if p := s.f.peer(id.origin); p != nil {
		p.mu.Lock()
		same := p.status.Incarnation == id.incarnation
		p.mu.Unlock()
		if d, ok := p.shift(); ok && same {
			return d
		}
	}
	if limit := maxShift.Milliseconds(); theirs > limit || theirs < -limit {
		return s.shift()
	}
	return time.Duration(theirs)*time.Millisecond + s.shift()
}

func (s *session) takeLoad(body []byte, now time.Time) error {
	loads, ms, full, err := wire.DecodeLoad(s.loads[:0], body)
	if err != nil {
		return err
	}
	s.loads = loads
	if !full && !s.whole {
		return errUnexpected
	}
	s.whole = true
	s.lagged(time.UnixMilli(ms), now)
	s.tell(func() { s.f.knowledge.PeerLoad(s.p.name, loads, full) })
	return nil
}

func (s *session) takeState(body []byte) error {
	_, state, err := wire.DecodeState(body)
	if err != nil {
		return err
	}
	s.tell(func() { s.f.knowledge.PeerState(s.p.name, state) })
	return nil
}

// tell hands the peer's load or state to Knowledge, unless the peer is gone or has another stream by now: its end must
// not be overtaken by what came before.
func (s *session) tell(what func()) {
	p := s.p
	p.voice.Lock()
	defer p.voice.Unlock()
	p.mu.Lock()
	if p.session != s || p.status.State != member.StateAlive {
		p.mu.Unlock()
		return
	}
	void := p.void
	p.told, p.void = true, false
	p.mu.Unlock()
	if void {
		s.f.knowledge.DropPeer(p.name)
	}
	what()
}

package gossip

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

const (
	// replaySpan is how far back a subscriber begins that has nothing of this node: what it has may be in nobody's snapshot yet.
	replaySpan = 5 * time.Second
	// maxBehind is how many batches a subscriber may lag: about a minute of them. One that is further behind is sent the latest,
	// sees the gap, and asks for the rest when and from whom it likes.
	maxBehind = 1024
	// writeTimeout is how long one write may take before the stream is given up: 10 kB/s is too slow for a fleet.
	writeTimeout = 5 * time.Second
	// subscriberSilence is how long a subscriber, who pings, may be silent.
	subscriberSilence = 10 * time.Second
	// fullLoadInterval is how often the whole load vector is sent, so that whatever went wrong with it heals.
	fullLoadInterval = 10 * time.Second
	// writeSize is about how much is written at once; a frame more at most.
	writeSize = 48 << 10
	// bulkSize is how much of that may be repairs.
	bulkSize = 32 << 10
	// maxPongs and maxJobs bound what a subscriber may ask for before it has been answered. Honest ones have four ranges, one
	// digest and one snapshot under way, and no more pings than fit into writeTimeout.
	maxPongs = 16
	maxJobs  = 16
)

// errViolation marks what no honest peer does. The stream is closed, and the peer is not dialed again at once.
var errViolation = errors.New("protocol violation")

// feed is a stream on which another node, which dialed, is sent this node's knowledge. Its reader takes requests, its
// writer answers them and follows the journal; neither waits for the other.
type feed struct {
	f    *Fleet
	conn net.Conn
	who  streamID
	wake chan struct{} // capacity 1
	done chan struct{} // closed when the reader has returned
	sent atomic.Uint64

	mu         sync.Mutex
	subscribed bool
	version    uint8  // of the format, that both sides speak
	cursor     uint64 // next batch to send
	resume     uint64 // first one that will be sent
	pongs      []wire.Pong
	jobs       []job
	offer      *offer // the snapshot that is being sent

	// Of the writer alone.
	started bool
	loads   []Load
	loaded  uint64 // version of the load table it has
	fullAt  time.Time
	state   uint64 // version of the state it has
}

// job is a request whose answer is sent piece by piece between live frames.
type job interface {
	// fill appends at most about room bytes of the answer and reports whether that was the last.
	fill(f *Fleet, dst []byte, room int) (out []byte, done bool)
}

// serve runs one accepted stream until it ends. Called by the membership in a goroutine of its own.
func (f *Fleet) serve(c net.Conn, peer member.Info) {
	d := &feed{
		f: f, conn: c, who: streamID{peer.Name, peer.Incarnation},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	defer c.Close()
	if !f.admit(d) {
		return
	}
	defer f.wg.Done()
	err := d.read()
	close(d.done)
	c.Close()
	f.dismiss(d)
	if errors.Is(err, errViolation) {
		f.counts.violations.Add(1)
		if p := f.peer(d.who.origin); p != nil {
			p.violations.Add(1)
		}
		f.log.Warn().Str("peer", d.who.origin).Err(err).Msg("subscriber's stream closed")
	}
}

// admit registers a stream and starts its writer. A node has one; a newer one takes the place of the older.
func (f *Fleet) admit(d *feed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.feeds[d.who.origin]
	switch {
	case f.phase != running, d.who.origin == f.self.origin:
		return false
	case old == nil && len(f.feeds) >= maxPeers:
		f.counts.refused.Add(1)
		return false
	case old != nil && old.who.incarnation > d.who.incarnation:
		return false // of a process that has been replaced
	}
	if old != nil {
		old.conn.Close()
		f.settleLocked(old)
	}
	f.feeds[d.who.origin] = d
	f.wg.Add(1) // of serve itself
	f.spawnLocked(d.write)
	return true
}

func (f *Fleet) dismiss(d *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.feeds[d.who.origin] == d {
		delete(f.feeds, d.who.origin)
	}
	f.settleLocked(d) // of one that was replaced: what it sent since
}

// settleLocked leaves what a stream was sent with the peer, whose count goes on over reconnections.
func (f *Fleet) settleLocked(d *feed) {
	if p := f.peers[d.who.origin]; p != nil {
		p.sent.Add(d.sent.Swap(0))
	}
}

// subscribers lists the feeds that are to be sent news.
func (f *Fleet) subscribers() []*feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*feed, 0, len(f.feeds))
	for _, d := range f.feeds {
		out = append(out, d)
	}
	return out
}

// poke tells the writer that there is something to do.
func (d *feed) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// position is the sequence of the next batch this subscriber will be sent.
func (d *feed) position() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cursor
}

// read takes the subscriber's requests until the stream ends.
func (d *feed) read() error {
	r := wire.NewReader(d.conn, wire.RequestSize)
	var limit time.Time
	var digest wire.Digest
	for {
		// A deadline costs more than a frame; it is moved when it has lost a tenth of its span.
		if now := time.Now(); limit.Sub(now) < subscriberSilence*9/10 {
			limit = now.Add(subscriberSilence)
			if err := d.conn.SetReadDeadline(limit); err != nil {
				return err
			}
		}
		kind, body, size, err := r.Next()
		if err != nil {
			return blame(err)
		}
		d.f.counts.received[kind].Add(uint64(size))
		if err := d.take(kind, body, &digest); err != nil {
			return fmt.Errorf("%w: %v: %w", errViolation, kind, err)
		}
	}
}

// blame marks an error of reading as a violation unless it is the network's.
func blame(err error) error {
	if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrTruncated) {
		return fmt.Errorf("%w: %w", errViolation, err)
	}
	return err
}

var (
	errUnexpected = errors.New("not expected here")
	errTooMany    = errors.New("more requests than allowed at a time")
)

func (d *feed) take(kind wire.Kind, body []byte, digest *wire.Digest) error {
	switch kind {
	case wire.KindSubscribe:
		s, err := wire.DecodeSubscribe(body)
		if err != nil {
			return err
		}
		return d.subscribe(s)
	case wire.KindPing:
		sent, err := wire.DecodePing(body)
		if err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.pongs) == maxPongs {
			return errTooMany
		}
		d.pongs = append(d.pongs, wire.Pong{Sent: sent, Received: d.f.wall(time.Now()).UnixNano()})
		d.poke()
		return nil
	case wire.KindRange:
		r, err := wire.DecodeRange(body)
		if err != nil {
			return err
		}
		return d.queue(&rangeJob{
			request: r.Request, id: streamID{string(r.Origin), r.Incarnation}, next: r.From, through: r.From + r.Count,
		})
	case wire.KindDigest:
		if err := wire.DecodeDigest(digest, body); err != nil {
			return err
		}
		return d.queue(d.f.compare(digest))
	case wire.KindSnapshot:
		request, err := wire.DecodeRequest(body)
		if err != nil {
			return err
		}
		return d.offerSnapshot(request)
	case wire.KindCancel:
		request, err := wire.DecodeRequest(body)
		if err != nil {
			return err
		}
		d.cancelSnapshot(request)
		return nil
	}
	return errUnexpected
}

// subscribe decides from where on the subscriber is sent batches.
func (d *feed) subscribe(s wire.Subscribe) error {
	floor, head, _ := d.f.journal.position(d.f.self)
	var from uint64
	if s.Incarnation == d.f.self.incarnation && s.Next > 0 && s.Next <= head {
		from = max(s.Next, floor)
	} else {
		from = d.f.journal.since(d.f.self, d.f.wall(time.Now()).Add(-replaySpan).UnixMilli())
	}
	if head-from > maxBehind {
		from = head - maxBehind
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.subscribed {
		return errUnexpected
	}
	d.subscribed, d.cursor, d.resume = true, from, from
	d.version = min(wire.Version, s.Version)
	d.poke()
	return nil
}

func (d *feed) queue(j job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) == maxJobs {
		return errTooMany
	}
	d.jobs = append(d.jobs, j)
	d.poke()
	return nil
}

// write sends what there is whenever there is something, until the stream ends.
func (d *feed) write() {
	defer d.conn.Close() // ends the reader
	// The writer also wakes up by itself: for the full load vector, and for what the budget held back.
	timer := time.NewTimer(fullLoadInterval)
	defer timer.Stop()
	var buf []byte
	for {
		now := time.Now()
		var wait time.Duration
		buf, wait = d.fill(buf[:0], now)
		if len(buf) > 0 {
			if err := d.conn.SetWriteDeadline(now.Add(writeTimeout)); err != nil {
				return
			}
			n, err := d.conn.Write(buf)
			d.f.budget.spend(now, n)
			d.f.counts.writes.Add(1)
			d.sent.Add(uint64(n))
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					d.f.counts.slow.Add(1)
					d.f.log.Warn().Str("peer", d.who.origin).Dur("dur_ms", writeTimeout).Msg("subscriber takes nothing: stream closed")
				}
				return
			}
			if cap(buf) > 4*writeSize {
				buf = nil // a large state is through
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-d.wake:
		case <-timer.C:
		case <-d.done:
			return
		case <-d.f.ctx.Done():
			return
		}
	}
}

// fill appends what is to be sent now, most urgent first. If that is nothing, it says when to ask again at the latest.
func (d *feed) fill(dst []byte, now time.Time) (out []byte, wait time.Duration) {
	dst = d.fillPongs(dst, now)
	d.mu.Lock()
	subscribed := d.subscribed
	d.mu.Unlock()
	if !subscribed {
		return dst, fullLoadInterval
	}
	if !d.started {
		d.started = true
		dst = d.framed(wire.KindStart, dst, func(b []byte) []byte {
			return wire.AppendStart(b, wire.Start{Version: d.version, Incarnation: d.f.self.incarnation, Next: d.resume})
		})
	}
	dst = d.fillLoad(dst, now)
	dst = d.fillBatches(dst)
	if len(dst) < writeSize {
		dst = d.fillState(dst)
	}
	wait = max(d.f.flush, d.fullAt.Sub(now))
	if len(dst) < writeSize {
		var bulk time.Duration
		if dst, bulk = d.fillBulk(dst, now); bulk > 0 {
			wait = min(wait, bulk)
		}
	}
	return dst, wait
}

// framed counts the bytes that add appends to dst as frames of a kind.
func (d *feed) framed(kind wire.Kind, dst []byte, add func([]byte) []byte) []byte {
	n := len(dst)
	dst = add(dst)
	d.f.counts.sent[kind].Add(uint64(len(dst) - n))
	return dst
}

func (d *feed) fillPongs(dst []byte, now time.Time) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(dst)
	for _, p := range d.pongs {
		p.Replied, p.Next = d.f.wall(now).UnixNano(), d.cursor
		dst = wire.AppendPong(dst, p)
	}
	d.pongs = d.pongs[:0]
	d.f.counts.sent[wire.KindPong].Add(uint64(len(dst) - n))
	return dst
}

func (d *feed) fillLoad(dst []byte, now time.Time) []byte {
	if !d.f.loads.ready() {
		return dst
	}
	full := d.loaded == 0 || !now.Before(d.fullAt)
	loads, version, ms, full := d.f.loads.since(d.loads[:0], d.loaded, full)
	d.loads = loads
	if full {
		d.fullAt = now.Add(jitter(fullLoadInterval))
	} else if version == d.loaded {
		return dst
	}
	d.loaded = version
	return d.framed(wire.KindLoad, dst, func(b []byte) []byte { return wire.AppendLoad(b, ms, full, loads) })
}

func (d *feed) fillBatches(dst []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, head, _ := d.f.journal.position(d.f.self)
	if head-d.cursor > maxBehind {
		d.cursor = head - maxBehind/4
	}
	if d.cursor >= head {
		return dst
	}
	n := len(dst)
	d.cursor = d.f.journal.read(d.f.self, d.cursor, head, func(_ uint64, body []byte) bool {
		if len(dst)-n >= writeSize {
			return false
		}
		dst = wire.AppendBatch(dst, body)
		return true
	})
	d.f.counts.sent[wire.KindBatch].Add(uint64(len(dst) - n))
	return dst
}

func (d *feed) fillState(dst []byte) []byte {
	blob, version, ms := d.f.state.get()
	if version == d.state {
		return dst
	}
	d.state = version
	return d.framed(wire.KindState, dst, func(b []byte) []byte { return wire.AppendState(b, ms, blob) })
}

// fillBulk appends a piece of what may wait: repairs and digests in the order they were asked for, and a page of a
// snapshot. If the budget does not allow it, wait says when it will.
func (d *feed) fillBulk(dst []byte, now time.Time) (out []byte, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) == 0 && (d.offer == nil || len(d.offer.frame) == 0) {
		return dst, 0
	}
	size, start := d.f.budget.piece(bulkSize), len(dst)
	if wait := d.f.budget.bulk(now, size); wait > 0 {
		return dst, wait
	}
	for len(d.jobs) > 0 && len(dst)-start < size {
		var done bool
		if dst, done = d.jobs[0].fill(d.f, dst, size-(len(dst)-start)); !done {
			break
		}
		d.jobs[0] = nil
		d.jobs = d.jobs[1:]
	}
	if o := d.offer; o != nil && len(o.frame) > 0 {
		d.f.counts.sent[wire.Kind(o.frame[0])].Add(uint64(len(o.frame)))
		dst = append(dst, o.frame...)
		o.frame = o.frame[:0]
		if o.last {
			d.offer = nil
		}
		select {
		case o.taken <- struct{}{}:
		default:
		}
	}
	d.f.budget.bulked(len(dst) - start)
	return dst, 0
}

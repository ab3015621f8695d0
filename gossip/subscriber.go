package gossip

import (
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

const (
	// replaySpan is how far back a joiner's streams begin: its snapshot may lack the latest
	// batches.
	replaySpan        = 5 * time.Second
	subscriberSilence = 10 * time.Second // subscribers ping
	fullLoadInterval  = 10 * time.Second // an error in a load vector lasts at most this
	writeSize         = 48 << 10
	resumeSize        = 32 << 10 // old batches in one write
	maxPongs          = 16       // beyond what honest subscribers send within writeTimeout
)

// subscriber follows this node's journal. Its reader and its writer never wait for each other.
type subscriber struct {
	x    *Exchange
	conn net.Conn
	who  processID
	wake chan struct{} // capacity 1
	done chan struct{}

	mu         sync.Mutex
	subscribed bool
	version    uint8
	cursor     uint64 // sequence of the next batch
	live       uint64 // older batches wait for the bulk budget
	pongs      []wire.Pong
	outgoing   *outgoing

	// Used by the writer only.
	started bool
	loads   vectorSent[Load]
	load    []byte // scratch
	uses    vectorSent[Usage]
	figures vectorSent[Figure]
	state   uint64 // version sent last
	claims  uint64 // version sent last
}

func (x *Exchange) serve(c net.Conn, peer member.Info) {
	d := &subscriber{
		x: x, conn: c, who: processID{peer.Name, peer.Incarnation},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	defer c.Close()
	if !x.admit(d) {
		return
	}
	defer x.wg.Done()
	err := x.readFrames(c, wire.RequestSize, subscriberSilence, d.take)
	close(d.done)
	c.Close()
	x.dismiss(d)
	if errors.Is(err, errViolation) {
		x.count(&x.stats.Violations, 1)
		if p := x.peer(d.who.name); p != nil {
			p.count(&p.Violations, 1)
		}
		x.log.Warn().Str("peer", d.who.name).Err(err).Msg("stream to a peer closed")
	}
}

func (x *Exchange) admit(d *subscriber) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.subscribers[d.who.name]
	switch {
	case x.phase != running, d.who.name == x.self.name:
		return false
	case old == nil && len(x.subscribers) >= maxPeers:
		x.count(&x.stats.Refused, 1)
		return false
	case old != nil && old.who.incarnation > d.who.incarnation:
		return false
	}
	if old != nil {
		old.conn.Close()
	}
	x.subscribers[d.who.name] = d
	x.wg.Add(1) // for serve
	x.spawnLocked(d.write)
	return true
}

func (x *Exchange) dismiss(d *subscriber) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.subscribers[d.who.name] == d {
		delete(x.subscribers, d.who.name)
	}
}

func (x *Exchange) listSubscribers() []*subscriber {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.subscribers))
}

func (d *subscriber) poke() { wake(d.wake) }

// position is 0 before Subscribe.
func (d *subscriber) position() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cursor
}

func (d *subscriber) take(kind wire.Kind, body []byte, _ int, now time.Time) error {
	switch kind {
	case wire.KindSubscribe:
		s, err := wire.DecodeResume(body)
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
		d.pongs = append(d.pongs, wire.Pong{Sent: sent, Received: d.x.wall(now).UnixNano()})
		d.poke()
		return nil
	case wire.KindSnapshot, wire.KindCancel:
		request, err := wire.DecodeRequest(body)
		switch {
		case err != nil:
			return err
		case kind == wire.KindSnapshot:
			return d.startSnapshot(request)
		}
		d.cancelSnapshot(request)
		return nil
	}
	return errUnexpected
}

// A cursor behind the last batch makes the subscriber take a snapshot.
func (d *subscriber) subscribe(s wire.Resume) error {
	oldest, next := d.x.journal.position()
	from := next
	switch {
	case s.Incarnation == 0: // a joiner
		from = d.x.journal.since(d.x.wall(time.Now()).Add(-replaySpan).UnixMilli())
	case s.Incarnation == d.x.self.incarnation && oldest <= s.Next && s.Next < next:
		from = s.Next
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.subscribed {
		return errUnexpected
	}
	d.subscribed, d.cursor, d.live = true, from, next
	d.version = min(wire.Version, s.Version)
	d.poke()
	return nil
}

func (d *subscriber) write() {
	defer d.conn.Close() // ends the reader
	// For the full load vector and frames held back by the budget.
	timer := time.NewTimer(fullLoadInterval)
	defer timer.Stop()
	var buf []byte
	for {
		now := time.Now()
		out, wait, ok := d.fill(buf[:0], now)
		if buf = out; !ok {
			d.x.count(&d.x.stats.SlowPeers, 1)
			d.x.log.Warn().Str("peer", d.who.name).Msg("a peer is behind the journal: stream to it closed, it will take a snapshot")
			return
		}
		if len(buf) > 0 {
			if !d.flush(buf, now) {
				return
			}
			if cap(buf) > 4*writeSize {
				buf = nil // it held a large state
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-d.wake:
		case <-timer.C:
		case <-d.done:
			return
		case <-d.x.ctx.Done():
			return
		}
	}
}

func (d *subscriber) flush(buf []byte, now time.Time) bool {
	n, err := d.x.writeFrames(d.conn, now, buf)
	if p := d.x.peer(d.who.name); p != nil {
		p.count(&p.SentBytes, uint64(n))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		d.x.count(&d.x.stats.SlowPeers, 1)
		d.x.log.Warn().Str("peer", d.who.name).Dur("dur_ms", writeTimeout).Msg("a peer reads nothing: stream to it closed")
	}
	return err == nil
}

// fill appends frames, most urgent first. wait bounds the time until the next call; ok is false if
// the journal dropped the next batch.
func (d *subscriber) fill(dst []byte, now time.Time) (out []byte, wait time.Duration, ok bool) {
	dst = d.fillPongs(dst, now)
	d.mu.Lock()
	subscribed, from := d.subscribed, d.cursor
	d.mu.Unlock()
	if !subscribed {
		return dst, fullLoadInterval, true
	}
	if !d.started {
		d.started = true
		dst = wire.AppendResume(dst, wire.KindStart, wire.Resume{Version: d.version, Incarnation: d.x.self.incarnation, Next: from})
	}
	// With its load the peer counts as heard: its usage must be known by then. flushNews sets usage first, so load is read first.
	d.load = d.loads.fill(d.load[:0], now, &d.x.loads, wire.AppendLoad)
	dst = d.uses.fill(dst, now, &d.x.usage, wire.AppendUsage)
	dst = append(dst, d.load...)
	dst = d.figures.fill(dst, now, &d.x.figures, wire.AppendFigures)
	if blob, version, ms := d.x.claims.get(); version != d.claims {
		d.claims = version
		dst = wire.AppendClaims(dst, ms, blob)
	}
	dst, held, ok := d.fillBatches(dst, now)
	if !ok {
		return dst, 0, false
	}
	if len(dst) < writeSize {
		dst = d.fillState(dst)
	}
	wait = max(d.x.flush, d.loads.fullAt.Sub(now))
	if len(dst) < writeSize {
		var page time.Duration
		if dst, page = d.fillSnapshot(dst, now); page > 0 {
			wait = min(wait, page)
		}
	}
	if held > 0 {
		wait = min(wait, held)
	}
	return dst, wait, true
}

func (d *subscriber) fillPongs(dst []byte, now time.Time) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pongs {
		p.Replied = d.x.wall(now).UnixNano()
		dst = wire.AppendPong(dst, p)
	}
	d.pongs = d.pongs[:0]
	return dst
}

// vectorSent is what the subscriber has of a table.
type vectorSent[E wire.Entry[E]] struct {
	entries []E    // scratch
	version uint64 // sent last
	fullAt  time.Time
}

func (v *vectorSent[E]) fill(dst []byte, now time.Time, t *table[E], frame func(dst []byte, ms int64, full bool, entries []E) []byte) []byte {
	full := v.version == 0 || !now.Before(v.fullAt)
	entries, version, ms, full := t.since(v.entries[:0], v.version, full)
	v.entries = entries
	if version == 0 { // nothing is known yet
		return dst
	}
	if full {
		v.fullAt = now.Add(jitter(fullLoadInterval))
	} else if version == v.version {
		return dst
	}
	v.version = version
	return frame(dst, ms, full, entries)
}

// held is how long the budget delays old batches.
func (d *subscriber) fillBatches(dst []byte, now time.Time) (out []byte, held time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, size, resuming := len(dst), writeSize, d.cursor < d.live
	if resuming {
		size = d.x.budget.piece(resumeSize)
		if held := d.x.budget.bulk(now, size); held > 0 {
			return dst, held, true
		}
	}
	d.cursor, ok = d.x.journal.read(d.cursor, func(body []byte) bool {
		if len(dst)-n >= size {
			return false
		}
		dst = wire.AppendBatch(dst, body)
		return true
	})
	if resuming {
		d.x.budget.bulked(len(dst) - n)
	}
	return dst, 0, ok
}

func (d *subscriber) fillState(dst []byte) []byte {
	blob, version, ms := d.x.state.get()
	if version == d.state {
		return dst
	}
	d.state = version
	return wire.AppendState(dst, ms, blob)
}

// wait is how long the budget delays the frame.
func (d *subscriber) fillSnapshot(dst []byte, now time.Time) (out []byte, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.outgoing
	if o == nil || len(o.frame) == 0 {
		return dst, 0
	}
	if wait := d.x.budget.bulk(now, len(o.frame)); wait > 0 {
		return dst, wait
	}
	d.x.budget.bulked(len(o.frame))
	dst = append(dst, o.frame...)
	o.frame = o.frame[:0]
	if o.last {
		d.outgoing = nil
	}
	wake(o.taken)
	return dst, 0
}

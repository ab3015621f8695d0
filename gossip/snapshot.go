package gossip

import (
	"context"
	"errors"
	"time"

	"grapevine.example/gossip/wire"
)

const (
	maxSnapshots = 2
	// Small budgets make smaller pages, so that a paced source does not look stalled.
	pageBytes        = 32 << 10
	maxSnapshotBytes = 256 << 20 // ten times the facts of 800 engines
)

// outgoing is a snapshot being sent: one frame at a time. Guarded by subscriber.mu.
type outgoing struct {
	request uint64
	frame   []byte // to be sent next; empty: sent
	last    bool
	taken   chan struct{}   // capacity 1
	ctx     context.Context // ends with the subscriber's wish for it, and after snapshotTimeout
	cancel  context.CancelFunc
}

// A subscriber may have one snapshot at a time.
func (d *subscriber) startSnapshot(request uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.outgoing != nil {
		return errTooMany
	}
	o := &outgoing{request: request, taken: make(chan struct{}, 1)}
	o.ctx, o.cancel = context.WithTimeout(d.x.ctx, snapshotTimeout)
	d.outgoing = o
	refuse := func(why wire.Outcome) error {
		o.cancel()
		o.frame, o.last = wire.AppendSnapshotDone(nil, request, why), true
		d.poke()
		return nil
	}
	if !d.x.warming.warm() {
		return refuse(wire.Cold)
	}
	if d.x.warming.learning() {
		// Warm by the deadline alone: partial knowledge must not pass for the whole.
		d.x.count(&d.x.stats.SnapshotsRefused, 1)
		return refuse(wire.Busy)
	}
	select {
	case d.x.snapshots <- struct{}{}:
	default:
		d.x.count(&d.x.stats.SnapshotsRefused, 1)
		return refuse(wire.Busy)
	}
	if !d.x.spawn(func() { d.sendSnapshot(o) }) {
		<-d.x.snapshots
		return refuse(wire.Cancelled)
	}
	return nil
}

func (d *subscriber) cancelSnapshot(request uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.outgoing; o != nil && o.request == request {
		o.cancel()
	}
}

// Positions come first: pages must contain at least what they promise.
func (d *subscriber) sendSnapshot(o *outgoing) {
	defer func() { <-d.x.snapshots }()
	defer o.cancel()
	began := time.Now()
	positions, size := d.x.positions(), uint64(max(0, d.x.knowledge.SnapshotSize()))
	whole := d.put(o, false, func(b []byte) []byte { return wire.AppendSnapshotHead(b, o.request, size, positions) })
	total := 0
	if whole {
		limit := d.x.budget.piece(pageBytes)
		d.x.knowledge.Snapshot(limit, func(page []byte, records int) bool {
			if len(page) > limit || records < 0 || records > wire.MaxRecords {
				d.x.log.Error().Int("bytes", len(page)).Int("limit", limit).Msg("page beyond the bound: left out")
				d.x.count(&d.x.stats.Malformed, 1)
				return true
			}
			whole = d.put(o, false, func(b []byte) []byte { return wire.AppendPage(b, o.request, records, page) })
			total += records
			return whole
		})
	}
	how := wire.Complete
	if !whole {
		how = wire.Cancelled
	}
	d.put(o, true, func(b []byte) []byte { return wire.AppendSnapshotDone(b, o.request, how) })
	if whole {
		d.x.count(&d.x.stats.SnapshotsServed, 1)
		d.x.log.Info().Str("peer", d.who.name).Int("records", total).Dur("dur_ms", time.Since(began)).Msg("snapshot sent")
	}
}

// positions leaves out cursors with missing batches.
func (x *Exchange) positions() []wire.Position {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]wire.Position, 0, len(x.peers)+1)
	out = append(out, wire.Position{Name: []byte(x.self.name), Incarnation: x.self.incarnation, Next: x.Position()})
	for name, p := range x.peers {
		p.mu.Lock()
		if c := p.cursor; c.next > 0 && c.missing == 0 {
			out = append(out, wire.Position{Name: []byte(name), Incarnation: c.incarnation, Next: c.next})
		}
		p.mu.Unlock()
	}
	return out
}

// put waits for the previous frame; false if the subscriber cancelled or timed out, which does not
// stop the last frame.
func (d *subscriber) put(o *outgoing, last bool, add func([]byte) []byte) bool {
	for {
		d.mu.Lock()
		if !last && o.ctx.Err() != nil {
			d.mu.Unlock()
			return false
		}
		if len(o.frame) == 0 {
			o.frame, o.last = add(o.frame), last
			d.mu.Unlock()
			d.poke()
			return true
		}
		d.mu.Unlock()
		stop := o.ctx.Done()
		if last {
			stop = nil
		}
		select {
		case <-o.taken:
		case <-stop:
		case <-d.done:
			return false
		case <-d.x.ctx.Done():
			return false
		}
	}
}

// incoming is a snapshot being received. Guarded by subscription.mu.
type incoming struct {
	request   uint64
	bytes     int64
	at        time.Time
	cancelled bool
	positions map[processID]uint64
	end       chan struct{}
	outcome   wire.Outcome
}

// askSnapshot returns nil if the stream ended, its queue is full, or a snapshot is in progress.
func (s *subscription) askSnapshot(now time.Time) *incoming {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming != nil || s.why != nil {
		return nil
	}
	in := &incoming{request: s.requests.Add(1), at: now, positions: map[processID]uint64{}, end: make(chan struct{})}
	if !s.sendLocked(func(b []byte) []byte { return wire.AppendRequest(b, wire.KindSnapshot, in.request) }) {
		return nil
	}
	s.incoming = in
	return in
}

func (s *subscription) cancelIncoming(in *incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming == in && !in.cancelled {
		in.cancelled = true
		s.sendLocked(func(b []byte) []byte { return wire.AppendRequest(b, wire.KindCancel, in.request) })
	}
}

func (s *subscription) finishIncoming(how wire.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming != nil {
		s.incoming.outcome = how
		close(s.incoming.end)
		s.incoming = nil
	}
}

func (s *subscription) progress(in *incoming) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return in.at
}

var errEndless = errors.New("snapshot beyond the bound")

func (s *subscription) takeSnapshot(kind wire.Kind, body []byte, now time.Time) error {
	request, err := wire.DecodeRequest(body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	in := s.incoming
	if in == nil || request != in.request {
		s.mu.Unlock()
		return errUnexpected
	}
	in.at = now
	in.bytes += int64(len(body))
	endless, cancelled := in.bytes > maxSnapshotBytes, in.cancelled
	s.mu.Unlock()
	switch {
	case endless:
		return errEndless
	case kind == wire.KindSnapshotDone:
		_, how, err := wire.DecodeSnapshotDone(body)
		if err == nil {
			s.finishIncoming(how)
		}
		return err
	case cancelled:
		return nil
	case kind == wire.KindPage:
		return s.takePage(body)
	}
	_, records, positions, err := wire.DecodeSnapshotHead(body)
	if err != nil {
		return err
	}
	s.x.warming.expected.Store(records)
	s.x.warming.records.Store(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range positions {
		in.positions[processID{string(p.Name), p.Incarnation}] = p.Next
	}
	return nil
}

func (s *subscription) takePage(body []byte) error {
	_, records, page, err := wire.DecodePage(body)
	if err != nil {
		return err
	}
	got, err := s.x.knowledge.ApplySnapshot(page, s.p.shift())
	if err != nil {
		s.x.count(&s.x.stats.Malformed, 1)
		return err
	}
	s.x.warming.records.Add(uint64(records))
	s.x.count(&s.x.stats.SnapshotRecords, uint64(got.Records))
	s.x.count(&s.x.stats.SnapshotBytes, uint64(len(page)))
	s.x.count(&s.x.stats.UnknownRecords, uint64(got.Unknown))
	return nil
}

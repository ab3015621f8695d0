package gossip

import (
	"errors"
	"time"

	"grapevine/gossip/wire"
)

const (
	// maxSnapshots is how many joiners are sent snapshots at a time. Others are told to ask another node, or again.
	maxSnapshots = 2
	// pageBytes is the largest page of a snapshot; under a small budget pages are smaller, so that a joiner does not take a paced
	// source for a stalled one.
	pageBytes = 32 << 10
	// maxIntake bounds the bytes of one snapshot: ten times the facts of 800 engines.
	maxIntake = 256 << 20
)

// offer is a snapshot that is being sent. It holds one frame at a time, however slow the joiner is. Guarded by feed.mu.
type offer struct {
	request uint64
	frame   []byte        // to be sent next; empty: taken
	last    bool          // frame is the last one
	taken   chan struct{} // capacity 1
	stop    chan struct{} // closed when the joiner cancels
	stopped bool
	until   time.Time // when every joiner has given up
}

// offerSnapshot begins to answer a Snapshot.
func (d *feed) offerSnapshot(request uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.offer != nil {
		if !d.offer.stopped || len(d.jobs) == maxJobs {
			return errTooMany
		}
		// The one that was cancelled still waits for the budget.
		d.jobs = append(d.jobs, refusal(request))
		return nil
	}
	o := &offer{request: request, taken: make(chan struct{}, 1), stop: make(chan struct{}), until: time.Now().Add(intakeTimeout)}
	d.offer = o
	refuse := func(why wire.Outcome) error {
		o.frame, o.last = wire.AppendSnapshotDone(nil, request, why), true
		d.poke()
		return nil
	}
	if !d.f.warming.warm() {
		return refuse(wire.Cold)
	}
	if !d.f.warming.serves() {
		d.f.counts.snapshotsRefused.Add(1)
		return refuse(wire.Busy)
	}
	select {
	case d.f.snapshots <- struct{}{}:
	default:
		d.f.counts.snapshotsRefused.Add(1)
		return refuse(wire.Busy)
	}
	if !d.f.spawn(func() { d.sendSnapshot(o) }) {
		<-d.f.snapshots
		return refuse(wire.Cancelled)
	}
	return nil
}

// refusal answers a Snapshot that cannot be begun now.
type refusal uint64

func (r refusal) fill(f *Fleet, dst []byte, _ int) (out []byte, done bool) {
	n := len(dst)
	dst = wire.AppendSnapshotDone(dst, uint64(r), wire.Busy)
	f.counts.sent[wire.KindSnapshotDone].Add(uint64(len(dst) - n))
	return dst, true
}

func (d *feed) cancelSnapshot(request uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.offer; o != nil && o.request == request && !o.stopped {
		o.stopped = true
		close(o.stop)
	}
}

// sendSnapshot passes Knowledge's pages to the writer, one at a time.
func (d *feed) sendSnapshot(o *offer) {
	defer func() { <-d.f.snapshots }()
	began := time.Now()
	size := uint64(max(0, d.f.knowledge.SnapshotSize()))
	whole := d.put(o, false, func(b []byte) []byte { return wire.AppendSnapshotHead(b, o.request, size) })
	total := 0
	if whole {
		limit := d.f.budget.piece(pageBytes)
		d.f.knowledge.Snapshot(limit, func(page []byte, records int) bool {
			if len(page) > limit || records < 0 || records > wire.MaxRecords {
				d.f.log.Error().Int("bytes", len(page)).Int("limit", limit).Msg("page beyond the bound: left out")
				d.f.counts.malformed.Add(1)
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
		d.f.counts.snapshotsServed.Add(1)
		d.f.log.Info().Str("peer", d.who.origin).Int("records", total).Dur("dur_ms", time.Since(began)).Msg("snapshot sent")
	}
}

// put waits until the frame before has been taken and offers the next; false if the joiner does not want it any more, or has
// had its time. The last frame is put even then.
func (d *feed) put(o *offer, last bool, add func([]byte) []byte) bool {
	for {
		d.mu.Lock()
		if !last && (o.stopped || time.Now().After(o.until)) {
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
		stop := o.stop
		if last {
			stop = nil
		}
		select {
		case <-o.taken:
		case <-stop:
		case <-d.done:
			return false
		case <-d.f.ctx.Done():
			return false
		}
	}
}

// intake is a snapshot that is being taken from a peer. Guarded by session.mu.
type intake struct {
	request uint64
	bytes   int64
	at      time.Time // of the last frame of it
	end     chan struct{}
	outcome wire.Outcome // valid when end is closed
}

// askSnapshot begins to take a snapshot; nil if the stream has no room for the request.
func (s *session) askSnapshot(now time.Time) *intake {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.intake != nil || s.why != nil {
		return nil
	}
	in := &intake{request: s.requests.Add(1), at: now, end: make(chan struct{})}
	if !s.sendLocked(wire.KindSnapshot, func(b []byte) []byte { return wire.AppendSnapshot(b, in.request) }) {
		return nil
	}
	s.intake = in
	return in
}

// cancelIntake gives up a snapshot. What still comes of it is ignored.
func (s *session) cancelIntake(in *intake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.intake == in {
		s.finishLocked(wire.Cancelled)
		s.sendLocked(wire.KindCancel, func(b []byte) []byte { return wire.AppendCancel(b, in.request) })
	}
}

// abandonIntake ends a snapshot whose stream has ended.
func (s *session) abandonIntake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(wire.Cancelled)
}

func (s *session) finishLocked(o wire.Outcome) {
	if s.intake != nil {
		s.intake.outcome = o
		close(s.intake.end)
		s.intake = nil
	}
}

// progress is when the last frame of an intake came.
func (s *session) progress(in *intake) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return in.at
}

var errEndless = errors.New("snapshot beyond the bound")

// takeSnapshot takes a frame of a snapshot: of the one that is being taken, or late of one that was given up.
func (s *session) takeSnapshot(kind wire.Kind, body []byte, now time.Time) error {
	request, err := wire.DecodeRequest(body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	in := s.intake
	switch {
	case request == 0 || request > s.requests.Load():
		s.mu.Unlock()
		return errUnexpected
	case in == nil || request != in.request:
		s.mu.Unlock()
		return nil
	}
	in.at = now
	in.bytes += int64(len(body))
	endless := in.bytes > maxIntake
	s.mu.Unlock()
	if endless {
		return errEndless
	}
	switch kind {
	case wire.KindSnapshotHead:
		_, records, err := wire.DecodeSnapshotHead(body)
		if err == nil {
			s.f.warming.expect(records)
		}
		return err
	case wire.KindPage:
		return s.takePage(body)
	}
	_, how, err := wire.DecodeSnapshotDone(body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.intake == in {
		s.finishLocked(how)
	}
	return nil
}

func (s *session) takePage(body []byte) error {
	_, records, page, err := wire.DecodePage(body)
	if err != nil {
		return err
	}
	got, err := s.f.knowledge.ApplySnapshot(page, s.shift())
	if err != nil {
		s.f.counts.malformed.Add(1)
		return err
	}
	s.f.warming.progress(uint64(records))
	s.f.counts.snapshotRecords.Add(uint64(got.Records))
	s.f.counts.snapshotBytes.Add(uint64(len(page)))
	s.f.counts.unknownRecords.Add(uint64(got.Unknown))
	return nil
}

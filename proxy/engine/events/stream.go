package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// MaxGap is how many batches may be missing since the last reset. With more, what the sink still knows is mostly wrong: it is reset.
	MaxGap = 1024
	// maxRounds bounds the replays of one gap: an engine's replay socket drops what its queue of 1,000 batches does not hold, so
	// that a long replay may take several.
	maxRounds = 16
	// maxBeyond is how many batches behind a hole a replay may bring before the stream asks again.
	maxBeyond = 32
	// replayTime bounds one gap, replayIdle the wait for the next batch of a replay: engines look for requests every 100 ms.
	replayTime = 10 * time.Second
	replayIdle = 2 * time.Second
	// replayRest is how long no replay is asked for after one that left a gap, so that an engine cannot make the router dial
	// without end.
	replayRest = time.Second
	// minWait and maxWait bound the wait before another connection.
	minWait = 100 * time.Millisecond
	maxWait = 2 * time.Second
	// maxSequence is above any true sequence number; the replay ends with all bits set.
	maxSequence = 1 << 62
)

// Source is one rank's stream.
type Source struct {
	Rank      int    // data-parallel rank, from 0
	Endpoint  string // host:port of the PUB socket
	Replay    string // host:port of the ROUTER socket; "" if the engine keeps no batches for replay
	Topic     string // prefix of the topics to subscribe to; "" for all
	BlockSize int    // tokens per block; 0 if only the events tell
	Session   Carrier
}

// Carrier is where an engine reads the session id of a request, which its events then name.
type Carrier uint8

const (
	NoCarrier Carrier = iota // nowhere, or the engine would act on it
	InHeader                 // X-Session-ID
	InBody                   // the member session_id
)

// Counters count since the stream's start. Safe for concurrent use.
type Counters struct {
	Batches    atomic.Int64 // applied, replayed ones included
	Events     atomic.Int64 // given to the sink
	Ignored    atomic.Int64 // events that say nothing about the engine's own whole prefixes
	Bytes      atomic.Int64 // of payloads applied
	Duplicates atomic.Int64 // batches received again
	Replayed   atomic.Int64 // batches applied from a replay
	Gaps       atomic.Int64 // gaps that a replay could not fill
	Missing    atomic.Int64 // batches in them
	Refused    atomic.Int64 // malformed batches and messages
	Resets     atomic.Int64
	Connects   atomic.Int64 // connections established
}

// Stream subscribes to one Source and gives what it receives to a Sink, gapless or with the gap reported.
type Stream struct {
	Source   Source
	Sink     Sink
	Counters Counters

	decoder Decoder
	state   State  // as reported, with the reason
	why     string // not empty once reported

	known    bool      // next and last are set: a batch was applied since the last restart
	next     uint64    // sequence number of the next batch
	last     uint64    // digest of the batch before it
	missing  uint64    // batches missing since the last reset
	failed   time.Time // when a replay last left a gap
	losses   Losses
	unsteady bool // Down for losses
	silent   bool // no batch has come since Silent

	end atomic.Pointer[context.CancelCauseFunc] // of the connection
}

var digestSeed = maphash.MakeSeed()

// Run connects, and connects again with growing waits of at most 2 s, until ctx ends. It calls the sink from its own goroutine.
// Call it once.
func (s *Stream) Run(ctx context.Context) {
	s.report(Down, "not yet connected")
	for wait := minWait; ctx.Err() == nil; wait = min(2*wait, maxWait) {
		began := time.Now()
		connection, end := context.WithCancelCause(ctx)
		s.end.Store(&end)
		err := s.session(connection)
		if connection.Err() != nil {
			err, s.silent = context.Cause(connection), true
		}
		end(nil)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errProtocol) {
			s.Counters.Refused.Add(1)
		}
		s.report(Down, err.Error())
		if time.Since(began) > maxWait {
			wait = minWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
	s.report(Down, "closed")
}

// Silent says that batches do not come which the engine must have published. The stream connects again, where a replay brings them; until
// any comes it is Down, for that reason. Safe for concurrent use; without effect before Run.
func (s *Stream) Silent(why string) {
	if end := s.end.Load(); end != nil {
		(*end)(errors.New(why))
	}
}

// session holds one connection. The error is never nil.
func (s *Stream) session(ctx context.Context) error {
	pub, err := dial(ctx, s.Source.Endpoint, socketSub)
	if errors.Is(err, syscall.ECONNREFUSED) {
		s.restart(fmt.Sprintf("nothing listens at %s", s.Source.Endpoint))
	}
	if err != nil {
		return err
	}
	defer pub.close()
	if err := pub.subscribe(s.Source.Topic); err != nil {
		return err
	}
	s.Counters.Connects.Add(1)
	// Batches published meanwhile wait in the connection.
	verified := s.resume(ctx)
	pub.net.gather = true
	settled := verified && !s.silent
	if settled {
		s.settle("connected")
	}
	first, latest := true, uint64(0) // latest sequence number of this connection
	for ; ; first = false {
		frames, err := pub.receive()
		if err != nil {
			return err
		}
		if len(frames) != 3 || len(frames[1]) != 8 {
			return fmt.Errorf("%w: want a message of topic, sequence number and batch", errProtocol)
		}
		seq, payload := binary.BigEndian.Uint64(frames[1]), frames[2]
		if seq >= maxSequence {
			return fmt.Errorf("%w: sequence number %d", errProtocol, seq)
		}
		if err := s.live(ctx, seq, payload, first, latest, verified); err != nil {
			return err
		}
		if !settled {
			s.settle("connected")
		}
		verified, settled, latest = true, true, seq
	}
}

// live applies a batch from the PUB socket, after the batches before it. An error means that it and they are still to be fetched.
func (s *Stream) live(ctx context.Context, seq uint64, payload []byte, first bool, latest uint64, verified bool) error {
	if s.known && seq < s.next {
		switch {
		case first && !verified: // a new connection carries no old batches
			s.restart(fmt.Sprintf("the engine starts again: batch %d after %d", seq, s.next-1))
		case first || seq > latest: // replayed before
			s.Counters.Duplicates.Add(1)
			return nil
		case s.older(seq, payload):
			s.restart(fmt.Sprintf("the engine starts again: batch %d after %d", seq, s.next-1))
		default:
			s.Counters.Duplicates.Add(1)
			return nil
		}
	}
	if seq > s.next {
		// After a broken replay another connection resumes here. If that cannot reach the replay either, the gap stays.
		if err := s.fill(ctx, seq); err != nil && verified {
			return fmt.Errorf("replay: %w", err)
		}
	}
	s.take(seq, payload, true)
	return nil
}

// older tells a batch of a publisher that began anew behind the same connection from one that was sent twice.
func (s *Stream) older(seq uint64, payload []byte) bool {
	if seq == s.next-1 && maphash.Bytes(digestSeed, payload) == s.last {
		return false
	}
	if seq <= 1 || s.next-seq > MaxGap {
		return true
	}
	events, _, _ := s.decoder.Decode(payload)
	return hasCleared(events)
}

// resume brings the stream up to date after a connect, by the engine's replay. It returns true if the publisher is known to be the
// one that sent the last batch, or nothing depends on that.
func (s *Stream) resume(ctx context.Context) bool {
	if s.Source.Replay == "" {
		return !s.known
	}
	if s.known {
		same := false
		// The last batch applied identifies the publisher's process.
		err := s.replay(ctx, s.next-1, func(seq uint64, payload []byte) bool {
			same = seq == s.next-1 && maphash.Bytes(digestSeed, payload) == s.last
			return false
		})
		if err != nil {
			return false
		}
		if !same {
			s.restart(fmt.Sprintf("batch %d is not in the engine's replay: the engine has started again, or too much was missed", s.next-1))
		}
	}
	return s.fill(ctx, maxSequence) == nil
}

// fill applies the batches from s.next up to before until that the engine's replay has. The error is that of two failed replays in
// turn.
func (s *Stream) fill(ctx context.Context, until uint64) (err error) {
	if s.Source.Replay == "" || time.Since(s.failed) < replayRest {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	for round, stuck := 0, false; round < maxRounds && s.next < until; round++ {
		from := s.next
		jump := stuck || round == maxRounds-1 // a hole that two replays have is one
		whole, other, beyond := true, false, 0
		err = s.replay(ctx, s.behind(), func(seq uint64, payload []byte) bool {
			if s.known && seq == from-1 { // the last batch applied identifies the publisher's process
				other = maphash.Bytes(digestSeed, payload) != s.last
				return !other
			}
			before := s.next
			if seq >= until || !s.take(seq, payload, jump) {
				beyond++ // what is missing may only be late
			} else if s.next > before {
				s.Counters.Replayed.Add(1)
			}
			whole = s.next >= until || beyond == 0
			return s.next < until && beyond < maxBeyond
		})
		if other {
			s.restart(fmt.Sprintf("the engine starts again: its replay has another batch %d", from-1))
			stuck = false
			continue
		}
		progress := s.next > from
		if err == nil && whole || !progress && stuck {
			break
		}
		stuck = !progress
	}
	if err == nil && s.next < until && until < maxSequence {
		s.failed = time.Now()
	}
	return err
}

// behind is the number of the last batch applied, or of the next one if there is none.
func (s *Stream) behind() uint64 {
	if s.known {
		return s.next - 1
	}
	return s.next
}

// replay asks the engine for its batches from a sequence number on and gives them to each until it returns false.
func (s *Stream) replay(ctx context.Context, from uint64, each func(seq uint64, payload []byte) bool) error {
	c, err := dial(ctx, s.Source.Replay, socketDealer)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.write(flagMore, nil); err != nil {
		return err
	}
	if err := c.write(0, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		_ = c.net.SetReadDeadline(time.Now().Add(replayIdle))
		frames, err := c.receive()
		if err != nil {
			return err
		}
		// Newer engines have the topic behind the empty frame.
		n := len(frames)
		if n != 3 && n != 4 || len(frames[0]) != 0 || len(frames[n-2]) != 8 {
			s.Counters.Refused.Add(1)
			return fmt.Errorf("%w: want a replay of empty frame, sequence number and batch", errProtocol)
		}
		seq := binary.BigEndian.Uint64(frames[n-2])
		if seq >= maxSequence || !each(seq, frames[n-1]) {
			return nil
		}
	}
}

// take applies a batch if it is the next one, or with jump a later one. It returns false at a hole.
func (s *Stream) take(seq uint64, payload []byte, jump bool) bool {
	if s.known && seq < s.next {
		s.Counters.Duplicates.Add(1)
		return true
	}
	if s.known && seq > s.next {
		if !jump {
			return false
		}
		s.Counters.Gaps.Add(1)
		s.lose(seq-s.next, fmt.Sprintf("batches %d to %d are lost", s.next, seq-1))
	}
	s.silent = false
	s.known, s.next, s.last = true, seq+1, maphash.Bytes(digestSeed, payload)
	events, ignored, err := s.decoder.Decode(payload)
	if err != nil {
		s.Counters.Refused.Add(1)
		s.lose(1, fmt.Sprintf("batch %d: %v", seq, err))
		return true
	}
	s.losses.Batch()
	s.Counters.Batches.Add(1)
	s.Counters.Bytes.Add(int64(len(payload)))
	s.Counters.Ignored.Add(int64(ignored))
	s.Counters.Events.Add(int64(len(events)))
	if len(events) > 0 {
		s.Sink.Batch(events)
	}
	if s.missing > 0 && hasCleared(events) {
		s.forgive("the engine cleared its cache")
	}
	if s.unsteady && !s.losses.Many() {
		s.unsteady = false
		s.settle("batches come without gaps again")
	}
	return true
}

func hasCleared(events []Event) bool {
	return slices.ContainsFunc(events, func(e Event) bool { return e.Kind == Cleared })
}

// lose accounts for n batches that will not come.
func (s *Stream) lose(n uint64, why string) {
	s.Counters.Missing.Add(int64(n))
	s.missing += n
	s.losses.Gap()
	if s.missing > MaxGap {
		s.reset(why)
		return
	}
	s.settle(why)
}

func (s *Stream) reset(why string) {
	s.Counters.Resets.Add(1)
	s.Sink.Reset(why)
	s.forgive(why)
}

// forgive ends a degraded state: nothing that the missing batches said matters any more.
func (s *Stream) forgive(why string) {
	s.missing = 0
	if s.state == Degraded {
		s.report(Live, why)
	}
}

// restart forgets the publisher, if there was one.
func (s *Stream) restart(why string) {
	if s.known {
		s.known, s.next = false, 0
		s.losses = Losses{}
		s.reset(why)
	}
}

// settle reports the state of a connected stream.
func (s *Stream) settle(why string) {
	switch {
	case s.losses.Many():
		s.unsteady = true
		s.report(Down, "batches are lost again and again: "+why)
	case s.missing > 0:
		s.report(Degraded, why)
	default:
		s.report(Live, why)
	}
}

// report tells the sink a new state or a new reason for it.
func (s *Stream) report(state State, why string) {
	if state == s.state && why == s.why {
		return
	}
	s.state, s.why = state, why
	s.Sink.State(state, why)
}

package gossip

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

const (
	// stallTimeout is how long a snapshot may make no progress, or an asked peer be out of reach, before another is asked.
	stallTimeout = 2 * time.Second
	// busyPause is after how long a peer that was busy with other joiners is asked again.
	busyPause = 250 * time.Millisecond
	// lookInterval is how often a joiner looks for a peer to ask while there is none.
	lookInterval = 20 * time.Millisecond
	// intakeTimeout bounds a whole snapshot from one peer.
	intakeTimeout = time.Minute
	// learnTimeout is when a joiner gives up to find a source; long after the deadline has made it ready without.
	learnTimeout = 5 * time.Minute
)

// warming is how far this node has come in learning what others know. Safe for concurrent use.
type warming struct {
	done chan struct{} // closed when the node is warm or the deadline is over
	once sync.Once

	mu       sync.Mutex
	complete bool
	gaveUp   bool // nobody could be found who knows more
	expected uint64
	records  uint64
	took     time.Time // when a snapshot was whole the last time
}

func (w *warming) init() { w.done = make(chan struct{}) }

// warm reports whether the node takes part: it knows what the others know, or has waited long enough.
func (w *warming) warm() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *warming) open() { w.once.Do(func() { close(w.done) }) }

func (w *warming) finish() {
	w.mu.Lock()
	w.complete = true
	w.mu.Unlock()
	w.open()
}

// take notes that a snapshot is whole.
func (w *warming) take(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = now
}

// fresh reports whether a snapshot has just come: what a peer replays to who has nothing of it goes back further than that.
func (w *warming) fresh(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return now.Sub(w.took) < replaySpan
}

// serves reports whether what the node knows may pass for what the fleet knows. A node that is warm by the deadline alone has a
// part of it, and a joiner that took that for the whole would look no further.
func (w *warming) serves() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete || w.gaveUp
}

func (w *warming) giveUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gaveUp = true
}

func (w *warming) expect(records uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expected, w.records = max(records, 1), 0
}

func (w *warming) progress(records uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records += records
}

func (w *warming) fraction() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.complete:
		return 1
	case w.expected == 0:
		return 0
	}
	return min(0.99, float64(w.records)/float64(w.expected)) // what was expected is an estimate
}

// warmUp learns what others know, and opens the node when that is done or the deadline is over.
func (f *Fleet) warmUp() {
	deadline := time.AfterFunc(f.deadline, func() {
		if !f.warming.warm() {
			f.log.Warn().Dur("dur_ms", f.deadline).Float64("fraction", f.WarmFraction()).Msg("not all knowledge has come in time: ready without it")
			f.warming.open()
		}
	})
	defer deadline.Stop()
	why, ok := f.learn(time.Now())
	if f.ctx.Err() != nil {
		return
	}
	if !ok {
		f.log.Warn().Msg("no peer could send a snapshot")
		f.warming.giveUp()
		<-f.ctx.Done() // the deadline must not be stopped before it is over
		return
	}
	f.log.Info().Str("why", why).Msg("warm")
	f.warming.finish()
}

// source is what a joiner has found out about a peer.
type source struct {
	cold  bool      // it has nothing itself
	notTo time.Time // not to be asked before
	since time.Time // first looked at
}

// learn asks peers for a snapshot, one after the other in rendezvous order, so that many joiners ask different ones.
func (f *Fleet) learn(began time.Time) (why string, ok bool) {
	known := map[streamID]*source{}
	for f.ctx.Err() == nil && time.Since(began) < learnTimeout {
		now := time.Now()
		s, why := f.pickSource(known, now)
		if why != "" {
			return why, true
		}
		if s == nil {
			f.sleep(lookInterval)
			continue
		}
		src := known[s.id]
		switch f.takeFrom(s) {
		case wire.Complete:
			f.counts.snapshotsTaken.Add(1)
			f.warming.take(time.Now())
			return "snapshot from " + s.p.name, true
		case wire.Cold:
			src.cold, src.notTo = true, time.Now().Add(busyPause)
		case wire.Busy:
			src.notTo = time.Now().Add(busyPause)
		default:
			src.notTo = time.Now().Add(stallTimeout)
		}
	}
	return "", false
}

// pickSource chooses whom to ask next; nil if there is nobody at the moment. Why is not empty if there is nothing to
// learn: no peer, or only peers that have nothing or cannot be reached.
func (f *Fleet) pickSource(known map[streamID]*source, now time.Time) (s *session, why string) {
	if !f.members.Joined() {
		return nil, ""
	}
	var alive []member.Status
	for _, m := range f.members.Members() {
		if m.State == member.StateAlive && m.Name != f.self.origin {
			alive = append(alive, m)
		}
	}
	if len(alive) == 0 {
		return nil, "no peers"
	}
	slices.SortFunc(alive, func(a, b member.Status) int {
		return cmp.Compare(f.attraction(a.Name), f.attraction(b.Name))
	})
	cold, open := 0, 0
	for _, m := range alive {
		id := streamID{m.Name, m.Incarnation}
		src := known[id]
		if src == nil {
			src = &source{since: now}
			known[id] = src
		}
		var stream *session
		if p := f.peer(m.Name); p != nil {
			stream = p.open()
		}
		switch {
		case src.cold:
			cold++
		case stream == nil && now.Sub(src.since) > stallTimeout:
			// Out of reach. It does not count as cold, but is not waited for if all others are.
		default:
			open++
		}
		if s == nil && stream != nil && stream.id == id && !now.Before(src.notTo) {
			s = stream
		}
	}
	if open == 0 && cold > 0 {
		return nil, "peers know nothing yet"
	}
	return s, ""
}

// attraction orders peers by rendezvous: each joiner has an order of its own.
func (f *Fleet) attraction(name string) uint64 {
	return wire.BatchID(wire.StreamKey(name, 0), wire.StreamKey(f.self.origin, 0))
}

// relearnInterval is how often a node that has lost batches for good may take another snapshot.
const relearnInterval = time.Minute

// learnAgain takes a snapshot from the peer whose batches were lost, or another if there is no stream from it: after a
// partition that outlasted the journals this is how both sides learn of each other. It does not make the node cold.
func (f *Fleet) learnAgain(from string) {
	var s *session
	if p := f.peer(from); p != nil {
		s = p.open()
	}
	if open := f.sessions(); s == nil && len(open) > 0 {
		s = open[rand.IntN(len(open))]
	}
	if s != nil && f.takeFrom(s) == wire.Complete {
		f.counts.snapshotsTaken.Add(1)
		f.warming.finish() // had no source been found before, this was it
		f.log.Info().Str("peer", s.p.name).Msg("lost batches made good by a snapshot")
		return
	}
	f.relearn.CompareAndSwap(nil, &from) // try again in a minute
}

// takeFrom takes a snapshot from one peer.
func (f *Fleet) takeFrom(s *session) wire.Outcome {
	in := s.askSnapshot(time.Now())
	if in == nil {
		return wire.Cancelled
	}
	defer s.cancelIntake(in)
	limit := time.NewTimer(intakeTimeout)
	defer limit.Stop()
	look := time.NewTicker(stallTimeout / 8)
	defer look.Stop()
	for {
		select {
		case <-in.end:
			return in.outcome
		case now := <-look.C:
			if now.Sub(s.progress(in)) >= stallTimeout {
				f.log.Warn().Str("peer", s.p.name).Msg("snapshot makes no progress: asking another peer")
				return wire.Cancelled
			}
		case <-limit.C:
			return wire.Cancelled
		case <-f.ctx.Done():
			return wire.Cancelled
		}
	}
}

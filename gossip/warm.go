package gossip

import (
	"cmp"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

const (
	// stallTimeout is how long a snapshot may make no progress, or a peer be out of reach, before
	// another peer is asked.
	stallTimeout = 2 * time.Second
	// busyPause is after how long a peer that was busy with other snapshots is asked again, and how
	// often a warm node looks whether it needs a snapshot.
	busyPause = 250 * time.Millisecond
	// lookInterval is how often a joiner looks for a peer to ask while there is none.
	lookInterval = 20 * time.Millisecond
	// intakeTimeout bounds a whole snapshot from one peer.
	intakeTimeout = time.Minute
	// learnTimeout is when a joiner stops looking for a source; long after the deadline has made it
	// ready without one.
	learnTimeout = 5 * time.Minute
	// snapshotPause is the least time between two snapshots that a warm node takes.
	snapshotPause = time.Second
)

// warming is how far this node has come in learning what others know. Safe for concurrent use.
type warming struct {
	done chan struct{} // closed when the node is warm or the deadline is over
	once sync.Once

	mu        sync.Mutex
	complete  bool // a snapshot is whole, or there was nothing to learn
	gaveUp    bool // no peer could send a snapshot
	expected  uint64
	records   uint64
	positions map[processID]uint64 // what the last whole snapshot contained: batches below these sequences
}

func (w *warming) init() { w.done = make(chan struct{}) }

// warm reports whether the node takes part: it knows what the others know, or has waited long
// enough.
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

// learning reports whether the node is a joiner: it still looks for its first snapshot.
func (w *warming) learning() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.complete && !w.gaveUp
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

// contained returns the sequence below which the last whole snapshot contained all batches of a
// process.
func (w *warming) contained(id processID) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.positions[id]
}

func (w *warming) contains(positions map[processID]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.positions = positions
}

// learn takes a first snapshot, which makes this node warm, and later one whenever batches of a
// peer are missing, until the fleet ends. At the deadline the node is warm without the first one.
func (f *Fleet) learn() {
	deadline := time.AfterFunc(f.deadline, func() {
		if !f.warming.warm() {
			f.log.Warn().Dur("dur_ms", f.deadline).Float64("fraction", f.WarmFraction()).Msg("not all knowledge has come in time: ready without it")
			f.warming.open()
		}
	})
	defer deadline.Stop()
	why, ok := f.takeFirst(time.Now())
	switch {
	case f.ctx.Err() != nil:
		return
	case ok:
		f.log.Info().Str("why", why).Msg("warm")
		f.warming.finish()
	default:
		f.log.Warn().Msg("no peer could send a snapshot")
		f.warming.giveUp()
	}
	notBefore := map[processID]time.Time{}
	for f.sleep(busyPause) {
		now := time.Now()
		maps.DeleteFunc(notBefore, func(_ processID, at time.Time) bool { return !now.Before(at) })
		s := f.missingFrom(notBefore)
		if s == nil {
			continue
		}
		switch how := f.takeFrom(s); how {
		case wire.Complete:
			f.warming.finish() // if no source was found before, this was it
			f.log.Info().Str("peer", s.p.name).Msg("missing batches replaced by a snapshot")
			f.sleep(snapshotPause - busyPause)
		default:
			notBefore[s.id] = time.Now().Add(pauseAfter(how))
		}
	}
}

// pauseAfter is how long not to ask a peer again that could not send a whole snapshot.
func pauseAfter(how wire.Outcome) time.Duration {
	if how == wire.Busy || how == wire.Cold {
		return busyPause
	}
	return stallTimeout
}

// missingFrom chooses an open stream from a peer of which batches are missing; nil if there is none
// that may be asked now. Each node has an order of its own, so that after a partition they ask
// different peers.
func (f *Fleet) missingFrom(notBefore map[processID]time.Time) (s *subscription) {
	least := uint64(0)
	for _, p := range f.alive() {
		p.mu.Lock()
		missing := p.cursor.missing
		p.mu.Unlock()
		if missing == 0 {
			continue
		}
		stream, order := p.open(), f.attraction(p.name)
		if stream == nil || !notBefore[stream.id].IsZero() || s != nil && order >= least {
			continue
		}
		s, least = stream, order
	}
	return s
}

// source is what a joiner has found out about a peer.
type source struct {
	cold  bool      // it has nothing itself
	notTo time.Time // not to be asked before
	since time.Time // first looked at
}

// takeFirst asks peers for a snapshot, one after the other in rendezvous order, so that many
// joiners ask different ones. ok is false if none could send one.
func (f *Fleet) takeFirst(began time.Time) (why string, ok bool) {
	known := map[processID]*source{}
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
		how := f.takeFrom(s)
		if how == wire.Complete {
			return "snapshot from " + s.p.name, true
		}
		known[s.id].cold = how == wire.Cold
		known[s.id].notTo = time.Now().Add(pauseAfter(how))
	}
	return "", false
}

// pickSource chooses the peer to ask next; s is nil if there is none at the moment. why is not
// empty if there is nothing to learn: no peer, or only peers that have nothing or cannot be
// reached.
func (f *Fleet) pickSource(known map[processID]*source, now time.Time) (s *subscription, why string) {
	if !f.members.Joined() {
		return nil, ""
	}
	var alive []member.Status
	for _, m := range f.members.Members() {
		if m.State == member.StateAlive && m.Name != f.self.name {
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
		id := processID{m.Name, m.Incarnation}
		src := known[id]
		if src == nil {
			src = &source{since: now}
			known[id] = src
		}
		var stream *subscription
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

// attraction orders peers by rendezvous hashing: each node has an order of its own.
func (f *Fleet) attraction(name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name+" "+f.self.name) // names have no spaces
	return mix(h.Sum64())
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): FNV alone orders similar
// names alike.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// takeFrom takes a snapshot from one peer. If it is whole, the batches that it contains are not
// missing any more.
func (f *Fleet) takeFrom(s *subscription) wire.Outcome {
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
			if in.outcome == wire.Complete {
				f.counts.snapshotsTaken.Add(1)
				f.warming.contains(in.positions)
				f.clearMissing(in.positions)
			}
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

// clearMissing notes that a snapshot contained all batches below some sequences.
func (f *Fleet) clearMissing(positions map[processID]uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.peers {
		p.mu.Lock()
		if positions[processID{name, p.cursor.incarnation}] >= p.cursor.missing {
			p.cursor.missing = 0
		}
		p.mu.Unlock()
	}
}

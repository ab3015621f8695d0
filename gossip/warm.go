package gossip

import (
	"cmp"
	"context"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

const (
	stallTimeout    = 2 * time.Second        // then another source is asked
	busyPause       = 250 * time.Millisecond // before asking a busy peer again; period of looking for missing batches
	lookInterval    = 20 * time.Millisecond
	snapshotTimeout = time.Minute
	learnTimeout    = 5 * time.Minute // ends the search for a source, long after the deadline
	snapshotPause   = time.Second
)

type warming struct {
	done chan struct{} // closed when the node is warm, by knowledge or by deadline
	once sync.Once

	complete, gaveUp  atomic.Bool
	expected, records atomic.Uint64                        // of the snapshot being received
	positions         atomic.Pointer[map[processID]uint64] // batches below were in the last complete snapshot
}

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
	w.complete.Store(true)
	w.open()
}

func (w *warming) learning() bool { return !w.complete.Load() && !w.gaveUp.Load() }

func (w *warming) fraction() float64 {
	if w.complete.Load() {
		return 1
	}
	return min(0.99, float64(w.records.Load())/float64(max(1, w.expected.Load())))
}

func (w *warming) contained(id processID) uint64 {
	if p := w.positions.Load(); p != nil {
		return (*p)[id]
	}
	return 0
}

// learn takes a first snapshot, then one whenever batches are missing. The deadline makes the node
// warm all the same.
func (x *Exchange) learn() {
	deadline := time.AfterFunc(x.deadline, func() {
		if !x.warming.warm() {
			x.log.Warn().Dur("dur_ms", x.deadline).Float64("fraction", x.WarmFraction()).Msg("ready without a complete snapshot: the deadline has passed")
			x.warming.open()
		}
	})
	defer deadline.Stop()
	why, ok := x.takeFirst(time.Now())
	switch {
	case x.ctx.Err() != nil:
		return
	case ok:
		x.log.Info().Str("why", why).Msg("warm")
		x.warming.finish()
	default:
		x.log.Warn().Msg("no peer could send a snapshot yet: still trying")
		x.warming.gaveUp.Store(true)
	}
	notBefore := map[processID]time.Time{}
	for x.sleep(busyPause) {
		now := time.Now()
		maps.DeleteFunc(notBefore, func(_ processID, at time.Time) bool { return !now.Before(at) })
		s := x.missingFrom(notBefore)
		if s == nil {
			continue
		}
		if how := x.takeFrom(s); how != wire.Complete {
			notBefore[s.id] = time.Now().Add(pauseAfter(how))
			continue
		}
		x.warming.finish()
		x.log.Info().Str("peer", s.p.name).Msg("missing batches replaced by a snapshot")
		x.sleep(snapshotPause - busyPause)
	}
}

func pauseAfter(how wire.Outcome) time.Duration {
	if how == wire.Busy || how == wire.Cold {
		return busyPause
	}
	return stallTimeout
}

// missingFrom may return nil. The order differs by node, so that after a partition nodes ask
// different peers.
func (x *Exchange) missingFrom(notBefore map[processID]time.Time) (s *subscription) {
	least := uint64(0)
	for _, p := range x.alive() {
		p.mu.Lock()
		missing := p.cursor.missing
		p.mu.Unlock()
		if missing == 0 {
			continue
		}
		stream, order := p.open(), x.attraction(p.name)
		if stream == nil || !notBefore[stream.id].IsZero() || s != nil && order >= least {
			continue
		}
		s, least = stream, order
	}
	return s
}

type source struct {
	cold  bool // has no knowledge itself
	notTo time.Time
	since time.Time
}

func (x *Exchange) takeFirst(began time.Time) (why string, ok bool) {
	known := map[processID]*source{}
	for x.ctx.Err() == nil && time.Since(began) < learnTimeout {
		now := time.Now()
		s, why := x.pickSource(known, now)
		if why != "" {
			return why, true
		}
		if s == nil {
			x.sleep(lookInterval)
			continue
		}
		how := x.takeFrom(s)
		if how == wire.Complete {
			return "snapshot from " + s.p.name, true
		}
		known[s.id].cold = how == wire.Cold
		known[s.id].notTo = time.Now().Add(pauseAfter(how))
	}
	return "", false
}

// pickSource may return nil; why is set if there is nothing to learn.
func (x *Exchange) pickSource(known map[processID]*source, now time.Time) (s *subscription, why string) {
	if !x.members.Joined() {
		return nil, ""
	}
	var alive []member.Status
	for _, m := range x.members.Members() {
		if m.State == member.StateAlive && m.Name != x.self.name {
			alive = append(alive, m)
		}
	}
	if len(alive) == 0 {
		return nil, "no peers"
	}
	slices.SortFunc(alive, func(a, b member.Status) int {
		return cmp.Compare(x.attraction(a.Name), x.attraction(b.Name))
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
		if p := x.peer(m.Name); p != nil {
			stream = p.open()
		}
		switch {
		case src.cold:
			cold++
		case stream == nil && now.Sub(src.since) > stallTimeout:
			// An unreachable peer is not cold, but is not waited for if all other peers are.
		default:
			open++
		}
		if s == nil && stream != nil && stream.id == id && !now.Before(src.notTo) {
			s = stream
		}
	}
	if open == 0 && cold > 0 {
		return nil, "peers have no knowledge yet"
	}
	return s, ""
}

// Rendezvous hashing: many joiners ask different peers.
func (x *Exchange) attraction(name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name+" "+x.self.name) // names have no spaces
	return mix(h.Sum64())
}

// The finaliser of SplitMix64: FNV alone orders similar names alike.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

func (x *Exchange) takeFrom(s *subscription) wire.Outcome {
	in := s.askSnapshot(time.Now())
	if in == nil {
		return wire.Cancelled
	}
	defer s.cancelIncoming(in)
	ctx, cancel := context.WithTimeout(x.ctx, snapshotTimeout)
	defer cancel()
	look := time.NewTicker(stallTimeout / 8)
	defer look.Stop()
	for {
		select {
		case <-in.end:
			if in.outcome == wire.Complete {
				x.count(&x.stats.SnapshotsTaken, 1)
				x.warming.positions.Store(&in.positions)
				x.clearMissing(in.positions)
			}
			return in.outcome
		case now := <-look.C:
			if now.Sub(s.progress(in)) >= stallTimeout {
				x.log.Warn().Str("peer", s.p.name).Msg("snapshot makes no progress: asking another peer")
				return wire.Cancelled
			}
		case <-ctx.Done():
			return wire.Cancelled
		}
	}
}

func (x *Exchange) clearMissing(positions map[processID]uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, p := range x.peers {
		p.mu.Lock()
		if positions[processID{name, p.cursor.incarnation}] >= p.cursor.missing {
			p.cursor.missing = 0
		}
		p.mu.Unlock()
	}
}

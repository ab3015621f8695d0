package gossip

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/gossip/member"
)

const (
	// maxPeers bounds the members this node keeps streams or memories of.
	maxPeers = 2048
	// forgetAfter is how long a member that is gone is still shown.
	forgetAfter = 10 * time.Minute
	// voidAfter is how long a peer may be silent while it counts as alive before its load is taken
	// for void: load that is older misleads more than none. At twenty pings it is no hiccup.
	voidAfter = 10 * time.Second
)

var (
	errStopped  = errors.New("this node stops")
	errGone     = errors.New("the peer is no member any more")
	errReplaced = errors.New("the peer was restarted")
	errSilent   = errors.New("nothing was heard from the peer for too long")
)

// peer is another node as this one knows it, over all its streams and restarts.
type peer struct {
	name string

	applying sync.Mutex // held while a batch is applied, so that batches are applied in order
	order    sync.Mutex // held during PeerLoad, PeerState and DropPeer, so that they are called in order

	mu      sync.Mutex // guards the following
	status  member.Status
	cancel  context.CancelFunc // of the goroutine that keeps the subscription; nil if there is none
	stream  *subscription      // the stream that is open; nil if there is none
	cursor  cursor             // how far its journal has been applied
	passed  bool               // Knowledge has load or state of it
	void    bool               // that is void, and DropPeer is yet to be called
	clock   clockFilter
	steady  time.Duration // what is added to its times, if its clock is far from ours
	lag     time.Duration
	lagged  bool      // lag is a measurement
	heard   time.Time // of the last frame
	failure string

	received, applied, news, unknown, dropped atomic.Uint64
	bytes, sent                               atomic.Uint64 // on the streams it was dialed for
	missed, violations, connects              atomic.Uint64
}

// cursor is how far this node has come in the journal of one process. All batches below next were
// applied or are part of a snapshot that was taken, except that some below missing may not be; 0
// means that none are missing.
type cursor struct {
	incarnation   uint64
	next, missing uint64 // next is 0 before the first stream has started
}

// onEvent follows the membership. It is called in order by one goroutine.
func (f *Fleet) onEvent(e member.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase != running || e.Member.Name == f.self.name {
		return
	}
	p := f.peers[e.Member.Name]
	if p == nil {
		if len(f.peers) >= maxPeers {
			f.counts.refused.Add(1)
			f.log.Error().Str("peer", e.Member.Name).Int("peers", maxPeers).Msg("too many members: no stream to this one")
			return
		}
		p = &peer{name: e.Member.Name}
		f.peers[p.name] = p
	}
	switch e.Kind {
	case member.Joined, member.Updated:
		f.followLocked(p, e.Member)
	case member.Left, member.Failed:
		state := member.StateFailed
		if e.Kind == member.Left {
			state = member.StateLeft
		}
		f.loseLocked(p, e.Member, state)
	}
}

// followLocked begins or goes on to subscribe to a member that is alive.
func (f *Fleet) followLocked(p *peer, info member.Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.status
	if old.State == member.StateAlive && info.Incarnation < old.Incarnation {
		return // an event of a process that has been replaced
	}
	restarted := old.Incarnation != 0 && info.Incarnation != old.Incarnation
	p.status.Info = info
	if old.State != member.StateAlive || restarted {
		p.status.State, p.status.Since = member.StateAlive, time.Now()
	}
	if restarted {
		f.voidLocked(p)
		p.heard, p.lagged, p.lag = time.Time{}, false, 0
		p.clock, p.steady = clockFilter{}, 0
	}
	if p.cancel != nil && !restarted && old.Addr == info.Addr {
		return
	}
	p.unfollowLocked(errReplaced)
	ctx, cancel := context.WithCancel(f.ctx)
	if !f.spawnLocked(func() { f.subscribe(ctx, p, info) }) {
		cancel()
		return
	}
	p.cancel = cancel
}

// loseLocked gives up a member that is dead or has left. Its facts stay, its load is void.
func (f *Fleet) loseLocked(p *peer, info member.Info, state member.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if info.Incarnation < p.status.Incarnation && p.status.State == member.StateAlive {
		return // the death of a process that has been replaced
	}
	p.status = member.Status{Info: info, State: state, Since: time.Now()}
	if state == member.StateLeft {
		p.stopDialingLocked() // the open stream may still hold the last batches: it ends by itself
	} else {
		p.unfollowLocked(errGone)
	}
	f.voidLocked(p)
}

// unfollowLocked ends the subscription without waiting for it. p.mu is held.
func (p *peer) unfollowLocked(why error) {
	p.stopDialingLocked()
	p.endLocked(why)
}

// stopDialingLocked has no further stream opened. p.mu is held.
func (p *peer) stopDialingLocked() {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
}

// endLocked ends the stream that is open, if any; nothing more of it reaches Knowledge. p.mu is
// held.
func (p *peer) endLocked(why error) {
	if p.stream != nil {
		p.stream.end(why)
		p.stream = nil
	}
}

// voidLocked takes back what Knowledge has of the peer's load and state. DropPeer is called soon,
// and before anything new reaches Knowledge; not here, for Knowledge may be busy. f.mu and p.mu are
// held.
func (f *Fleet) voidLocked(p *peer) {
	if p.passed {
		p.passed, p.void = false, true
		f.spawnLocked(func() { f.settle(p) })
	}
}

// settle has Knowledge drop what is void. It waits while Knowledge takes load or state of this
// peer.
func (f *Fleet) settle(p *peer) {
	p.order.Lock()
	defer p.order.Unlock()
	p.mu.Lock()
	void := p.void
	p.void = false
	p.mu.Unlock()
	if void {
		f.knowledge.DropPeer(p.name)
	}
}

// endStream closes the stream that is open, if any. The peer is dialed again.
func (p *peer) endStream(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream != nil {
		p.stream.end(why)
	}
}

// cursorAt returns the sequence of the first batch of a process that this node wants: behind what
// it has applied, else behind what a snapshot contained. 0 means that this node has nothing of the
// process. It waits until the batch that an older stream may be applying is done.
func (f *Fleet) cursorAt(p *peer, id processID) uint64 {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	if p.cursor.incarnation != id.incarnation {
		p.cursor = cursor{incarnation: id.incarnation}
	}
	next := p.cursor.next
	p.mu.Unlock()
	if next == 0 {
		next = f.warming.contained(id)
	}
	return next
}

// startAt sets the cursor to the first batch that a stream will bring. It returns how many batches
// before it, from asked on, are missing; if there are some, a snapshot is taken soon.
func (f *Fleet) startAt(s *subscription, asked, start uint64) (missed uint64) {
	contained := f.warming.contained(s.id)
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.stream != s {
		return 0
	}
	s.p.cursor.next = start
	if start > asked && start > contained {
		s.p.cursor.missing = start
		return start - asked
	}
	return 0
}

// open returns the stream that is open, or nil.
func (p *peer) open() *subscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream == nil || !p.stream.started.Load() {
		return nil
	}
	return p.stream
}

// staleLocked is how old knowledge of the peer is: what was measured, or how long it has been
// silent beyond what is usual. p.mu is held.
func (p *peer) staleLocked(now time.Time) time.Duration {
	last := p.heard
	if last.IsZero() {
		last = p.status.Since
	}
	return max(p.lag, now.Sub(last)-pingInterval-pingInterval/2)
}

// shift is what to add to times in the peer's knowledge to have them on this node's clock: 0 unless
// the clocks are measured and clearly apart, and if they are absurdly so.
func (p *peer) shift() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clock.n == 0 || p.steady > maxShift || p.steady < -maxShift {
		return 0
	}
	return p.steady
}

// measured takes a round trip.
func (p *peer) measured(sent, received, replied, returned int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock.add(sent, received, replied, returned)
	if best, ok := p.clock.best(); ok {
		p.steady = steady(p.steady, best)
	}
}

// peer returns what is known of a node, or nil.
func (f *Fleet) peer(name string) *peer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peers[name]
}

// alive lists the members that are alive, by name.
func (f *Fleet) alive() []*peer {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*peer
	for _, p := range f.peers {
		p.mu.Lock()
		if p.status.State == member.StateAlive {
			out = append(out, p)
		}
		p.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	return out
}

// sweepPeers voids load and state of silent peers, forgets peers that are long gone, and sums up
// how old knowledge of the others is.
func (f *Fleet) sweepPeers(now time.Time) (nodes int, stale time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lags []time.Duration
	for name, p := range f.peers {
		p.mu.Lock()
		switch {
		case p.status.State == member.StateAlive:
			lags = append(lags, p.staleLocked(now))
			// If this process was stopped for a while, changes of the vector may still wait in the
			// stream, and the vector that they change is void. The next stream begins with the full
			// vector.
			if p.passed && now.Sub(p.heard) > voidAfter {
				p.endLocked(errSilent)
				f.voidLocked(p)
			}
		case now.Sub(p.status.Since) > forgetAfter:
			delete(f.peers, name)
		}
		p.mu.Unlock()
	}
	slices.Sort(lags)
	return 1 + len(lags), staleness(lags)
}

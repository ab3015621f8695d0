package gossip

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine.example/gossip/member"
)

const (
	maxPeers    = 2048 // with streams or remembered state
	forgetAfter = 10 * time.Minute
	voidAfter   = 10 * time.Second // silence; old load misleads more than none
)

var (
	errStopped  = errors.New("this node stops")
	errGone     = errors.New("the peer is no member any more")
	errReplaced = errors.New("the peer was restarted")
	errSilent   = errors.New("the peer was silent for too long")
)

type peer struct {
	name string

	applying sync.Mutex // orders batches
	order    sync.Mutex // orders PeerLoad, PeerUsage, PeerFigures, PeerClaims, PeerState and DropPeer

	mu     sync.Mutex // guards the following
	Peer              // what describe does not compute
	cancel context.CancelFunc
	stream *subscription
	cursor cursor
	passed bool
	void   bool // DropPeer is due
	left   bool // for DropPeer: it left
	clock  clockFilter
	steady time.Duration // shift of the peer's times
	lagged bool          // Lag is measured
}

// cursor is a position in one process's journal. Batches below next were applied or are in a
// snapshot, but some below missing (0: none) may be absent.
type cursor struct {
	incarnation   uint64
	next, missing uint64 // next is 0 before the first stream has started
}

func (x *Exchange) onEvent(e member.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.phase != running || e.Member.Name == x.self.name {
		return
	}
	p := x.peers[e.Member.Name]
	if p == nil {
		if len(x.peers) >= maxPeers {
			x.count(&x.stats.Refused, 1)
			x.log.Error().Str("peer", e.Member.Name).Int("peers", maxPeers).Msg("too many members: no stream to this peer")
			return
		}
		p = &peer{name: e.Member.Name}
		x.peers[p.name] = p
	}
	defer wake(x.changed)
	switch e.Kind {
	case member.Joined, member.Updated:
		x.followLocked(p, e.Member)
	case member.Left, member.Failed:
		state := member.StateFailed
		if e.Kind == member.Left {
			state = member.StateLeft
		}
		x.loseLocked(p, e.Member, state)
	}
}

func (x *Exchange) followLocked(p *peer, info member.Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.Status
	if old.State == member.StateAlive && info.Incarnation < old.Incarnation {
		return // an event of a replaced process
	}
	restarted := old.Incarnation != 0 && info.Incarnation != old.Incarnation
	p.Status.Info = info
	if old.State != member.StateAlive || restarted {
		p.Status.State, p.Status.Since = member.StateAlive, time.Now()
	}
	if restarted {
		x.voidLocked(p, true) // it was replaced, or ended before its end was seen
		p.LastHeard, p.lagged, p.Lag = time.Time{}, false, 0
		p.clock, p.steady = clockFilter{}, 0
	}
	if p.cancel != nil && !restarted && old.Addr == info.Addr {
		return
	}
	p.unfollowLocked(errReplaced)
	ctx, cancel := context.WithCancel(x.ctx)
	if !x.spawnLocked(func() { x.subscribe(ctx, p, info) }) {
		cancel()
		return
	}
	p.cancel = cancel
}

func (x *Exchange) loseLocked(p *peer, info member.Info, state member.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if info.Incarnation < p.Status.Incarnation && p.Status.State == member.StateAlive {
		return // the death of a replaced process
	}
	p.Status = member.Status{Info: info, State: state, Since: time.Now()}
	if state == member.StateLeft {
		p.stopDialingLocked() // the open stream may still carry the last batches
	} else {
		p.unfollowLocked(errGone)
	}
	x.voidLocked(p, state == member.StateLeft)
}

func (p *peer) unfollowLocked(why error) {
	p.stopDialingLocked()
	p.endLocked(why)
}

func (p *peer) stopDialingLocked() {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
}

// p.mu is held.
func (p *peer) endLocked(why error) {
	if p.stream != nil {
		p.stream.end(why)
		p.stream = nil
	}
}

// ended takes out what a process reported at whose address nothing listens any more: its requests have ended with it, unless another
// process takes its place. Members agree on its death seconds later, which drops it again; one that starts meanwhile never hears of those
// requests.
func (x *Exchange) ended(p *peer, info member.Info) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Reported && p.Status.Incarnation == info.Incarnation && p.stream == nil {
		x.voidLocked(p, true)
		p.passed = true
	}
}

// voidLocked schedules DropPeer, as Knowledge may be busy; pass calls it before new load. x.mu and
// p.mu are held.
func (x *Exchange) voidLocked(p *peer, left bool) {
	p.Reported = false
	if p.passed {
		p.passed, p.void, p.left = false, true, left
		x.spawnLocked(func() { x.settle(p) })
	}
}

func (x *Exchange) settle(p *peer) {
	p.order.Lock()
	defer p.order.Unlock()
	p.mu.Lock()
	void, left := p.void, p.left
	p.void = false
	p.mu.Unlock()
	if void {
		x.knowledge.DropPeer(p.name, left)
	}
}

func (p *peer) endStream(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream != nil {
		p.stream.end(why)
	}
}

// cursorAt returns the first sequence wanted: behind the last applied batch, else the last
// snapshot's; 0 without both. It waits for a batch being applied.
func (x *Exchange) cursorAt(p *peer, id processID) uint64 {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	if p.cursor.incarnation != id.incarnation {
		p.cursor = cursor{incarnation: id.incarnation}
	}
	next := p.cursor.next
	p.mu.Unlock()
	if next == 0 {
		next = x.warming.contained(id)
	}
	return next
}

// startAt sets the cursor to a stream's first batch and returns the missing ones since asked, for
// which learn takes a snapshot.
func (x *Exchange) startAt(s *subscription, asked, start uint64) (missed uint64) {
	contained := x.warming.contained(s.id)
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

// reported notes that a stream has brought the peer's load and, before it, its usage.
func (p *peer) reported(by *subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Reported = p.Reported || p.stream == by
}

func (p *peer) open() *subscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream == nil || !p.stream.started.Load() {
		return nil
	}
	return p.stream
}

// p.mu is held.
func (p *peer) staleLocked(now time.Time) time.Duration {
	last := p.LastHeard
	if last.IsZero() {
		last = p.Status.Since
	}
	return max(p.Lag, now.Sub(last)-pingInterval-pingInterval/2)
}

// shift is 0 while unmeasured, close, or beyond maxShift.
func (p *peer) shift() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clock.n == 0 || p.steady > maxShift || p.steady < -maxShift {
		return 0
	}
	return p.steady
}

func (p *peer) measured(sent, received, replied, returned int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock.add(sent, received, replied, returned)
	if best, ok := p.clock.best(); ok {
		p.steady = steady(p.steady, best)
	}
}

func (x *Exchange) peer(name string) *peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.peers[name]
}

func (x *Exchange) alive() []*peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []*peer
	for _, p := range x.peers {
		p.mu.Lock()
		if p.Status.State == member.StateAlive {
			out = append(out, p)
		}
		p.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	return out
}

// sweepPeers returns the number of living nodes and the staleness.
func (x *Exchange) sweepPeers(now time.Time) (nodes int, stale time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var lags []time.Duration
	for name, p := range x.peers {
		p.mu.Lock()
		switch {
		case p.Status.State == member.StateAlive:
			lags = append(lags, p.staleLocked(now))
			// After a pause of this process, the stream may hold changes to a void vector. The next
			// stream begins with a full one.
			if p.passed && now.Sub(p.LastHeard) > voidAfter {
				p.endLocked(errSilent)
				x.voidLocked(p, false)
			}
		case now.Sub(p.Status.Since) > forgetAfter:
			delete(x.peers, name)
		}
		p.mu.Unlock()
	}
	slices.Sort(lags)
	return 1 + len(lags), staleness(lags, x.flush)
}

package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

const (
	defaultFlush    = 50 * time.Millisecond
	defaultDeadline = 10 * time.Second
	defaultBudget   = 8 << 20
	defaultJournal  = 16 << 20
	// minJournal is half a minute of a busy node.
	minJournal = 1 << 20
	// minBudget suffices for control frames and the load of a small fleet.
	minBudget = 16 << 10
)

type membership interface {
	Start(ctx context.Context) error
	Leave(timeout time.Duration) error
	Stop(ctx context.Context) error
	Self() member.Info
	Members() []member.Status
	// connect opens a stream to a member and returns the identity of the node that answered.
	connect(ctx context.Context, peer member.Info) (net.Conn, member.Info, error)
	Joined() bool
}

type roster struct{ *member.List }

func (r roster) connect(ctx context.Context, peer member.Info) (net.Conn, member.Info, error) {
	c, err := r.Dial(ctx, peer)
	if err != nil {
		return nil, member.Info{}, err
	}
	return c, c.Peer, nil
}

// Fleet is this node's part in the exchange. Safe for concurrent use.
//
// Lock order: peer.applying, peer.order, subscriber.mu, Fleet.mu, peer.mu, subscription.mu; other
// locks are leaves. Calls to Knowledge hold at most peer.applying (Apply) or peer.order (PeerLoad,
// PeerState, DropPeer).
type Fleet struct {
	knowledge Knowledge
	flush     time.Duration
	deadline  time.Duration
	clock     func(time.Time) time.Time
	log       zerolog.Logger

	members membership
	list    *member.List // backs members; nil in tests

	self    processID
	journal *journal
	budget  *budget
	loads   loadTable
	state   stateSlot
	warming warming
	touched chan struct{}
	counts  counters

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	snapshots chan struct{}

	mu          sync.Mutex
	peers       map[string]*peer
	subscribers map[string]*subscriber
	phase       phase
	stopped     chan struct{}
	stopErr     error
}

type phase uint8

const (
	idle phase = iota
	running
	stopping
)

type counters struct {
	publishedBatches, publishedRecords, publishedBytes atomic.Uint64
	appliedBatches, appliedRecords, appliedNews        atomic.Uint64
	appliedBytes, unknownRecords, resumes, missed      atomic.Uint64
	heldBack, droppedBound, malformed                  atomic.Uint64
	snapshotsServed, snapshotsTaken, snapshotsRefused  atomic.Uint64
	snapshotRecords, snapshotBytes                     atomic.Uint64
	writes, skipped, violations, slow, refused         atomic.Uint64
	sent, received                                     [wire.Kinds]atomic.Uint64
}

// New checks cfg and prepares a node; it starts nothing.
func New(cfg Config) (*Fleet, error) {
	f, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	m := cfg.Member
	m.OnEvent = f.onEvent
	m.Serve = func(c *member.Conn) { f.serve(c, c.Peer) }
	if m.Self.ProtocolMax == 0 {
		m.Self.ProtocolMin, m.Self.ProtocolMax = wire.Oldest, wire.Version
	}
	if f.list, err = member.New(m); err != nil {
		return nil, err
	}
	f.members = roster{f.list}
	return f, nil
}

func prepare(cfg Config) (*Fleet, error) {
	if cfg.Knowledge == nil {
		return nil, errors.New("gossip: no knowledge to exchange")
	}
	f := &Fleet{
		touched:   make(chan struct{}, 1),
		knowledge: cfg.Knowledge, flush: cfg.FlushInterval, deadline: cfg.SnapshotDeadline, clock: cfg.Clock, log: cfg.Log,
		peers: map[string]*peer{}, subscribers: map[string]*subscriber{}, stopped: make(chan struct{}),
		snapshots: make(chan struct{}, maxSnapshots),
	}
	if f.flush == 0 {
		f.flush = defaultFlush
	}
	if f.deadline == 0 {
		f.deadline = defaultDeadline
	}
	limit, rate := cfg.JournalBytes, cfg.Budget
	if limit == 0 {
		limit = defaultJournal
	}
	if rate == 0 {
		rate = defaultBudget
	}
	switch {
	case f.flush < time.Millisecond || f.flush > time.Second:
		return nil, fmt.Errorf("gossip: flush interval %v is not between 1ms and 1s", f.flush)
	case f.deadline < 0:
		return nil, fmt.Errorf("gossip: negative snapshot deadline %v", f.deadline)
	case limit < minJournal:
		return nil, fmt.Errorf("gossip: journal of %d bytes is less than %d", limit, int64(minJournal))
	case rate < minBudget:
		return nil, fmt.Errorf("gossip: budget of %d bytes/s is less than %d", rate, int64(minBudget))
	}
	f.journal = newJournal(limit)
	f.budget = newBudget(rate, time.Now())
	f.warming.init()
	return f, nil
}

// Start listens, joins and begins to exchange. It does not wait for peers; ctx bounds only the
// start. A Fleet starts once; after an error it is stopped.
func (f *Fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	if f.phase != idle {
		f.mu.Unlock()
		return errors.New("gossip: started already")
	}
	f.phase = running
	f.ctx, f.cancel = context.WithCancel(context.Background())
	// Streams and events may arrive before members.Start returns, and need self.
	self := f.members.Self()
	f.self = processID{self.Name, self.Incarnation}
	f.mu.Unlock()
	if err := f.members.Start(ctx); err != nil {
		f.mu.Lock()
		mine := f.phase == running // else Stop ends the fleet
		if mine {
			f.phase = stopping
			f.cancel()
		}
		f.mu.Unlock()
		if mine {
			f.wg.Wait()
			f.stopErr = err
			close(f.stopped)
		}
		return fmt.Errorf("gossip: %w", err)
	}
	for _, loop := range []func(){f.publish, f.publishState, f.keepHouse, f.learn} {
		if !f.spawn(loop) {
			return errors.New("gossip: stopped while it was started")
		}
	}
	return nil
}

const leaveTimeout = 3 * time.Second

// Stop sends the last batches, leaves the fleet, and returns when every goroutine has ended or ctx
// is done. Idempotent.
func (f *Fleet) Stop(ctx context.Context) error {
	f.mu.Lock()
	switch f.phase {
	case idle:
		f.phase = stopping
		close(f.stopped)
		f.mu.Unlock()
		return nil
	case stopping:
		f.mu.Unlock()
		select {
		case <-f.stopped:
			return f.stopErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.phase = stopping
	f.mu.Unlock()

	f.flushLast(ctx)
	leave := leaveTimeout
	if end, ok := ctx.Deadline(); ok {
		leave = max(time.Millisecond, min(leave, time.Until(end)/2))
	}
	err := f.members.Leave(leave)
	if errors.Is(err, member.ErrUnconfirmed) {
		// Peers will find this node dead instead.
		f.log.Warn().Err(err).Msg("no other node has confirmed that this one leaves")
		err = nil
	}
	f.cancel()
	f.closeStreams()
	err = errors.Join(err, f.members.Stop(ctx))
	gone := make(chan struct{})
	go func() {
		f.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	f.stopErr = err
	close(f.stopped)
	return err
}

func (f *Fleet) closeStreams() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.subscribers {
		d.conn.Close()
	}
	for _, p := range f.peers {
		p.endStream(errStopped)
	}
}

// wall is this node's wall clock, for times compared with peers'. Durations use moments, which
// setting a clock does not change.
func (f *Fleet) wall(at time.Time) time.Time {
	if f.clock == nil {
		return at
	}
	return f.clock(at)
}

// spawn runs loop in a goroutine that Stop waits for; false if the fleet does not run.
func (f *Fleet) spawn(loop func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spawnLocked(loop)
}

func (f *Fleet) spawnLocked(loop func()) bool {
	if f.phase != running {
		return false
	}
	f.wg.Go(loop)
	return true
}

// Members returns the membership of this fleet.
func (f *Fleet) Members() *member.List { return f.list }

// Warm is closed when this node has its peers' knowledge, no peer has any, or the deadline passes.
func (f *Fleet) Warm() <-chan struct{} { return f.warming.done }

// WarmFraction estimates the received part of the peers' knowledge, 0 to 1; below 1 until complete.
func (f *Fleet) WarmFraction() float64 { return f.warming.fraction() }

// Position returns the sequence of the next batch to publish.
func (f *Fleet) Position() uint64 {
	_, next := f.journal.position()
	return next
}

func (f *Fleet) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.ctx.Done():
		return false
	}
}

package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

const (
	defaultFlush    = 50 * time.Millisecond
	defaultDeadline = 10 * time.Second
	defaultBudget   = 8 << 20
	defaultJournal  = 16 << 20
	minJournal      = 1 << 20  // half a minute of a busy node
	minBudget       = 16 << 10 // control frames and the load of a small fleet
)

type membership interface {
	Start(ctx context.Context) error
	Leave(timeout time.Duration) error
	Stop(ctx context.Context) error
	Self() member.Info
	Members() []member.Status
	// connect also returns the identity of the node that answered.
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

// Exchange sends and receives one node's knowledge. Safe for concurrent use. Lock order:
// peer.applying, peer.order, subscriber.mu, Exchange.mu, peer.mu, subscription.mu; other locks are
// leaves. Calls to Knowledge hold at most peer.applying (Apply) or peer.order (PeerLoad, PeerUsage,
// PeerFigures, PeerClaims, PeerState, DropPeer).
type Exchange struct {
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
	usage   usageTable
	figures figureTable
	state   stateSlot
	claims  stateSlot
	warming warming
	touched chan struct{}
	changed chan struct{} // the members; capacity 1

	counting       sync.Mutex // guards the following
	stats          Stats
	sent, received [wire.Kinds]uint64

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

// New checks cfg and prepares a node; it starts nothing.
func New(cfg Config) (*Exchange, error) {
	x, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	m := cfg.Member
	m.OnEvent = x.onEvent
	m.Serve = func(c *member.Conn) { x.serve(c, c.Peer) }
	if m.Self.ProtocolMax == 0 {
		m.Self.ProtocolMin, m.Self.ProtocolMax = wire.Oldest, wire.Version
	}
	if x.list, err = member.New(m); err != nil {
		return nil, err
	}
	x.members = roster{x.list}
	return x, nil
}

func prepare(cfg Config) (*Exchange, error) {
	if cfg.Knowledge == nil {
		return nil, errors.New("gossip: Config.Knowledge is missing")
	}
	x := &Exchange{
		touched: make(chan struct{}, 1), changed: make(chan struct{}, 1), knowledge: cfg.Knowledge, clock: cfg.clock, log: cfg.Log,
		flush: cmp.Or(cfg.FlushInterval, defaultFlush), deadline: cmp.Or(cfg.SnapshotDeadline, defaultDeadline),
		peers: map[string]*peer{}, subscribers: map[string]*subscriber{}, stopped: make(chan struct{}),
		snapshots: make(chan struct{}, maxSnapshots),
	}
	limit, rate := cmp.Or(cfg.JournalBytes, defaultJournal), cmp.Or(cfg.Budget, defaultBudget)
	switch {
	case x.flush < time.Millisecond || x.flush > time.Second:
		return nil, fmt.Errorf("gossip: flush interval %v is not between 1ms and 1s", x.flush)
	case x.deadline < 0:
		return nil, fmt.Errorf("gossip: negative snapshot deadline %v", x.deadline)
	case limit < minJournal:
		return nil, fmt.Errorf("gossip: journal of %d bytes is less than %d", limit, int64(minJournal))
	case rate < minBudget:
		return nil, fmt.Errorf("gossip: budget of %d bytes/s is less than %d", rate, int64(minBudget))
	}
	x.journal = newJournal(limit)
	x.budget = newBudget(rate, time.Now())
	x.warming.done = make(chan struct{})
	return x, nil
}

// Start begins to exchange and does not wait for peers; ctx bounds only the start, and after an
// error the Exchange is stopped.
func (x *Exchange) Start(ctx context.Context) error {
	x.mu.Lock()
	if x.phase != idle {
		x.mu.Unlock()
		return errors.New("gossip: started already")
	}
	x.phase = running
	x.ctx, x.cancel = context.WithCancel(context.Background())
	// Streams and events may arrive before members.Start returns, and need self.
	self := x.members.Self()
	x.self = processID{self.Name, self.Incarnation}
	x.mu.Unlock()
	if err := x.members.Start(ctx); err != nil {
		x.mu.Lock()
		mine := x.phase == running // else Stop ends the fleet
		if mine {
			x.phase = stopping
			x.cancel()
		}
		x.mu.Unlock()
		if mine {
			x.wg.Wait()
			x.stopErr = err
			close(x.stopped)
		}
		return fmt.Errorf("gossip: %w", err)
	}
	for _, loop := range []func(){x.publish, x.publishState, x.keepHouse, x.learn} {
		if !x.spawn(loop) {
			return errors.New("gossip: stopped while it was started")
		}
	}
	return nil
}

const leaveTimeout = 3 * time.Second

// Stop sends the last batches, leaves the fleet and waits for every goroutine, at most until ctx
// ends. Idempotent.
func (x *Exchange) Stop(ctx context.Context) error {
	x.mu.Lock()
	switch x.phase {
	case idle:
		x.phase = stopping
		close(x.stopped)
		x.mu.Unlock()
		return nil
	case stopping:
		x.mu.Unlock()
		select {
		case <-x.stopped:
			return x.stopErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	x.phase = stopping
	x.mu.Unlock()

	x.flushLast(ctx)
	leave := leaveTimeout
	if end, ok := ctx.Deadline(); ok {
		leave = max(time.Millisecond, min(leave, time.Until(end)/2))
	}
	err := x.members.Leave(leave)
	if errors.Is(err, member.ErrUnconfirmed) {
		x.log.Warn().Err(err).Msg("this node leaves: no peer confirmed it in time")
		err = nil
	}
	x.cancel()
	x.mu.Lock()
	for _, d := range x.subscribers {
		d.conn.Close()
	}
	for _, p := range x.peers {
		p.endStream(errStopped)
	}
	x.mu.Unlock()
	err = errors.Join(err, x.members.Stop(ctx))
	gone := make(chan struct{})
	go func() {
		x.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	x.stopErr = err
	close(x.stopped)
	return err
}

// wall is the clock compared with peers'; durations use moments, which setting a clock does not
// change.
func (x *Exchange) wall(at time.Time) time.Time {
	if x.clock == nil {
		return at
	}
	return x.clock(at)
}

// spawn runs loop in a goroutine that Stop waits for; false unless running.
func (x *Exchange) spawn(loop func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.spawnLocked(loop)
}

func (x *Exchange) spawnLocked(loop func()) bool {
	if x.phase != running {
		return false
	}
	x.wg.Go(loop)
	return true
}

// Members returns the membership of this fleet.
func (x *Exchange) Members() *member.List { return x.list }

// Warm is closed when this node has its peers' knowledge, no peer has any, or the deadline passes.
func (x *Exchange) Warm() <-chan struct{} { return x.warming.done }

// WarmFraction estimates the received part of the peers' knowledge, 0 to 1; below 1 until complete.
func (x *Exchange) WarmFraction() float64 { return x.warming.fraction() }

// Position returns the sequence of the next batch to publish.
func (x *Exchange) Position() uint64 {
	_, next := x.journal.position()
	return next
}

func (x *Exchange) sleep(d time.Duration) bool { return sleep(x.ctx, d) }

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

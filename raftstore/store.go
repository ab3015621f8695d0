// Package raftstore keeps what the nodes of a fleet must agree on exactly:
// backends with their ids and generations, hot prefixes, routing rules and the
// constants that must be equal everywhere. It is a raft group with its own
// durable log, and it looks after that group by itself: who bootstraps it, who
// joins, who votes. Streams between the nodes are given to it.
//
// It does not know what the rules mean, does not call a backend, and is never
// asked on the path of a request: readers take State, an immutable value.
package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Errors of Apply, Read, Transfer and RemoveServer. errors.Is finds them.
var (
	// ErrNoLeader: nothing was done. The text says who is missing.
	ErrNoLeader = errors.New("no leader")
	// ErrUncertain: the command was handed on, and nobody knows whether it was or
	// will be carried out.
	ErrUncertain = errors.New("outcome unknown")
	// ErrStopped: the store was stopped, or not started.
	ErrStopped = errors.New("store is not running")
)

// Store is one node's part of the group. All methods may be called from any
// goroutine.
type Store struct {
	cfg  Config // as normal made it
	id   string
	addr string
	log  zerolog.Logger

	view atomic.Pointer[view]

	port   *port // nil without network
	caller *caller

	poke    chan struct{} // has room for one
	stopped chan struct{} // closed when run has ended
	// ctx ends when Stop is called; it is what goroutines of the store live by.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // what spawn has started

	peersMu sync.Mutex // one call of Peers at a time
	identMu sync.Mutex // held over each change of ident, before mu

	mu       sync.Mutex
	started  bool
	stopping bool
	ident    identity
	life     *life // nil while there is none
	first    *disk // what Open opened, until Start takes it
	counts   writeCounts
	problem  problems
	waiting  string                   // what a node without a group, or with recovered data, waits for
	bar      string                   // why a leader takes no changes
	health   map[string]*serverHealth // by id, as seen while this node led in healthTerm

	healthTerm uint64

	// unwilling are the last errors of nodes that were not taken in, by address, so
	// that each is logged once. Only run uses it.
	unwilling map[string]string
	// led is the leader that was logged last. Only run uses it.
	led string
	// clear is since when nothing has spoken against recovered data. Only run uses it.
	clear time.Time
}

// view is a state and the channel that is closed when a newer one comes.
type view struct {
	state   *State
	changed chan struct{}
}

// problems are what an operator should know of; empty if nothing.
type problems struct {
	disk, halted, constants, group string
	clone                          cloneSighting
}

// Open opens the data, without starting anything that another node could see. It
// fails if the data is damaged or in use.
func Open(cfg Config) (*Store, error) {
	s, err := open(cfg)
	if err != nil {
		if cfg.Streams != nil {
			cfg.Streams.Close()
		}
		return nil, fmt.Errorf("raftstore: %w", err)
	}
	return s, nil
}

func open(given Config) (*Store, error) {
	cfg, err := given.normal()
	if err != nil {
		return nil, err
	}
	addr := "local"
	if cfg.Streams != nil {
		addr = cfg.Streams.Addr().String()
	}
	s := &Store{
		cfg: cfg, addr: addr, log: cfg.Log,
		poke: make(chan struct{}, 1), stopped: make(chan struct{}), health: make(map[string]*serverHealth),
		unwilling: make(map[string]string),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.view.Store(&view{&State{Switches: Switches{Hot: true}}, make(chan struct{})})
	if cfg.Dir == "" {
		s.ident = identity{ID: newID()}
		s.id = s.ident.ID
		return s, nil
	}
	d, err := s.openData()
	if err != nil {
		return nil, err
	}
	if _, err := s.Proven(); err != nil {
		d.close(endWait)
		return nil, fmt.Errorf("%s: %w", cfg.Dir, err)
	}
	// A disk that takes no writes can be read all the same: the node starts with what it has kept.
	if cause := d.tryRoom(); cause != nil {
		s.report(cause)
	}
	s.first = d
	return s, nil
}

// openData opens the data file and takes from it who this node is and the state
// that it proves.
func (s *Store) openData() (*disk, error) {
	d, err := openDisk(s.cfg.Dir, s.cfg.Timers.Write, s.cfg.Faults, &s.counts)
	if err != nil {
		return nil, err
	}
	err = func() error {
		ident, err := loadIdentity(d)
		if err != nil {
			return err
		}
		if s.id != "" && s.id != ident.ID {
			return fmt.Errorf("the data is of another node: %s, not %s", ident.ID, s.id)
		}
		state, err := replay(d)
		if err != nil {
			return err
		}
		if state != nil {
			s.publish(state)
		}
		if s.id == "" { // never again: it is read without a lock
			s.id = ident.ID
		}
		s.mu.Lock()
		s.ident = ident
		s.mu.Unlock()
		return nil
	}()
	if err != nil {
		d.close(endWait)
		return nil, fmt.Errorf("%s: %w", s.cfg.Dir, err)
	}
	return d, nil
}

// Start takes part in the group until Stop. It returns as soon as the node
// listens; whether there is a leader yet is seen in Status. The context bounds
// only the start.
func (s *Store) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopping {
		return errors.New("raftstore: started already, or stopped")
	}
	if s.cfg.Streams != nil {
		s.port = &port{
			streams: s.cfg.Streams, addr: s.addr, id: s.id, faults: s.cfg.Faults,
			admits: s.admits, raft: s.takeRaft, requests: s.serve,
			onError: func(err error) { s.log.Warn().Err(err).Msg("raft accepts no connections") },
		}
		s.caller = &caller{port: s.port, idle: make(map[string]idleConn)}
	}
	d := s.first
	if d == nil || d.failure() == nil {
		l, err := s.begin(d)
		if err != nil {
			return fmt.Errorf("raftstore: %w", err)
		}
		s.life = l
	}
	s.first = nil
	s.started = true
	if s.port != nil {
		s.port.start()
	}
	go s.run(s.life, d)
	return nil
}

// Stop hands leadership on, if this node has it, and ends. It is idempotent. The
// context bounds the handing on; ending takes a few seconds at most, also if the
// disk hangs.
func (s *Store) Stop(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	started, l, d := s.started, s.life, s.first
	s.first = nil
	s.mu.Unlock()
	if !started {
		if first && s.cfg.Streams != nil {
			s.cfg.Streams.Close()
		}
		if d != nil {
			d.close(endWait)
		}
		return nil
	}
	if first {
		s.handOn(ctx, l)
		s.cancel()
	}
	<-s.stopped
	return nil
}

// spawn runs f beside the caller; Stop waits for it.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.wg.Go(f)
	}
}

// ID is the node's raft id: made once and kept in Config.Dir, never the address.
func (s *Store) ID() string { return s.id }

// State is what this node knows the fleet to have agreed on. It never is nil,
// never blocks and never goes back.
func (s *Store) State() *State { return s.view.Load().state }

// Changed gives a channel that is closed when State is replaced by a newer one.
// Take it before State, so that no change is missed.
func (s *Store) Changed() <-chan struct{} { return s.view.Load().changed }

// Poke says that Peers would answer differently than a moment ago.
func (s *Store) Poke() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// publish makes a state the current one, unless it is older: a raft that begins
// again goes through what this node has seen already.
func (s *Store) publish(state *State) {
	for {
		old := s.view.Load()
		if state.Version <= old.state.Version {
			return
		}
		if s.view.CompareAndSwap(old, &view{state, make(chan struct{})}) {
			close(old.changed)
			return
		}
	}
}

// await waits until State is at least this version.
func (s *Store) await(ctx context.Context, version uint64) (*State, error) {
	for {
		v := s.view.Load()
		if v.state.Version >= version {
			return v.state, nil
		}
		select {
		case <-v.changed:
		case <-s.ctx.Done():
			return nil, ErrStopped
		case <-ctx.Done():
			return nil, fmt.Errorf("this node knows the state of version %d only, not %d: %w",
				v.state.Version, version, ctx.Err())
		}
	}
}

// halt is told that the state machine stands still, or, with nil, that it does
// not any more.
func (s *Store) halt(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.problem.halted = ""
		return
	}
	s.problem.halted = err.Error()
	s.log.Error().Err(err).Msg("state stands still: this program is too old for its fleet")
}

// group is the group whose raft this node speaks.
func (s *Store) group() groupID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ident.Group
}

func (s *Store) identity() identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ident
}

// current is the raft that runs now; nil if none does.
func (s *Store) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}

// run looks after the group until Stop: one raft after the other. l is nil if the disk d had failed
// before there was one.
func (s *Store) run(l *life, d *disk) {
	defer close(s.stopped)
	for {
		if l != nil {
			s.tend(l)
			s.mu.Lock()
			s.life = nil
			s.mu.Unlock()
			if !l.end() {
				s.log.Warn().Msg("raft did not end in time; the disk hangs, most likely")
			}
		} else {
			d.close(endWait)
		}
		if d == nil || d.failure() == nil || !s.running() {
			break
		}
		s.report(d.failure())
		if l = s.reopen(d); l == nil {
			break
		}
		d = l.disk
	}
	if s.port != nil {
		s.caller.close()
		s.port.close()
	}
	s.wg.Wait()
}

func (s *Store) running() bool { return s.ctx.Err() == nil }

// peers asks gossip who is there: nodes that take part in raft, but this one.
func (s *Store) peers() []Peer {
	s.peersMu.Lock()
	defer s.peersMu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.cfg.Peers()), func(p Peer) bool {
		return p.Addr == "" || p.Addr == s.addr || p.ID == s.id
	})
}

// report notes why the disk failed.
func (s *Store) report(cause error) {
	text := "disk failed: " + cause.Error()
	if !mayReopen(cause) {
		text += "; it will not be used again before a restart"
	}
	s.mu.Lock()
	news := s.problem.disk != text
	s.problem.disk = text
	s.mu.Unlock()
	if news {
		s.log.Error().Err(cause).Bool("retry", mayReopen(cause)).Msg("disk failed: this node follows in memory and does not vote")
	}
}

// reopen waits until the failed disk works again, and begins another raft on it; nil when the store is
// stopped. Meanwhile the node follows in memory.
func (s *Store) reopen(failed *disk) *life {
	ctx, cancel := context.WithCancel(s.ctx)
	var following sync.WaitGroup
	following.Go(func() { s.follow(ctx) })
	defer following.Wait()
	defer cancel()
	timer := time.NewTicker(s.cfg.Timers.Reopen)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-timer.C:
		}
		// How the last write ended is known once the file is closed.
		if !failed.over() || !mayReopen(failed.failure()) {
			continue
		}
		d, err := s.openData()
		if err != nil {
			s.log.Warn().Err(err).Msg("disk still fails")
			continue
		}
		var l *life
		if err = d.tryRoom(); err == nil {
			l, err = s.begin(d)
		}
		if err != nil {
			d.close(endWait)
			s.log.Warn().Err(err).Msg("disk still fails")
			continue
		}
		s.mu.Lock()
		s.life, s.problem.disk = l, ""
		s.mu.Unlock()
		s.log.Info().Msg("disk works again")
		return l
	}
}

// tend does what is due until the life's disk fails or the store is stopped.
func (s *Store) tend(l *life) {
	timer := time.NewTicker(s.cfg.Timers.Poll)
	defer timer.Stop()
	var failed <-chan struct{}
	if l.disk != nil {
		failed = l.disk.failed
	}
	for {
		s.look(l)
		select {
		case <-s.ctx.Done():
			return
		case <-failed:
			return
		case <-timer.C:
		case <-s.poke:
		case <-l.raft.LeaderCh():
		}
	}
}

// look is one look at the group.
func (s *Store) look(l *life) {
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	stop := untilFailure(l, cancel)
	defer stop()
	if err := l.note(s.cfg.Timers.Probe); err != nil {
		return // the disk failed, and tend will see it
	}
	s.settle(l)
	s.noteLeader(l)
	s.compare()
	if !s.prove(ctx, l) {
		return
	}
	switch {
	case s.isLeader(l):
		s.lead(ctx, l)
	case len(l.servers()) == 0:
		s.found(ctx, l)
	case s.leader(l).ID == "":
		s.lookAbroad(ctx)
	default:
		s.foreign("") // only a leader sees all there are
	}
}

// untilFailure cancels a look when the disk fails. What it returns ends the watch.
func untilFailure(l *life, cancel context.CancelFunc) (stop func()) {
	if l.disk == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		select {
		case <-l.disk.failed:
		case <-done:
		}
		cancel()
	}()
	return func() { close(done) }
}

// compare notes whether this node's constants are the fleet's.
func (s *Store) compare() {
	fleet, own := s.State().Constants, s.cfg.Constants
	if fleet == (Constants{}) || own == (Constants{}) {
		return
	}
	s.differ(mismatch(fleet, own))
}

// differ notes that this node's constants are not the fleet's, or, with nil, that
// they are.
func (s *Store) differ(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	news := text != "" && s.problem.constants == ""
	s.problem.constants = text
	s.mu.Unlock()
	if news {
		s.log.Error().Str("err", text).Msg("this node does not fit its fleet")
	}
}

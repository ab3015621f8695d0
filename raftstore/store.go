// Package raftstore is a raft group that agrees on backends, hot prefixes, routing rules and
// constants, and manages its own members. Requests read State, an immutable value, without waiting.
package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Errors of calls, for errors.Is.
var (
	// ErrNoLeader: nothing was done; the text names the missing nodes.
	ErrNoLeader = errors.New("no leader")
	// ErrUncertain: the command may or may not take effect.
	ErrUncertain = errors.New("outcome unknown")
	ErrStopped   = errors.New("store is not running")
)

// Store is one node's part of the group, safe for concurrent use.
type Store struct {
	cfg  Config
	id   string
	addr string
	log  zerolog.Logger

	view atomic.Pointer[view]

	port   *port
	caller *caller

	poke    chan struct{}
	stopped chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	peersMu sync.Mutex
	identMu sync.Mutex // held by callers of setIdentity; locked before mu

	mu       sync.Mutex
	started  bool
	stopping bool
	ident    identity
	instance *raftInstance // nil while no raft runs
	first    *disk         // until Start takes it
	counts   writeCounts
	problem  problems
	waiting  string                   // what a node without a group, or with recovered data, waits for
	bar      string                   // why a leader takes no changes
	health   map[string]*serverHealth // by id, in healthTerm

	healthTerm uint64

	// Last refusal to join, by address; only run uses this and the fields below.
	unwilling    map[string]string
	led          string
	waitLogged   string
	waitLoggedAt time.Time
	// clear is when the search for rivals began to find none.
	clear time.Time
}

type view struct {
	state   *State
	changed chan struct{}
}

type problems struct {
	disk, halted, constants, group string
	clone                          cloneSighting
}

// Open reads the data. It fails if the data is damaged or in use.
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
		poke: make(chan struct{}, 1), stopped: make(chan struct{}),
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
	// Such a disk can still be read.
	if cause := d.tryRoom(); cause != nil {
		s.report(cause)
	}
	s.first = d
	return s, nil
}

func (s *Store) openData() (*disk, error) {
	d, err := openDisk(s.cfg.Dir, s.cfg.Timers.Write, s.cfg.beforeWrite, &s.counts)
	if err != nil {
		return nil, err
	}
	ident, err := loadIdentity(d)
	if err == nil && s.id != "" && s.id != ident.ID {
		err = fmt.Errorf("the data is of another node: %s, not %s", ident.ID, s.id)
	}
	var state *State
	if err == nil {
		state, err = replay(d)
	}
	if err != nil {
		d.close(endWait)
		return nil, fmt.Errorf("%s: %w", s.cfg.Dir, err)
	}
	s.publish(state)
	if s.id == "" { // once, because ID reads it without a lock
		s.id = ident.ID
	}
	s.mu.Lock()
	s.ident = ident
	s.mu.Unlock()
	return d, nil
}

// Start listens and takes part in the group until Stop. ctx bounds only the start.
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
		s.port = &port{store: s, conns: make(map[*conn]struct{})}
		s.caller = &caller{port: s.port, idle: make(map[string]*conn)}
	}
	d := s.first
	if d.failure() == nil {
		l, err := s.begin(d)
		if err != nil {
			return fmt.Errorf("raftstore: %w", err)
		}
		s.instance = l
	}
	s.first = nil
	s.started = true
	if s.port != nil {
		s.port.wg.Go(s.port.accept)
	}
	go s.run(s.instance, d)
	return nil
}

// Stop transfers leadership within ctx, then ends the store within seconds, even if the disk hangs.
func (s *Store) Stop(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	started, l, d := s.started, s.instance, s.first
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

func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.wg.Go(f)
	}
}

// ID is the node's raft id, drawn once and kept in Config.Dir.
func (s *Store) ID() string { return s.id }

// State returns the latest state this node knows, never nil and never older than before.
func (s *Store) State() *State { return s.view.Load().state }

// Changed returns a channel that closes when a newer State arrives; call it before State.
func (s *Store) Changed() <-chan struct{} { return s.view.Load().changed }

// Poke makes the store call Config.Peers at once.
func (s *Store) Poke() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// publish ignores older states: a restarted raft replays old entries.
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

func (s *Store) note(field *string, text string) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = text != "" && text != *field
	*field = text
	return news
}

func (s *Store) halt(why string) {
	if s.note(&s.problem.halted, why) {
		s.log.Error().Str("event", EventTooOld).Str("err", why).Msg("the state is frozen: this program is too old for its fleet")
	}
}

func (s *Store) group() groupID { return s.identity().Group }

// Origin identifies the group in which this node's data began, across recoveries; 0 means none.
func (s *Store) Origin() uint64 {
	id := s.identity()
	first := id.Group
	if len(id.Given) > 0 {
		first = id.Given[0]
	}
	return binary.BigEndian.Uint64(first[:])
}

func (s *Store) identity() identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ident
}

func (s *Store) current() *raftInstance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance
}

// run manages one raft after another until Stop. inst is nil if disk d failed before the first.
func (s *Store) run(inst *raftInstance, d *disk) {
	defer close(s.stopped)
	for {
		if inst != nil {
			s.tend(inst)
			s.mu.Lock()
			s.instance = nil
			s.mu.Unlock()
			if !inst.end() {
				s.log.Warn().Msg("raft did not stop in time, most likely because the disk hangs")
			}
		} else {
			d.close(endWait)
		}
		if d.failure() == nil || s.ctx.Err() != nil {
			break
		}
		s.report(d.failure())
		if inst = s.reopen(d); inst == nil {
			break
		}
		d = inst.disk
	}
	if s.port != nil {
		s.port.close()
	}
	s.wg.Wait()
}

func (s *Store) peers() []Peer {
	s.peersMu.Lock()
	defer s.peersMu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.cfg.Peers()), func(p Peer) bool {
		return p.Addr == "" || p.Addr == s.addr || p.ID == s.id
	})
}

func (s *Store) livePeers() []Peer {
	return slices.DeleteFunc(s.peers(), func(p Peer) bool { return !p.Alive || p.Left })
}

func (s *Store) report(cause error) {
	text := "disk failed: " + cause.Error()
	if !mayReopen(cause) {
		text += "; it will not be used again before a restart"
	}
	if s.note(&s.problem.disk, text) {
		s.log.Error().Str("event", EventDiskFailed).Err(cause).Bool("retry", mayReopen(cause)).Msg("disk failed: this node follows in memory and does not vote")
	}
}

// reopen waits until the failed disk works; it returns nil after Stop.
func (s *Store) reopen(failed *disk) *raftInstance {
	ctx, cancel := context.WithCancel(s.ctx)
	var following sync.WaitGroup
	if s.port != nil {
		following.Go(func() { s.follow(ctx) })
	}
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
		if !failed.over() || !mayReopen(failed.failure()) {
			continue
		}
		inst, err := s.again()
		if err != nil {
			s.log.Warn().Err(err).Msg("disk still fails")
			continue
		}
		s.mu.Lock()
		s.instance, s.problem.disk = inst, ""
		s.mu.Unlock()
		s.log.Info().Str("event", EventDiskWorks).Msg("disk works again")
		return inst
	}
}

func (s *Store) again() (*raftInstance, error) {
	d, err := s.openData()
	if err != nil {
		return nil, err
	}
	inst, err := (*raftInstance)(nil), d.tryRoom()
	if err == nil {
		inst, err = s.begin(d)
	}
	if err != nil {
		d.close(endWait)
	}
	return inst, err
}

func (s *Store) tend(inst *raftInstance) {
	timer := time.NewTicker(s.cfg.Timers.Poll)
	defer timer.Stop()
	for {
		s.look(inst)
		select {
		case <-s.ctx.Done():
			return
		case <-inst.cut.Done():
			return
		case <-timer.C:
		case <-s.poke:
		case <-inst.raft.LeaderCh():
		}
	}
}

const lookTimeout = 10 * time.Second

func (s *Store) look(inst *raftInstance) {
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	defer context.AfterFunc(inst.cut, cancel)()
	if err := inst.note(s.cfg.Timers.Probe); err != nil {
		return // tend sees the disk failure
	}
	s.noteLeader(inst)
	_ = s.fits(s.State().Constants)
	if !s.prove(ctx, inst) {
		return
	}
	if len(inst.servers()) == 0 {
		s.found(ctx, inst)
		return
	}
	s.waitFor("", "")
	switch {
	case s.isLeader(inst):
		s.lead(ctx, inst)
	case s.leader(inst).ID == "":
		s.lookAbroad(ctx)
	default:
		s.foreign("") // only a leader asks all nodes
	}
}

// fits notes and returns how this node's constants differ from the fleet's.
func (s *Store) fits(fleet Constants) error {
	own := s.cfg.Constants
	if fleet == (Constants{}) || own == (Constants{}) || fleet == own {
		s.note(&s.problem.constants, "")
		return nil
	}
	err := mismatch(fleet, own)
	if s.note(&s.problem.constants, err.Error()) {
		s.log.Error().Err(err).Msg("this node cannot work in its fleet")
	}
	return err
}

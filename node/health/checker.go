package health

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

const (
	EventProbesFail = "engine_probes_fail"
	EventProbesPass = "engine_probes_pass"
)

const (
	// lookEvery is the polling interval for state that sends no signal.
	lookEvery = 250 * time.Millisecond
	// leastPause bounds the rounds that events of a failing fleet start.
	leastPause = 10 * time.Millisecond
	maxProbes  = 128
	raiseQueue = 64
)

type Store interface {
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool // the leader alone commits up and down
}

// Probing says how engines are probed.
type Probing struct {
	Path     string // config.NoProbes: requests alone judge engines
	Interval time.Duration
	Timeout  time.Duration // of one probe
}

func (p *Probing) off() bool { return p.Path == config.NoProbes }

type CheckerConfig struct {
	Self     string // name of the node
	Probing  Probing
	Backends *backends.Directory
	Router   *policy.Router
	Peers    func() []string // live peers whose reports arrive; nil without a fleet
	Touch    func()          // sends this node's state to peers now; nil without a fleet
	Log      zerolog.Logger
}

// Checker probes this node's share of the engines, tells the router which ones to avoid, and on the
// leader commits what the Board proposes. Safe for concurrent use.
type Checker struct {
	cfg     CheckerConfig
	probing atomic.Pointer[Probing] // immutable
	board   *Board

	wake    chan struct{} // capacity 1
	slots   chan struct{} // held by running probes
	raise   chan Generation
	writing chan []Proposal // capacity 1

	probes [engine.Ailments]atomic.Uint64 // by result
	downs  atomic.Uint64                  // commits of this node
	ups    atomic.Uint64
	raised atomic.Uint64
	failed atomic.Uint64 // commands

	mu      sync.Mutex
	avoided map[prefixtree.Backend]bool // as reported to the router
}

func NewChecker(cfg CheckerConfig) *Checker {
	c := &Checker{
		cfg:   cfg,
		board: New(Config{Self: cfg.Self, Interval: cfg.Probing.Interval, Timeout: cfg.Probing.Timeout, Jitter: rand.Float64}),
		wake:  make(chan struct{}, 1), slots: make(chan struct{}, maxProbes), raise: make(chan Generation, raiseQueue),
		writing: make(chan []Proposal, 1), avoided: make(map[prefixtree.Backend]bool),
	}
	c.probing.Store(&cfg.Probing)
	return c
}

// Retune replaces how engines are probed; probes under way end by what was.
func (c *Checker) Retune(p Probing) {
	c.probing.Store(&p)
	c.board.Retune(p.Interval, p.Timeout, p.off(), time.Now())
	c.poke()
}

func (c *Checker) Probing() Probing { return *c.probing.Load() }

// Run probes, and commits on the leader, until ctx ends.
func (c *Checker) Run(ctx context.Context, s Store) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { c.commit(ctx, s) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	var known *backends.Roster
	for {
		changed := c.cfg.Backends.Changed()
		at := time.Now()
		r := c.cfg.Backends.Roster()
		if r != known {
			c.board.SetBackends(agreedBackends(r), at)
			known = r
		}
		if at.Sub(looked) >= lookEvery {
			looked = at
			c.look(r, at)
		}
		probing := c.probing.Load()
		next := at.Add(min(lookEvery, probing.Interval/2))
		if !probing.off() {
			due, soonest := c.board.Due(nil, at)
			if soonest.Before(next) {
				next = soonest
			}
			c.probe(ctx, r, probing, due, &loops)
		}
		c.avoid(r, at)
		c.propose(s, at)
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-c.wake:
		case <-changed:
		case <-ctx.Done():
			return
		}
		timer.Reset(leastPause - time.Since(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Checker) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Checker) tellPeers() {
	if c.cfg.Touch != nil {
		c.cfg.Touch()
	}
}

func millisNow() prefixtree.Time { return prefixtree.Time(time.Now().UnixMilli()) }

func agreedBackends(r *backends.Roster) []Backend {
	list := make([]Backend, len(r.List))
	for i, e := range r.List {
		list[i] = Backend{
			Key: e.Key, Name: e.Name, Generation: e.Generation, Version: e.Version, Reason: e.Reason,
			Down: e.State == raftstore.Down, Ours: e.DownByHealth(),
		}
	}
	return list
}

func (c *Checker) look(r *backends.Roster, at time.Time) {
	if c.cfg.Peers != nil {
		c.board.SetNodes(c.cfg.Peers(), at)
	}
	for _, e := range r.List {
		h := c.cfg.Router.Health(e.ID)
		if h.Answered > 0 {
			c.board.Answered(e.Key, time.UnixMilli(int64(h.Answered)))
		}
		if c.board.Ejected(e.Key, h.Ejected, reasonOfFailure[h.Failure], at) {
			c.tellPeers()
		}
	}
}

// Adopted makes the router avoid last-resort engines before the board knows the roster.
func (c *Checker) Adopted(r *backends.Roster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range r.List {
		if e.LastResort() {
			c.cfg.Router.SetReported(e.ID, true, millisNow())
			c.avoided[e.ID] = true
		}
	}
}

func (c *Checker) avoid(r *backends.Roster, at time.Time) {
	avoid := make(map[prefixtree.Backend]bool)
	for _, key := range c.board.Avoid(nil, at) {
		if e := r.ByKey(key); e != nil {
			avoid[e.ID] = true
			c.cfg.Router.SetReported(e.ID, true, millisNow()) // each round: a new generation clears it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	latest := c.cfg.Backends.Roster() // may be newer than the board's
	for id := range c.avoided {
		if e := latest.At(id); e != nil && e.LastResort() {
			avoid[id] = true
		} else if !avoid[id] {
			c.cfg.Router.SetReported(id, false, millisNow())
		}
	}
	c.avoided = avoid
}

func (c *Checker) probe(ctx context.Context, r *backends.Roster, how *Probing, due []Probe, probing *sync.WaitGroup) {
	for _, p := range due {
		e := r.ByKey(p.Backend)
		if e == nil {
			continue // removed since
		}
		probing.Go(func() {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-c.slots }()
			c.probeOne(ctx, e, how, p)
		})
	}
}

func (c *Checker) probeOne(ctx context.Context, e *backends.Engine, how *Probing, p Probe) {
	asked, cancel := context.WithTimeout(ctx, how.Timeout)
	defer cancel()
	began := millisNow()
	found, err := e.Probe(asked, how.Path)
	if ctx.Err() != nil {
		return // says nothing about the engine
	}
	c.probes[found].Add(1)
	if found == engine.Alive {
		c.cfg.Router.Lives(e.ID, began, millisNow())
	}
	changed, back := c.board.Probed(p, reasonOf[found], time.Now())
	if changed {
		line := c.cfg.Log.Info().Str("event", EventProbesPass)
		if found != engine.Alive {
			line = c.cfg.Log.Warn().Str("event", EventProbesFail).Err(err)
		}
		line.Str("backend", e.Name).Bool("answers", found == engine.Alive).Msg("the result of this node's probes changed")
		c.tellPeers()
	}
	if changed || found != engine.Alive {
		c.poke() // otherwise the next round is soon enough
	}
	if back {
		asking, cancel := context.WithTimeout(ctx, backends.AskTimeout)
		defer cancel()
		c.cfg.Backends.AskMetrics(asking, e) // the engine may be a new process
	}
}

var reasonOf = [...]Reason{
	engine.Alive: NoReason, engine.Refused: Refused, engine.NoRoute: Connect, engine.Silent: Timeout,
	engine.Broken: Reset, engine.Sick: Status5xx, engine.Untrusted: TLS,
}

var reasonOfFailure = [books.Failures]Reason{
	books.Connect: Connect, books.Timeout: Timeout, books.Reset: Reset, books.Status5xx: Status5xx,
}

// Failed receives each request that counts against a backend.
func (c *Checker) Failed(b prefixtree.Backend) {
	e := c.cfg.Backends.Roster().At(b)
	if e == nil {
		return
	}
	at, h := time.Now(), c.cfg.Router.Health(b)
	changed := c.board.Ejected(e.Key, h.Ejected, reasonOfFailure[h.Failure], at)
	if c.board.Failed(e.Key, at) || changed {
		c.tellPeers()
		c.poke()
	}
}

// Received takes the reports of a peer, as AppendReports encodes them; empty means none.
func (c *Checker) Received(origin string, section []byte) error {
	var reports []Report
	if len(section) > 0 {
		var err error
		if reports, err = ParseReports(nil, section); err != nil {
			return err
		}
	}
	if c.board.SetPeer(origin, reports, time.Now()) {
		c.poke()
	}
	return nil
}

func (c *Checker) DropPeer(origin string) {
	c.board.DropPeer(origin)
	c.poke()
}

// Reports encodes this node's reports; nil if there are none.
func (c *Checker) Reports() []byte {
	reports := c.board.Reports(nil, time.Now())
	if len(reports) == 0 {
		return nil
	}
	return AppendReports(nil, reports)
}

// propose hands the leader's proposals to the writer; none without probes, as no node could see an
// idle engine recover.
func (c *Checker) propose(s Store, at time.Time) {
	if c.probing.Load().off() || len(c.writing) > 0 || !s.Leading() {
		return
	}
	if list := c.board.Proposals(at); len(list) > 0 {
		c.writing <- list // capacity 1, one sender
	}
}

func (c *Checker) commit(ctx context.Context, s Store) {
	for {
		select {
		case list := <-c.writing:
			for _, p := range list {
				c.commitProposal(ctx, s, p)
			}
		case g := <-c.raise:
			c.renew(ctx, s, g)
		case <-ctx.Done():
			return
		}
	}
}

func (c *Checker) commitProposal(ctx context.Context, s Store, p Proposal) {
	if !p.Down && !c.stillDown(&p) {
		return
	}
	for _, g := range p.Renew {
		c.renew(ctx, s, g)
	}
	action, count := raftstore.MarkUp, &c.ups
	if p.Down {
		action, count = raftstore.MarkDown, &c.downs
	}
	// The version check lets a concurrent operator change win.
	if c.apply(ctx, s, raftstore.SetBackendState{
		Names: p.Names, Action: action, Reason: p.Reason, By: raftstore.ByHealth, IfVersions: p.Versions,
	}) {
		count.Add(uint64(len(p.Names)))
		c.cfg.Log.Info().Strs("backends", p.Names).Stringer("state", action).Str("reason", p.Reason).Msg("committed")
	}
}

// stillDown removes from p the engines that health no longer holds down, and reports whether any
// remains.
func (c *Checker) stillDown(p *Proposal) bool {
	down := make(map[string]bool)
	for _, e := range c.cfg.Backends.Roster().List {
		down[e.Name] = e.DownByHealth()
	}
	p.Names = slices.DeleteFunc(p.Names, func(name string) bool { return !down[name] })
	p.Renew = slices.DeleteFunc(p.Renew, func(g Generation) bool { return !down[g.Name] })
	return len(p.Names) > 0
}

func (c *Checker) renew(ctx context.Context, s Store, g Generation) {
	if c.apply(ctx, s, raftstore.NewGeneration{Name: g.Name, From: g.From}) {
		c.raised.Add(1)
		c.cfg.Log.Info().Str("backend", g.Name).Msg("engine restarted: its cache counts as empty")
	}
}

// apply reports whether the command changed the state. A conflict is no failure: another change
// won.
func (c *Checker) apply(ctx context.Context, s Store, command raftstore.Command) bool {
	r, err := s.Apply(ctx, command)
	switch {
	case err == nil:
		return r.Changed
	case errors.Is(err, raftstore.ErrConflict), ctx.Err() != nil:
		return false
	}
	// The board proposes again.
	c.failed.Add(1)
	c.cfg.Log.Warn().Err(err).Msg("cannot commit a change of an engine's state; retrying")
	return false
}

// Started receives each load report, which may show that the engine restarted.
func (c *Checker) Started(e *backends.Engine, m *engine.Metrics) {
	if m.Started <= 0 {
		return
	}
	began := time.UnixMilli(int64(m.Started * 1000))
	if ended, again := c.board.Started(e.Key, began, e.Generation); again {
		c.restarted(Generation{Name: e.Name, From: ended})
	}
}

// Forgot is called when answers show that an engine's cache is empty.
func (c *Checker) Forgot(b prefixtree.Backend) {
	e := c.cfg.Backends.Roster().At(b)
	if e == nil {
		return
	}
	if ended, again := c.board.Forgot(e.Key, time.Now()); again {
		c.restarted(Generation{Name: e.Name, From: ended})
	}
}

func (c *Checker) restarted(g Generation) {
	select {
	case c.raise <- g:
	default: // more restarts than a fleet has in a day
		c.failed.Add(1)
	}
}

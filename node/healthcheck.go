package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/node/backends"
	"grapevine/node/config"
	"grapevine/node/health"
	"grapevine/prefixtree"
	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

const (
	// lookEvery is the polling interval for state that sends no signal, such as members.
	lookEvery = 250 * time.Millisecond
	// leastPause bounds the rounds, each over all engines, that events of a failing fleet start.
	leastPause = 10 * time.Millisecond
	// reporterSilence is several gossip pings. Reports of nodes unheard for longer do not count.
	reporterSilence = 3 * time.Second
	maxProbes       = 128
	// raiseQueue bounds the restarts that wait for a commit.
	raiseQueue = 64
)

type agreement interface {
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool // the leader alone commits up and down
}

// checker probes this node's share of the engines, tells the router which ones to avoid, and on the
// leader commits the majority's reports. The board decides.
type checker struct {
	board   *health.Board
	engines *backends.Directory
	router  *policy.Router
	log     zerolog.Logger
	path    string
	limit   time.Duration // of one probe
	every   time.Duration // between rounds without events

	store func() agreement // may return nil: the store is not open
	peers func() []string  // live, heard peers; nil without gossip
	touch func()           // gossips this node's state now; nil without gossip

	wake    chan struct{} // capacity 1
	slots   chan struct{} // held by running probes
	raise   chan health.Generation
	writing chan []health.Proposal // capacity 1

	probes  [engine.Ailments]atomic.Uint64 // by result
	downs   atomic.Uint64                  // commits of this node
	ups     atomic.Uint64
	raised  atomic.Uint64
	refused atomic.Uint64 // failed commands

	mu      sync.Mutex
	probers map[any]*engine.Prober
	avoided map[prefixtree.Backend]bool // as reported to the router
}

func newChecker(n *Node) *checker {
	return &checker{
		board: health.New(health.Config{
			Self: n.name, Interval: n.cfg.ProbeInterval, Timeout: n.cfg.ProbeTimeout, Jitter: rand.Float64,
		}),
		engines: n.backends, router: n.router, log: n.log.With().Str("component", "health").Logger(),
		path: n.cfg.ProbePath, limit: n.cfg.ProbeTimeout, every: min(lookEvery, n.cfg.ProbeInterval/2),
		wake: make(chan struct{}, 1), slots: make(chan struct{}, maxProbes), raise: make(chan health.Generation, raiseQueue),
		writing: make(chan []health.Proposal, 1), probers: make(map[any]*engine.Prober), avoided: make(map[prefixtree.Backend]bool),
	}
}

func (n *Node) startHealth() {
	c := n.checker
	c.store = func() agreement {
		if s := n.store.Load(); s != nil {
			return s
		}
		return nil
	}
	if n.knowledge != nil {
		c.peers = n.heardNodes
		c.touch = func() {
			if g := n.gossip.Load(); g != nil {
				g.Touch()
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { c.run(ctx) })
	loops.Go(func() { c.write(ctx) })
	n.cleanups.push("health", func(context.Context) error {
		cancel()
		loops.Wait()
		return nil
	})
}

func (n *Node) heardNodes() (names []string) {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	for _, p := range g.Peers() {
		if p.State == member.StateAlive && p.Connected && time.Since(p.LastHeard) < reporterSilence {
			names = append(names, p.Name)
		}
	}
	return names
}

func (c *checker) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *checker) tell() {
	if c.touch != nil {
		c.touch()
	}
}

func (c *checker) run(ctx context.Context) {
	var probing sync.WaitGroup
	defer probing.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	var known *backends.Roster
	for {
		changed := c.engines.Changed()
		at := time.Now()
		r := c.engines.Roster()
		if r != known {
			c.board.SetBackends(agreedBackends(r), at)
			known = r
		}
		if at.Sub(looked) >= lookEvery {
			looked = at
			c.look(r, at)
		}
		next := at.Add(c.every)
		if c.path != config.NoProbes {
			var due []health.Probe
			due, soonest := c.board.Due(nil, at)
			if soonest.Before(next) {
				next = soonest
			}
			c.probe(ctx, r, due, &probing)
		}
		c.leave(r, at)
		c.propose(at)
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

func agreedBackends(r *backends.Roster) []health.Backend {
	list := make([]health.Backend, 0, len(r.List))
	for _, u := range r.List {
		b := health.Backend{Key: u.Key, Name: u.Name, Generation: u.Generation, Down: u.State == raftstore.Down}
		b.Version, b.Ours, b.Reason = u.Version, u.DownByHealth(), u.Reason
		list = append(list, b)
	}
	return list
}

func (c *checker) look(r *backends.Roster, at time.Time) {
	if c.peers != nil {
		c.board.SetNodes(c.peers(), at)
	}
	alive := make(map[any]bool, len(r.List))
	for _, u := range r.List {
		alive[u.Connection()] = true
		h := c.router.Health(u.ID)
		if h.Answered > 0 {
			c.board.Answered(u.Key, time.UnixMilli(int64(h.Answered)))
		}
		if c.board.Ejected(u.Key, h.Ejected, reasonOfFailure[h.Failure], at) {
			c.tell()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.probers {
		if !alive[l] {
			delete(c.probers, l)
		}
	}
}

// resort makes the router avoid last-resort engines before the board knows the roster.
func (c *checker) resort(r *backends.Roster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range r.List {
		if u.LastResort() {
			c.router.SetReported(u.ID, true, now())
			c.avoided[u.ID] = true
		}
	}
}

func (c *checker) leave(r *backends.Roster, at time.Time) {
	avoid := make(map[prefixtree.Backend]bool)
	for _, key := range c.board.Avoid(nil, at) {
		if u := r.ByKey(key); u != nil {
			avoid[u.ID] = true
			c.router.SetReported(u.ID, true, now()) // each round: a new generation clears it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	latest := c.engines.Roster() // may be newer than the board's
	for id := range c.avoided {
		if u := latest.At(id); u != nil && u.LastResort() {
			avoid[id] = true
		}
	}
	for id := range c.avoided {
		if !avoid[id] {
			c.router.SetReported(id, false, now())
		}
	}
	c.avoided = avoid
}

func (c *checker) probe(ctx context.Context, r *backends.Roster, due []health.Probe, probing *sync.WaitGroup) {
	for _, p := range due {
		u := r.ByKey(p.Backend)
		if u == nil {
			continue // removed since
		}
		probing.Go(func() {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-c.slots }()
			c.probeOne(ctx, u, p)
		})
	}
}

func (c *checker) probeOne(ctx context.Context, u *backends.Engine, p health.Probe) {
	asked, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	began := now()
	found, err := c.prober(u).Probe(asked)
	if ctx.Err() != nil {
		return // says nothing about the engine
	}
	c.probes[found].Add(1)
	if found == engine.Alive {
		c.router.Lives(u.ID, began, now())
	}
	changed, back := c.board.Probed(p, reasonOf[found], time.Now())
	if changed {
		e := c.log.Info().Str("event", EventProbesPass)
		if found != engine.Alive {
			e = c.log.Warn().Str("event", EventProbesFail).Err(err)
		}
		e.Str("backend", u.Name).Bool("answers", found == engine.Alive).Msg("probes say otherwise than before")
		c.tell()
	}
	if changed || found != engine.Alive {
		c.poke() // otherwise the next round is soon enough
	}
	if back {
		asking, cancel := context.WithTimeout(ctx, backends.AskTimeout)
		defer cancel()
		c.engines.AskMetrics(asking, u) // the engine may be a new process
	}
}

// A prober lives as long as its link, whose credentials it uses.
func (c *checker) prober(u *backends.Engine) *engine.Prober {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.probers[u.Connection()]
	if p == nil {
		p = u.Prober(c.path)
		c.probers[u.Connection()] = p
	}
	return p
}

var reasonOf = [...]health.Reason{
	engine.Alive: health.NoReason, engine.Refused: health.Refused, engine.NoRoute: health.Connect, engine.Silent: health.Timeout,
	engine.Broken: health.Reset, engine.Sick: health.Status5xx, engine.Untrusted: health.TLS,
}

var reasonOfFailure = [policy.Failures]health.Reason{
	policy.Connect: health.Connect, policy.Timeout: health.Timeout, policy.Reset: health.Reset, policy.Status5xx: health.Status5xx,
}

// failed receives each request that counts against a backend.
func (c *checker) failed(b prefixtree.Backend, _ policy.Failure, _ prefixtree.Time) {
	u := c.engines.Roster().At(b)
	if u == nil {
		return
	}
	at, h := time.Now(), c.router.Health(b)
	changed := c.board.Ejected(u.Key, h.Ejected, reasonOfFailure[h.Failure], at)
	if c.board.Failed(u.Key, at) || changed {
		c.tell()
		c.poke()
	}
}

func (c *checker) received(origin string, section []byte) error {
	var reports []health.Report
	if len(section) > 0 {
		var err error
		if reports, err = health.ParseReports(nil, section); err != nil {
			return err
		}
	}
	if c.board.SetPeer(origin, reports, time.Now()) {
		c.poke()
	}
	return nil
}

// propose hands the leader's proposals to the writer. Without probes it proposes nothing: no node
// could see an idle engine recover.
func (c *checker) propose(at time.Time) {
	s := c.store()
	if c.path == config.NoProbes || len(c.writing) > 0 || s == nil || !s.Leading() {
		return
	}
	if list := c.board.Proposals(at); len(list) > 0 {
		c.writing <- list // capacity 1, one sender
	}
}

func (c *checker) write(ctx context.Context) {
	for {
		select {
		case list := <-c.writing:
			for _, p := range list {
				c.writeProposal(ctx, p)
			}
		case g := <-c.raise:
			c.renew(ctx, g)
		case <-ctx.Done():
			return
		}
	}
}

func (c *checker) writeProposal(ctx context.Context, p health.Proposal) {
	if !p.Down && !c.stillDown(&p) {
		return
	}
	for _, g := range p.Renew {
		c.renew(ctx, g)
	}
	action, count := raftstore.MarkUp, &c.ups
	if p.Down {
		action, count = raftstore.MarkDown, &c.downs
	}
	// The version check lets a concurrent operator change win: see SetBackendState.
	if c.apply(ctx, raftstore.SetBackendState{
		Names: p.Names, Action: action, Reason: p.Reason, By: raftstore.ByHealth, IfVersions: p.Versions,
	}) {
		count.Add(uint64(len(p.Names)))
		c.log.Warn().Strs("backends", p.Names).Stringer("state", action).Str("reason", p.Reason).Msg("written down")
	}
}

// stillDown removes from p the engines that health no longer holds down, since a new generation
// would needlessly clear their records. It reports whether any engine remains.
func (c *checker) stillDown(p *health.Proposal) bool {
	down := make(map[string]bool)
	for _, u := range c.engines.Roster().List {
		down[u.Name] = u.DownByHealth()
	}
	p.Names = slices.DeleteFunc(p.Names, func(name string) bool { return !down[name] })
	p.Renew = slices.DeleteFunc(p.Renew, func(g health.Generation) bool { return !down[g.Name] })
	return len(p.Names) > 0
}

func (c *checker) renew(ctx context.Context, g health.Generation) {
	if c.apply(ctx, raftstore.NewGeneration{Name: g.Name, From: g.From}) {
		c.raised.Add(1)
		c.log.Info().Str("backend", g.Name).Msg("engine restarted: what its cache held is forgotten")
	}
}

// apply reports whether the command changed the state. A conflict is no failure: another change
// won.
func (c *checker) apply(ctx context.Context, command raftstore.Command) bool {
	s := c.store()
	if s == nil {
		return false
	}
	r, err := s.Apply(ctx, command)
	switch {
	case err == nil:
		return r.Changed
	case errors.Is(err, raftstore.ErrConflict), ctx.Err() != nil:
		return false
	}
	// The board proposes a state until it is agreed.
	c.refused.Add(1)
	c.log.Warn().Err(err).Msg("cannot be written down")
	return false
}

func (c *checker) started(u *backends.Engine, m *engine.Metrics) {
	if m.Started <= 0 {
		return
	}
	began := time.UnixMilli(int64(m.Started * 1000))
	if ended, again := c.board.Started(u.Key, began, u.Generation); again {
		c.restarted(health.Generation{Name: u.Name, From: ended})
	}
}

// forgot is called when answers show that an engine's cache is empty.
func (c *checker) forgot(b prefixtree.Backend) {
	u := c.engines.Roster().At(b)
	if u == nil {
		return
	}
	if ended, again := c.board.Forgot(u.Key, time.Now()); again {
		c.restarted(health.Generation{Name: u.Name, From: ended})
	}
}

func (c *checker) restarted(g health.Generation) {
	select {
	case c.raise <- g:
	default: // more restarts than a fleet has in a day
		c.refused.Add(1)
	}
}

package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/node/health"
	"grapevine/prefixtree"
	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

const (
	// lookEvery is how often the checker looks at what changes without a word: the
	// members, answers to requests, what has grown old.
	lookEvery = 250 * time.Millisecond
	// leastPause is between two rounds, however much happens: a round goes over all
	// engines, and without it a fleet that fails would have one for each of them.
	leastPause = 10 * time.Millisecond
	// reporterSilence is how long a node may be unheard before its reports do not
	// count and others probe in its place: several of gossip's pings.
	reporterSilence = 3 * time.Second
	// maxProbes bounds the probes under way at once.
	maxProbes = 128
	// raiseQueue bounds the restarts that wait to be written down.
	raiseQueue = 64
)

// noProbes as the path says that engines are judged by requests alone.
const noProbes = "-"

// agreement is what health needs of the store.
type agreement interface {
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool // whether this node leads: it alone writes down who is up or down
}

// checker looks after the engines: it probes its share of them, tells the other
// nodes what it finds, leaves alone what fails and, on the node that leads,
// writes down what most agree on. What is to be done is decided by the board.
type checker struct {
	board  *health.Board
	fleet  *fleet
	router *policy.Router
	log    zerolog.Logger
	path   string        // asked by probes
	limit  time.Duration // of one probe
	every  time.Duration // between rounds in which nothing has happened

	store func() agreement // nil, or returning nil: nothing can be written down
	peers func() []string  // other nodes that are alive and heard; nil: alone
	touch func()           // has the others told at once
	ask   question         // for the metrics of an engine that is back

	wake    chan struct{} // capacity 1
	slots   chan struct{} // of probes under way
	raise   chan health.Generation
	writing chan []health.Proposal // capacity 1

	probes  [engine.Ailments]atomic.Uint64 // by what they found
	downs   atomic.Uint64                  // engines that this node had written down as down
	ups     atomic.Uint64
	raised  atomic.Uint64 // generations
	refused atomic.Uint64 // commands that failed

	mu      sync.Mutex
	probers map[*link]*engine.Prober
	avoided map[prefixtree.Backend]bool // those reported to the router
}

func newChecker(n *Node) *checker {
	return &checker{
		board: health.New(health.Config{
			Self: n.name, Interval: n.cfg.ProbeInterval, Timeout: n.cfg.ProbeTimeout, Jitter: rand.Float64,
		}),
		fleet: n.fleet, router: n.router, log: n.log.With().Str("component", "health").Logger(),
		path: n.cfg.ProbePath, limit: n.cfg.ProbeTimeout, every: min(lookEvery, n.cfg.ProbeInterval/2), ask: n.learnMetrics(),
		wake: make(chan struct{}, 1), slots: make(chan struct{}, maxProbes), raise: make(chan health.Generation, raiseQueue),
		writing: make(chan []health.Proposal, 1), probers: make(map[*link]*engine.Prober), avoided: make(map[prefixtree.Backend]bool),
	}
}

// startHealth looks after the engines until the node stops.
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

// heardNodes are the other nodes that are alive and were heard just now.
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

// poke has the checker look now.
func (c *checker) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// tell has the other nodes told now.
func (c *checker) tell() {
	if c.touch != nil {
		c.touch()
	}
}

// run looks, probes and decides until ctx ends. No probe is under way when it
// returns.
func (c *checker) run(ctx context.Context) {
	var probing sync.WaitGroup
	defer probing.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	var known *roster
	for {
		changed := c.fleet.rosterChanged()
		at := time.Now()
		r := c.fleet.roster()
		if r != known {
			c.board.SetBackends(agreedBackends(r), at)
			known = r
		}
		if at.Sub(looked) >= lookEvery {
			looked = at
			c.look(r, at)
		}
		next := at.Add(c.every)
		if c.path != noProbes {
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

// agreedBackends is a roster as the board sees it.
func agreedBackends(r *roster) []health.Backend {
	list := make([]health.Backend, 0, len(r.list))
	for _, u := range r.list {
		b := health.Backend{Key: u.key, Name: u.Name, Generation: u.generation, Down: u.state == policy.Down}
		if u.agreed != nil {
			b.Version, b.Ours, b.Reason = u.agreed.Version, u.downByHealth(), u.agreed.Reason
		}
		list = append(list, b)
	}
	return list
}

// look takes in what changes without a word.
func (c *checker) look(r *roster, at time.Time) {
	if c.peers != nil {
		c.board.SetNodes(c.peers(), at)
	}
	alive := make(map[*link]bool, len(r.list))
	for _, u := range r.list {
		alive[u.link] = true
		h := c.router.Health(u.id)
		if h.Answered > 0 {
			c.board.Answered(u.key, time.UnixMilli(int64(h.Answered)))
		}
		if c.board.Ejected(u.key, h.Ejected, reasonOfFailure[h.Failure], at) {
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

// resort has the router leave alone what a new view holds as a last resort only. The
// board says the same as soon as it has the roster, and for as long as that is so.
func (c *checker) resort(r *roster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range r.list {
		if u.lastResort() {
			c.router.SetReported(u.id, true, now())
			c.avoided[u.id] = true
		}
	}
}

// leave tells the router which engines to leave alone.
func (c *checker) leave(r *roster, at time.Time) {
	avoid := make(map[prefixtree.Backend]bool)
	for _, key := range c.board.Avoid(nil, at) {
		if u := r.byKey[key]; u != nil {
			avoid[u.id] = true
			c.router.SetReported(u.id, true, now()) // again and again: a new generation does not know it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	latest := c.fleet.roster() // the board may not have it yet
	for id := range c.avoided {
		if u := latest.at(id); u != nil && u.lastResort() {
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

// probe puts the questions that are due.
func (c *checker) probe(ctx context.Context, r *roster, due []health.Probe, probing *sync.WaitGroup) {
	for _, p := range due {
		u := r.byKey[p.Backend]
		if u == nil {
			continue // it is gone, and the board forgets it
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

func (c *checker) probeOne(ctx context.Context, u *upstream, p health.Probe) {
	asked, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	began := now()
	found, err := c.prober(u).Probe(asked)
	if ctx.Err() != nil {
		return // the node stops, and that is all this says
	}
	c.probes[found].Add(1)
	if found == engine.Alive {
		c.router.Lives(u.id, began, now())
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
		c.poke() // else the next round is in time for the next probe
	}
	if back {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		c.ask(asking, u) // it may be another process than before
	}
}

// prober returns what probes an engine, as long as it is reached in one way.
func (c *checker) prober(u *upstream) *engine.Prober {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.probers[u.link]
	if p == nil {
		client := *u.client
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		p = &engine.Prober{Client: &client, URL: u.URL, Path: c.path, Key: u.APIKey}
		c.probers[u.link] = p
	}
	return p
}

// reasonOf and reasonOfFailure say in health's words what is wrong.
var reasonOf = [...]health.Reason{
	engine.Alive: health.NoReason, engine.Refused: health.Refused, engine.NoRoute: health.Connect, engine.Silent: health.Timeout,
	engine.Broken: health.Reset, engine.Sick: health.Status5xx, engine.Untrusted: health.TLS,
}

var reasonOfFailure = [policy.Failures]health.Reason{
	policy.Connect: health.Connect, policy.Timeout: health.Timeout, policy.Reset: health.Reset, policy.Status5xx: health.Status5xx,
}

// failed is told by the router of every request that speaks against a backend.
func (c *checker) failed(b prefixtree.Backend, _ policy.Failure, _ prefixtree.Time) {
	u := c.fleet.roster().at(b)
	if u == nil {
		return
	}
	at, h := time.Now(), c.router.Health(b)
	changed := c.board.Ejected(u.key, h.Ejected, reasonOfFailure[h.Failure], at)
	if c.board.Failed(u.key, at) || changed {
		c.tell()
		c.poke()
	}
}

// heard takes a section of another node's state; none is empty.
func (c *checker) heard(origin string, section []byte) error {
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

// propose hands what is to be written down to the writer, if this node leads and
// the last has been written. Without probes nothing is: nobody would see an engine
// come back that gets no requests.
func (c *checker) propose(at time.Time) {
	s := c.store()
	if c.path == noProbes || len(c.writing) > 0 || s == nil || !s.Leading() {
		return
	}
	if list := c.board.Proposals(at); len(list) > 0 {
		c.writing <- list // capacity 1, and nobody else sends
	}
}

// write writes down what was proposed and which engines were restarted. An
// engine that was restarted gets its new generation before it is given work.
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
	// An operator's change that crosses this one stands: see SetBackendState.
	if c.apply(ctx, raftstore.SetBackendState{
		Names: p.Names, Action: action, Reason: p.Reason, By: raftstore.ByHealth, IfVersions: p.Versions,
	}) {
		count.Add(uint64(len(p.Names)))
		c.log.Warn().Strs("backends", p.Names).Stringer("state", action).Str("reason", p.Reason).Msg("written down")
	}
}

// stillDown leaves in a proposal to put engines to work again those that are down by
// health's word still: what an operator has taken over while others were written
// would not be put to work, but its generation would be raised. It reports whether any
// are left.
func (c *checker) stillDown(p *health.Proposal) bool {
	down := make(map[string]bool)
	for _, u := range c.fleet.roster().list {
		down[u.Name] = u.downByHealth()
	}
	p.Names = slices.DeleteFunc(p.Names, func(name string) bool { return !down[name] })
	p.Renew = slices.DeleteFunc(p.Renew, func(g health.Generation) bool { return !down[g.Name] })
	return len(p.Names) > 0
}

// renew writes down that an engine has begun anew. That somebody else was faster
// is as good.
func (c *checker) renew(ctx context.Context, g health.Generation) {
	if c.apply(ctx, raftstore.NewGeneration{Name: g.Name, From: g.From}) {
		c.raised.Add(1)
		c.log.Info().Str("backend", g.Name).Msg("engine restarted: what its cache held is forgotten")
	}
}

// apply reports whether the fleet is another because of a command.
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
	// It is noticed again: a state is proposed until it shows.
	c.refused.Add(1)
	c.log.Warn().Err(err).Msg("cannot be written down")
	return false
}

// started takes when an engine's process began, as its metrics say.
func (c *checker) started(u *upstream, m *engine.Metrics) {
	if m.Started <= 0 {
		return
	}
	began := time.UnixMilli(int64(m.Started * 1000))
	if ended, again := c.board.Started(u.key, began, u.generation); again {
		c.restarted(health.Generation{Name: u.Name, From: ended})
	}
}

// forgot takes an engine's answers having shown an empty cache.
func (c *checker) forgot(b prefixtree.Backend) {
	u := c.fleet.roster().at(b)
	if u == nil {
		return
	}
	if ended, again := c.board.Forgot(u.key, time.Now()); again {
		c.restarted(health.Generation{Name: u.Name, From: ended})
	}
}

func (c *checker) restarted(g health.Generation) {
	select {
	case c.raise <- g:
	default: // more restarts than a fleet has in a day are waiting
		c.refused.Add(1)
	}
}

// Package node is one router as a value: New builds it, Start serves, Stop drains and cleans up.
package node

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/gossip"
	"grapevine.example/node/accesslog"
	"grapevine.example/node/accounts"
	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/node/doctor"
	"grapevine.example/node/health"
	"grapevine.example/node/history"
	"grapevine.example/node/hot"
	"grapevine.example/node/metrics"
	"grapevine.example/node/share"
	"grapevine.example/node/sources"
	"grapevine.example/node/streams"
	"grapevine.example/node/traces"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

var (
	ErrStarted = errors.New("node was started before") // a node runs once
	ErrStopped = errors.New("node is stopped")
)

// Node is one router. Its methods are safe for concurrent use.
type Node struct {
	cfg      config.Config
	name     string
	log      zerolog.Logger
	hasher   *prefixtree.Hasher
	tree     *prefixtree.Tree
	shared   *share.Knowledge // with peers, and with this process's successor
	router   *policy.Router
	clients  *clientList
	meter    *clients.Meter // of clients' limits
	accounts accounts.Accounts
	proxy    *proxy.Proxy
	metrics  *metrics.Metrics
	access   *accesslog.Log
	traces   *traces.Exporter
	counts   history.Counts // of this node's requests
	history  *history.History
	receipts history.Receipts // of the last requests
	baseline *history.Baseline
	doctor   *doctor.Doctor
	cert     atomic.Pointer[tls.Certificate] // of the data port; nil without TLS

	running  atomic.Pointer[config.Config] // cfg plus what Reload applied; immutable
	reloadMu sync.Mutex                    // one Reload at a time
	reloaded atomic.Pointer[lastReload]    // nil: none yet
	retuned  atomic.Pointer[chan struct{}] // closed, and replaced, by the next Reload

	gossipCert atomic.Pointer[tls.Certificate] // last valid gossip_cert; nil: none configured

	health     *health.Checker
	sources    *sources.Sources
	streams    *streams.Streams
	hot        *hot.Replicator // applies and, on the leader, sizes hot prefixes
	backends   *backends.Directory
	store      atomic.Pointer[raftstore.Store] // the agreed state; nil: not started
	proposed   atomic.Bool                     // the configured backends were proposed
	refused    atomic.Bool                     // the fleet rejected them
	said       chan struct{}                   // closed once proposed or refused is known
	mesh       *gossip.Exchange                // opens before the store; nil without a fleet
	raftTimers raftstore.Timers                // tests only; zero: defaults
	met        atomic.Bool                     // gossip has tried the seeds
	knowledge  *knowledge                      // nil without a fleet
	gossip     atomic.Pointer[gossip.Exchange] // nil without a fleet, or not started
	nameWait   time.Duration                   // see defaultNameWait

	randomSecret []byte // nil: one is configured
	replacing    atomic.Bool
	released     atomic.Bool // single has ended because another process has it
	limits       limits
	before       atomic.Pointer[[]gossip.Load] // of engines, by the process that this one replaces

	ready   readiness
	serving atomic.Bool // started, and no stop requested

	failed chan error // a listener failed; capacity 1
	began  time.Time
	addr   atomic.Value // string: bound data address
	admin  atomic.Value // string: bound admin address

	metricsAddr atomic.Value // string: bound address of metrics_listen

	stopped chan struct{} // closed when Stop has finished
	stopErr error         // valid once stopped is closed

	mu       sync.Mutex // guards the rest
	state    lifecycle
	cleanups cleanups
	single   cleanups                // of what one process may own; see startSingle
	reports  cleanups                // of usage, to the processes that this one replaces and that replaces it; see EndReports
	sockets  map[string]net.Listener // those that listen, by setting
}

type lifecycle uint8

const (
	built lifecycle = iota
	running
	stopping
)

// New builds a node without starting listeners or goroutines. The error joins all mistakes of the
// configuration.
func New(cfg config.Config) (*Node, error) {
	cfg.Backends, cfg.Rules = slices.Clone(cfg.Backends), slices.Clone(cfg.Rules)
	if err := cfg.Validate("", nil); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, name: cfg.NodeName, failed: make(chan error, 1), stopped: make(chan struct{}), said: make(chan struct{}), sockets: make(map[string]net.Listener), nameWait: defaultNameWait, meter: clients.NewMeter()}
	if n.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("node_name is empty and there is no host name: %w", err)
		}
		n.name = host
	}
	n.running.Store(&cfg)
	n.retuned.Store(new(make(chan struct{})))
	n.log = cfg.Log.With().Str("node", n.name).Logger()
	if err := n.buildRouting(); err != nil {
		return nil, err
	}
	var err error
	if n.clients, err = newClientList(cfg.ClientsFile); err != nil {
		return nil, err
	}
	n.accounts.SetPrice(cfg.GPUHourPrice)
	if n.clients.book != nil {
		n.accounts.Adopt(n.clients.book)
	}
	if err := n.buildProxy(); err != nil {
		return nil, err
	}
	n.ready.announce = n.proxy.Ready
	which, err := accesslog.Parse(cfg.AccessLog)
	if err != nil {
		return nil, err // not after Validate
	}
	var out io.Writer = io.Discard
	if cfg.Stdout != nil {
		out = cfg.Stdout
	}
	n.access = accesslog.New(cfg.AccessLogFile, out, n.name, which)
	collector, err := collectorOf(&cfg)
	if err != nil {
		return nil, err
	}
	n.traces = traces.New(traces.Config{Node: n.name, Cluster: cfg.Cluster, Version: cfg.Version, Log: n.log.With().Str("component", "traces").Logger()})
	n.traces.Use(collector)
	if n.cfg.AdminTokenFile != "" {
		if _, err := admin.ReadToken(n.cfg.AdminTokenFile); err != nil {
			return nil, err
		}
	}
	if n.knowledge != nil {
		if err := n.checkGossip(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) buildRouting() error {
	secret, err := n.cfg.HashSecret()
	if err != nil {
		return err
	}
	if len(secret) == 0 {
		if secret = n.cfg.Inherited.RandomSecret; secret == nil {
			secret = make([]byte, 32)
			rand.Read(secret) // never fails
		}
		n.randomSecret = secret
	}
	if n.hasher, err = prefixtree.NewHasher(secret, n.cfg.BlockBytes); err != nil {
		return fmt.Errorf("hasher: %w", err)
	}
	tree := prefixtree.Config{Budget: int64(n.cfg.TreeBudget), Horizon: n.cfg.Horizon, MaxBackends: n.cfg.MaxNumbers()}
	outbox := prefixtree.NewOutbox(0)
	if n.cfg.InFleet() {
		tree.Changed = outbox.Add
		tree.Placed = func(b prefixtree.Backend, anchor prefixtree.Hash, span int, at prefixtree.Time) {
			n.streams.Placed(b, anchor, span, at)
		}
	}
	if n.tree, err = prefixtree.New(tree); err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	n.streams = streams.New(n.streamsConfig(secret))
	numbers := backends.NewRegistry(n.cfg.MaxNumbers(), n.release, time.Now)
	n.doctor = doctor.New(n.cfg.DoctorSamples)
	if n.router, err = policy.NewRouter(n.policyConfig(&n.cfg), n.tree); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	n.backends, err = backends.NewDirectory(backends.Config{
		Own: n.cfg.Backends, Rules: n.cfg.Rules, Idle: n.cfg.UpstreamIdle, Numbers: numbers, Log: n.log,
		Publish: n.publish, Reported: n.loadReported, Nodes: n.fleetSize,
	})
	if err != nil {
		return err
	}
	checks := health.CheckerConfig{
		Self: n.name, Probing: probingOf(&n.cfg),
		Backends: n.backends, Router: n.router, Log: n.log.With().Str("component", "health").Logger(),
	}
	if n.cfg.InFleet() {
		checks.Peers, checks.Touch = n.heardNodes, n.touch
	}
	n.health = health.NewChecker(checks)
	n.history, n.baseline = history.New(&n.counts), history.NewBaseline(&n.counts, time.Now())
	hotCfg := hot.Config{Router: n.router, Log: n.log.With().Str("component", "hot").Logger()}
	n.shared = share.New(n.tree, outbox, n.router, numbers)
	if n.cfg.InFleet() {
		n.knowledge = newKnowledge(n.shared, n.router, n.health, n.meter, n.history, n.doctor)
		n.knowledge.figures = func(dst []gossip.Figure) []gossip.Figure {
			return appendQueue(n.counts.Append(dst, n.proxy.InFlight(), n.lags()), n.ownQueue(peerLines))
		}
		hotCfg.Peers = func(sum hot.Sum) { n.knowledge.shared.PeerWork(sum.Add) }
	}
	n.hot = hot.New(hotCfg)
	if n.sources, err = sources.New(n.cfg.BackendsFrom, n.busy, n.log.With().Str("component", "sources").Logger()); err != nil {
		return err
	}
	n.metrics = metrics.New(n.cfg.Version, n.collect)
	return n.backends.Publish()
}

// assumedBytesPerToken gives the horizon's first guess, which the tree then improves.
const assumedBytesPerToken = 4

func (n *Node) buildProxy() error {
	cert, err := n.readCertificate()
	if err != nil {
		return err
	}
	n.useCertificate(cert)
	var tlsConfig *tls.Config
	if n.cfg.TLSCert != "" {
		tlsConfig = &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return n.cert.Load(), nil },
			MinVersion:     tls.VersionTLS12,
		}
	}
	cfg, err := n.proxyConfig(tlsConfig, &n.cfg)
	if err == nil {
		n.proxy, err = proxy.New(cfg)
	}
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	if n.knowledge != nil {
		n.knowledge.waiting = n.proxy
	}
	return nil
}

// Start serves; it waits for no engine. It returns ErrRefused if the fleet rejects the node. ctx
// bounds the start only. After an error the node is stopped.
func (n *Node) Start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.state {
	case running:
		return ErrStarted
	case stopping:
		return ErrStopped
	}
	n.state = running
	if err := n.start(ctx); err != nil {
		n.state = stopping
		n.stopErr = n.cleanups.unwind(ctx)
		close(n.stopped)
		return errors.Join(err, n.stopErr)
	}
	return nil
}

// start begins what serves requests, which a draining process keeps to its end, and within it what only one process may own.
func (n *Node) start(ctx context.Context) error {
	n.began = time.Now()
	n.warnLimits(&n.cfg)
	n.ready.wait(because("starting"))
	if err := n.access.Open(); err != nil {
		return err
	}
	n.cleanups.push("access log", func(context.Context) error { return n.access.Close() })
	n.run(&n.cleanups, "traces", n.traces.Run)
	ln, err := n.listen(ctx, "listen", n.cfg.Listen, n.cfg.Inherited.Data)
	if err != nil {
		return err
	}
	n.cleanups.push("listener", func(context.Context) error {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	n.addr.Store(ln.Addr().String())
	n.cleanups.push("engine connections", func(context.Context) error {
		n.backends.Close()
		return nil
	})
	if n.storeIsOwn() {
		if err := n.startStore(ctx, &n.cleanups); err != nil {
			return err
		}
	}
	n.cleanups.push("single", n.single.unwind)
	if err := n.startSingle(ctx, n.cfg.Inherited.Admin, n.cfg.Inherited.Metrics); err != nil {
		return err
	}
	if n.cfg.Inherited.TakesOver {
		n.warmUp(ctx) // meanwhile the predecessor serves
	}
	n.setFleet()
	served := make(chan struct{})
	go func() {
		defer close(served)
		// ErrClosed: Stop came before this goroutine.
		if err := n.proxy.Serve(ln); err != nil && !errors.Is(err, proxy.ErrClosed) {
			n.fail(fmt.Errorf("proxy: %w", err))
		}
	}()
	n.cleanups.push("proxy", func(ctx context.Context) error {
		err := n.proxy.Shutdown(ctx)
		<-served
		return err
	})
	switch {
	case n.cfg.Inherited.TakesOver:
	case n.mesh == nil:
		n.warmUp(ctx)
	default:
		n.run(&n.cleanups, "warm-up", n.warmUp)
	}
	e := n.log.Info().Str("component", "node").Str("event", EventStarted).Str("listen", n.Addr()).Str("admin", n.AdminAddr())
	if addr := n.GossipAddr(); addr != "" {
		e = e.Str("gossip", addr)
	}
	e.Int("backends", len(n.cfg.Backends)).Str("strategy", n.cfg.Strategy).Msg("serving")
	if n.cfg.ClientsFile == "" {
		n.log.Info().Str("component", "clients").Msg("no clients_file: everybody who reaches the data port may use all models, without limits")
	} else {
		n.run(&n.cleanups, "clients", n.followClients, n.followFleet)
	}
	if n.cfg.Inherited.TakesOver {
		n.run(&n.cleanups, "predecessor", n.forgetPredecessor)
	}
	if len(n.cfg.Backends) == 0 {
		n.log.Warn().Str("component", "node").Msg("no backends: every request will be refused")
	}
	n.serving.Store(true)
	return nil
}

// startSingle begins what only one process of this node may own: its ports but that of clients, its
// data directory, its name in the fleet. A process that hands over ends them first. It begins with the
// admin API, so that cleanup in reverse order ends it last.
func (n *Node) startSingle(ctx context.Context, adminPort, metricsPort net.Listener) error {
	if err := n.startAdmin(ctx, adminPort); err != nil {
		return err
	}
	if err := n.startMetrics(ctx, metricsPort); err != nil {
		return err
	}
	if !n.storeIsOwn() {
		if err := n.startStore(ctx, &n.single); err != nil {
			return err
		}
	}
	n.startDiscovery()
	n.run(&n.single, "health", func(ctx context.Context) { n.health.Run(ctx, n.store.Load()) })
	n.run(&n.single, "history", n.keepHistory)
	n.run(&n.single, "hot prefixes", func(ctx context.Context) { n.hot.Run(ctx, n.store.Load()) })
	n.run(&n.single, "sources", func(ctx context.Context) { n.sources.Run(ctx, n.store.Load()) })
	if err := n.startGossip(ctx); err != nil {
		return err
	}
	if !n.streams.Idle() { // after gossip: alone, a node would follow all engines
		n.run(&n.single, "cache events", n.streams.Run, n.streams.Search)
	}
	if err := n.awaitProven(ctx); err != nil {
		return err
	}
	if n.mesh != nil {
		n.handOnFirst()
	}
	return nil
}

// storeIsOwn: a router alone without data_dir keeps its state in memory, where no other process wants it.
func (n *Node) storeIsOwn() bool { return !n.cfg.InFleet() && n.cfg.DataDir == "" }

// warnLimits logs where the machine allows less than what is configured.
func (n *Node) warnLimits(cfg *config.Config) {
	limits := cfg.Fit()
	limits.Warn(cfg, n.log.With().Str("component", "node").Logger())
}

// run starts loops that end with their context, which the cleanup of this name cancels.
func (n *Node) run(owner *cleanups, name string, loops ...func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() { loop(ctx) })
	}
	owner.push(name, func(context.Context) error {
		cancel()
		running.Wait()
		return nil
	})
}

func (n *Node) startDiscovery() {
	poll := func(interval func(*config.Config) time.Duration, ask func(context.Context, *backends.Engine)) func(context.Context) {
		return func(ctx context.Context) { n.poll(ctx, interval, ask) }
	}
	n.run(&n.single, "discovery",
		poll(func(c *config.Config) time.Duration { return c.ModelsInterval }, n.backends.AskModels),
		poll(func(c *config.Config) time.Duration { return c.MetricsInterval }, n.backends.AskMetrics),
		poll(func(c *config.Config) time.Duration { return c.LoadsInterval }, n.backends.AskLoads))
}

// poll asks all engines at the interval in force, and none while that is 0. A reload that changes it begins a new round.
func (n *Node) poll(ctx context.Context, interval func(*config.Config) time.Duration, ask func(context.Context, *backends.Engine)) {
	for ctx.Err() == nil {
		retuned := *n.retuned.Load()
		every := interval(n.Running())
		asking, stop := context.WithCancel(ctx)
		var polling sync.WaitGroup
		if every > 0 {
			polling.Go(func() { n.backends.Poll(asking, every, ask) })
		}
		for ctx.Err() == nil && interval(n.Running()) == every {
			select {
			case <-ctx.Done():
			case <-retuned:
				retuned = *n.retuned.Load()
			}
		}
		stop()
		polling.Wait()
	}
}

// fleetSize counts the live nodes, this one included.
func (n *Node) fleetSize() int {
	if n.knowledge == nil {
		return 1
	}
	return int(n.knowledge.nodes.Load())
}

func (n *Node) loadReported(e *backends.Engine, l *backends.Load, leads bool) {
	n.health.Started(e, &l.Metrics)
	if a := l.Adapters; a != nil {
		n.router.SetAdapters(e.ID, a.Slots, a.InUse, now())
	}
	n.streams.Loaded(e.ID, &l.Metrics, n.router.Rate(e.ID))
	if !leads {
		return
	}
	t := books.Telemetry{At: prefixtree.Time(l.At.UnixMilli()), Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage, Queued: l.Queued}
	if l.Running < 0 || l.Waiting < 0 {
		t.Queued = -1 // an engine's queue needs all three
	}
	if l.ComputeTime > 0 {
		t.Prefilled, t.PrefillTime, t.Prefills = l.Computed, l.ComputeTime, max(l.Prefills, 0)
		t.FirstTokens, t.FirstComputed = max(l.FirstTokens, 0), max(l.FirstComputed, 0)
	}
	n.router.SetTelemetry(e.ID, t)
}

func (n *Node) busy(name string) bool {
	e := n.backends.Roster().Named(name)
	if e == nil {
		return false
	}
	_, own := n.router.Load(e.ID)
	_, others := n.router.PeerLoad(e.ID)
	return own+others > 0
}

// Drain makes /readyz answer 503 and serves for grace, so that load balancers react. Call Stop
// next.
func (n *Node) Drain(ctx context.Context, grace time.Duration) {
	n.endReadiness("draining")
	n.log.Info().Str("component", "node").Str("event", EventDrainStarted).Float64("grace_s", grace.Seconds()).Float64("timeout_s", n.Running().DrainTimeout.Seconds()).Msg("draining")
	select {
	case <-time.After(grace):
	case <-ctx.Done():
	}
}

func (n *Node) endReadiness(reason string) {
	if n.Ready() {
		n.log.Info().Str("component", "node").Str("event", EventNotReady).Str("reason", reason).Msg("not ready")
	}
	n.ready.drain(reason)
}

// Stop lets running requests finish until ctx ends, then cuts them. It is idempotent; later calls
// wait for the first or their own ctx.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	first := n.state != stopping
	n.state = stopping
	n.mu.Unlock()
	if first {
		n.serving.Store(false)
		// No Start can run any more, so no lock is needed.
		n.endReadiness("stopping")
		n.stopErr = n.cleanups.unwind(ctx)
		close(n.stopped)
		n.log.Info().Str("component", "node").Str("event", EventStopped).Err(n.stopErr).Msg("stopped")
		return n.stopErr
	}
	select {
	case <-n.stopped:
		return n.stopErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Failed delivers the error of a failed listener. The caller must still call Stop.
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) fail(err error) {
	n.log.Error().Str("component", "node").Err(err).Msg("listener failed")
	select {
	case n.failed <- err:
	default:
	}
}

func (n *Node) Name() string { return n.name }

func (n *Node) Addr() string { s, _ := n.addr.Load().(string); return s }

func (n *Node) AdminAddr() string { s, _ := n.admin.Load().(string); return s }

func (n *Node) Ready() bool {
	ready, _ := n.ready.get()
	return ready
}

func now() prefixtree.Time { return prefixtree.Time(time.Now().UnixMilli()) }

package node

import (
	"cmp"
	"crypto/tls"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/node/health"
	"grapevine.example/node/history"
	"grapevine.example/node/streams"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// The parts implement their consumers' interfaces.
var (
	_ policy.Index = (*prefixtree.Tree)(nil)
	_ proxy.Picker = (*picker)(nil)
)

type picker struct{ n *Node }

func (p *picker) Now() prefixtree.Time { return now() }

func (p *picker) Pick(q *policy.Request, a *policy.Attempt) (proxy.Target, error) {
	n := p.n
	err := n.router.Pick(q, now(), a)
	if errors.Is(err, policy.ErrUnknownModel) && n.backends.Roster().Open {
		err = n.anyModel(q, func() error { return n.router.Pick(q, now(), a) })
	}
	if err != nil {
		return proxy.Target{}, err
	}
	d := a.Decision()
	n.baseline.Visit(q.Hashes, d.Eligible, n.fleetSize(), time.Now())
	return *d.Handle.(*proxy.Target), nil
}

func (p *picker) PickPrefill(q *policy.Request, decode, a *policy.Attempt) (proxy.Target, bool) {
	if !p.n.router.PickPrefill(q, now(), decode, a) {
		return proxy.Target{}, false
	}
	return *a.Decision().Handle.(*proxy.Target), true
}

// anyModel decides as if the request named no model: learned lists may be out of date, so an engine
// has to judge.
func (n *Node) anyModel(q *policy.Request, decide func() error) error {
	model := q.Model
	q.Model = nil
	err := decide()
	q.Model = model
	return err
}

// policyConfig takes from cfg what policy.Router.Retune applies, and the rest as the node started.
func (n *Node) policyConfig(cfg *config.Config) policy.Config {
	return policy.Config{
		Strategy: cfg.Strategy, BlockBytes: n.cfg.BlockBytes,
		Nodes: 1, Weights: cfg.Weights, HashBlocks: cfg.HashBlocks, Seed: mathrand.Uint64(), SlowStart: orNone(cfg.SlowStart), Truth: n.streams,
		Zone: cfg.Zone, ZoneCost: cfg.ZoneCost,
		Gate:   policy.Gate{TTFT: cfg.QueueTTFT, Waiting: cfg.QueueWaiting, InFlight: cfg.QueueInFlight},
		Failed: func(b prefixtree.Backend, _ books.Failure, _ prefixtree.Time) { n.health.Failed(b) },
		Forgot: func(b prefixtree.Backend) { n.health.Forgot(b) },
	}
}

func probingOf(cfg *config.Config) health.Probing {
	return health.Probing{Path: cfg.ProbePath, Interval: cfg.ProbeInterval, Timeout: cfg.ProbeTimeout}
}

// proxyConfig takes from cfg what proxy.Proxy.Retune applies, and the rest as the node started.
func (n *Node) proxyConfig(tlsConfig *tls.Config, cfg *config.Config) (proxy.Config, error) {
	headers, err := proxy.ParseResponseHeaders(cfg.ResponseHeaders)
	if err != nil {
		return proxy.Config{}, err
	}
	tenant, err := proxy.ParseTenant(cfg.Tenant)
	if err != nil {
		return proxy.Config{}, err
	}
	book, _, _ := n.clients.state() // locks: a reload calls this beside followClients
	limits, waiting := cfg.Fit(), proxy.Queue{Router: n.router}
	if cfg.QueueRequests > 0 {
		waiting.Limits = queue.Limits{
			Requests: cfg.QueueRequests, Bytes: int64(cmp.Or(cfg.QueueBytes, limits.BodyMemory/2)), Wait: cfg.QueueTimeout,
		}
	}
	return proxy.Config{
		Picker:   &picker{n},
		Hasher:   n.hasher,
		Models:   n.backends.ModelsAnswer,
		Stamper:  n.streams,
		Clients:  book,
		Meter:    n.meter,
		Roles:    n.router.Roles,
		Rules:    n.router,
		Sketch:   n.doctor.Sketch,
		Observer: n.observe,
		Log:      n.log.With().Str("component", "proxy").Logger(),
		NodeName: n.name,

		PromptTokens: n.router.PromptTokens,

		PassPaths: cfg.PassPaths, AllowEngineControl: cfg.AllowEngineControl, ResponseHeaders: headers, Tenant: tenant,
		Queue: waiting, Tracing: cfg.OTLPEndpoint != "", TraceShare: cfg.TraceShare,

		MaxBody:       int(limits.MaxBody),
		MaxBodyMemory: int(limits.BodyMemory),
		MaxHeader:     int(cfg.MaxHeader),
		MaxAttempts:   cfg.MaxAttempts,
		MaxConns:      limits.Connections,
		MaxIdle:       cfg.MaxIdle,

		Timeouts: proxy.Timeouts{
			Read: cfg.ReadTimeout, KeepAlive: cfg.KeepAlive, Connect: cfg.ConnectTimeout,
			FirstByte: cfg.FirstByteTimeout, StreamFirstByte: cfg.StreamFirstByteTimeout, Idle: cfg.IdleTimeout,
			HeaderHold: orNone(cfg.HeaderHold), Write: cfg.WriteTimeout, UpstreamIdle: cfg.UpstreamIdle,
			DrainGrace: orNone(cfg.DrainClose),
		},
		TLS:           tlsConfig,
		ProxyProtocol: cfg.ProxyProtocol,
	}, nil
}

func (n *Node) streamsConfig(secret []byte) streams.Config {
	c := streams.Config{
		Self: n.name, Off: n.cfg.Events == config.EventsOff, Addresses: make(map[string]string),
		Backends: func() *backends.Directory { return n.backends }, Tree: n.tree, Secret: secret, BlockBytes: n.cfg.BlockBytes,
		Log: n.log.With().Str("component", "cache events").Logger(),
	}
	for i := range n.cfg.Backends {
		if b := &n.cfg.Backends[i]; b.Events != "" {
			c.Addresses[b.Name] = b.Events
		}
	}
	if n.cfg.InFleet() {
		c.Peers = n.followingNodes
	}
	return c
}

func (n *Node) observe(r *proxy.Record) {
	n.metrics.Observe(r)
	n.accounts.Observe(r)
	n.traces.Observe(r)
	rate, by := 0.0, history.Deciding(r)
	if by != nil {
		rate = n.router.Rate(by.Backend)
	}
	n.counts.Observe(r, rate)
	if r.Sketch != nil {
		n.doctor.Observe(r, by, rate, time.Now())
	}
	n.receipts.Observe(r)
	n.access.Observe(r)
}

// orNone turns a configured 0 (none) into -1, since the proxy's 0 is its default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

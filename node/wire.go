package node

import (
	"crypto/tls"
	"errors"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
)

// The house's interfaces stand with their consumers; that the pieces fit them
// is said here, once.
var (
	_ policy.Index     = (*prefixtree.Tree)(nil)
	_ policy.Retractor = (*prefixtree.Tree)(nil)
	_ proxy.Picker     = (*picker)(nil)
)

// picker lets the proxy ask the policy. Where the chosen backend is to be reached is part
// of the view that was decided by.
type picker struct{ n *Node }

// Now is the node's clock.
func (p *picker) Now() prefixtree.Time { return now() }

// Pick chooses a backend and books the request there.
func (p *picker) Pick(q *policy.Request, a *policy.Attempt) (proxy.Target, error) {
	n := p.n
	err := n.router.Pick(q, now(), a)
	if errors.Is(err, policy.ErrUnknownModel) && n.fleet.roster().open {
		err = n.anyModel(q, func() error { return n.router.Pick(q, now(), a) })
	}
	if err != nil {
		return proxy.Target{}, err
	}
	return *a.Decision().Handle.(*proxy.Target), nil
}

// anyModel decides again as if the request named no model. A model that no
// engine has listed is refused only if every list is configured: lists that
// were learned by asking may be out of date, and some engines answer to any
// name, so such a request goes to some engine and that engine judges it.
func (n *Node) anyModel(q *policy.Request, decide func() error) error {
	model := q.Model
	q.Model = nil
	err := decide()
	q.Model = model
	return err
}

// proxyConfig says in the proxy's words what a configuration says.
func (n *Node) proxyConfig(tlsConfig *tls.Config, cfg *Config) (proxy.Config, error) {
	headers, err := proxy.ParseResponseHeaders(cfg.ResponseHeaders)
	if err != nil {
		return proxy.Config{}, err
	}
	tenant, err := proxy.ParseTenant(cfg.Tenant)
	if err != nil {
		return proxy.Config{}, err
	}
	return proxy.Config{
		Picker:   &picker{n},
		Hasher:   n.hasher,
		Models:   n.fleet.modelsAnswer,
		Observer: n.observe,
		Log:      n.log.With().Str("component", "proxy").Logger(),
		NodeName: n.name,

		PassPaths: cfg.PassPaths, AllowEngineControl: cfg.AllowEngineControl, ResponseHeaders: headers, Tenant: tenant,

		MaxBody:       int(n.limits.maxBody),
		MaxBodyMemory: int(n.limits.bodyMemory),
		MaxHeader:     int(cfg.MaxHeader),
		MaxAttempts:   cfg.MaxAttempts,
		MaxConns:      n.limits.connections,
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

// observe takes a request that has ended.
func (n *Node) observe(r *proxy.Record) {
	n.metrics.observe(r)
	if n.warmer != nil {
		n.warmer.observe(r)
	}
}

// orNone turns the 0 of a configuration, none, into the proxy's, whose own 0
// is the default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

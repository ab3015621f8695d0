package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
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

// picker lets the proxy ask the policy, and turns the backend's id into where
// it is to be reached.
type picker struct{ n *Node }

// Now is the node's clock.
func (p *picker) Now() prefixtree.Time { return now() }

// Pick chooses a backend and books the request there.
func (p *picker) Pick(q *policy.Request, a *policy.Attempt) (proxy.Target, error) {
	n := p.n
	err := n.router.Pick(q, now(), a)
	if errors.Is(err, policy.ErrUnknownModel) && n.fleet.open {
		err = n.anyModel(q, func() error { return n.router.Pick(q, now(), a) })
	}
	if err != nil {
		return proxy.Target{}, err
	}
	return n.targets[a.Decision().Backend], nil
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

// proxyConfig says in the proxy's words what the configuration says.
func (n *Node) proxyConfig(tlsConfig *tls.Config) proxy.Config {
	return proxy.Config{
		Picker:   &picker{n},
		Hasher:   n.hasher,
		Models:   func() []proxy.Target { return n.targets },
		Observer: n.metrics.observe,
		Log:      n.log.With().Str("component", "proxy").Logger(),
		NodeName: n.name,

		MaxBody:     int(n.cfg.MaxBody),
		MaxHeader:   int(n.cfg.MaxHeader),
		MaxAttempts: n.cfg.MaxAttempts,
		MaxConns:    n.cfg.MaxConnections,
		MaxIdle:     n.cfg.MaxIdle,

		Timeouts: proxy.Timeouts{
			Read: n.cfg.ReadTimeout, KeepAlive: n.cfg.KeepAlive, Connect: n.cfg.ConnectTimeout,
			FirstByte: n.cfg.FirstByteTimeout, StreamFirstByte: n.cfg.StreamFirstByteTimeout, Idle: n.cfg.IdleTimeout,
			HeaderHold: orNone(n.cfg.HeaderHold), Write: n.cfg.WriteTimeout, UpstreamIdle: n.cfg.UpstreamIdle,
			DrainGrace: orNone(n.cfg.DrainClose),
		},
		TLS:           tlsConfig,
		ProxyProtocol: n.cfg.ProxyProtocol,
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

// buildTargets says where each backend is reached, by id.
func buildTargets(backends []Backend) ([]proxy.Target, error) {
	targets := make([]proxy.Target, len(backends))
	for id := range backends {
		b := &backends[id]
		addr, host, base, secure := b.address()
		t := proxy.Target{ID: prefixtree.Backend(id), Name: b.Name, Addr: addr, Host: host, BasePath: base}
		if secure {
			cfg, err := b.tlsConfig()
			if err != nil {
				return nil, fmt.Errorf("backend %s: %w", b.Name, err)
			}
			t.TLS = cfg
		}
		if b.APIKey != "" {
			t.Header = [][2]string{{"Authorization", "Bearer " + b.APIKey}}
		}
		targets[id] = t
	}
	return targets, nil
}

// tlsConfig is how an https backend is verified.
func (b *Backend) tlsConfig() (*tls.Config, error) {
	_, host, _, _ := b.address()
	cfg := &tls.Config{ServerName: hostname(host), MinVersion: tls.VersionTLS12}
	if b.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(b.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca_file %s holds no certificate", b.CAFile)
	}
	return cfg, nil
}

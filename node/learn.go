package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// newAsker reaches every backend as the proxy does, over connections of its own.
func (n *Node) newAsker() *asker {
	a := &asker{backends: n.cfg.Backends}
	for id := range n.cfg.Backends {
		a.clients = append(a.clients, &http.Client{Transport: &http.Transport{
			TLSClientConfig: n.targets[id].TLS.Clone(), MaxIdleConns: 1, IdleConnTimeout: n.cfg.UpstreamIdle,
			// Engines are addressed directly, whatever the environment says of proxies.
			Proxy: nil,
		}})
	}
	return a
}

// publish makes a new view of the fleet the one that requests are routed by.
func (n *Node) publish(v *policy.View) {
	n.router.SetView(v)
	n.metrics.addModels(v.Models())
}

// learnModels returns the question for models, and what is done with the
// answer. State changes are logged, not answers.
func (n *Node) learnModels(a *asker) func(ctx context.Context, id int) {
	log := n.log.With().Str("component", "discovery").Logger()
	const answering, silent = 1, 2           // 0: not asked yet
	states := make([]uint8, len(a.backends)) // each written by one question at a time
	return func(ctx context.Context, id int) {
		b := &a.backends[id]
		if len(b.Models) > 0 {
			return // configured, and believed
		}
		models, failure := a.models(ctx, id)
		if errors.Is(failure, context.Canceled) {
			return // the node stops
		}
		changed, err := n.fleet.learnModels(id, models, failure, n.publish)
		was, is := states[id], uint8(answering)
		if failure != nil {
			is = silent
		}
		states[id] = is
		switch {
		case err != nil:
			log.Error().Err(err).Str("backend", b.Name).Msg("models do not make a view")
		case is == silent && was != silent:
			log.Warn().Err(failure).Str("backend", b.Name).Msg("backend does not tell its models")
		case changed, is == answering && was != answering:
			log.Info().Str("backend", b.Name).Int("models", len(models)).Msg("backend told its models")
		}
	}
}

// learnMetrics returns the question for an engine's load and the size of its
// cache. Engines without metrics are asked again in vain, and nothing depends
// on them: the policy has its own estimates.
func (n *Node) learnMetrics(a *asker) func(ctx context.Context, id int) {
	return func(ctx context.Context, id int) {
		m, err := a.metrics(ctx, id)
		if err != nil {
			return // shown by /backends as the age of the last answer
		}
		n.router.SetTelemetry(prefixtree.Backend(id), policy.Telemetry{Running: m.Running, Waiting: m.Waiting, KVUsage: m.KVUsage})
		grew, err := n.fleet.learnMetrics(id, m, time.Now(), n.publish)
		if err != nil {
			n.log.Error().Str("component", "discovery").Err(err).Str("backend", a.backends[id].Name).Msg("metrics do not make a view")
		}
		if grew {
			n.setCapacity(id, int(m.KVTokens))
		}
	}
}

// setCapacity tells the tree how much a backend's cache holds.
func (n *Node) setCapacity(id, tokens int) {
	n.tree.SetCapacity(prefixtree.Backend(id), tokens*assumedBytesPerToken/n.cfg.BlockBytes)
}

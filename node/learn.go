package node

import (
	"context"
	"errors"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

func (n *Node) learnModels() question {
	log := n.log.With().Str("component", "discovery").Logger()
	return func(ctx context.Context, u *upstream) {
		if len(u.Models) > 0 {
			return // declared models take precedence
		}
		models, failure := u.askModels(ctx)
		if errors.Is(failure, context.Canceled) {
			return // the node stops
		}
		changed, was, err := n.fleet.learnModels(u, models, failure)
		switch {
		case err != nil:
			log.Error().Err(err).Str("backend", u.Name).Msg("models do not make a view")
		case failure != nil && was != silent:
			log.Warn().Err(failure).Str("backend", u.Name).Msg("backend does not tell its models")
		case changed, failure == nil && was != tells:
			log.Info().Str("backend", u.Name).Int("models", len(models)).Msg("backend told its models")
		}
	}
}

// learnMetrics ignores engines without metrics: the policy has its own estimates.
func (n *Node) learnMetrics() question {
	return func(ctx context.Context, u *upstream) {
		m, err := u.askMetrics(ctx)
		if err != nil {
			return // /backends shows the age of the last answer
		}
		if now := n.fleet.roster().at(u.id); now == nil || now.link != u.link {
			return // the number may be another engine's
		}
		n.checker.started(u, &m)
		n.router.SetTelemetry(u.id, policy.Telemetry{Running: m.Running, Waiting: m.Waiting, KVUsage: m.KVUsage})
		grew, err := n.fleet.learnMetrics(u, m, time.Now())
		if err != nil {
			n.log.Error().Str("component", "discovery").Err(err).Str("backend", u.Name).Msg("metrics do not make a view")
		}
		if grew {
			n.setCapacity(u.id, int(m.KVTokens))
		}
	}
}

func (n *Node) setCapacity(b prefixtree.Backend, tokens int) {
	n.tree.SetCapacity(b, tokens*assumedBytesPerToken/n.cfg.BlockBytes)
}

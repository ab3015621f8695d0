package node

import (
	"context"
	"fmt"
	"time"
)

// awaitProven waits, within warm_deadline, until this node knows whether its recovered data would
// form a second group in the fleet; if so, the start fails. While that is unknown, the node serves
// but takes no changes.
func (n *Node) awaitProven(ctx context.Context) error {
	n.met.Store(true)
	s := n.store.Load()
	s.Poke()
	deadline := time.NewTimer(n.cfg.WarmDeadline)
	defer deadline.Stop()
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		proven, err := s.Proven()
		if err != nil {
			return fmt.Errorf("%w: data_dir: %w", ErrRefused, err)
		}
		if proven {
			return nil
		}
		n.ready.wait(because("recovered data waits " + s.Status().Waiting))
		select {
		case <-poll.C:
		case <-deadline.C:
			n.log.Warn().Str("component", "agreement").Str("for", s.Status().Waiting).Msg("recovered data is not in service yet: serving without it")
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

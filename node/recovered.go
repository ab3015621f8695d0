package node

import (
	"context"
	"fmt"
	"time"
)

// awaitProven waits, within the time a start has for the others, until it is known that
// the fleet has no other group than the one that this node's data was recovered as. A
// node of a second one is not started: its operator is told while he looks. If it
// cannot be known yet, the node serves, and takes no changes until it is.
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

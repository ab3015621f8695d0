package main

import (
	"context"
	"os"

	"github.com/rs/zerolog"

	"grapevine.example/node"
	"grapevine.example/node/notify"
)

// supervision reports to the service manager, if any. Not safe for concurrent use.
type supervision struct {
	manager   *notify.Manager
	node      *node.Node
	log       zerolog.Logger
	unwatch   func() // ends the watch, if one runs
	successor int    // the process that the manager supervises instead of this one; 0: none
}

func supervise(n *node.Node, log zerolog.Logger) (*supervision, error) {
	manager, err := notify.FromEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	return &supervision{manager: manager, node: n, log: log.With().Str("component", "notify").Logger(), unwatch: func() {}}, nil
}

func (s *supervision) send(lines ...string) {
	if s.successor != 0 {
		return
	}
	if err := s.manager.Send(lines...); err != nil {
		s.log.Error().Err(err).Msg("cannot notify the service manager")
	}
}

func (s *supervision) starting() {
	s.send(notify.Status("starting"), notify.Extend(s.node.StartWithin()))
}

// started reports that the node serves, not that it is warm: the manager must not kill a node that
// waits for its peers.
func (s *supervision) started() {
	s.send(notify.Ready, notify.Status(s.node.Summary()))
	s.watch()
}

func (s *supervision) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.manager.Watch(ctx, s.node, func(err error) {
			s.log.Error().Err(err).Msg("self-check failed: no sign of life goes to the watchdog, which restarts the router")
		})
	}()
	s.unwatch = func() {
		cancel()
		<-done
	}
}

func (s *supervision) reloaded(reload func() error) {
	s.send(notify.Reloading)
	if err := reload(); err != nil {
		s.log.Error().Str("event", node.EventReloadRefused).Err(err).Msg("not reloaded: the configuration in force stays")
	}
	s.send(notify.Ready)
}

// handOver makes another process the one that the manager supervises: it ignores this one from now on.
func (s *supervision) handOver(pid int) error {
	s.unwatch()
	if err := s.manager.Send(notify.MainPID(pid)); err != nil {
		s.watch()
		return err
	}
	s.successor = pid
	return nil
}

func (s *supervision) stopping() {
	s.unwatch()
	s.send(notify.Stopping, notify.Status("draining"), notify.Extend(s.node.StopWithin()))
}

func (s *supervision) close() {
	s.unwatch()
	s.manager.Close()
}

package main

import (
	"context"
	"os"

	"github.com/rs/zerolog"

	"grapevine/node"
	"grapevine/node/notify"
)

// supervision is what the service manager that started this process is told; of
// a process that was started by none, nothing. Not safe for concurrent use.
type supervision struct {
	manager *notify.Manager
	node    *node.Node
	log     zerolog.Logger
	unwatch func() // ends the watch; nil: none
}

func supervise(n *node.Node, log zerolog.Logger) (*supervision, error) {
	manager, err := notify.FromEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	return &supervision{manager: manager, node: n, log: log.With().Str("component", "notify").Logger()}, nil
}

func (s *supervision) send(lines ...string) {
	if err := s.manager.Send(lines...); err != nil {
		s.log.Error().Err(err).Msg("the service manager does not hear")
	}
}

// starting asks for as much time as the start may take, which the configuration
// says and the unit cannot know.
func (s *supervision) starting() {
	s.send(notify.Status("starting"), notify.Extend(s.node.StartWithin()))
}

// started tells that the node serves. Whether it is warm is another question,
// which balancers ask at /readyz: a node that waits for what others know has
// started, answers, and must not be given up for being the first of its fleet.
func (s *supervision) started() {
	s.send(notify.Ready, notify.Status(s.node.Summary()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.manager.Watch(ctx, s.node, func(err error) { s.log.Error().Err(err).Msg("no sign of life for the watchdog") })
	}()
	s.unwatch = func() {
		cancel()
		<-done
	}
}

// reloaded does what SIGHUP asks for. A failure is told and changes nothing.
func (s *supervision) reloaded(reload func() error) {
	s.send(notify.Reloading)
	if err := reload(); err != nil {
		s.log.Error().Str("event", node.EventReloadRefused).Err(err).Msg("not reloaded: going on as before")
	}
	s.send(notify.Ready)
}

// stopping asks for as much time as the drain may take. From then on the manager
// watches the clock and not the node.
func (s *supervision) stopping() {
	if s.unwatch != nil {
		s.unwatch()
		s.unwatch = nil
	}
	s.send(notify.Stopping, notify.Status("draining"), notify.Extend(s.node.StopWithin()))
}

func (s *supervision) close() {
	if s.unwatch != nil {
		s.unwatch()
	}
	s.manager.Close()
}

// Package raftstore keeps what the nodes of a fleet must agree on exactly:
// backends with their ids and generations, hot prefixes, routing rules and the
// constants that must be equal everywhere. It is a raft group on a port of its
// own with its own durable log, and it looks after that group by itself: who
// bootstraps it, who joins, who votes.
//
// It does not know what the rules mean, does not call a backend, and is never
// asked on the path of a request: readers take State, an immutable value.
package raftstore

import (
	"context"
	"errors"
	"sync/atomic"
)

// Errors of Apply, Read and Transfer. errors.Is finds them.
var (
	// ErrNoLeader: nothing was done. The text says who is missing.
	ErrNoLeader = errors.New("no leader")
	// ErrUncertain: the command was handed on, and nobody knows whether it was
	// applied. The same command may be given again if that does no harm.
	ErrUncertain = errors.New("outcome unknown")
	// ErrStopped: the store was stopped.
	ErrStopped = errors.New("store stopped")
)

// Store is one node's part of the group. All methods may be called from any
// goroutine.
type Store struct {
	state   atomic.Pointer[State]
	changed atomic.Pointer[chan struct{}]
}

// Open opens the data, without starting anything that another node could see.
func Open(cfg Config) (*Store, error) { return nil, errors.New("raftstore: not built yet") }

// Start takes part in the group until Stop. It returns as soon as the node
// listens; whether there is a leader yet is seen in Status.
func (s *Store) Start(ctx context.Context) error { return errors.New("raftstore: not built yet") }

// Stop hands leadership on, if this node has it, and ends. It is idempotent.
func (s *Store) Stop(ctx context.Context) error { return nil }

// ID is the node's raft id: made once and kept in Config.Dir, never the address.
func (s *Store) ID() string { return "" }

// State is what this node knows the fleet to have agreed on. It never is nil,
// never blocks and never goes back.
func (s *Store) State() *State { return s.state.Load() }

// Changed gives a channel that is closed when State is replaced by a newer one.
// Take it before State, so that no change is missed.
func (s *Store) Changed() <-chan struct{} { return *s.changed.Load() }

// Apply commits a command. Any node takes it.
func (s *Store) Apply(ctx context.Context, c Command) (Result, error) {
	return Result{}, errors.New("raftstore: not built yet")
}

// Read gives a state that is at least as new as every Apply that had returned
// anywhere before Read was called.
func (s *Store) Read(ctx context.Context) (*State, error) {
	return nil, errors.New("raftstore: not built yet")
}

// Status says how this node sees the group.
func (s *Store) Status() Status { return Status{} }

// Transfer hands leadership to the server with this id, or to the most advanced
// one if it is empty. Any node takes it.
func (s *Store) Transfer(ctx context.Context, to string) error {
	return errors.New("raftstore: not built yet")
}

// RemoveServer removes a server from the group for good.
func (s *Store) RemoveServer(ctx context.Context, id string) error {
	return errors.New("raftstore: not built yet")
}

// Poke says that Peers would answer differently than a moment ago.
func (s *Store) Poke() {}

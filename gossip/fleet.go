package gossip

import (
	"context"
	"errors"

	"grapevine/gossip/member"
)

// Fleet is this node's part in the exchange. Safe for concurrent use.
type Fleet struct{}

// New checks cfg and prepares a node; it starts nothing.
func New(cfg Config) (*Fleet, error) { return nil, errors.New("gossip: not built yet") }

// Start listens, joins and begins to exchange. It does not wait for others: see Warm.
func (f *Fleet) Start(ctx context.Context) error { return nil }

// Stop sends what is left, leaves the fleet and returns when every goroutine is gone or ctx is done. Idempotent.
func (f *Fleet) Stop(ctx context.Context) error { return nil }

// Warm is closed when this node knows what its peers know, or there is nobody to learn from, or the deadline is over.
func (f *Fleet) Warm() <-chan struct{} { return nil }

// WarmFraction is how much of the others' knowledge has come, about, from 0 to 1; 1 once Warm is closed by success.
func (f *Fleet) WarmFraction() float64 { return 0 }

// Peers lists the other nodes by name, those that failed or left lately included.
func (f *Fleet) Peers() []Peer { return nil }

// Digests lists the buckets in which this node's journal is complete, oldest first.
func (f *Fleet) Digests() []Bucket { return nil }

// Stats returns the counters.
func (f *Fleet) Stats() Stats { return Stats{} }

// Members is the membership this fleet runs on.
func (f *Fleet) Members() *member.List { return nil }

// Package gossip exchanges knowledge between the nodes of a fleet: batches in sequence, load and a
// small state from each node to each other, with resume and snapshots. Payloads are opaque. See
// DESIGN.md.
package gossip

import (
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

// Load is one node's outstanding work on one backend.
type Load = wire.Load

// Usage is what one node's requests use of one client's limits.
type Usage = wire.Usage

// Figure is a number that one node measured, for its peers' operators.
type Figure = wire.Figure

// Applied counts a merge's effects.
type Applied struct {
	Records int // in the batch or page
	News    int // that changed something
	Unknown int // that name a backend this node does not know
}

// Knowledge gives meaning to payloads. Calls are concurrent, must not block on a network, a disk or
// another node, nor keep their slices. Adding shift converts a payload's times to this node's
// clock.
type Knowledge interface {
	// Drain appends at most max bytes of news; 0 records means no news or a next record beyond max.
	// One goroutine calls it.
	Drain(dst []byte, max int) (payload []byte, records int)
	// Apply merges a batch. Those of one process come in order, at most once, without those that a
	// snapshot replaced. An error means malformed: the stream closes and resumes behind the batch.
	Apply(origin string, payload []byte, shift time.Duration) (Applied, error)
	// Snapshot yields all knowledge, newest first, in pages of at most max bytes until yield
	// returns false. It must hold no lock: yield waits for the joiner.
	Snapshot(max int, yield func(page []byte, records int) bool)
	SnapshotSize() int // records, an estimate
	// ApplySnapshot merges a page of another node's snapshot.
	ApplySnapshot(page []byte, shift time.Duration) (Applied, error)
	// Loads appends this node's work, each backend at most once; unlisted backends are idle.
	Loads(dst []Load) []Load
	// PeerLoad takes the listed backends, or the whole vector if full, as the first one of a peer
	// is.
	PeerLoad(origin string, changed []Load, full bool)
	// Usage appends what this node's requests use, each client at most once; unlisted clients use
	// nothing.
	Usage(dst []Usage) []Usage
	// PeerUsage is PeerLoad for the usage of one process of a peer.
	PeerUsage(origin string, incarnation uint64, changed []Usage, full bool)
	// Figures appends what this node measured, each key at most once, every two seconds; unlisted keys
	// are 0.
	Figures(dst []Figure) []Figure
	// PeerFigures is PeerUsage for figures, which were measured at the given time in Unix milliseconds
	// of the peer's clock.
	PeerFigures(origin string, incarnation uint64, at int64, changed []Figure, full bool)
	// Claims appends at most wire.MaxClaims bytes, which replace the previous ones: what waits at this node.
	Claims(dst []byte) []byte
	// PeerClaims takes a peer's latest claims.
	PeerClaims(origin string, claims []byte)
	// DropPeer voids the load, usage, figures, claims and state, not the facts, of a peer that ended, restarted or is
	// silent. If it left, or another process has its name, its requests may still run, also after another has taken its place.
	DropPeer(origin string, left bool)
	// State appends at most wire.MaxState bytes, which replace the previous state.
	State(dst []byte) []byte
	// PeerState takes a peer's latest state.
	PeerState(origin string, state []byte)
	// Fleet reports the living nodes, this one included, and how old peers' actions are at most when this node
	// learns of them, on changes, at most once a second.
	Fleet(nodes int, staleness time.Duration)
}

// Config configures an Exchange. New copies it.
type Config struct {
	// Member configures the membership; New sets OnEvent and Serve, and the protocol range if zero.
	Member           member.Config
	Knowledge        Knowledge
	FlushInterval    time.Duration // period of sending news and load; 0 means 50 ms
	SnapshotDeadline time.Duration // a joiner's wait for a snapshot; 0 means 10 s
	Budget           int64         // bytes per second to all peers, before encryption; 0 means 8 MiB
	JournalBytes     int64         // memory of own batches; 0 means 16 MiB
	// clock is for tests: virtual time alone gives all nodes one wall clock.
	clock func(at time.Time) time.Time
	Log   zerolog.Logger
}

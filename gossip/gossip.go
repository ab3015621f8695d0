// Package gossip carries what a node knows to every other node of its fleet, and brings back what
// they know.
//
// Every node dials every other member and receives that member's knowledge on the connection:
// batches of news in sequence, its outstanding load, a small blob of state. After a broken
// connection the stream resumes by sequence number from the publisher's journal; if the journal
// does not go back that far, the subscriber takes a snapshot. A node that joins takes a snapshot
// from one peer before it takes part. DESIGN.md has the streams, the wire format and the bounds.
//
// The package does not know what a batch, a page or a state means: it moves bytes between values of
// Knowledge. It does not know who may be a member either; package member does.
package gossip

import (
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Load is the work one node has outstanding on one backend.
type Load = wire.Load

// Applied says what a batch or page did to the knowledge it was merged into.
type Applied struct {
	Records int // it had
	News    int // of them changed something
	Unknown int // of them name a backend this node does not know
}

// Knowledge is what a node knows: the side of gossip that gives meaning to bytes. All methods are
// called from goroutines of this package and must be safe for concurrent use. None may block on a
// network, a disk or another node: a call that takes long holds up one stream, or, for Drain, Loads
// and State, what this node publishes, or, for Fleet, its housekeeping.
//
// Times inside payloads and pages are their sender's. Shift is what to add to have this node's.
type Knowledge interface {
	// Drain appends at most max bytes of encoded news of this node to dst and says how many records
	// they are; none means that there are none, or that max is too small for the next. What stays
	// behind is offered again. Called by one goroutine.
	Drain(dst []byte, max int) (payload []byte, records int)
	// Apply merges a batch of another node. It keeps nothing of payload. The batches of one process
	// of origin come in order and each at most once; batches that a snapshot replaced do not come.
	// An error means that the payload is malformed: the stream from origin is closed, and later
	// goes on behind this batch.
	Apply(origin string, payload []byte, shift time.Duration) (Applied, error)
	// Snapshot yields all that is known in pages of at most max bytes, newest first, until done or
	// until yield returns false. Yield keeps nothing of page; it blocks for as long as the joiner
	// takes, so no lock may be held during it.
	Snapshot(max int, yield func(page []byte, records int) bool)
	// SnapshotSize is about how many records a snapshot would have now; joiners measure their
	// progress by it.
	SnapshotSize() int
	// ApplySnapshot merges a page of another node's snapshot. It keeps nothing of page.
	ApplySnapshot(page []byte, shift time.Duration) (Applied, error)
	// Loads appends this node's outstanding work to dst, each backend at most once; those left out
	// are idle.
	Loads(dst []Load) []Load
	// PeerLoad takes another node's outstanding work: of the listed backends, or, if full, its
	// whole vector. It keeps nothing of changed. A full one comes first, even if it is empty.
	PeerLoad(origin string, changed []Load, full bool)
	// DropPeer says that a node is dead, has left, was restarted, or has not been heard for too
	// long: its load and state are void. Its facts stay.
	DropPeer(origin string)
	// State appends a small blob of which only the latest counts, at most wire.MaxState bytes.
	State(dst []byte) []byte
	// PeerState takes another node's latest blob. It keeps nothing of state.
	PeerState(origin string, state []byte)
	// Fleet says how many nodes are alive, this one included, and how old, about, knowledge of the
	// others is. Called when either has changed, at most once a second.
	Fleet(nodes int, staleness time.Duration)
}

// Config says how a node takes part in the exchange. New copies it.
type Config struct {
	// Member is who this node is and how it finds others. OnEvent and Serve are taken by this
	// package; ProtocolMin and ProtocolMax of Self are filled in if zero.
	Member member.Config
	// Knowledge is what is exchanged. Required.
	Knowledge Knowledge
	// FlushInterval is how often news and load are sent; 0 means 50 ms.
	FlushInterval time.Duration
	// SnapshotDeadline is how long a joining node waits for others' knowledge before it is warm
	// without; 0 means 10 s.
	SnapshotDeadline time.Duration
	// Budget is how many bytes per second this node sends to all peers together, before encryption;
	// 0 means 8 MiB. Load and control come first; then news, of which Drain is asked for no more
	// than fits, so that its owner decides what to lose; then resumed batches and snapshots, which
	// wait.
	Budget int64
	// JournalBytes bounds the memory of the own batches that are kept for subscribers; 0 means 16
	// MiB. A subscriber that needs an older one takes a snapshot instead.
	JournalBytes int64
	// Clock, for tests only, maps a moment to what this node's wall clock shows at it; nil is the
	// identity. It gives the times that are sent to others, and the caller takes the incarnation
	// from it; durations do not depend on it.
	Clock func(at time.Time) time.Time
	Log   zerolog.Logger
}

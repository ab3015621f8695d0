// Package gossip sends what this node knows to every other node of its fleet, and receives what
// they know.
//
// Every node dials every other member and receives its batches in sequence, its outstanding load
// and a small state. A broken stream resumes by sequence from the publisher's journal; a subscriber
// that needs an older batch takes a snapshot, and so does a node that joins. See DESIGN.md.
//
// The package treats batches, pages and states as opaque bytes. Package member decides who may be a
// member.
package gossip

import (
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Load is one node's outstanding work on one backend.
type Load = wire.Load

// Applied counts the effects of a merged batch or page.
type Applied struct {
	Records int // in the batch or page
	News    int // that changed something
	Unknown int // that name a backend this node does not know
}

// Knowledge gives meaning to the bytes that gossip moves. Its methods are called concurrently and
// must not block on a network, a disk or another node: a slow call delays one stream, publishing
// (Drain, Loads, State) or housekeeping (Fleet).
//
// Payloads and pages carry times of the sender's clock; adding shift converts them to this node's.
type Knowledge interface {
	// Drain appends at most max bytes of this node's news to dst and returns their number of
	// records; 0 means no news, or that the next record exceeds max. Later calls offer the
	// remaining news. One goroutine calls Drain.
	Drain(dst []byte, max int) (payload []byte, records int)
	// Apply merges a batch of another node and keeps no reference to payload. Batches of one
	// process arrive in order, each at most once; batches replaced by a snapshot do not arrive. An
	// error means malformed: the stream from origin closes and resumes behind this batch.
	Apply(origin string, payload []byte, shift time.Duration) (Applied, error)
	// Snapshot yields all knowledge, newest first, in pages of at most max bytes until yield
	// returns false. Yield does not keep page and blocks while the joiner is slow, so Snapshot must
	// not hold a lock during it.
	Snapshot(max int, yield func(page []byte, records int) bool)
	// SnapshotSize estimates the records in a snapshot; joiners derive their progress from it.
	SnapshotSize() int
	// ApplySnapshot merges a page of another node's snapshot and keeps no reference to page.
	ApplySnapshot(page []byte, shift time.Duration) (Applied, error)
	// Loads appends this node's outstanding work to dst, each backend at most once; backends left
	// out are idle.
	Loads(dst []Load) []Load
	// PeerLoad takes another node's outstanding work: the listed backends, or the whole vector if
	// full. It does not keep changed. The first call for a peer is full, even if empty.
	PeerLoad(origin string, changed []Load, full bool)
	// DropPeer voids the load and state of a node that died, left, restarted or has been silent for
	// too long. Its facts stay.
	DropPeer(origin string)
	// State appends a blob of at most wire.MaxState bytes that replaces this node's previous one.
	State(dst []byte) []byte
	// PeerState takes another node's latest blob and keeps no reference to state.
	PeerState(origin string, state []byte)
	// Fleet reports the number of living nodes, this one included, and the approximate staleness of
	// knowledge about peers. Called on changes, at most once a second.
	Fleet(nodes int, staleness time.Duration)
}

// Config configures a Fleet. New copies it.
type Config struct {
	// Member configures the membership. New replaces OnEvent and Serve, and sets a zero protocol
	// range of Self.
	Member member.Config
	// Knowledge is required.
	Knowledge Knowledge
	// FlushInterval is the period of sending news and load; 0 means 50 ms.
	FlushInterval time.Duration
	// SnapshotDeadline is how long a joiner waits for a snapshot before it counts as warm; 0 means
	// 10 s.
	SnapshotDeadline time.Duration
	// Budget is the bytes per second sent to all peers together, before encryption; 0 means 8 MiB.
	// Load and control frames come first. Drain is asked only for the news that fits. Resumed
	// batches and snapshots wait.
	Budget int64
	// JournalBytes bounds the memory of own batches kept for subscribers; 0 means 16 MiB.
	JournalBytes int64
	// Clock is for tests: it maps a moment to this node's wall clock; nil is the identity. It
	// affects the times sent to peers, not durations. The caller must take the incarnation from it.
	Clock func(at time.Time) time.Time
	Log   zerolog.Logger
}

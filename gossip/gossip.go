// Package gossip sends what this node knows to every other node of its fleet, and receives what
// they know.
//
// Every node dials every other member and receives its batches in sequence, its load and a small
// state. A broken stream resumes from the publisher's journal; joiners, and subscribers behind the
// journal, take a snapshot. Payloads are opaque here. See DESIGN.md.
package gossip

import (
	"time"

	"github.com/rs/zerolog"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Load is one node's outstanding work on one backend.
type Load = wire.Load

// Applied counts a merge's effects.
type Applied struct {
	Records int // in the batch or page
	News    int // that changed something
	Unknown int // that name a backend this node does not know
}

// Knowledge gives meaning to the bytes that gossip moves. Calls are concurrent and must not block
// on a network, a disk or another node, nor keep their slices. Payloads carry times of the sender's
// clock; adding shift converts them to this node's.
type Knowledge interface {
	// Drain appends at most max bytes of this node's news to dst and returns their number of
	// records; 0 means no news, or that the next record exceeds max. One goroutine calls it.
	Drain(dst []byte, max int) (payload []byte, records int)
	// Apply merges a batch. Batches of one process arrive in order, each at most once; batches that
	// a snapshot replaced do not arrive. An error means malformed: the stream closes and resumes
	// behind the batch.
	Apply(origin string, payload []byte, shift time.Duration) (Applied, error)
	// Snapshot yields all knowledge, newest first, in pages of at most max bytes until yield
	// returns false. Yield blocks while the joiner is slow, so Snapshot must not hold a lock.
	Snapshot(max int, yield func(page []byte, records int) bool)
	// SnapshotSize estimates the records in a snapshot.
	SnapshotSize() int
	// ApplySnapshot merges a page of another node's snapshot.
	ApplySnapshot(page []byte, shift time.Duration) (Applied, error)
	// Loads appends this node's outstanding work, each backend at most once; the rest are idle.
	Loads(dst []Load) []Load
	// PeerLoad takes a peer's outstanding work: the listed backends, or the whole vector if full.
	// The first call for a peer is full.
	PeerLoad(origin string, changed []Load, full bool)
	// DropPeer voids the load and state, not the facts, of a peer that died, left, restarted or is
	// silent.
	DropPeer(origin string)
	// State appends a blob of at most wire.MaxState bytes that replaces the previous one.
	State(dst []byte) []byte
	// PeerState takes a peer's latest blob.
	PeerState(origin string, state []byte)
	// Fleet reports the number of living nodes, this one included, and the staleness of knowledge
	// about peers. Called on changes, at most once a second.
	Fleet(nodes int, staleness time.Duration)
}

// Config configures an Exchange. New copies it.
type Config struct {
	// Member configures the membership. New sets OnEvent and Serve, and the protocol range if zero.
	Member member.Config
	// Knowledge is required.
	Knowledge Knowledge
	// FlushInterval is the period of sending news and load; 0 means 50 ms.
	FlushInterval time.Duration
	// SnapshotDeadline bounds a joiner's wait for a snapshot; 0 means 10 s.
	SnapshotDeadline time.Duration
	// Budget is the bytes per second sent to all peers together, before encryption; 0 means 8 MiB.
	Budget int64
	// JournalBytes bounds the memory of own batches kept for subscribers; 0 means 16 MiB.
	JournalBytes int64
	// clock is for tests: it maps a moment to this node's wall clock. Durations do not use it.
	clock func(at time.Time) time.Time
	Log   zerolog.Logger
}

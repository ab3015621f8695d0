package gossip

import (
	"time"

	"grapevine/gossip/member"
)

// Peer is what this node knows of one other and of its stream from it. Counters start with this process and go on over reconnects.
type Peer struct {
	member.Status
	Connected bool
	LastHeard time.Time // zero: never

	Lag    time.Duration // how old its news is when it comes, or the silence, if that is longer
	RTT    time.Duration // least of the last samples; 0: not measured
	Offset time.Duration // what to add to its clock to have this node's

	Received, Applied, News   uint64 // records of its live stream; News changed something here
	Dropped                   uint64 // records of its batches that were duplicates, malformed, or beyond a bound
	Repaired                  uint64 // records of its batches that came by repair, from whomever
	Unknown                   uint64 // records that name backends unknown here
	ReceivedBytes             uint64 // on its stream, frames of all kinds, before encryption
	Gaps                      uint64 // batches found missing in its sequence
	Lost                      uint64 // of them given up, because nobody has them
	Violations                uint64 // streams closed because of what it sent
	Connects                  uint64 // streams established
	SentBytes                 uint64 // to it, frames of all kinds, before encryption
	Behind                    int    // batches of ours not yet written to it; -1: it has not subscribed
	LastError                 string // why its stream ended last; empty if it never did
	PublishedHead, AppliedTip uint64 // next sequence it will send; next after the latest received
}

// Bucket is the digest of all batches whose time lies in ten seconds. Two nodes with equal Count and XOR know the
// same batches of that time.
type Bucket struct {
	Start  int64 // Unix milliseconds
	Sealed bool  // late batches apart, it will not change any more
	Count  uint64
	XOR    uint64
}

// Stats counts what this node has sent, taken and lost since it started.
type Stats struct {
	PublishedBatches, PublishedRecords, PublishedBytes uint64 // payload bytes, once however many peers there are
	AppliedBatches, AppliedRecords, AppliedNews        uint64 // live and repaired, each batch once
	AppliedBytes                                       uint64 // payload
	UnknownRecords                                     uint64
	Duplicates                                         uint64 // batches that had been applied already
	DroppedBudget                                      uint64 // flushes at which news stayed behind because the budget was used up
	DroppedBound                                       uint64 // batches dropped because of a bound: journal, streams, time
	Malformed                                          uint64 // batches and pages that Knowledge refused

	Gaps, RepairRequests            uint64 // batches found missing; ranges asked for
	RepairedBatches                 uint64 // of the missing, those that came
	RepairedRecords, LostBatches    uint64
	RepairsServed                   uint64 // batches sent to others as repairs
	DigestExchanges                 uint64
	DivergentBuckets                int // that differed in the last exchange with any peer
	DivergentExchanges              uint64
	SnapshotsServed, SnapshotsTaken uint64
	SnapshotsRefused                uint64 // to joiners, because others were being served
	SnapshotRecords                 uint64 // taken
	SnapshotBytes                   uint64 // taken

	SentBytes, ReceivedBytes       uint64            // frames, before encryption
	Writes                         uint64            // TLS records, about: each costs 22 bytes more
	SentByKind, ReceivedByKind     map[string]uint64 // bytes by kind of frame
	SkippedFrames                  uint64            // of kinds this version does not know
	JournalBytes, JournalBatches   int64
	JournalFrom                    int64 // Unix ms from which on the journal is complete
	Violations, SlowPeers, Refused uint64
}

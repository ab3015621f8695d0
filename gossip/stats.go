package gossip

import (
	"slices"
	"strings"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Peer is what this node knows of one other and of the stream from it. Counters start with this process and go on over
// reconnections and restarts of the peer. Bytes are those of frames, before encryption.
type Peer struct {
	member.Status
	Connected bool
	LastHeard time.Time // zero: never
	LastError string    // why its stream ended last, or could not be opened

	Lag    time.Duration // how old its news is when it comes, or how long it has been silent, if that is longer
	RTT    time.Duration // least of the last samples; 0: not measured
	Offset time.Duration // what to add to its clock to have this node's

	Received uint64 // records of its live stream
	Applied  uint64 // records of its batches, live and repaired
	News     uint64 // of them, those that changed something here
	Unknown  uint64 // of them, those that name a backend unknown here
	Repaired uint64 // of them, those that came by repair, from whomever
	Dropped  uint64 // records that were malformed or beyond a bound

	Gaps       uint64 // batches found missing in its sequence
	Lost       uint64 // of them given up, because nobody has them
	Violations uint64 // streams closed because of what it sent
	Connects   uint64 // streams opened to it

	ReceivedBytes uint64
	SentBytes     uint64
	Subscribed    bool   // it takes this node's news
	Behind        uint64 // batches of this node that were not yet written to it
}

// Bucket is the digest of all batches whose time lies in ten seconds. Two nodes with equal Count and XOR know the
// same batches of that time.
type Bucket struct {
	Start  int64 // Unix milliseconds
	Sealed bool  // late batches apart, it will not change any more
	Count  uint64
	XOR    uint64
}

// Stats counts what this node has sent, taken and lost since it started. Its JSON is part of the admin API.
type Stats struct {
	PublishedBatches uint64 `json:"published_batches"`
	PublishedRecords uint64 `json:"published_records"`
	PublishedBytes   uint64 `json:"published_bytes"` // of payload, once however many peers there are

	AppliedBatches uint64 `json:"applied_batches"` // live and repaired, each batch once
	AppliedRecords uint64 `json:"applied_records"` // live and repaired, each batch once
	AppliedNews    uint64 `json:"applied_news"`    // records that changed something here
	AppliedBytes   uint64 `json:"applied_bytes"`   // of payload
	UnknownRecords uint64 `json:"unknown_records"` // that name a backend unknown here
	Duplicates     uint64 `json:"duplicates"`      // batches that had been applied already
	DroppedBudget  uint64 `json:"dropped_budget"`  // flushes cut short because the budget was used up; what to lose is Knowledge's choice
	DroppedBound   uint64 `json:"dropped_bound"`   // batches and loads dropped because of another bound
	Malformed      uint64 `json:"malformed"`       // batches and pages that made no sense, others' and own

	Gaps            uint64 `json:"gaps"`             // batches found missing
	RepairRequests  uint64 `json:"repair_requests"`  // ranges asked for
	RepairedBatches uint64 `json:"repaired_batches"` // of those missing, that came
	RepairedRecords uint64 `json:"repaired_records"` // of those missing, that came
	LostBatches     uint64 `json:"lost_batches"`     // of those missing, that were given up
	RepairsServed   uint64 `json:"repairs_served"`   // batches sent to others again

	DigestExchanges    uint64 `json:"digest_exchanges"`    // finished
	DivergentExchanges uint64 `json:"divergent_exchanges"` // of them, those that found a difference
	Divergence         int64  `json:"divergence"`          // buckets that differed in the last one

	SnapshotsServed  uint64 `json:"snapshots_served"`
	SnapshotsRefused uint64 `json:"snapshots_refused"`
	SnapshotsTaken   uint64 `json:"snapshots_taken"`
	SnapshotRecords  uint64 `json:"snapshot_records"` // taken
	SnapshotBytes    uint64 `json:"snapshot_bytes"`   // taken

	SentBytes      uint64            `json:"sent_bytes"`       // of frames, before encryption
	ReceivedBytes  uint64            `json:"received_bytes"`   // of frames, before encryption
	SentByKind     map[string]uint64 `json:"sent_by_kind"`     // the same by kind of frame
	ReceivedByKind map[string]uint64 `json:"received_by_kind"` // the same by kind of frame
	Writes         uint64            `json:"writes"`           // of one TLS record or a few; each record is 22 bytes more
	SkippedFrames  uint64            `json:"skipped_frames"`   // of kinds this version does not know

	JournalBytes   int64 `json:"journal_bytes"`
	JournalBatches int64 `json:"journal_batches"`
	JournalFrom    int64 `json:"journal_from"` // Unix milliseconds since when the journal is complete

	Violations uint64 `json:"violations"` // streams closed because of what came on them
	SlowPeers  uint64 `json:"slow_peers"` // streams closed because the peer took nothing
	Refused    uint64 `json:"refused"`    // members and streams beyond a bound
}

// Stats returns the counters.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	s := Stats{
		PublishedBatches: c.publishedBatches.Load(), PublishedRecords: c.publishedRecords.Load(), PublishedBytes: c.publishedBytes.Load(),
		AppliedBatches: c.appliedBatches.Load(), AppliedRecords: c.appliedRecords.Load(), AppliedNews: c.appliedNews.Load(),
		AppliedBytes: c.appliedBytes.Load(), UnknownRecords: c.unknownRecords.Load(), Duplicates: c.duplicates.Load(),
		DroppedBudget: c.heldBack.Load(), DroppedBound: c.droppedBound.Load(), Malformed: c.malformed.Load(),
		Gaps: c.gaps.Load(), RepairRequests: c.repairRequests.Load(), RepairedBatches: c.repairedBatches.Load(),
		RepairedRecords: c.repairedRecords.Load(), LostBatches: c.lostBatches.Load(), RepairsServed: c.repairsServed.Load(),
		DigestExchanges: c.digests.Load(), DivergentExchanges: c.divergent.Load(), Divergence: c.divergence.Load(),
		SnapshotsServed: c.snapshotsServed.Load(), SnapshotsRefused: c.snapshotsRefused.Load(), SnapshotsTaken: c.snapshotsTaken.Load(),
		SnapshotRecords: c.snapshotRecords.Load(), SnapshotBytes: c.snapshotBytes.Load(),
		Writes: c.writes.Load(), SkippedFrames: c.skipped.Load(),
		Violations: c.violations.Load(), SlowPeers: c.slow.Load(), Refused: c.refused.Load(),
		SentByKind: map[string]uint64{}, ReceivedByKind: map[string]uint64{},
	}
	for k := range wire.Kinds {
		kind := wire.Kind(k)
		if _, known := wire.Limit(kind); !known {
			continue
		}
		s.SentByKind[kind.String()] = c.sent[k].Load()
		s.ReceivedByKind[kind.String()] = c.received[k].Load()
		s.SentBytes += c.sent[k].Load()
		s.ReceivedBytes += c.received[k].Load()
	}
	s.JournalBytes, s.JournalBatches, s.JournalFrom = f.journal.size()
	return s
}

// Peers lists the other nodes by name, those that failed or left in the last ten minutes included.
func (f *Fleet) Peers() []Peer {
	now := time.Now()
	f.mu.Lock()
	_, head, _ := f.journal.position(f.self)
	feeds := make(map[string]*feed, len(f.feeds))
	for name, d := range f.feeds {
		feeds[name] = d
	}
	out := make([]Peer, 0, len(f.peers))
	for name, p := range f.peers {
		o := p.describe(now)
		if d := feeds[name]; d != nil {
			o.SentBytes += d.sent.Load()
		}
		out = append(out, o)
	}
	f.mu.Unlock()
	for i := range out {
		if d := feeds[out[i].Name]; d != nil {
			if next := d.position(); next > 0 {
				out[i].Subscribed, out[i].Behind = true, head-min(head, next)
			}
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (p *peer) describe(now time.Time) Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, _ := p.clock.best()
	out := Peer{
		Status: p.status, LastHeard: p.heard, LastError: p.failure, RTT: best.rtt, Offset: best.offset,
		Connected: p.session != nil && p.session.started.Load(),
		Received:  p.received.Load(), Applied: p.applied.Load(), News: p.news.Load(), Unknown: p.unknown.Load(),
		Repaired: p.repaired.Load(), Dropped: p.dropped.Load(),
		Gaps: p.gaps.Load(), Lost: p.lost.Load(), Violations: p.violations.Load(), Connects: p.connects.Load(),
		ReceivedBytes: p.bytes.Load(), SentBytes: p.sent.Load(),
	}
	if p.status.State == member.StateAlive {
		out.Lag = p.staleLocked(now)
	}
	return out
}

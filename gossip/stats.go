package gossip

import (
	"slices"
	"strings"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Peer is what this node knows of one other and of the stream from it. Counters start with this
// process and go on over reconnections and restarts of the peer. Bytes are those of frames, before
// encryption.
type Peer struct {
	member.Status
	Connected bool
	LastHeard time.Time // zero: never
	LastError string    // why its stream ended last, or could not be opened

	Lag    time.Duration // how old its news is when it comes, or how long it has been silent, if that is longer
	RTT    time.Duration // least of the last samples; 0: not measured
	Offset time.Duration // what to add to its clock to have this node's

	Received uint64 // records that came on its streams
	Applied  uint64 // of them, those that were merged
	News     uint64 // of those, those that changed something here
	Unknown  uint64 // of those, those that name a backend unknown here
	Dropped  uint64 // records that were malformed

	Process    uint64 // incarnation of its process that Position is about; 0: none yet
	Position   uint64 // sequence of its next batch to be applied here; 0: no stream has started yet
	Incomplete bool   // some batches below Position are missing until a snapshot is taken

	Missed     uint64 // batches that its journal had dropped before they were sent here; snapshots replaced them
	Violations uint64 // streams closed because of what it sent
	Connects   uint64 // streams opened to it

	ReceivedBytes uint64
	SentBytes     uint64
	Subscribed    bool   // it takes this node's news
	Behind        uint64 // batches of this node that were not yet written to it
}

// Stats counts what this node has sent, taken and dropped since it started. Its JSON is part of the
// admin API.
type Stats struct {
	PublishedBatches uint64 `json:"published_batches"`
	PublishedRecords uint64 `json:"published_records"`
	PublishedBytes   uint64 `json:"published_bytes"` // of payload, once however many peers there are

	AppliedBatches uint64 `json:"applied_batches"`
	AppliedRecords uint64 `json:"applied_records"`
	AppliedNews    uint64 `json:"applied_news"`    // records that changed something here
	AppliedBytes   uint64 `json:"applied_bytes"`   // of payload
	UnknownRecords uint64 `json:"unknown_records"` // that name a backend unknown here
	DroppedBudget  uint64 `json:"dropped_budget"`  // flushes cut short because the budget was used up; Knowledge chooses what to drop
	DroppedBound   uint64 `json:"dropped_bound"`   // loads dropped because of another bound
	Malformed      uint64 `json:"malformed"`       // batches and pages that could not be read, others' and own

	Resumes       uint64 `json:"resumes"`        // streams that went on behind the last batch of the stream before
	MissedBatches uint64 `json:"missed_batches"` // that a publisher's journal had dropped; snapshots replaced them

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

	JournalBytes   int64 `json:"journal_bytes"` // of this node's own batches
	JournalBatches int64 `json:"journal_batches"`

	Violations uint64 `json:"violations"` // streams closed because of what came on them
	SlowPeers  uint64 `json:"slow_peers"` // streams closed because the peer read too slowly
	Refused    uint64 `json:"refused"`    // members and streams beyond a bound
}

// Stats returns the counters.
func (f *Fleet) Stats() Stats {
	c := &f.counts
	s := Stats{
		PublishedBatches: c.publishedBatches.Load(), PublishedRecords: c.publishedRecords.Load(), PublishedBytes: c.publishedBytes.Load(),
		AppliedBatches: c.appliedBatches.Load(), AppliedRecords: c.appliedRecords.Load(), AppliedNews: c.appliedNews.Load(),
		AppliedBytes: c.appliedBytes.Load(), UnknownRecords: c.unknownRecords.Load(),
		DroppedBudget: c.heldBack.Load(), DroppedBound: c.droppedBound.Load(), Malformed: c.malformed.Load(),
		Resumes: c.resumes.Load(), MissedBatches: c.missed.Load(),
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
	s.JournalBytes, s.JournalBatches = f.journal.size()
	return s
}

// Peers lists the other nodes by name, those that failed or left in the last ten minutes included.
func (f *Fleet) Peers() []Peer {
	now := time.Now()
	f.mu.Lock()
	published := f.Position()
	subscribers := make(map[string]*subscriber, len(f.subscribers))
	for name, d := range f.subscribers {
		subscribers[name] = d
	}
	out := make([]Peer, 0, len(f.peers))
	for name, p := range f.peers {
		o := p.describe(now)
		if d := subscribers[name]; d != nil {
			o.SentBytes += d.sent.Load()
		}
		out = append(out, o)
	}
	f.mu.Unlock()
	for i := range out {
		if d := subscribers[out[i].Name]; d != nil {
			if next := d.position(); next > 0 {
				out[i].Subscribed, out[i].Behind = true, published-min(published, next)
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
		Connected: p.stream != nil && p.stream.started.Load(),
		Received:  p.received.Load(), Applied: p.applied.Load(), News: p.news.Load(), Unknown: p.unknown.Load(),
		Process: p.cursor.incarnation, Position: p.cursor.next, Incomplete: p.cursor.missing > 0,
		Dropped: p.dropped.Load(), Missed: p.missed.Load(), Violations: p.violations.Load(), Connects: p.connects.Load(),
		ReceivedBytes: p.bytes.Load(), SentBytes: p.sent.Load(),
	}
	if p.status.State == member.StateAlive {
		out.Lag = p.staleLocked(now)
	}
	return out
}

package gossip

import (
	"slices"
	"strings"
	"time"

	"grapevine/gossip/member"
	"grapevine/gossip/wire"
)

// Peer describes another node and its stream to this node. Counters continue over reconnections and
// restarts of the peer. Bytes are of frames, before encryption.
type Peer struct {
	member.Status
	Connected bool
	LastHeard time.Time
	LastError string

	Lag    time.Duration // age of its news on arrival, or its silence if longer
	RTT    time.Duration // shortest recent round trip; 0: not measured
	Offset time.Duration // added to its clock, gives this node's

	Received uint64
	Applied  uint64
	News     uint64 // of Applied, records that changed something
	Unknown  uint64 // of Applied, records of unknown backends
	Dropped  uint64 // records in malformed batches

	Process    uint64 // incarnation that Position belongs to; 0: none
	Position   uint64 // sequence of its next batch to apply; 0: no stream has started
	Incomplete bool

	Missed     uint64 // batches its journal dropped before sending; snapshots replaced them
	Violations uint64
	Connects   uint64

	ReceivedBytes uint64
	SentBytes     uint64
	Subscribed    bool
	Behind        uint64 // batches of this node not yet written to it
}

// Stats counts this node's exchange since its start. Its JSON is part of the admin API.
type Stats struct {
	PublishedBatches uint64 `json:"published_batches"`
	PublishedRecords uint64 `json:"published_records"`
	PublishedBytes   uint64 `json:"published_bytes"` // payload, counted once for all peers

	AppliedBatches uint64 `json:"applied_batches"`
	AppliedRecords uint64 `json:"applied_records"`
	AppliedNews    uint64 `json:"applied_news"`
	AppliedBytes   uint64 `json:"applied_bytes"`
	UnknownRecords uint64 `json:"unknown_records"`
	DroppedBudget  uint64 `json:"dropped_budget"` // flushes cut short by the budget
	DroppedBound   uint64 `json:"dropped_bound"`  // loads beyond wire.MaxLoads
	Malformed      uint64 `json:"malformed"`      // unreadable batches and pages, own ones included

	Resumes       uint64 `json:"resumes"`
	MissedBatches uint64 `json:"missed_batches"` // see Peer.Missed

	SnapshotsServed  uint64 `json:"snapshots_served"`
	SnapshotsRefused uint64 `json:"snapshots_refused"`
	SnapshotsTaken   uint64 `json:"snapshots_taken"`
	SnapshotRecords  uint64 `json:"snapshot_records"`
	SnapshotBytes    uint64 `json:"snapshot_bytes"`

	SentBytes      uint64            `json:"sent_bytes"`
	ReceivedBytes  uint64            `json:"received_bytes"`
	SentByKind     map[string]uint64 `json:"sent_by_kind"`
	ReceivedByKind map[string]uint64 `json:"received_by_kind"`
	Writes         uint64            `json:"writes"` // each adds 22 bytes per TLS record
	SkippedFrames  uint64            `json:"skipped_frames"`

	JournalBytes   int64 `json:"journal_bytes"`
	JournalBatches int64 `json:"journal_batches"`

	Violations uint64 `json:"violations"`
	SlowPeers  uint64 `json:"slow_peers"`
	Refused    uint64 `json:"refused"` // members and streams beyond maxPeers
}

// Stats returns the counters.
func (x *Exchange) Stats() Stats {
	c := &x.counts
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
	s.JournalBytes, s.JournalBatches = x.journal.size()
	return s
}

// wrote counts a write of frames, of which n bytes were written, and debits the budget.
func (x *Exchange) wrote(now time.Time, frames []byte, n int) {
	x.budget.spend(now, n)
	x.counts.writes.Add(1)
	for len(frames) > 0 {
		kind, size := wire.Split(frames)
		if kind < wire.Kinds {
			x.counts.sent[kind].Add(uint64(size))
		}
		frames = frames[size:]
	}
}

// Peers lists the other nodes by name, including those gone for up to ten minutes.
func (x *Exchange) Peers() []Peer {
	now := time.Now()
	x.mu.Lock()
	published := x.Position()
	subscribers := make(map[string]*subscriber, len(x.subscribers))
	for name, d := range x.subscribers {
		subscribers[name] = d
	}
	out := make([]Peer, 0, len(x.peers))
	for name, p := range x.peers {
		o := p.describe(now)
		if d := subscribers[name]; d != nil {
			o.SentBytes += d.sent.Load()
		}
		out = append(out, o)
	}
	x.mu.Unlock()
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

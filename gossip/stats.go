package gossip

import (
	"maps"
	"slices"
	"strings"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/gossip/wire"
)

// Peer describes another node and its stream to this node. Counters continue over reconnections and
// restarts of the peer. Bytes are of frames, before encryption.
type Peer struct {
	member.Status
	Connected bool
	Reported  bool // the stream has brought the peer's load and usage
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
	DroppedBound   uint64 `json:"dropped_bound"`  // loads and clients' uses beyond wire.MaxLoads
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
	x.counting.Lock()
	s, sent, received := x.stats, x.sent, x.received
	x.counting.Unlock()
	s.SentByKind, s.ReceivedByKind = map[string]uint64{}, map[string]uint64{}
	for k := range wire.Kinds {
		kind := wire.Kind(k)
		if _, known := wire.Limit(kind); !known {
			continue
		}
		s.SentByKind[kind.String()], s.ReceivedByKind[kind.String()] = sent[k], received[k]
		s.SentBytes += sent[k]
		s.ReceivedBytes += received[k]
	}
	s.JournalBytes, s.JournalBatches = x.journal.size()
	return s
}

// count adds to a field of x.stats.
func (x *Exchange) count(n *uint64, add uint64) {
	x.counting.Lock()
	defer x.counting.Unlock()
	*n += add
}

// count adds to a field of p.Peer.
func (p *peer) count(n *uint64, add uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n += add
}

// Peers lists the other nodes by name, including those gone for up to ten minutes.
func (x *Exchange) Peers() []Peer {
	now := time.Now()
	x.mu.Lock()
	published := x.Position()
	subscribers := maps.Clone(x.subscribers)
	out := make([]Peer, 0, len(x.peers))
	for _, p := range x.peers {
		out = append(out, p.describe(now))
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
	out := p.Peer
	out.RTT, out.Offset, out.Lag = best.rtt, best.offset, 0
	out.Connected = p.stream != nil && p.stream.started.Load()
	out.Reported = out.Connected && out.Reported
	out.Process, out.Position, out.Incomplete = p.cursor.incarnation, p.cursor.next, p.cursor.missing > 0
	if p.Status.State == member.StateAlive {
		out.Lag = p.staleLocked(now)
	}
	return out
}

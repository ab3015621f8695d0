package node

import (
	"slices"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/node/metrics"
	"grapevine.example/node/share"
)

type fleetFigures struct {
	members   map[member.State]int // this node included
	seeds     map[string]int       // by outcome of the last attempt
	peers     []gossip.Peer
	stats     gossip.Stats
	shared    share.Stats
	warm      float64
	staleness time.Duration
	blind     uint64
	refused   uint64 // join and connection attempts
	malformed uint64 // states
}

// fleetFigures returns nil until gossip has started.
func (n *Node) fleetFigures() *fleetFigures {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	f := &fleetFigures{
		members: map[member.State]int{member.StateAlive: 1, member.StateFailed: 0, member.StateLeft: 0},
		seeds:   countSeeds(n.cfg.Seeds(), g.Members().JoinErrors()),
		peers:   g.Peers(), stats: g.Stats(), shared: n.knowledge.shared.Stats(), warm: g.WarmFraction(),
		staleness: time.Duration(n.knowledge.staleness.Load()), blind: n.router.Stats().Blind,
		refused: g.Members().Refused(), malformed: n.knowledge.malformed.Load(),
	}
	for _, p := range f.peers {
		f.members[p.State]++
	}
	return f
}

func countSeeds(join []string, attempts []member.SeedError) map[string]int {
	counts := map[string]int{"joined": 0, "refused": 0, "unreachable": 0}
	for _, s := range attempts {
		switch {
		case !slices.Contains(join, s.Seed): // a failed or overheard member
		case s.Err == nil:
			counts["joined"]++
		case isRefusal(s.Err):
			counts["refused"]++
		default:
			counts["unreachable"]++
		}
	}
	return counts
}

func (f *fleetFigures) collect(s metrics.Scrape) {
	members := s.Gauge("members", "Nodes of the fleet by state as this node sees them, this one included. Not additive.", "state")
	for state, count := range f.members {
		members(float64(count), string(state))
	}
	seeds := s.Gauge("gossip_seeds", "Addresses of join and founders by the last attempt to reach them: joined, refused or unreachable.", "outcome")
	for outcome, count := range f.seeds {
		seeds(float64(count), outcome)
	}
	f.collectPeers(s)
	st, out := &f.stats, &f.shared.Outbox
	frames := s.Counter("gossip_bytes_total", "Bytes exchanged with all nodes by kind of frame, before encryption.", "direction", "frame")
	for kind, bytes := range st.SentByKind {
		frames(float64(bytes), "sent", kind)
	}
	for kind, bytes := range st.ReceivedByKind {
		frames(float64(bytes), "received", kind)
	}
	posted := s.Counter("gossip_news_total", "Changes of this node's tree queued for peers: add, touch, drop, revert (failed requests), fence (lost caches).", "kind")
	for kind, n := range f.shared.Queued {
		posted(float64(n), kind)
	}
	s.Counter("gossip_sent_records_total", "Records of this node's own news, counted once however many peers receive them.")(float64(st.PublishedRecords))
	s.Counter("gossip_applied_records_total", "Records of peers' news that were merged.")(float64(st.AppliedRecords))
	s.Counter("gossip_changed_records_total", "Merged records that changed this node's tree.")(float64(st.AppliedNews))
	dropped := s.Counter("gossip_dropped_records_total", "Records dropped: own ones because the outbox was full (add, touch, drop), peers' without a free number (unknown) or too old (late).", "kind")
	dropped(float64(out.LostAdds), "add")
	dropped(float64(out.LostTouches), "touch")
	dropped(float64(out.LostDrops), "drop")
	dropped(float64(st.UnknownRecords), "unknown")
	dropped(float64(f.shared.Late), "late")
	s.Counter("gossip_resumes_total", "Streams that resumed where the previous one had ended.")(float64(st.Resumes))
	s.Counter("gossip_missed_batches_total", "Batches that a peer's journal no longer held: a snapshot replaced them.")(float64(st.MissedBatches))
	s.Counter("gossip_malformed_total", "Malformed batches, pages and states of peers.")(float64(st.Malformed + f.malformed))
	s.Counter("gossip_violations_total", "Streams closed because of invalid data.")(float64(st.Violations))
	s.Counter("gossip_slow_streams_total", "Streams closed because the peer read nothing for seconds or fell behind the journal.")(float64(st.SlowPeers))
	s.Counter("gossip_held_back_total", "Times that own news waited because gossip_budget was used up.")(float64(st.DroppedBudget))
	s.Counter("gossip_refused_total", "Rejected attempts of nodes to join or connect.")(float64(f.refused))
	snapshots := s.Counter("gossip_snapshots_total", "Snapshots served to joining nodes, and taken.", "role")
	snapshots(float64(st.SnapshotsServed), "served")
	snapshots(float64(st.SnapshotsTaken), "taken")
	s.Gauge("gossip_journal_bytes", "Bytes of own batches kept for peers that reconnect.")(float64(st.JournalBytes))
	s.Gauge("gossip_pending_records", "Own records waiting to be sent.")(float64(out.Pending))
	s.Gauge("warm_ratio", "Share of the peers' knowledge at this node's start that it has received. Not additive.")(f.warm)
	s.Gauge("gossip_incomplete_peers", "Peers whose news lacks a part here until a snapshot brings it.")(float64(incomplete(f.peers)))
	s.Gauge("staleness_seconds", "Age of peers' actions when this node learns of them, at most: a flush and the lag of three quarters of the peers. The policy uses it. Not additive.")(f.staleness.Seconds())
	s.Counter("blind_decisions_total", "Decisions without recent reports although the fleet has other nodes.")(float64(f.blind))
}

func (f *fleetFigures) collectPeers(s metrics.Scrape) {
	connected := s.Gauge("peer_connected", "1 while this node receives the peer's news.", "peer")
	lag := s.Gauge("peer_lag_seconds", "Age of the peer's news when it arrives here, or the peer's silence if that is longer. Not additive.", "peer")
	offset := s.Gauge("peer_clock_offset_seconds", "How far this node's clock is ahead of the peer's; the node corrects differences above half a second. Not additive.", "peer")
	received := s.Counter("peer_received_bytes_total", "Bytes received from the peer, before encryption.", "peer")
	sent := s.Counter("peer_sent_bytes_total", "Bytes sent to the peer, before encryption.", "peer")
	for i := range f.peers {
		p := &f.peers[i]
		connected(metrics.Bool(p.Connected), p.Name)
		if p.State == member.StateAlive { // a dead peer has no lag
			lag(p.Lag.Seconds(), p.Name)
		}
		if p.Connected && p.RTT > 0 {
			offset(p.Offset.Seconds(), p.Name)
		}
		received(float64(p.ReceivedBytes), p.Name)
		sent(float64(p.SentBytes), p.Name)
	}
}

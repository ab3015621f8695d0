package node

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grapevine/gossip"
	"grapevine/gossip/member"
	"grapevine/prefixtree"
)

type fleetFigures struct {
	members   map[member.State]int // this node included
	seeds     map[string]int       // by outcome of the last attempt
	peers     []gossip.Peer
	stats     gossip.Stats
	outbox    prefixtree.OutboxStats
	posted    map[string]uint64 // by kind
	warm      float64
	staleness time.Duration
	blind     uint64
	refused   uint64 // join and connection attempts
	malformed uint64 // states
	late      uint64 // records
}

// fleetFigures returns nil until gossip has started.
func (n *Node) fleetFigures() *fleetFigures {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	f := &fleetFigures{
		members: map[member.State]int{member.StateAlive: 1, member.StateFailed: 0, member.StateLeft: 0},
		seeds:   countSeeds(n.cfg.Join, g.Members().JoinErrors()),
		peers:   g.Peers(), stats: g.Stats(), outbox: n.knowledge.outbox.Stats(), warm: g.WarmFraction(),
		posted:    n.knowledge.announced.posted.byName(),
		staleness: time.Duration(n.knowledge.staleness.Load()), blind: n.router.Stats().Blind,
		refused: g.Members().Refused(), malformed: n.knowledge.malformed.Load(), late: n.knowledge.late.Load(),
	}
	for _, p := range f.peers {
		f.members[p.State]++
	}
	return f
}

// countSeeds counts the addresses behind the entries of join by outcome of the last attempt.
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

var factKinds = [len(kindCounts{})]string{
	prefixtree.Add: "add", prefixtree.Touch: "touch", prefixtree.Drop: "drop", prefixtree.Revert: "revert", prefixtree.Fence: "fence",
}

func (c *kindCounts) byName() map[string]uint64 {
	m := make(map[string]uint64, len(c))
	for kind, name := range factKinds {
		m[name] = c[kind].Load()
	}
	return m
}

// fleetCollector has as many peer series as the fleet has nodes.
type fleetCollector struct {
	figures func() *fleetFigures // returns nil: no series

	members, seeds, received, sent, connected     *prometheus.Desc
	lag, offset                                   *prometheus.Desc
	frames, posted, sentRecords, applied, changed *prometheus.Desc
	dropped, resumes, missed, malformed           *prometheus.Desc
	violations, slow, heldBack                    *prometheus.Desc
	refused, snapshots, journal, pending          *prometheus.Desc
	warm, incomplete, staleness, blind            *prometheus.Desc
}

func newFleetCollector(figures func() *fleetFigures) *fleetCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &fleetCollector{
		figures:     figures,
		members:     d("members", "Nodes of the fleet by state, this one included, as this one sees them. Not additive.", "state"),
		seeds:       d("gossip_seeds", "Addresses of join by how the last attempt to reach them went: joined, refused (another secret, key, block size, cluster or protocol, a taken name, a certificate) or unreachable.", "outcome"),
		connected:   d("peer_connected", "1 while the node's news comes in.", "peer"),
		lag:         d("peer_lag_seconds", "How old the node's news is when it is known here, or its silence if that is longer.", "peer"),
		offset:      d("peer_clock_offset_seconds", "How far this node's clock is ahead of the other's; differences above half a second are corrected for. Not additive.", "peer"),
		received:    d("peer_received_bytes_total", "Bytes received from the node, before encryption.", "peer"),
		sent:        d("peer_sent_bytes_total", "Bytes sent to the node, before encryption.", "peer"),
		frames:      d("gossip_bytes_total", "Bytes exchanged with all nodes by kind of frame, before encryption.", "direction", "frame"),
		posted:      d("gossip_news_total", "Changes of this node's tree that the others are to be told: placements (add), later uses of them (touch), what an engine turned out not to have (drop), failed requests (revert), lost caches (fence).", "kind"),
		sentRecords: d("gossip_sent_records_total", "Records of this node's own news, counted once however many nodes they go to."),
		applied:     d("gossip_applied_records_total", "Records of other nodes' news that were merged."),
		changed:     d("gossip_changed_records_total", "Of the merged records, those that told this node something new."),
		dropped:     d("gossip_dropped_records_total", "Own records given up at the bound of the outbox (add, touch, drop), others' of backends that this node has not listed and has no number left for (unknown), and others' that lie behind a fence or are older than what is kept (late).", "kind"),
		resumes:     d("gossip_resumes_total", "Streams that went on where the one before had ended."),
		missed:      d("gossip_missed_batches_total", "Batches that were gone from another node's journal before this node could resume: a snapshot replaced them."),
		malformed:   d("gossip_malformed_total", "Batches, pages and states of other nodes that could not be read."),
		violations:  d("gossip_violations_total", "Streams closed for what came on them."),
		slow:        d("gossip_slow_streams_total", "Streams closed because the other node read nothing for seconds, or fell behind the journal."),
		heldBack:    d("gossip_held_back_total", "Times at which gossip_budget was used up and own news had to wait."),
		refused:     d("gossip_refused_total", "Attempts of nodes to join or connect that were turned away: another secret, key, block size, cluster, protocol or certificate, or a taken name."),
		snapshots:   d("gossip_snapshots_total", "Snapshots served to nodes that joined, and taken.", "role"),
		journal:     d("gossip_journal_bytes", "Bytes of own batches kept for nodes that connect again."),
		pending:     d("gossip_pending_records", "Own records waiting to be sent."),
		warm:        d("warm_fraction", "Share of what the others knew when this node came that it has by now. Not additive."),
		incomplete:  d("gossip_incomplete_peers", "Other nodes whose news lacks a part here, until a snapshot brings it."),
		staleness:   d("staleness_seconds", "How late what other nodes did is known here, by which the policy decides. Not additive."),
		blind:       d("blind_decisions_total", "Decisions made while other nodes exist and nothing recent is known of them."),
	}
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.members, c.seeds, c.connected, c.lag, c.offset, c.received, c.sent, c.frames, c.posted, c.sentRecords, c.applied, c.changed, c.dropped, c.resumes,
		c.missed, c.malformed, c.violations, c.slow, c.heldBack, c.refused, c.snapshots, c.journal, c.pending, c.warm, c.incomplete, c.staleness, c.blind,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.figures()
	if f == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for state, count := range f.members {
		gauge(c.members, float64(count), state.String())
	}
	for outcome, count := range f.seeds {
		gauge(c.seeds, float64(count), outcome)
	}
	for i := range f.peers {
		p := &f.peers[i]
		gauge(c.connected, oneIf(p.Connected), p.Name)
		if p.State == member.StateAlive { // a dead peer has no lag
			gauge(c.lag, p.Lag.Seconds(), p.Name)
		}
		if p.Connected && p.RTT > 0 {
			gauge(c.offset, p.Offset.Seconds(), p.Name)
		}
		counter(c.received, p.ReceivedBytes, p.Name)
		counter(c.sent, p.SentBytes, p.Name)
	}
	st, out := &f.stats, &f.outbox
	for kind, bytes := range st.SentByKind {
		counter(c.frames, bytes, "sent", kind)
	}
	for kind, bytes := range st.ReceivedByKind {
		counter(c.frames, bytes, "received", kind)
	}
	for kind, n := range f.posted {
		counter(c.posted, n, kind)
	}
	counter(c.sentRecords, st.PublishedRecords)
	counter(c.applied, st.AppliedRecords)
	counter(c.changed, st.AppliedNews)
	counter(c.dropped, out.LostAdds, "add")
	counter(c.dropped, out.LostTouches, "touch")
	counter(c.dropped, out.LostDrops, "drop")
	counter(c.dropped, st.UnknownRecords, "unknown")
	counter(c.dropped, f.late, "late")
	counter(c.resumes, st.Resumes)
	counter(c.missed, st.MissedBatches)
	counter(c.malformed, st.Malformed+f.malformed)
	counter(c.violations, st.Violations)
	counter(c.slow, st.SlowPeers)
	counter(c.heldBack, st.DroppedBudget)
	counter(c.refused, f.refused)
	counter(c.snapshots, st.SnapshotsServed, "served")
	counter(c.snapshots, st.SnapshotsTaken, "taken")
	gauge(c.journal, float64(st.JournalBytes))
	gauge(c.pending, float64(out.Pending))
	gauge(c.warm, f.warm)
	gauge(c.incomplete, float64(incomplete(f.peers)))
	gauge(c.staleness, f.staleness.Seconds())
	counter(c.blind, f.blind)
}

package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"grapevine/proxy/policy"
)

type agreeCollector struct {
	n *Node

	leads, led, version, behind, voters *prometheus.Desc
	writes, failed, slowest, backends   *prometheus.Desc
	hot, replicas, changes, unwritten   *prometheus.Desc
	warmed, diskFailed                  *prometheus.Desc
}

func newAgreeCollector(n *Node) *agreeCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &agreeCollector{
		n:          n,
		leads:      d("raft_leads", "1 on the node that leads; the sum over a fleet is 1."),
		led:        d("raft_has_leader", "1 while this node knows a leader; without one nothing can be changed, and routing goes on. Not additive."),
		version:    d("state_version", "Version of the agreed state that this node routes by; 0: its own list. Not additive."),
		behind:     d("raft_behind", "Log entries that this node has and does not know to be committed."),
		voters:     d("raft_voters", "Nodes that vote, as this node knows the group. Not additive."),
		writes:     d("raft_writes_total", "Writes of the agreed state's log to this node's disk."),
		failed:     d("raft_write_failures_total", "Of these, failed or too slow: the node does not vote until its disk works again."),
		diskFailed: d("raft_disk_failed", "1 while the disk of data_dir takes no writes: the node follows the others in memory and does not vote; alone, it refuses changes."),
		slowest:    d("raft_write_max_seconds", "The slowest of these since the start. Not additive."),
		backends:   d("backends", "Backends by their agreed state. Not additive.", "state"),

		hot:       d("hot_prefixes", "Prefixes that this node routes by as hot. Not additive."),
		replicas:  d("hot_prefix_replicas", "Backends that hold them, summed over prefixes. Not additive."),
		changes:   d("hot_prefix_changes_total", "Changes of how many backends hold a hot prefix, by the node that led then."),
		warmed:    d("hot_warm_ups_total", "Requests sent to have an engine compute a hot prefix beforehand: warmed, failed, or none was sent because no prompt was at hand (unknown).", "outcome"),
		unwritten: d("hot_prefix_failures_total", "Changes of hot prefixes that could not be written down."),
	}
}

// Describe implements prometheus.Collector.
func (c *agreeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.leads, c.led, c.version, c.behind, c.voters, c.writes, c.failed, c.slowest, c.backends, c.hot, c.replicas, c.changes, c.unwritten, c.warmed, c.diskFailed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *agreeCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	r := c.n.fleet.roster()
	count := make(map[policy.State]int)
	for _, u := range r.list {
		count[u.state]++
	}
	for _, s := range []policy.State{policy.Active, policy.Draining, policy.Down} {
		gauge(c.backends, float64(count[s]), s.String())
	}
	gauge(c.version, float64(r.version))
	f := c.n.hot.Figures()
	gauge(c.hot, float64(f.Prefixes))
	gauge(c.replicas, float64(f.Replicas))
	ch <- prometheus.MustNewConstMetric(c.changes, prometheus.CounterValue, float64(f.Changes))
	ch <- prometheus.MustNewConstMetric(c.unwritten, prometheus.CounterValue, float64(f.Failed))
	for outcome, count := range f.WarmUps {
		ch <- prometheus.MustNewConstMetric(c.warmed, prometheus.CounterValue, float64(count), outcome)
	}
	var st RaftStatus
	if now, err := c.n.Raft(); err == nil {
		st = *now
	}
	voters := 0
	for _, v := range st.Servers {
		if v.Voter {
			voters++
		}
	}
	gauge(c.diskFailed, oneIf(st.DiskFailed))
	gauge(c.leads, oneIf(st.Role == "leader"))
	gauge(c.led, oneIf(st.Leader != ""))
	gauge(c.behind, max(float64(st.LastIndex)-float64(st.Committed), 0))
	gauge(c.voters, float64(voters))
	gauge(c.slowest, st.Writes.Max.Seconds())
	ch <- prometheus.MustNewConstMetric(c.writes, prometheus.CounterValue, float64(st.Writes.Count))
	ch <- prometheus.MustNewConstMetric(c.failed, prometheus.CounterValue, float64(st.Writes.Failed))
}

package node

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grapevine/node/health"
	"grapevine/proxy/engine"
)

// HealthStatus is an engine's health as this node knows it.
type HealthStatus struct {
	Failing   bool     `json:"failing"`            // own probes or requests
	Avoided   bool     `json:"avoided"`            // here, by probes or peers
	Reason    string   `json:"reason,omitempty"`   // refused, connect, timeout, reset, 5xx or tls
	SinceS    float64  `json:"since_s,omitempty"`  // failing or well
	ProbedS   *float64 `json:"probed_s,omitempty"` // since the last own probe; null: none
	Reporters []string `json:"reporters"`          // nodes that probe it
	OK        int      `json:"ok"`                 // reporters
	Bad       int      `json:"bad"`                // reporters
}

func (c *checker) status(u *upstream) HealthStatus {
	at := time.Now()
	v, ok := c.board.Verdict(u.key, at)
	if !ok {
		return HealthStatus{Reporters: []string{}}
	}
	s := HealthStatus{Failing: v.Failing, Avoided: v.Avoid, Reporters: v.Reporters, OK: v.OK, Bad: v.Bad}
	if v.Reason != health.NoReason {
		s.Reason = v.Reason.String()
	}
	if !v.Since.IsZero() {
		s.SinceS = tenths(at.Sub(v.Since))
	}
	if !v.Probed.IsZero() {
		ago := tenths(at.Sub(v.Probed))
		s.ProbedS = &ago
	}
	return s
}

func tenths(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

var ailmentNames = [...]string{
	engine.Alive: "ok", engine.Refused: "refused", engine.NoRoute: "connect", engine.Silent: "timeout", engine.Broken: "reset", engine.Sick: "5xx", engine.Untrusted: "tls",
}

type healthCollector struct {
	n                                       *Node
	failing, avoided, probes, wrote, errors *prometheus.Desc
	named, mute                             *prometheus.Desc
}

func newHealthCollector(n *Node) *healthCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &healthCollector{
		n:       n,
		failing: d("backend_failing", "1 while this node's own probes or requests find the backend failing.", "backend"),
		avoided: d("backend_reported", "1 while this node leaves the backend alone because of probes or of other nodes' reports.", "backend"),
		probes:  d("probes_total", "Probes of this node, by what they found.", "found"),
		wrote:   d("health_writes_total", "Backends that this node has written down in the fleet's state: down, up, or generation (its engine was restarted).", "what"),
		errors:  d("health_write_failures_total", "Changes of the fleet's state by health that failed; they are tried again."),
		named:   d("source_backends", "Backends that a source of them named last.", "source"),
		mute:    d("source_failing", "1 while a source of backends does not answer, or not well; its last answer stands.", "source"),
	}
}

// Describe implements prometheus.Collector.
func (h *healthCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{h.failing, h.avoided, h.probes, h.wrote, h.errors, h.named, h.mute} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (h *healthCollector) Collect(ch chan<- prometheus.Metric) {
	c, r := h.n.checker, h.n.fleet.roster()
	for _, u := range r.list {
		s := c.status(u)
		ch <- prometheus.MustNewConstMetric(h.failing, prometheus.GaugeValue, oneIf(s.Failing), u.Name)
		ch <- prometheus.MustNewConstMetric(h.avoided, prometheus.GaugeValue, oneIf(s.Avoided), u.Name)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for found, name := range ailmentNames {
		counter(h.probes, c.probes[found].Load(), name)
	}
	counter(h.wrote, c.downs.Load(), "down")
	counter(h.wrote, c.ups.Load(), "up")
	counter(h.wrote, c.raised.Load(), "generation")
	counter(h.errors, c.refused.Load())
	for _, s := range h.n.sources.status() {
		ch <- prometheus.MustNewConstMetric(h.named, prometheus.GaugeValue, float64(s.Backends), s.Source)
		ch <- prometheus.MustNewConstMetric(h.mute, prometheus.GaugeValue, oneIf(s.Error != ""), s.Source)
	}
}

package node

import (
	"github.com/prometheus/client_golang/prometheus"
)

type stateCollector struct {
	n *Node

	ready, inFlight, connections             *prometheus.Desc
	bodyBytes, bodiesRefused                 *prometheus.Desc
	active, prefill, avoided, horizon, rate  *prometheus.Desc
	facts, bytes, evicted, expired, retract  *prometheus.Desc
	refused, rebuilds, surprises, cachesLost *prometheus.Desc
	modelsKnown                              *prometheus.Desc
}

func newStateCollector(n *Node) *stateCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &stateCollector{
		n:             n,
		ready:         d("ready", "1 while the node asks for traffic."),
		inFlight:      d("requests_in_flight", "Requests being served."),
		connections:   d("connections", "Open client connections."),
		bodyBytes:     d("body_memory_bytes", "Bytes that request bodies hold, of max_body_memory."),
		bodiesRefused: d("bodies_refused_total", "Requests answered 503 because max_body_memory was in use."),
		active:        d("backend_active_requests", "Requests this node has at the backend.", "backend"),
		prefill:       d("backend_prefill_tokens", "Prompt tokens this node has at the backend that are not computed yet, as estimated.", "backend"),
		avoided:       d("backend_avoided", "1 while this node leaves the backend alone because it failed.", "backend"),
		horizon:       d("backend_horizon_seconds", "Learned age at which an untouched prefix has probably been evicted. Not additive.", "backend"),
		rate:          d("backend_prefill_rate", "Learned prompt tokens per second. Not additive.", "backend"),
		modelsKnown:   d("backend_models", "Models the backend is known to serve; 0: any.", "backend"),
		facts:         d("tree_facts", "Facts retained about the engines' caches."),
		bytes:         d("tree_bytes", "Bytes of the tables that hold them."),
		evicted:       d("tree_evicted_total", "Facts dropped to keep the budget, oldest first."),
		expired:       d("tree_expired_total", "Facts that outlived their usefulness."),
		retract:       d("tree_retracted_total", "Facts taken back because an engine reported less."),
		refused:       d("tree_refused_total", "Facts not taken for want of room."),
		rebuilds:      d("tree_rebuilds_total", "Tables rebuilt to grow, shrink or evict."),
		surprises:     d("tree_surprises_total", "Answers without any cached token where a young match was predicted."),
		cachesLost:    d("tree_caches_lost_total", "Backends cleared since three answers in a row showed that their engine had lost its cache."),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.ready, c.inFlight, c.connections, c.bodyBytes, c.bodiesRefused, c.active, c.prefill, c.avoided, c.horizon, c.rate, c.modelsKnown, c.facts,
		c.bytes, c.evicted, c.expired, c.retract, c.refused, c.rebuilds, c.surprises, c.cachesLost,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	n := c.n
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(c.ready, oneIf(n.Ready()))
	gauge(c.inFlight, float64(n.proxy.InFlight()))
	gauge(c.connections, float64(n.proxy.Connections()))
	bodyBytes, bodiesRefused := n.proxy.BodyMemory()
	gauge(c.bodyBytes, float64(bodyBytes))
	counter(c.bodiesRefused, bodiesRefused)
	at := now()
	for _, u := range n.fleet.roster().list {
		id, name := u.id, u.Name
		prefill, active := n.router.Load(id)
		_, avoided := n.router.Avoided(id, at)
		models, _, _ := n.fleet.modelsOf(u)
		gauge(c.active, float64(active), name)
		gauge(c.prefill, float64(prefill), name)
		gauge(c.avoided, oneIf(avoided), name)
		gauge(c.horizon, n.tree.Horizon(id).Seconds(), name)
		gauge(c.rate, n.router.Rate(id), name)
		gauge(c.modelsKnown, float64(len(models)), name)
	}
	st := n.tree.Stats()
	gauge(c.facts, float64(st.Facts))
	gauge(c.bytes, float64(st.Bytes))
	counter(c.evicted, st.Evicted)
	counter(c.expired, st.Expired)
	counter(c.retract, st.Retracted)
	counter(c.refused, st.Refused)
	counter(c.rebuilds, st.Rebuilds)
	counter(c.surprises, st.Surprises)
	counter(c.cachesLost, st.CachesLost)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

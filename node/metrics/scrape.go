package metrics

import "github.com/prometheus/client_golang/prometheus"

// Scrape receives the series of parts that measure themselves. It is valid during one scrape.
type Scrape chan<- prometheus.Metric

// Series adds a series to a metric: its value, and those of the metric's labels.
type Series func(v float64, labels ...string)

// Gauge begins a metric of this scrape, without the prefix grapevine_.
func (s Scrape) Gauge(name, help string, labels ...string) Series {
	return s.metric(prometheus.GaugeValue, name, help, labels)
}

// Counter begins a metric whose values never fall while the process runs.
func (s Scrape) Counter(name, help string, labels ...string) Series {
	return s.metric(prometheus.CounterValue, name, help, labels)
}

func (s Scrape) metric(kind prometheus.ValueType, name, help string, labels []string) Series {
	desc := prometheus.NewDesc(prefix+name, help, labels, nil)
	return func(v float64, values ...string) { s <- prometheus.MustNewConstMetric(desc, kind, v, values...) }
}

// Bool is 1 for true.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collector calls parts at each scrape. It describes nothing beforehand: the names stand only where
// the values are.
type collector func(Scrape)

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) { c(ch) }

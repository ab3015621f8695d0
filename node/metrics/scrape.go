package metrics

import "github.com/prometheus/client_golang/prometheus"

// Scrape receives the series of parts that measure themselves.
type Scrape chan<- prometheus.Metric

// Series adds a series to a metric: its value and its labels' values.
type Series func(v float64, labels ...string)

// Gauge begins a metric, named without the prefix grapevine_.
func (s Scrape) Gauge(name, help string, labels ...string) Series {
	return s.metric(prometheus.GaugeValue, name, help, labels)
}

// Counter begins a metric whose values never fall.
func (s Scrape) Counter(name, help string, labels ...string) Series {
	return s.metric(prometheus.CounterValue, name, help, labels)
}

// Histogram is a distribution; Buckets are cumulative, by their upper ends.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64
}

// Histogram begins a metric of distributions.
func (s Scrape) Histogram(name, help string, labels ...string) func(h Histogram, labels ...string) {
	desc := prometheus.NewDesc(prefix+name, help, labels, nil)
	return func(h Histogram, values ...string) {
		s <- prometheus.MustNewConstHistogram(desc, h.Count, h.Sum, h.Buckets, values...)
	}
}

func (s Scrape) metric(kind prometheus.ValueType, name, help string, labels []string) Series {
	desc := prometheus.NewDesc(prefix+name, help, labels, nil)
	return func(v float64, values ...string) { s <- prometheus.MustNewConstMetric(desc, kind, v, values...) }
}

func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collector describes nothing beforehand: the names stand only where the values are.
type collector func(Scrape)

func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) { c(ch) }

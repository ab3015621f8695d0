package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
)

// Few buckets: a fleet has thousands of engines.
var (
	backendTTFTBuckets     = []float64{.1, .4, 1.6, 6.4, 25.6}
	backendDurationBuckets = []float64{1, 5, 20, 80, 320}
	backendTokenBuckets    = []float64{.01, .02, .05, .15, .5}
)

// backendSeries are counted at every node and registered at none: CollectBackend shows them.
type backendSeries struct {
	outcomes                 [books.Failures]prometheus.Counter
	ttft, duration, perToken timed
}

func newBackend(name string) *backendSeries {
	histogram := func(metric, help string, buckets []float64) timed {
		return timed{Histogram: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + metric, Help: help, Buckets: buckets, ConstLabels: prometheus.Labels{"backend": name},
		})}
	}
	b := &backendSeries{
		ttft: histogram("backend_time_to_first_token_seconds",
			"From the dispatch of a request to the backend to the first token of its stream, or to the head of an answer that is not streamed.", backendTTFTBuckets),
		duration: histogram("backend_request_duration_seconds", "From the dispatch of a request to the backend to the end of its answer.", backendDurationBuckets),
		perToken: histogram("backend_time_per_output_token_seconds",
			"Mean time between the output tokens of a stream from the backend, behind the first.", backendTokenBuckets),
	}
	for f := range b.outcomes {
		b.outcomes[f] = prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "backend_requests_total", Help: "Requests by the backend tried last and the outcome there.",
			ConstLabels: prometheus.Labels{"backend": name, "outcome": outcome(books.Failure(f))},
		})
	}
	return b
}

// outcome is the label of a failure. None is ok, since "none" reads as if there had been no request.
func outcome(f books.Failure) string {
	if f == books.None {
		return "ok"
	}
	return f.String()
}

// CollectBackend adds what this node's requests found at a backend that AddBackends named.
func (m *Metrics) CollectBackend(s Scrape, name string) {
	if b := (*m.backends.Load())[name]; b != nil {
		b.collect(s)
	}
}

// CollectOtherBackends adds the requests at backends beyond the bound of AddBackends.
func (m *Metrics) CollectOtherBackends(s Scrape) { m.otherBackend.collect(s) }

func (b *backendSeries) collect(s Scrape) {
	for _, c := range b.outcomes {
		s <- c
	}
	s <- b.ttft
	s <- b.duration
	s <- b.perToken
}

// times are those of a request in seconds; 0: unknown.
type times struct {
	ttft, duration float64 // since the request arrived
	dispatch       float64 // of the last attempt, since then
	perToken       float64
	record         *proxy.Record
}

func timesOf(r *proxy.Record) times {
	t := times{ttft: r.TTFT.Seconds(), duration: r.Total.Seconds(), dispatch: r.Queue.Seconds(), record: r}
	if r.Stream && r.TTFT > 0 && r.OutputTokens > 1 && r.Failed == books.None {
		t.perToken = max(r.Total-r.TTFT, time.Nanosecond).Seconds() / float64(r.OutputTokens-1)
	}
	return t
}

func (t *modelSeries) observe(at *times) {
	t.duration.observe(at, at.duration)
	if at.ttft > 0 {
		t.ttft.observe(at, at.ttft)
	}
	if at.perToken > 0 {
		t.perToken.observe(at, at.perToken)
	}
}

func (b *backendSeries) observe(failed books.Failure, at *times) {
	b.outcomes[failed].Inc()
	if failed != books.None {
		return // the times of failures are those of timeouts and refusals
	}
	b.duration.observe(at, max(at.duration-at.dispatch, 0))
	if at.ttft > 0 {
		b.ttft.observe(at, max(at.ttft-at.dispatch, 0))
	}
	if at.perToken > 0 {
		b.perToken.observe(at, at.perToken)
	}
}

// Package metrics is a node's Prometheus registry. Other parts report their figures at each scrape.
package metrics

import (
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

const prefix = "grapevine_"

// Metrics is one node's registry. Series are looked up once, because a lookup costs more than
// routing a request, and exist before their first event, because a rate needs a value to begin with.
// A client's model becomes a label only if an engine listed it. Safe for concurrent use.
type Metrics struct {
	Registry     *prometheus.Registry
	Certificates *prometheus.GaugeVec // expiry in Unix seconds, by setting

	requests *prometheus.CounterVec // kind, code
	tokens   *prometheus.CounterVec // model, type

	kinds     [prompt.Pooling + 1]kindSeries  // by prompt.Kind
	decisions map[string][]prometheus.Counter // by strategy and rung; immutable
	split     []prometheus.Counter            // by books.Failure
	byRung    []prometheus.Observer           // first-token times, by rung
	retries   prometheus.Counter
	resent    prometheus.Counter
	cancels   struct{ before, after prometheus.Counter }
	overhead  prometheus.Observer
	refused   map[string][]prometheus.Counter           // by reason and clients.Priority; immutable
	error     struct{ over, under prometheus.Observer } // of predictions

	labelsMu sync.Mutex                              // serialises AddModels, AddBackends and AddRules
	models   atomic.Pointer[map[string]*modelSeries] // replaced, never written
	other    *modelSeries
	byModel  modelVectors

	ruled *prometheus.CounterVec                  // rule, target
	rules atomic.Pointer[map[string]*ruleTargets] // by name; replaced, never written

	backends     atomic.Pointer[map[string]*backendSeries] // by name; replaced, never written
	otherBackend *backendSeries
}

type kindSeries struct {
	used     sync.Once
	codes    [600]atomic.Pointer[prometheus.Counter] // by status, created when first seen
	unparsed prometheus.Counter
}

// usualCodes are counted from the first request of a kind on, so that the first failure is a change.
var usualCodes = []int{200, 400, 429, proxy.StatusClientGone, 500, 502, 503, 504}

// modelVectors make the series of a model.
type modelVectors struct {
	ttft, duration, perToken, waits *prometheus.HistogramVec // model; waits also priority
}

type modelSeries struct {
	prompt, cached, output   prometheus.Counter
	ttft, duration, perToken timed
	waits                    []prometheus.Observer // by clients.Priority
}

type ruleTargets struct{ pool, fallback prometheus.Counter }

// other is the label of what has no series of its own.
const other = "other"

// maxModelLabels: adapters come and go by the thousand.
const maxModelLabels = 200

// First tokens take from 10 ms (cached) to minutes (queued), the router itself microseconds.
var (
	ttftBuckets       = []float64{.01, .025, .05, .1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8, 25.6, 60, 120, 300}
	durationBuckets   = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}
	overheadBuckets   = []float64{10e-6, 20e-6, 40e-6, 80e-6, 160e-6, 320e-6, 640e-6, 1.28e-3, 2.56e-3, 5e-3, 10e-3, 50e-3}
	predictionBuckets = []float64{0, 32, 128, 512, 2048, 8192, 32768, 131072}
	waitBuckets       = []float64{.01, .05, .2, .8, 3.2, 12.8, 60}
	perTokenBuckets   = []float64{.002, .005, .01, .015, .02, .03, .05, .08, .15, .5}
)

// New calls collect at each scrape.
func New(version string, collect func(Scrape)) *Metrics {
	m := &Metrics{Registry: prometheus.NewRegistry()}
	m.Registry.MustRegister(collector(collect),
		// Without the prefix: the boards and alerts for all Go programs expect these names.
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg := prometheus.WrapRegistererWithPrefix(prefix, m.Registry)
	m.requestSeries(reg)
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m.Certificates = gauges("tls_certificate_expiry_timestamp_seconds",
		"Unix time at which the certificate of a setting expires; no series without one. Not additive.", "setting")
	gauges("build_info", "1, labelled with the version of the router and of Go.", "version", "goversion").
		WithLabelValues(version, runtime.Version()).Set(1)
	m.other = m.newModel(other)
	m.models.Store(&map[string]*modelSeries{})
	m.otherBackend = newBackend(other)
	m.backends.Store(&map[string]*backendSeries{})
	m.rules.Store(&map[string]*ruleTargets{})
	return m
}

func (m *Metrics) requestSeries(reg prometheus.Registerer) {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return promauto.With(reg).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m.requests = counters("requests_total", "Finished requests, by kind of endpoint and status sent (499: the client left first).", "kind", "code")
	m.tokens = counters("tokens_total", "Tokens as the engines count them: prompt, cached (of the prompt), output.", "model", "type")
	split := counters("split_requests_total", "Requests whose prompt another backend computed for a decode backend: ok, or what failed; then one backend computed all.", "outcome")
	for f := range books.Failure(books.Failures) {
		m.split = append(m.split, split.WithLabelValues(outcome(f)))
	}
	m.ruled = counters("rule_requests_total", "Routed requests that followed a rule (its name, or # and its place in the list), to its pool or to its fallback.", "rule", "target")
	m.retries = counters("retries_total", "Further backends tried because one failed before the client received a byte.").WithLabelValues()
	m.resent = counters("resent_total", "Requests sent again to the same backend because a reused connection was stale.").WithLabelValues()
	m.overhead = histograms("overhead_seconds", "The router's own time before it forwards a request: parsing, matching, picking.", overheadBuckets).WithLabelValues()
	cancels := counters("cancels_total", "Requests whose client left, before or after the first byte of the answer.", "stage")
	m.cancels.before, m.cancels.after = cancels.WithLabelValues("before"), cancels.WithLabelValues("after")
	prediction := histograms("prediction_error_tokens",
		"Predicted minus reported cached prompt tokens: over (the engine had fewer) or under.", predictionBuckets, "side")
	m.error.over, m.error.under = prediction.WithLabelValues("over"), prediction.WithLabelValues("under")

	refused := counters("queue_refused_total", "Requests answered 429 by the queue: full (no place), timeout (no engine opened), deadline (their turn, or their first token, would come too late).", "priority", "reason")
	m.refused = make(map[string][]prometheus.Counter)
	for _, p := range clients.Priorities() {
		for _, reason := range []string{proxy.RefusedFull, proxy.RefusedTimeout, proxy.RefusedLate} {
			m.refused[reason] = append(m.refused[reason], refused.WithLabelValues(p.String(), reason))
		}
	}

	unparsed := counters("unparsed_total",
		"Requests whose body the router did not understand: refused, or routed by load if allow_engine_control is set.", "kind")
	for k := range prompt.Kind(len(m.kinds)) {
		m.kinds[k].unparsed = unparsed.WithLabelValues(k.String())
	}
	m.request(prompt.Chat, http.StatusOK)
	m.byModel = modelVectors{
		ttft: histograms("time_to_first_token_seconds",
			"From the arrival of a request to the first token of its stream, or to the head of an answer that is not streamed.", ttftBuckets, "model"),
		duration: histograms("request_duration_seconds", "From the arrival of a routed request to the end of its answer.", durationBuckets, "model"),
		perToken: histograms("time_per_output_token_seconds", "Mean time between the output tokens of a stream, behind the first.", perTokenBuckets, "model"),
		waits: histograms("queue_wait_seconds",
			"How long requests waited in the router's queue; those that did not wait are not counted.", waitBuckets, "model", "priority"),
	}
	byRung := histograms("rung_time_to_first_token_seconds", "time_to_first_token_seconds by the rung of the ladder that decided.", ttftBuckets, "rung")
	decisions := counters("decisions_total", "Routed requests, by strategy and by the rung of the ladder that decided.", "strategy", "rung")
	m.decisions = make(map[string][]prometheus.Counter)
	for r := range len(policy.Stats{}.Rungs) {
		rung := policy.Rung(r).String()
		m.byRung = append(m.byRung, byRung.WithLabelValues(rung))
		for _, strategy := range policy.Strategies() {
			m.decisions[strategy] = append(m.decisions[strategy], decisions.WithLabelValues(strategy, rung))
		}
	}
}

// maxBackendLabels: removed backends keep their series.
const maxBackendLabels = 2 * raftstore.MaxBackends

// AddBackends makes the series of backends. One named other shares those of the rest.
func (m *Metrics) AddBackends(names []string) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == other })
	addLabels(m, &m.backends, names, maxBackendLabels, newBackend)
}

// maxRuleLabels: rules that no longer hold keep their series.
const maxRuleLabels = 4 * rules.Max

func (m *Metrics) AddRules(names []string) {
	addLabels(m, &m.rules, names, maxRuleLabels, func(name string) *ruleTargets {
		return &ruleTargets{m.ruled.WithLabelValues(name, "pool"), m.ruled.WithLabelValues(name, "fallback")}
	})
}

func (m *Metrics) AddModels(names []string) {
	addLabels(m, &m.models, names, maxModelLabels, m.newModel)
}

// ModelLabel returns the model if it has series of its own, else the label of all others.
func (m *Metrics) ModelLabel(model string) string {
	if _, ok := (*m.models.Load())[model]; ok {
		return model
	}
	return other
}

func addLabels[V any](m *Metrics, series *atomic.Pointer[map[string]V], names []string, limit int, create func(name string) V) {
	m.labelsMu.Lock()
	defer m.labelsMu.Unlock()
	known := *series.Load()
	next := maps.Clone(known)
	for _, name := range names {
		if _, ok := next[name]; !ok && len(next) < limit {
			next[name] = create(name)
		}
	}
	if len(next) > len(known) {
		series.Store(&next)
	}
}

func (m *Metrics) newModel(name string) *modelSeries {
	of := func(v *prometheus.HistogramVec) timed {
		return timed{Histogram: v.WithLabelValues(name).(prometheus.Histogram)}
	}
	t := &modelSeries{
		prompt: m.tokens.WithLabelValues(name, "prompt"), cached: m.tokens.WithLabelValues(name, "cached"),
		output: m.tokens.WithLabelValues(name, "output"),
		ttft:   of(m.byModel.ttft), duration: of(m.byModel.duration), perToken: of(m.byModel.perToken),
	}
	for _, p := range clients.Priorities() {
		t.waits = append(t.waits, m.byModel.waits.WithLabelValues(name, p.String()))
	}
	return t
}

// Observe counts a finished request; r is valid during the call only.
func (m *Metrics) Observe(r *proxy.Record) {
	m.request(r.Kind, r.Status).Inc()
	of := m.model(r)
	if r.Unparsed {
		m.kinds[r.Kind].unparsed.Inc()
	}
	if r.Attempts > 1 {
		m.retries.Add(float64(r.Attempts - 1))
	}
	if r.Resent > 0 {
		m.resent.Add(float64(r.Resent))
	}
	if r.Waited > 0 {
		of.waits[r.Priority].Observe(r.Waited.Seconds())
	}
	if r.Refused != "" {
		m.refused[r.Refused][r.Priority].Inc()
	}
	if r.Failed == books.ClientGone {
		if r.TTFT > 0 {
			m.cancels.after.Inc()
		} else {
			m.cancels.before.Inc()
		}
	}
	d := r.Decision
	if d == nil {
		return
	}
	m.decisions[d.Strategy][d.Rung].Inc()
	if d.Rule != "" {
		m.countRule(d)
	}
	m.overhead.Observe(r.Overhead.Seconds())
	took := timesOf(r)
	if took.ttft > 0 {
		m.byRung[d.Rung].Observe(took.ttft)
	}
	of.observe(&took)
	if at := (*m.backends.Load())[r.Backend]; at != nil {
		at.observe(r.Failed, &took)
	} else {
		m.otherBackend.observe(r.Failed, &took)
	}
	if r.Prefill.Backend != "" {
		m.split[r.Prefill.Failed].Inc()
		if r.Prefill.Failed == books.None {
			d = r.Prefill.Decision // the cached tokens are those of the prefill backend
		}
	}
	m.countTokens(r, d, of)
}

func (m *Metrics) countRule(d *policy.Decision) {
	series := (*m.rules.Load())[d.Rule]
	switch {
	case series == nil: // beyond maxRuleLabels
	case d.Fallback:
		series.fallback.Inc()
	default:
		series.pool.Inc()
	}
}

func (m *Metrics) request(k prompt.Kind, status int) prometheus.Counter {
	if status < 0 || status >= len(m.kinds[k].codes) {
		status = 0 // no status: other
	}
	if c := m.kinds[k].codes[status].Load(); c != nil {
		return *c
	}
	m.kinds[k].used.Do(func() {
		for _, usual := range usualCodes {
			m.newCode(k, usual)
		}
	})
	return m.newCode(k, status)
}

// newCode may be called again: the vector returns the same counter.
func (m *Metrics) newCode(k prompt.Kind, status int) prometheus.Counter {
	c := m.requests.WithLabelValues(k.String(), codeLabel(status))
	m.kinds[k].codes[status].Store(&c)
	return c
}

// model returns the series of the model that engines were asked for.
func (m *Metrics) model(r *proxy.Record) *modelSeries {
	name := r.Model
	if len(r.Target) > 0 {
		name = r.Target
	}
	if t := (*m.models.Load())[string(name)]; t != nil {
		return t
	}
	return m.other
}

func (m *Metrics) countTokens(r *proxy.Record, d *policy.Decision, t *modelSeries) {
	if r.PromptTokens > 0 {
		t.prompt.Add(float64(r.PromptTokens))
	}
	if r.OutputTokens > 0 {
		t.output.Add(float64(r.OutputTokens))
	}
	if r.CachedTokens < 0 {
		return // the engine does not report it
	}
	t.cached.Add(float64(r.CachedTokens))
	if off := d.PredictedTokens - r.CachedTokens; off > 0 {
		m.error.over.Observe(float64(off))
	} else {
		m.error.under.Observe(float64(-off))
	}
}

func codeLabel(status int) string {
	if http.StatusText(status) == "" && status != proxy.StatusClientGone {
		return "other"
	}
	return strconv.Itoa(status)
}

package node

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/node/backends"
	"grapevine.example/node/metrics"
	"grapevine.example/node/share"
	"grapevine.example/node/streams"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

func everyRecord() []*proxy.Record {
	decision := func(rung policy.Rung, predicted int) *policy.Decision {
		return &policy.Decision{Strategy: policy.Prefix, Rung: rung, PredictedTokens: predicted}
	}
	return []*proxy.Record{
		{
			Kind: prompt.Chat, Model: []byte("m"), Status: 200, Attempts: 2, Resent: 1, Backend: "127.0.0.1:1", Decision: decision(policy.Cache, 80),
			PromptTokens: 100, CachedTokens: 64, OutputTokens: 7,
			Overhead: 30 * time.Microsecond, TTFT: 90 * time.Millisecond, Total: time.Second,
		},
		{
			Kind: prompt.Messages, Stream: true, Status: 200, Attempts: 1, Backend: "127.0.0.1:1", Decision: decision(policy.Load, 0),
			PromptTokens: 100, CachedTokens: -1, OutputTokens: 3, TTFT: 300 * time.Millisecond, Total: 500 * time.Millisecond, Unparsed: true,
		},
		{
			Kind: prompt.Chat, Status: proxy.StatusClientGone, Attempts: 1, Backend: "127.0.0.1:1", Decision: decision(policy.Hash, 0),
			Failed: books.ClientGone, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1, Total: time.Second,
		},
		{
			Kind: prompt.Completion, Status: 200, Attempts: 1, Backend: "127.0.0.1:1", Decision: decision(policy.Hash, 10),
			Failed: books.ClientGone, TTFT: 1, PromptTokens: 50, CachedTokens: 10, OutputTokens: 1, Total: time.Second,
		},
		{Kind: prompt.Other, Status: 503, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1, Total: time.Millisecond},
	}
}

func everyFigure() *fleetFigures {
	return &fleetFigures{
		members: map[member.State]int{member.StateAlive: 2, member.StateFailed: 1, member.StateLeft: 0},
		seeds:   map[string]int{"joined": 1, "refused": 0, "unreachable": 1},
		peers:   []gossip.Peer{{Status: member.Status{Info: member.Info{Name: "two"}, State: member.StateAlive}, Connected: true, Lag: time.Millisecond, RTT: time.Millisecond}},
		stats:   gossip.Stats{SentByKind: map[string]uint64{"batch": 1}, ReceivedByKind: map[string]uint64{"batch": 1}},
		shared:  share.Stats{Queued: map[string]uint64{"add": 1, "touch": 1, "drop": 1, "revert": 1, "fence": 1}},
		warm:    1, staleness: time.Second,
	}
}

func everyMetric(t *testing.T) *prometheus.Registry {
	t.Helper()
	cfg := testConfig("http://127.0.0.1:1")
	cfg.BackendsFrom = []string{"file:/etc/grapevine/backends"}
	cfg.OTLPEndpoint = "http://127.0.0.1:4318"
	cfg.ClientsFile = filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(cfg.ClientsFile, []byte(clientsText("search")), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.meter.Reserve(n.clients.book.Clients[0], 1, 1, 0)
	n.accounts.SetPrice(1)
	n.accounts.Observe(&proxy.Record{
		Waited: time.Second,
		Client: "of-search", Stream: true, Status: 200, PromptTokens: 1000, Queue: 1, TTFT: time.Second, Total: 2 * time.Second,
		Decision: &policy.Decision{Candidates: []policy.Considered{{Rate: 1000}}},
	})
	m := metrics.New("v", func(s metrics.Scrape) {
		n.collect(s)
		n.collectAffinity(s, []demand.Affinity{{Whole: 1}})
		collectLoads(s, map[string]backends.Load{"127.0.0.1:1": {At: time.Now(), From: backends.FromMetrics}})
		collectFollowed(s, map[string]streams.Status{"127.0.0.1:1": {Following: true}})
		everyFigure().collect(s)
	})
	m.AddBackends(n.backends.Roster().Names())
	m.AddRules([]string{"canary"})
	for _, r := range everyRecord() {
		m.Observe(r)
	}
	m.Certificates.WithLabelValues("tls_cert").Set(1)
	return m.Registry
}

func TestMetricsCount(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range everyRecord() {
		n.metrics.Observe(r)
	}
	for series, want := range map[string]float64{
		// No engine listed model m.
		`grapevine_tokens_total{model="other",type="cached"}`:                  74,
		`grapevine_tokens_total{model="other",type="output"}`:                  11,
		`grapevine_tokens_total{model="other",type="prompt"}`:                  250,
		`grapevine_cancels_total{stage="after"}`:                               1,
		`grapevine_cancels_total{stage="before"}`:                              1,
		`grapevine_retries_total`:                                              1,
		`grapevine_resent_total`:                                               1,
		`grapevine_unparsed_total{kind="messages"}`:                            1,
		`grapevine_requests_total{code="499",kind="chat"}`:                     1,
		`grapevine_requests_total{code="503",kind="other"}`:                    1,
		`grapevine_decisions_total{rung="hash",strategy="prefix"}`:             2,
		`grapevine_backend_requests_total{backend="127.0.0.1:1",outcome="ok"}`: 2,
		`grapevine_rung_time_to_first_token_seconds_count{rung="cache"}`:       1,
		`grapevine_time_to_first_token_seconds_count{model="other"}`:           3,
		`grapevine_request_duration_seconds_count{model="other"}`:              4,
		`grapevine_time_per_output_token_seconds_count{model="other"}`:         1,
		`grapevine_time_per_output_token_seconds_sum{model="other"}`:           0.1,
		`grapevine_queue_wait_seconds_count{model="other",priority="batch"}`:   0,
		`grapevine_prediction_error_tokens_count{side="over"}`:                 1,
		`grapevine_prediction_error_tokens_sum{side="over"}`:                   16,
		`grapevine_prediction_error_tokens_count{side="under"}`:                1,
		`grapevine_backend_active_requests{backend="127.0.0.1:1"}`:             0,
		`grapevine_ready`: 0,
	} {
		if got, ok := scrape(t, n)[series]; !ok || got != want {
			t.Errorf("%s: %v (%v), want %v", series, got, ok, want)
		}
	}
}

func scrape(t *testing.T, n *Node) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	n.adminServer().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	series := make(map[string]float64)
	for _, line := range strings.Split(w.Body.String(), "\n") {
		name, value, ok := cutLast(line, " ")
		if !ok || strings.HasPrefix(line, "#") || strings.Contains(name, "_bucket{") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		series[name] = v
	}
	return series
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func countSeries(t *testing.T, n *Node, prefix string) (count int) {
	t.Helper()
	for name := range scrape(t, n) {
		if strings.HasPrefix(name, prefix) {
			count++
		}
	}
	return count
}

func TestMetricsBounded(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	listed := make([]string, 1000)
	for i := range listed {
		listed[i] = fmt.Sprintf("adapter-%04d", i)
	}
	n.metrics.AddModels(listed)
	for i := range 2000 {
		n.metrics.Observe(&proxy.Record{
			Kind: prompt.Chat, Model: fmt.Appendf(nil, "invented-%d", i), Status: 100 + i%2000, Attempts: 1,
			Backend: "127.0.0.1:1", Decision: &policy.Decision{Strategy: policy.Prefix}, PromptTokens: 1,
		})
	}
	if got := countSeries(t, n, "grapevine_tokens_total"); got > 3*201 {
		t.Errorf("%d token series", got)
	}
	if got := countSeries(t, n, "grapevine_requests_total"); got > 80 {
		t.Errorf("%d request series", got)
	}
}

// Rates and alerts begin with a value: 0.
func TestMetricsBeforeTheFirstRequest(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.metrics.AddModels([]string{"m"})
	series := scrape(t, n)
	for _, name := range []string{
		`grapevine_requests_total{code="200",kind="chat"}`, `grapevine_requests_total{code="503",kind="chat"}`,
		`grapevine_backend_requests_total{backend="127.0.0.1:1",outcome="connect"}`,
		`grapevine_backend_time_to_first_token_seconds_count{backend="127.0.0.1:1"}`,
		`grapevine_time_to_first_token_seconds_count{model="m"}`, `grapevine_time_to_first_token_seconds_count{model="other"}`,
		`grapevine_queue_wait_seconds_count{model="m",priority="interactive"}`, `grapevine_tokens_total{model="m",type="cached"}`,
	} {
		if v, ok := series[name]; !ok || v != 0 {
			t.Errorf("%s: %v (%v), want 0", name, v, ok)
		}
	}
	n.metrics.Observe(&proxy.Record{Kind: prompt.Embeddings, Status: 200})
	if _, ok := scrape(t, n)[`grapevine_requests_total{code="502",kind="embeddings"}`]; !ok {
		t.Error("the first request of a kind does not create the series of its failures")
	}
}

// The times of a backend begin when it gets the request, those of the model when the request arrives.
func TestMetricsOfBackends(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	r := &proxy.Record{
		Kind: prompt.Chat, Stream: true, Status: 200, Backend: "127.0.0.1:1", Decision: &policy.Decision{Strategy: policy.Prefix},
		Queue: time.Second, TTFT: 3 * time.Second, Total: 5 * time.Second, OutputTokens: 5,
	}
	n.metrics.Observe(r)
	r.Failed = books.Timeout
	n.metrics.Observe(r)
	series := scrape(t, n)
	for name, want := range map[string]float64{
		`grapevine_time_to_first_token_seconds_sum{model="other"}`:                      6,
		`grapevine_backend_time_to_first_token_seconds_sum{backend="127.0.0.1:1"}`:      2,
		`grapevine_backend_request_duration_seconds_sum{backend="127.0.0.1:1"}`:         4,
		`grapevine_backend_time_per_output_token_seconds_sum{backend="127.0.0.1:1"}`:    0.5,
		`grapevine_backend_requests_total{backend="127.0.0.1:1",outcome="timeout"}`:     1,
		`grapevine_backend_state{backend="127.0.0.1:1",state="active"}`:                 1,
		`grapevine_backend_state{backend="127.0.0.1:1",state="down"}`:                   0,
		`grapevine_backends_avoided`:                                                    0,
		`grapevine_backend_time_per_output_token_seconds_count{backend="other"}`:        0,
		`grapevine_backend_requests_total{backend="127.0.0.1:1",outcome="client-gone"}`: 0,
	} {
		if got, ok := series[name]; !ok || got != want {
			t.Errorf("%s: %v (%v), want %v", name, got, ok, want)
		}
	}
}

// Collectors that ask for OpenMetrics get the trace of a slow request with its time.
func TestMetricsExemplars(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	r := everyRecord()[0]
	n.metrics.Observe(r)
	r.Trace = proxy.Trace{ID: [16]byte{0xab, 15: 0xcd}, Parent: [8]byte{1}, Sampled: true}
	n.metrics.Observe(r)
	ask := func(accept string) string {
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
		q.Header.Set("Accept", accept)
		n.adminServer().Handler().ServeHTTP(w, q)
		return w.Body.String()
	}
	const exemplar = ` # {trace_id="ab0000000000000000000000000000cd"} 0.09 `
	text := ask("application/openmetrics-text;version=1.0.0")
	for _, series := range []string{
		`grapevine_time_to_first_token_seconds_bucket{model="other",le="0.1"} 2`,
		`grapevine_backend_time_to_first_token_seconds_bucket{backend="127.0.0.1:1",le="0.1"} 2`,
	} {
		if !strings.Contains(text, series+exemplar) {
			t.Errorf("no exemplar of %s", series)
		}
	}
	if text := ask("text/plain"); strings.Contains(text, "trace_id") || !strings.Contains(text, `_bucket{model="other",le="0.1"} 2`) {
		t.Error("the plain format has exemplars, or lacks the histogram")
	}
}

// TestMetricsExemplarsOfSlowRequests: an exemplar costs much, so in each window only the first request and each slower one get one.
func TestMetricsExemplarsOfSlowRequests(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now().Truncate(15 * time.Second)
	for i, c := range []struct {
		after, ttft time.Duration
		shown       bool
	}{
		{0, 80 * time.Millisecond, true},
		{time.Second, 70 * time.Millisecond, false},
		{2 * time.Second, 80 * time.Millisecond, false},
		{3 * time.Second, 90 * time.Millisecond, true},
		{15 * time.Second, 60 * time.Millisecond, true},
	} {
		r := *everyRecord()[0]
		r.Start, r.TTFT = start.Add(c.after), c.ttft
		r.Trace = proxy.Trace{ID: [16]byte{0xab, 15: byte(i)}, Sampled: true}
		n.metrics.Observe(&r)
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
		q.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		n.adminServer().Handler().ServeHTTP(w, q)
		want := fmt.Sprintf(`grapevine_time_to_first_token_seconds_bucket{model="other",le="0.1"} %d # {trace_id="%x"} %v `, i+1, r.Trace.ID, c.ttft.Seconds())
		if strings.Contains(w.Body.String(), want) != c.shown {
			t.Errorf("request %d: exemplar %t, want %t", i, !c.shown, c.shown)
		}
	}
}

// The names of backends and models are free.
func TestMetricsOfNamesakes(t *testing.T) {
	cfg := testConfig("http://127.0.0.1:1")
	cfg.Backends[0].Name = "other"
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.metrics.AddModels([]string{"other"})
	r := everyRecord()[0]
	r.Backend, r.Model = "other", []byte("other")
	n.metrics.Observe(r)
	series := scrape(t, n)
	for _, name := range []string{`grapevine_backend_requests_total{backend="other",outcome="ok"}`, `grapevine_time_to_first_token_seconds_count{model="other"}`} {
		if series[name] != 1 {
			t.Errorf("%s: %v, want 1", name, series[name])
		}
	}
}

func TestMetricsKeepListedModels(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	n.metrics.AddModels([]string{"m"})
	r := everyRecord()[0]
	n.metrics.Observe(r)
	n.metrics.AddModels([]string{"later"})
	n.metrics.Observe(r)
	if got := scrape(t, n)[`grapevine_tokens_total{model="m",type="prompt"}`]; got != 200 {
		t.Errorf("%v prompt tokens of m, want 200", got)
	}
}

func TestMetricsLint(t *testing.T) {
	families, err := everyMetric(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsCoverEveryKind(t *testing.T) {
	if name := (prompt.Pooling + 1).String(); !strings.HasPrefix(name, "kind(") {
		t.Errorf("%s comes after pooling: it has no series", name)
	}
}

func TestMetricsStatuses(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{-1, 0, 200, 200, 299, 499, 599, 600, 1000} {
		n.metrics.Observe(&proxy.Record{Kind: prompt.Chat, Status: status})
	}
	for code, want := range map[string]float64{"200": 2, "499": 1, "other": 6} {
		if got := scrape(t, n)[fmt.Sprintf("grapevine_requests_total{code=%q,kind=\"chat\"}", code)]; got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	for _, traced := range []bool{false, true} {
		b.Run(fmt.Sprintf("traced=%t", traced), func(b *testing.B) {
			n, err := New(testConfig("http://127.0.0.1:1"))
			if err != nil {
				b.Fatal(err)
			}
			r := everyRecord()[0]
			if r.Start = time.Now(); traced {
				r.Trace = proxy.Trace{ID: [16]byte{1}, Sampled: true}
			}
			b.ReportAllocs()
			for b.Loop() {
				n.metrics.Observe(r)
			}
		})
	}
}

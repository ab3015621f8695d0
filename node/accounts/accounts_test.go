package accounts

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grapevine.example/node/metrics"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
)

func bookOf(names ...string) *clients.Book {
	b := &clients.Book{}
	for _, name := range names {
		b.Clients = append(b.Clients, &clients.Client{Name: name})
	}
	return b
}

// decided is a choice of an engine of 1,000 tokens/s of prefill that serves so many other requests.
func decided(active int64) *policy.Decision {
	return &policy.Decision{PromptTokens: 900, PredictedTokens: 400, Candidates: []policy.Considered{{Rate: 1000, Active: active}}}
}

// streamed is a stream of 1,000 prompt tokens, 600 of them cached, whose first token came after 0.5 s and whose 101 tokens took 2 s more.
func streamed() proxy.Record {
	return proxy.Record{
		Client: "search", Stream: true, Status: 200, Attempts: 1, Decision: decided(3), PromptTokens: 1000, CachedTokens: 600, OutputTokens: 101,
		Queue: 10 * time.Millisecond, TTFT: 500 * time.Millisecond, Total: 2500 * time.Millisecond,
	}
}

func TestMeasure(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *proxy.Record)
		want   work
	}{
		"a stream":                       {func(*proxy.Record) {}, work{0.4, 0.5, 0.6}},
		"alone at its engine":            {func(r *proxy.Record) { r.Decision = decided(0) }, work{0.4, 2, 0.6}},
		"cached tokens are not reported": {func(r *proxy.Record) { r.CachedTokens = -1 }, work{0.6, 0.5, 0.4}},
		"no usage":                       {func(r *proxy.Record) { r.PromptTokens, r.CachedTokens, r.OutputTokens = -1, -1, -1 }, work{0.5, 0.5, 0.4}},
		"not streamed":                   {func(r *proxy.Record) { r.Stream, r.TTFT = false, r.Total }, work{0.4, (2.49 - 0.4) / 4, 0.6}},
		"not streamed, faster than its rate": {func(r *proxy.Record) {
			r.Stream, r.Total, r.TTFT = false, 110*time.Millisecond, 110*time.Millisecond
		}, work{0.1, 0, 0.6}},
		"left before the first token": {func(r *proxy.Record) {
			r.Status, r.Failed, r.TTFT, r.Total = proxy.StatusClientGone, books.ClientGone, 0, 210*time.Millisecond
			r.PromptTokens, r.CachedTokens, r.OutputTokens = -1, -1, -1
		}, work{prefill: 0.2}},
		"left while it waited for a backend": {func(r *proxy.Record) {
			r.Status, r.Failed, r.TTFT, r.Queue = proxy.StatusClientGone, books.ClientGone, 0, 0
		}, work{}},
		"broken off":            {func(r *proxy.Record) { r.Broken, r.Failed, r.PromptTokens = true, books.Reset, -1 }, work{0.3, 0.5, 0.6}},
		"refused by its engine": {func(r *proxy.Record) { r.Status, r.TTFT, r.Total = 400, time.Millisecond, time.Millisecond }, work{}},
		"no engine answered":    {func(r *proxy.Record) { r.Status, r.Failed, r.TTFT = 502, books.Reset, 0 }, work{}},
		"the rate is not known": {func(r *proxy.Record) { r.Decision.Candidates[0].Rate = 0 }, work{decode: 0.5}},
		"another engine prefills": {func(r *proxy.Record) {
			r.Prefill = proxy.PrefillRecord{Backend: "p", Decision: &policy.Decision{Candidates: []policy.Considered{{Rate: 4000, Active: 9}}}, Took: 100 * time.Millisecond}
		}, work{0.1, 0.5, 0.15}},
	} {
		r := streamed()
		c.change(&r)
		got := measure(&r)
		for _, d := range []float64{got.prefill - c.want.prefill, got.decode - c.want.decode, got.saved - c.want.saved} {
			if math.Abs(d) > 1e-9 {
				t.Errorf("%s: %+v, want %+v", name, got, c.want)
				break
			}
		}
	}
}

func TestAccounts(t *testing.T) {
	var a Accounts
	r := streamed()
	a.Observe(&r) // without a list of clients
	a.Adopt(bookOf("search", "batch", "idle"))
	a.SetPrice(7200)
	a.Observe(&r)
	a.SetPrice(3600)
	a.Observe(&r)
	batch := streamed()
	batch.Client, batch.Status, batch.Stream, batch.CachedTokens = "batch", 502, false, -1
	a.Observe(&batch)
	unknown, refused := streamed(), streamed()
	unknown.Client, refused.Client, refused.Decision = "", "idle", nil
	a.Observe(&unknown)
	a.Observe(&refused)
	waited, late := streamed(), streamed()
	waited.Client, waited.Waited = "idle", 400*time.Millisecond
	waited.Decision, late.Decision = nil, nil
	late.Client, late.Waited, late.Refused = "idle", 20*time.Second, proxy.RefusedTimeout
	a.Observe(&waited)
	a.Observe(&late)
	a.Adopt(bookOf("search", "idle"))
	s := a.Of("search")
	if s.Requests != 2 || s.Failed != 0 || s.Prompt != 2000 || s.Cached != 1200 || s.Output != 202 || math.Abs(s.Prefill-0.8) > 1e-9 || math.Abs(s.Decode-1) > 1e-9 || math.Abs(s.Cost-2.7) > 1e-9 {
		t.Errorf("%+v", s)
	}
	if q := s.TTFT.Quantile(0.5); q < 0.25 || q > 0.5 {
		t.Errorf("median of two first tokens after 0.5 s: %v", q)
	}
	if q := s.Speed.Quantile(0.5); q < 40 || q > 80 {
		t.Errorf("median of two streams of 50 tokens/s: %v", q)
	}
	if i := a.Of("idle"); i.Requests != 0 || i.Wait.Count() != 2 || i.QueueRefused != 1 || i.Wait.Quantile(0.5) != 0.5 {
		t.Errorf("of the queue: %+v", i)
	}
	if b := a.Of("batch"); b.Requests != 0 {
		t.Errorf("a removed client has %+v", b)
	}
	series := make(chan prometheus.Metric, 100)
	a.Collect(metrics.Scrape(series))
	if len(series) != 10 { // 3 of tokens, 2 of seconds, saved, cost and 2 histograms of one client, a wait of the other
		t.Errorf("%d series", len(series))
	}
}

func TestQuantile(t *testing.T) {
	h := Histogram{Bounds: &ttftBounds}
	if q := h.Quantile(0.9); q != 0 {
		t.Errorf("of nothing: %v", q)
	}
	for range 10 {
		h.add(0.2) // (0.1, 0.25]
	}
	for range 10 {
		h.add(1000) // above the last bound
	}
	for q, want := range map[float64]float64{0.25: 0.175, 0.5: 0.25, 0.9: 30} {
		if got := h.Quantile(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if p := h.Prometheus(); p.Count != 20 || p.Buckets[0.1] != 0 || p.Buckets[0.25] != 10 || p.Buckets[30] != 10 || p.Sum != 10_002 {
		t.Errorf("%+v", p)
	}
}

func BenchmarkObserve(b *testing.B) {
	var names []string
	for i := range clients.MaxClients {
		names = append(names, fmt.Sprint("c", i))
	}
	var a Accounts
	a.Adopt(bookOf(names...))
	r := streamed()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 7919) % len(names)
		r.Client = names[i]
		a.Observe(&r)
	}
}

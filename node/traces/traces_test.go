package traces

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// collector decodes batches by OpenTelemetry's own definition, which knows no other fields.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	answers []func(http.ResponseWriter) // to the next batches; then all are taken
	posts   int
	spans   []*tracepb.Span
	of      map[string]string // attributes of the resource
}

func newCollector(t *testing.T, answers ...func(http.ResponseWriter)) *collector {
	c := &collector{answers: answers}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.posts++
		text, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s %q: %v", r.Method, r.URL, r.Header, err)
		}
		if len(c.answers) > 0 {
			answer := c.answers[0]
			c.answers = c.answers[1:]
			answer(w)
			return
		}
		var data, known tracepb.TracesData
		err = errors.Join(proto.Unmarshal(text, &data), proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, &known))
		if err != nil || !proto.Equal(&data, &known) {
			t.Errorf("%v, or unknown fields, in %q", err, text)
		}
		for _, resource := range data.ResourceSpans {
			c.of = texts(resource.Resource.Attributes)
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func texts(attributes []*commonpb.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, a := range attributes {
		if _, twice := all[a.Key]; twice {
			all[a.Key] = "twice"
			continue
		}
		switch v := a.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			all[a.Key] = v.StringValue
		default:
			all[a.Key] = a.Value.String()
		}
	}
	return all
}

func id(b []byte) string { return hex.EncodeToString(b) }

func use(t *testing.T, x *Exporter, endpoint string, headers http.Header) {
	t.Helper()
	target, err := NewTarget(endpoint, headers)
	if err != nil {
		t.Fatal(err)
	}
	x.Use(target)
}

func newExporter(t *testing.T, c *collector) *Exporter {
	t.Helper()
	x := New(Config{Node: "router-1", Cluster: "prod", Version: "v1", Log: zerolog.Nop()})
	use(t, x, c.URL, nil)
	x.pause, x.client.Timeout = time.Millisecond, time.Minute
	return x
}

// run returns a function that ends the exporter and waits for its last batch.
func run(t *testing.T, x *Exporter) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func record() *proxy.Record {
	return &proxy.Record{
		Start: time.Unix(1_800_000_000, 5), ID: []byte("req\"1\xff"), Method: []byte("POST"), Path: []byte("/v1/chat/completions"), Kind: prompt.Chat,
		Model: []byte("größe"), Client: "search", Status: 200, Attempts: 2, Backend: "gpu1:8000", PromptBytes: 4096, MatchedTokens: 900,
		Trace:        proxy.Trace{ID: [16]byte{0xab, 15: 1}, Parent: [8]byte{0xcd, 7: 2}, Span: [8]byte{0xef, 7: 3}, Sampled: true},
		Decision:     &policy.Decision{Rung: policy.Cache},
		PromptTokens: 1000, CachedTokens: 900, OutputTokens: -1,
		Parsed: time.Millisecond, Waited: time.Second, Picked: 1002 * time.Millisecond, Queue: 1003 * time.Millisecond, TTFT: 1100 * time.Millisecond, Total: 2 * time.Second,
	}
}

func TestSpan(t *testing.T) {
	c := newCollector(t)
	x := newExporter(t, c)
	r := record()
	x.Observe(r)
	untraced := record()
	untraced.Trace.Span = [8]byte{}
	x.Observe(untraced)
	failed := record()
	failed.Trace.Parent, failed.Status, failed.Failed, failed.Decision, failed.Picked, failed.Model = [8]byte{}, 503, books.Timeout, nil, 0, []byte(strings.Repeat("m", 2*maxText))
	x.Observe(failed)
	run(t, x)()
	if len(c.spans) != 2 || x.Sent() != 2 || x.Dropped() != 0 || c.posts != 1 {
		t.Fatalf("%d spans, %d sent, %d dropped, %d posts", len(c.spans), x.Sent(), x.Dropped(), c.posts)
	}
	if c.of["service.name"] != "grapevine" || c.of["service.instance.id"] != "router-1" || c.of["service.namespace"] != "prod" || c.of["service.version"] != "v1" {
		t.Errorf("resource %v", c.of)
	}
	s := c.spans[0]
	start := uint64(r.Start.UnixNano())
	if id(s.TraceId) != "ab000000000000000000000000000001" || id(s.SpanId) != "ef00000000000003" || id(s.ParentSpanId) != "cd00000000000002" {
		t.Errorf("ids %s %s %s", id(s.TraceId), id(s.SpanId), id(s.ParentSpanId))
	}
	if s.Name != "chat" || s.Kind != tracepb.Span_SPAN_KIND_SERVER || s.StartTimeUnixNano != start || s.EndTimeUnixNano != start+2e9 || s.Status != nil {
		t.Errorf("%v", s)
	}
	at := texts(s.Attributes)
	for key, want := range map[string]string{
		"http.request.method": "POST", "url.path": "/v1/chat/completions", "http.response.status_code": "int_value:200", "grapevine.attempts": "int_value:2",
		"grapevine.request_id": "req\"1\ufffd", "gen_ai.request.model": "größe", "gen_ai.usage.input_tokens": "int_value:1000",
		"gen_ai.usage.cache_read.input_tokens": "int_value:900", "gen_ai.usage.output_tokens": "", "grapevine.client": "search",
	} {
		if at[key] != want {
			t.Errorf("%s = %q, want %q", key, at[key], want)
		}
	}
	var names []string
	for _, e := range s.Events {
		names = append(names, e.Name)
	}
	if want := []string{"parsed", "queued", "picked", "dispatched", "first_byte"}; !slices.Equal(names, want) {
		t.Fatalf("events %v, want %v", names, want)
	}
	if p := s.Events[2]; p.TimeUnixNano != start+1_002_000_000 {
		t.Errorf("picked at %d", p.TimeUnixNano)
	} else if at := texts(p.Attributes); at["grapevine.rung"] != "cache" || at["grapevine.matched_tokens"] != "int_value:900" || at["grapevine.backend"] != "gpu1:8000" {
		t.Errorf("picked %v", at)
	}
	s, at = c.spans[1], texts(c.spans[1].Attributes)
	if s.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || len(s.ParentSpanId) != 0 || at["error.type"] != books.Timeout.String() || len(at["gen_ai.request.model"]) != maxText {
		t.Errorf("%v", s)
	}
}

func status(code int) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { w.WriteHeader(code) }
}

// rejects is an ExportTraceServiceResponse, whose generated package wants gRPC.
func rejects(spans int64) []byte {
	partial := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(spans))
	partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), "too old")
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
}

func TestCollectorFails(t *testing.T) {
	for name, test := range map[string]struct {
		answers       []func(http.ResponseWriter)
		posts         int
		sent, dropped uint64
	}{
		"returns":     {[]func(http.ResponseWriter){status(503), status(429), status(502)}, 4, 3, 0},
		"stays away":  {[]func(http.ResponseWriter){status(503), status(503), status(503), status(504)}, 4, 0, 3},
		"refuses all": {[]func(http.ResponseWriter){status(400)}, 1, 0, 3},
		"refuses two": {[]func(http.ResponseWriter){func(w http.ResponseWriter) {
			_, _ = w.Write(rejects(2))
		}}, 1, 1, 2},
		"refuses more than there are": {[]func(http.ResponseWriter){func(w http.ResponseWriter) {
			_, _ = w.Write(rejects(9000))
		}}, 1, 0, 3},
		"refuses fewer than none": {[]func(http.ResponseWriter){func(w http.ResponseWriter) {
			_, _ = w.Write(rejects(-1))
		}}, 1, 3, 0},
		"warns": {[]func(http.ResponseWriter){func(w http.ResponseWriter) {
			_, _ = w.Write(rejects(0))
		}}, 1, 3, 0},
		"answers no Protobuf": {[]func(http.ResponseWriter){func(w http.ResponseWriter) { _, _ = io.WriteString(w, "ok") }}, 1, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, test.answers...)
			x := newExporter(t, c)
			for range 3 {
				x.Observe(record())
			}
			x.flush(t.Context())
			if c.posts != test.posts || x.Sent() != test.sent || x.Dropped() != test.dropped {
				t.Errorf("%d posts, %d sent, %d dropped; want %d, %d, %d", c.posts, x.Sent(), x.Dropped(), test.posts, test.sent, test.dropped)
			}
			x.Observe(record()) // the exporter goes on
			x.flush(t.Context())
			if x.Sent() != test.sent+1 {
				t.Errorf("%d sent, want %d", x.Sent(), test.sent+1)
			}
		})
	}
}

// TestWaitingIsBounded: what a collector does not take is dropped, and counted.
func TestWaitingIsBounded(t *testing.T) {
	c := newCollector(t, status(200)) // does not decode 8 MiB, which takes the race detector a while
	x := newExporter(t, c)
	r, n := record(), uint64(0)
	for ; x.Dropped() == 0; n++ {
		x.Observe(r)
	}
	if own := len(x.texts) + len(x.waiting)*int(unsafe.Sizeof(finished{})); x.size < maxWaiting || x.size > maxWaiting+4096 || own > x.size {
		t.Errorf("%d bytes wait, %d as spans", own, x.size)
	}
	if got := len(appendSpans(nil, x.waiting, x.texts)); got < x.size/2 || got > x.size+x.size/8 {
		t.Errorf("spans of about %d bytes take %d", x.size, got)
	}
	x.flush(t.Context())
	if x.Sent() != n-1 {
		t.Errorf("%d sent of %d", x.Sent(), n-1)
	}
}

// TestSlowCollector: a request that timed out may still be sent while further spans arrive. The race detector watches.
func TestSlowCollector(t *testing.T) {
	release := make(chan struct{})
	c := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer c.Close()
	defer close(release)
	x := New(Config{Log: zerolog.Nop()})
	use(t, x, c.URL, nil)
	x.pause, x.client.Timeout = time.Millisecond, 20*time.Millisecond
	for range 3 {
		for range 1000 {
			x.Observe(record())
		}
		x.flush(t.Context())
	}
	if x.Dropped() != 3000 || x.Sent() != 0 {
		t.Errorf("%d dropped, %d sent", x.Dropped(), x.Sent())
	}
}

// TestEnds: the node ends although its collector hangs.
func TestEnds(t *testing.T) {
	release := make(chan struct{})
	c := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer c.Close()
	defer close(release)
	x := New(Config{Log: zerolog.Nop()})
	use(t, x, c.URL, nil)
	x.Observe(record())
	run(t, x)()
	if x.Dropped() != 1 || x.Sent() != 0 {
		t.Errorf("%d dropped, %d sent", x.Dropped(), x.Sent())
	}
}

// TestHeaders: a collector gets the headers of the file, and another host to which it redirects does not.
func TestHeaders(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("followed to %s", r.URL) }))
	defer other.Close()
	headers, err := ParseHeaders("# of the collector\n\nAuthorization: Bearer a:b \r\nx-scope-orgid:7\n")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan http.Header, 1)
	c := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer c.Close()
	x := New(Config{Log: zerolog.Nop()})
	use(t, x, c.URL, headers)
	x.Observe(record())
	x.flush(t.Context())
	if h := <-got; h.Get("Authorization") != "Bearer a:b" || h.Get("X-Scope-Orgid") != "7" || len(h.Values("Content-Type")) != 1 {
		t.Errorf("%q", h)
	}
	if x.Dropped() != 1 {
		t.Errorf("%d dropped", x.Dropped())
	}
}

// TestTarget: the next batch goes to the target of its time, and nowhere if there is none.
func TestTarget(t *testing.T) {
	got := make(chan string, 1)
	collector := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- name + r.Header.Get("Authorization") }))
		t.Cleanup(s.Close)
		return s.URL
	}
	first, second := collector("first "), collector("second ")
	x := New(Config{Log: zerolog.Nop()})
	for _, step := range []struct {
		endpoint, key string
		sent, dropped uint64
	}{{first, "a", 1, 0}, {first, "b", 2, 0}, {"", "", 2, 1}, {second, "b", 3, 1}} {
		use(t, x, step.endpoint, http.Header{"Authorization": {step.key}})
		x.Observe(record())
		x.flush(t.Context())
		if x.Sent() != step.sent || x.Dropped() != step.dropped {
			t.Fatalf("%+v: %d sent, %d dropped", step, x.Sent(), x.Dropped())
		}
		if step.endpoint == "" {
			continue
		}
		name := map[string]string{first: "first ", second: "second "}[step.endpoint]
		if at := <-got; at != name+step.key {
			t.Errorf("%+v: the batch went to %q", step, at)
		}
	}
}

func TestParseHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "# none\n \n": "",
		"Authorization Bearer s3cret":   "line 1: want Name: value",
		"\nAuthorization : s3cret":      "line 2: want Name: value",
		": s3cret":                      "line 1: want Name: value",
		"A: ":                           "line 1: A: the value is empty",
		"A: s3cret\x00":                 "line 1: A: the value is empty or holds a character",
		"A: s3cr\u00e9t":                "line 1: A: the value is empty or holds a character",
		"content-type: text/s3cret":     "line 1: the exporter sets content-type itself",
		"Host: s3cret":                  "line 1: the exporter sets Host itself",
		"A: b\nTransfer-Encoding: gzip": "line 2: the exporter sets Transfer-Encoding itself",
	} {
		_, err := ParseHeaders(text)
		if (err == nil) != (want == "") || err != nil && (!strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "s3")) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestURL(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://127.0.0.1:4318": "http://127.0.0.1:4318/v1/traces", "https://otel.example/base/": "https://otel.example/base/v1/traces",
		"127.0.0.1:4318": "", "grpc://x:4317": "", "http://": "", "http://x?y": "", "": "", "http://x:y": "",
	} {
		if got, err := URL(endpoint); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", endpoint, got, err)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	x := New(Config{Log: zerolog.Nop()})
	r := record()
	r.ID, r.Model = []byte("f81d4fae7dec11d0a76500a0c91e6bf6"), []byte("qwen3-8b")
	b.ReportAllocs()
	for b.Loop() {
		if x.Observe(r); len(x.waiting) == 1000 {
			x.waiting, x.texts, x.size = x.waiting[:0], x.texts[:0], 0
		}
	}
}

// BenchmarkSpans writes a thousand spans.
func BenchmarkSpans(b *testing.B) {
	x := New(Config{Log: zerolog.Nop()})
	for range 1000 {
		x.Observe(record())
	}
	var batch []byte
	b.ReportAllocs()
	for b.Loop() {
		batch = appendSpans(batch[:0], x.waiting, x.texts)
	}
	b.SetBytes(int64(len(batch)))
}

package node

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestTracing follows a request from its caller's span to the collector and to the engine.
func TestTracing(t *testing.T) {
	leakCheck(t)
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var mu sync.Mutex
	var spans []*tracepb.Span
	var raw, engineTrace string
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
		}
		mu.Lock()
		defer mu.Unlock()
		raw += string(text)
		var data tracepb.TracesData
		if err := proto.Unmarshal(text, &data); err != nil {
			t.Error(err)
		}
		for _, resource := range data.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				spans = append(spans, scope.Spans...)
			}
		}
	}))
	defer collector.Close()
	engine := newFakeEngine(t, "m")
	inner := engine.Config.Handler
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			mu.Lock()
			engineTrace = r.Header.Get("traceparent")
			mu.Unlock()
		}
		inner.ServeHTTP(w, r)
	})
	cfg := testConfig(engine.URL)
	cfg.TraceShare = 0
	n := startNode(t, cfg)
	next := *n.Running()
	next.OTLPEndpoint = collector.URL
	if _, err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	for _, trace := range []string{"00-" + id + "-" + parent + "-01", ""} { // the second has no caller, and no share
		req, err := http.NewRequest(http.MethodPost, "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"a secret prompt"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if trace != "" {
			req.Header.Set("traceparent", trace)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if trace == "" {
			continue
		}
		mu.Lock()
		first := engineTrace
		mu.Unlock()
		span, ok := strings.CutPrefix(first, "00-"+id+"-")
		span = strings.TrimSuffix(span, "-01")
		if !ok || len(span) != 16 || span == parent {
			t.Fatalf("the engine's traceparent is %q", first)
		}
		eventually(t, "the collector has the span", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(spans, func(s *tracepb.Span) bool {
				return fmt.Sprintf("%x %x %x", s.TraceId, s.SpanId, s.ParentSpanId) == id+" "+span+" "+parent
			})
		})
	}
	stopNode(t, n) // sends what waits
	mu.Lock()
	defer mu.Unlock()
	if engineTrace != "" || len(spans) != 1 {
		t.Errorf("the request that nobody traces: the engine's traceparent %q, spans %s", engineTrace, spans)
	}
	for _, want := range []string{"\x06picked", "\x0adispatched", "\x0afirst_byte", "\x0egrapevine.rung", "\x13service.instance.id\x12\x86\x00\x0a\x04test"} { // each behind its length
		if !strings.Contains(raw, want) {
			t.Errorf("no %q in %q", want, raw)
		}
	}
	if strings.Contains(raw, "secret") {
		t.Errorf("the prompt is in %q", raw)
	}
}

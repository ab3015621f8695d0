package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// TestTracing follows a request from its caller's span to the collector and to the engine.
func TestTracing(t *testing.T) {
	leakCheck(t)
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	var mu sync.Mutex
	var spans, engineTrace string
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
		}
		mu.Lock()
		defer mu.Unlock()
		spans += string(text)
		_, _ = io.WriteString(w, "{}")
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
	cfg.OTLPEndpoint, cfg.TraceShare = collector.URL, 0
	n := startNode(t, cfg)
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
			return strings.Contains(spans, `"traceId":"`+id+`","spanId":"`+span+`","parentSpanId":"`+parent+`"`)
		})
	}
	stopNode(t, n) // sends what waits
	mu.Lock()
	defer mu.Unlock()
	if engineTrace != "" || strings.Count(spans, `"spanId"`) != 1 {
		t.Errorf("the request that nobody traces: the engine's traceparent %q, spans %s", engineTrace, spans)
	}
	for _, want := range []string{`"picked"`, `"dispatched"`, `"first_byte"`, `"grapevine.rung"`, `"service.instance.id","value":{"stringValue":"test"}`} {
		if !strings.Contains(spans, want) {
			t.Errorf("no %s in %s", want, spans)
		}
	}
	if strings.Contains(spans, "secret") {
		t.Errorf("the prompt is in %s", spans)
	}
}

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeEngine answers with the usage the test wants. For realistic behaviour see chaos/engine.
type fakeEngine struct {
	*httptest.Server
	requests atomic.Int64 // chat requests begun
	asked    atomic.Int64 // requests for /v1/models
	scraped  atomic.Int64 // requests for /metrics
	loaded   atomic.Int64 // requests for /v1/loads

	mu      sync.Mutex
	models  []string
	metrics string        // page; "" is answered 404
	loads   func() string // answer; nil: 404
	hold    chan struct{} // if not nil, answers wait until it closes
	entered chan struct{} // receives when an answer begins to wait; capacity 16
}

func newFakeEngine(t *testing.T, models ...string) *fakeEngine {
	t.Helper()
	e := &fakeEngine{models: models, entered: make(chan struct{}, 16)}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/models", e.listModels)
	mux.HandleFunc("/metrics", e.tellMetrics)
	mux.HandleFunc("/v1/loads", e.tellLoads)
	mux.HandleFunc("/v1/chat/completions", e.chat)
	e.Server = httptest.NewServer(mux)
	t.Cleanup(e.Close)
	return e
}

// alias is a second URL of the engine: a fleet lists no URL twice.
func (e *fakeEngine) alias() string { return strings.Replace(e.URL, "127.0.0.1", "localhost", 1) }

func (e *fakeEngine) setModels(models ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models = models
}

func (e *fakeEngine) setMetrics(page string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics = page
}

func (e *fakeEngine) tellMetrics(w http.ResponseWriter, _ *http.Request) {
	e.scraped.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.metrics == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, e.metrics)
}

func (e *fakeEngine) tellLoads(w http.ResponseWriter, r *http.Request) {
	e.loaded.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loads == nil || r.URL.RawQuery != "include=core" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, e.loads())
}

func (e *fakeEngine) setLoads(answer func() string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loads = answer
}

func (e *fakeEngine) holdAnswers() (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hold := make(chan struct{})
	e.hold = hold
	return sync.OnceFunc(func() { close(hold) })
}

func (e *fakeEngine) listModels(w http.ResponseWriter, _ *http.Request) {
	e.asked.Add(1)
	e.mu.Lock()
	defer e.mu.Unlock()
	type model struct {
		ID     string `json:"id"`
		Object string `json:"object"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list", Data: []model{}}
	for _, m := range e.models {
		list.Data = append(list.Data, model{m, "model"})
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (e *fakeEngine) chat(w http.ResponseWriter, r *http.Request) {
	e.requests.Add(1)
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	hold := e.hold
	e.mu.Unlock()
	if hold != nil {
		e.entered <- struct{}{}
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		case <-time.After(2 * time.Minute): // a test that forgot to release
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`, len(body)/4)
}

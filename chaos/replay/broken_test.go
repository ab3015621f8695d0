package replay

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/workload"
)

func TestRetries(t *testing.T) {
	for _, tc := range []struct{ broken, retries, errors int }{{0, 0, 0}, {1, 1, 0}, {2, 2, 0}, {3, 2, 1}} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var sink chatRequest
			if json.NewDecoder(r.Body).Decode(&sink) != nil || len(sink.Messages) == 0 {
				t.Error("a request came without its body")
			}
			if asked.Add(1) <= int64(tc.broken) {
				panic(http.ErrAbortHandler)
			}
			answer(w, "hello", 10, 0)
		}))
		res, err := Run(context.Background(), Config{Targets: []string{server.URL}, Retries: 2, NewConnections: true},
			source(t, sessions(100, 1), workload.Options{Requests: 1}))
		server.Close()
		if err != nil || res.Errors != tc.errors || res.Live.Retried != tc.retries {
			t.Errorf("%d broken: %d errors %v, %d repeated, %v", tc.broken, res.Errors, res.Live.Sample, res.Live.Retried, err)
		}
		if tc.errors == 0 && tc.retries > 0 && res.TTFT.P50 < 375 {
			t.Errorf("%d broken: first token after %v ms: pauses do not count", tc.broken, res.TTFT.P50)
		}
	}
	for retries, least := range []time.Duration{375, 750, 1500, 3000, 6000, 6000} {
		for index := range 200 {
			if p := pauseBefore(retries, index); p < least*time.Millisecond || p > least*time.Millisecond*4/3 {
				t.Fatalf("pause %v after %d attempts", p, retries+1)
			}
		}
	}
}

func TestExcuse(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Grapevine-Node", "node-7")
		w.Header().Set("X-Grapevine-Backend", "e")
		switch asked.Add(1) {
		case 1, 2:
			w.Header().Set("Content-Type", "text/event-stream")
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			panic(http.ErrAbortHandler)
		case 3:
			http.Error(w, "no engine", http.StatusServiceUnavailable)
		default:
			answer(w, "hello", 10, 5)
		}
	}))
	defer server.Close()
	var began time.Time
	var asks, ended []Ended
	first := true
	res, err := Run(context.Background(), Config{Targets: []string{server.URL}, Retries: 2,
		Started: func(at time.Time) { began = at },
		Excuse: func(e Ended) bool {
			asks = append(asks, e)
			ok := e.Class == Reset && e.Node == "node-7" && first
			first = first && !ok
			return ok
		},
		Observe: func(e Ended) { ended = append(ended, e) },
	}, source(t, sessions(100, 1), workload.Options{Requests: 8}))
	if err != nil {
		t.Fatal(err)
	}
	if res.Requests != 8 || res.Cut != 1 || res.Errors != 2 || res.Live.Errors[Reset] != 1 || res.Live.Errors["http_503"] != 1 || res.Live.Retried != 0 {
		t.Errorf("%d requests, %d cut, %d errors: %v, %d repeated", res.Requests, res.Cut, res.Errors, res.Live.Errors, res.Live.Retried)
	}
	cut, cached := 0, 0
	for _, e := range ended {
		if e.Cut {
			cut++
		}
		if !e.Failed {
			cached += e.CachedTokens
		}
		if e.Node != "node-7" || e.Failed != (e.Class != "") || e.Failed != (e.Err != nil) || e.Sent < e.At {
			t.Errorf("unexpected end %+v", e)
		}
	}
	if len(ended) != 8 || len(asks) != 3 || cut != 1 || cached != 25 || began.IsZero() {
		t.Errorf("%d ends (%d cut), %d lookups, %d cached tokens, began %v", len(ended), cut, len(asks), cached, began)
	}
}

func TestNewConnections(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		var mu sync.Mutex
		conns := map[string]bool{}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = http.MaxBytesReader(w, r.Body, 1<<20).Read(make([]byte, 1<<20))
			answer(w, "hello", 10, 0)
		}))
		server.Config.ConnState = func(c net.Conn, s http.ConnState) {
			if s == http.StateNew {
				mu.Lock()
				conns[c.RemoteAddr().String()] = true
				mu.Unlock()
			}
		}
		server.Start()
		const turns = 6
		res, err := Run(context.Background(), Config{Targets: []string{server.URL}, NewConnections: fresh},
			source(t, sessions(1, turns), workload.Options{Requests: turns}))
		server.Close()
		if err != nil || res.Errors != 0 {
			t.Fatal(err, res.Live.Sample)
		}
		if fresh != (len(conns) == turns) {
			t.Errorf("new connections %v: %d requests over %d", fresh, turns, len(conns))
		}
	}
}

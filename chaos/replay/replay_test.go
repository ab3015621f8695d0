package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grapevine.example/chaos/workload"
)

// net/http keeps a closing connection for half a second; that is not a leak.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func sessions(rate float64, turns int) *workload.Sessions {
	return &workload.Sessions{
		Label: "test", Rate: rate, Continue: 0.999999, MaxTurns: turns, Think: time.Millisecond,
		SharedTokens: 64, Pool: 1, Suffix: 16, BlockTokens: 16, Duration: time.Minute,
		Prompt: workload.CDF{{V: 128, P: 0}, {V: 256, P: 1}},
		Output: workload.CDF{{V: 4, P: 0}, {V: 8, P: 1}},
	}
}

func source(t *testing.T, w workload.Workload, opt workload.Options) workload.Source {
	t.Helper()
	src, err := w.Source(opt)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

type chatRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens     int  `json:"max_tokens"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func event(w http.ResponseWriter, format string, args ...any) {
	fmt.Fprintf(w, "data: "+format+"\n\n", args...)
	w.(http.Flusher).Flush()
}

func answer(w http.ResponseWriter, reply string, prompt, cached int) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	event(w, `{"choices":[{"delta":{"role":"assistant","content":""}}]}`)
	half := len(reply) / 2
	for _, piece := range []string{reply[:half], reply[half:]} {
		raw, _ := json.Marshal(piece)
		event(w, `{"choices":[{"delta":{"content":%s}}]}`, raw)
	}
	event(w, `{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":%d}}}`, prompt, cached)
	event(w, "[DONE]")
}

func TestConversations(t *testing.T) {
	var mu sync.Mutex
	said := map[string][]string{}
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req chatRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		if !req.Stream || !req.StreamOptions.IncludeUsage || req.MaxTokens < 4 || req.Model != "m" || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("request %+v, header %v", req, r.Header)
		}
		id := r.Header.Get("X-Session-Id")
		mu.Lock()
		defer mu.Unlock()
		replies := said[id]
		if want := 2 + 2*len(replies); len(req.Messages) != want || req.Messages[0].Role != "system" || req.Messages[want-1].Role != "user" {
			t.Errorf("turn %d has %d messages", len(replies)+1, len(req.Messages))
			return
		}
		for i, reply := range replies {
			if m := req.Messages[2+2*i]; m.Role != "assistant" || m.Content != reply {
				t.Errorf("turn %d quotes %q as %s, want the reply %q", len(replies)+1, m.Content, m.Role, reply)
			}
		}
		reply := fmt.Sprintf("réponse %d to \"%s\"\n\t\\", n.Add(1), id)
		said[id] = append(replies, reply)
		w.Header().Set("X-Grapevine-Backend", fmt.Sprintf("engine-%d", len(replies)%2))
		w.Header().Set("X-Grapevine-Route", "cache;matched=90")
		answer(w, reply, 200, 100)
	}))
	defer server.Close()
	res, err := Run(context.Background(), Config{Targets: []string{server.URL + "/v1/"}, Model: "m", APIKey: "key", Policy: "prefix", Seed: 3,
		Backends: []string{"engine-0", "engine-1", "engine-2"}}, source(t, sessions(100, 3), workload.Options{Seed: 3, Requests: 60}))
	if err != nil {
		t.Fatal(err)
	}
	if res.Requests != 60 || res.Errors != 0 || res.HitRate != 0.5 || res.Rungs["cache"] != 60 {
		t.Errorf("report %+v", res.Report)
	}
	if res.Prediction.Requests != 60 || res.Prediction.Mean != 10 || res.Prediction.Bias != -0.05 {
		t.Errorf("prediction error %+v, want 10 tokens too few", res.Prediction)
	}
	if len(res.Backends) != 3 || res.Backends[2].Requests != 0 || res.Backends[0].Requests+res.Backends[1].Requests != 60 {
		t.Errorf("backends %+v", res.Backends)
	}
	if res.FollowupRequests == 0 || res.FollowupSameBackend != 0 || res.Live.LostReplies != 0 {
		t.Errorf("%d follow-ups, %v on the same backend, %d lost replies", res.FollowupRequests, res.FollowupSameBackend, res.Live.LostReplies)
	}
	if res.TTFT.P50 <= 0 || res.TTFT.P50 > res.E2E.P99 || res.Live.TTFTFromSend.P50 > res.TTFT.P99 {
		t.Errorf("first token %+v, from send %+v, total %+v", res.TTFT, res.Live.TTFTFromSend, res.E2E)
	}
}

func TestOpenLoop(t *testing.T) {
	release := make(chan struct{})
	var arrived atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == 20 {
			close(release)
		}
		select {
		case <-release:
			answer(w, "ok then", 10, 0)
		case <-time.After(time.Minute):
		}
	}))
	defer server.Close()
	cfg := Config{Targets: []string{server.URL}, MaxInFlight: 20}
	res, err := Run(context.Background(), cfg, source(t, sessions(500, 1), workload.Options{Requests: 20}))
	if err != nil || res.Errors != 0 || res.Requests != 20 {
		t.Fatalf("%d requests, errors %v (%v), %v", res.Requests, res.Live.Errors, res.Live.Sample, err)
	}
	if res.TTFT.Mean <= res.TTFT.P50/2 || res.TTFT.P99 < res.TTFT.P50 {
		t.Errorf("first requests waited for the last: %+v", res.TTFT)
	}

	blocked := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-blocked }))
	defer stuck.Close()
	defer close(blocked)
	cfg = Config{Targets: []string{stuck.URL}, MaxInFlight: 5, Timeout: 4 * time.Second}
	res, err = Run(context.Background(), cfg, source(t, sessions(1000, 1), workload.Options{Requests: 50}))
	if err != nil || res.Live.Errors[Overflow] != 45 || res.Live.Errors[Timeout] != 5 || res.Errors != 50 {
		t.Errorf("errors %v (%v), %v; want 45 overflow and 5 timeout", res.Live.Errors, res.Live.Sample, err)
	}
}

func TestFailureClasses(t *testing.T) {
	const closed = "127.0.0.1:1"
	stream := func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }
	for _, tc := range []struct {
		name    string
		want    Class
		handler http.HandlerFunc
	}{
		{"refused", "http_503", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no engine", http.StatusServiceUnavailable)
		}},
		{"unknown model", "http_404", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such model", http.StatusNotFound) }},
		{"no end mark", Truncated, func(w http.ResponseWriter, _ *http.Request) {
			stream(w)
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
		}},
		{"error event", InStream, func(w http.ResponseWriter, _ *http.Request) {
			stream(w)
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			event(w, `{"error":{"message":"engine gone"}}`)
		}},
		{"cut", Reset, func(w http.ResponseWriter, _ *http.Request) {
			stream(w)
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			panic(http.ErrAbortHandler)
		}},
		{"cut before the header", Reset, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"not JSON", Malformed, func(w http.ResponseWriter, _ *http.Request) { stream(w); event(w, `{"choices":`) }},
		{"not a stream", Malformed, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }},
		{"silent", Timeout, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"nothing listens", Connect, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			target := "http://" + closed
			if tc.handler != nil {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					// Read to the end, as engines do; otherwise the server would not notice that
					// the client has left.
					var sink chatRequest
					json.NewDecoder(r.Body).Decode(&sink)
					tc.handler(w, r)
				}))
				defer server.Close()
				target = server.URL
			}
			cfg := Config{Targets: []string{target}, Timeout: time.Second}
			if tc.want != Timeout {
				cfg.Timeout = time.Minute
			}
			// The second of two turns is still sent, with invented text for the missing reply.
			res, err := Run(context.Background(), cfg, source(t, sessions(100, 2), workload.Options{Requests: 4}))
			if err != nil || res.Errors != 4 || res.Live.Errors[tc.want] != 4 {
				t.Errorf("errors %v (%v), %v; want 4 of %s", res.Live.Errors, res.Live.Sample, err, tc.want)
			}
			if res.HitRate != 0 || res.PromptTokens != 0 {
				t.Errorf("failed requests count %d prompt tokens", res.PromptTokens)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var n atomic.Int64
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch k := n.Add(1); {
		case k <= 5:
			answer(w, "quick", 10, 10)
			return
		case k == 10:
			<-ended
			cancel()
		}
		var sink chatRequest
		json.NewDecoder(r.Body).Decode(&sink)
		<-r.Context().Done()
	}))
	defer server.Close()
	begun := time.Now()
	quick := 0
	cfg := Config{Targets: []string{server.URL}, Observe: func(Ended) {
		if quick++; quick == 5 {
			close(ended)
		}
	}}
	res, err := Run(ctx, cfg, source(t, sessions(200, 1), workload.Options{}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if res.Requests != 5 || res.Errors != 0 || res.Live.Cancelled < 5 {
		t.Errorf("%d requests, errors %v, %d cancelled", res.Requests, res.Live.Errors, res.Live.Cancelled)
	}
	if d := time.Since(begun); d > 30*time.Second {
		t.Errorf("ended after %v", d)
	}
}

func TestSpread(t *testing.T) {
	for _, spread := range []Spread{PerRequest, PerSession} {
		var mu sync.Mutex
		seen := map[string]map[string]int{}
		targets := make([]string, 3)
		for i := range targets {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				id := r.Header.Get("X-Session-Id")
				if seen[id] == nil {
					seen[id] = map[string]int{}
				}
				seen[id][r.Host]++
				mu.Unlock()
				answer(w, "ok", 1, 0)
			}))
			defer server.Close()
			targets[i] = server.URL
		}
		res, err := Run(context.Background(), Config{Targets: targets, Spread: spread}, source(t, sessions(300, 4), workload.Options{Requests: 120}))
		if err != nil || res.Errors > 0 {
			t.Fatalf("errors %v, %v", res.Live.Errors, err)
		}
		wandering, used := 0, map[string]bool{}
		for _, at := range seen {
			if len(at) > 1 {
				wandering++
			}
			for host := range at {
				used[host] = true
			}
		}
		if len(used) != 3 {
			t.Errorf("%s: %d of 3 targets used", spread, len(used))
		}
		if (wandering > 0) != (spread == PerRequest) {
			t.Errorf("%s: %d of %d sessions changed target", spread, wandering, len(seen))
		}
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{}, {Targets: []string{"localhost:8080"}}, {Targets: []string{"ftp://x"}},
		{Targets: []string{"http://x"}, Spread: "odd"}, {Targets: []string{"http://x"}, MaxInFlight: -1}} {
		if _, err := Run(context.Background(), cfg, nil); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestParseRoute(t *testing.T) {
	for in, want := range map[string]struct {
		rung   string
		tokens int
	}{
		"":                                  {"", -1},
		"load":                              {"load", -1},
		"cache;matched=1536":                {"cache", 1536},
		"cache;matched=1536;predicted=1600": {"cache", 1600},
		"cache; matched=0; other=12":        {"cache", 0},
		"hash;matched=x":                    {"hash", -1},
		"hash;matched=-4":                   {"hash", -1},
	} {
		if rung, tokens := parseRoute(in); rung != want.rung || tokens != want.tokens {
			t.Errorf("%q is %q, %d", in, rung, tokens)
		}
	}
}

func TestRepliesAreBounded(t *testing.T) {
	r := newReplies(100)
	for i := range 50 {
		r.put(i, 1, strings.Repeat("x", 10))
		r.put(0, i+2, "y")
		if r.held > 100 {
			t.Fatalf("%d bytes held", r.held)
		}
	}
	if _, ok := r.get(1, 1); ok {
		t.Error("the longest silent was kept")
	}
	if s, ok := r.get(0, 51); !ok || s != "y" {
		t.Errorf("the liveliest was dropped: %q, %v", s, ok)
	}
	held := 0
	for e := r.order.Front(); e != nil; e = e.Next() {
		held += e.Value.(*conversation).bytes
	}
	if held != r.held || len(r.byID) != r.order.Len() {
		t.Errorf("%d bytes counted, %d held", r.held, held)
	}
	r.put(99, 1, strings.Repeat("z", 200))
	if r.held != 0 || len(r.byID) != 0 {
		t.Errorf("%d bytes held after one too large", r.held)
	}
}

func TestFirstModel(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/v1/models" || r.Header.Get("Authorization") != "Bearer k":
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, `{"object":"list","data":[{"id":"a"},{"id":"b"}]}`)
		}
	}))
	defer server.Close()
	for _, target := range []string{server.URL, server.URL + "/v1/"} {
		if m, err := FirstModel(context.Background(), target, "k"); err != nil || m != "a" {
			t.Errorf("%s: %q, %v", target, m, err)
		}
	}
	if _, err := FirstModel(context.Background(), server.URL, ""); err == nil {
		t.Error("a 404 is no list of models")
	}
}

func TestOverhead(t *testing.T) {
	var scrapes atomic.Int64
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := float64(scrapes.Add(1) - 1)
		fmt.Fprintf(w, "# HELP %[1]s x\n# TYPE %[1]s histogram\nother 1\n"+
			"%[1]s_bucket{le=\"0.0001\"} %[2]v\n%[1]s_bucket{le=\"0.0002\"} %[3]v\n%[1]s_bucket{le=\"+Inf\"} %[3]v\n%[1]s_sum %[4]v\n%[1]s_count %[3]v\n",
			overheadMetric, 5+50*k, 10+100*k, 1+0.012*k)
	}))
	defer admin.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, "ok", 1, 0) }))
	defer server.Close()
	cfg := Config{Targets: []string{server.URL}, Admins: []string{strings.TrimPrefix(admin.URL, "http://")}}
	res, err := Run(context.Background(), cfg, source(t, sessions(100, 1), workload.Options{Requests: 3}))
	if err != nil {
		t.Fatal(err)
	}
	if o := res.RouterOverhead; o.Mean != 120 || o.P50 != 100 || o.P90 != 180 || o.P99 != 198 {
		t.Errorf("overhead %+v us, want 120, 100, 180, 198", o)
	}
	cfg.Admins = []string{server.URL}
	if _, err := Run(context.Background(), cfg, source(t, sessions(100, 1), workload.Options{Requests: 3})); err == nil {
		t.Error("a page without the metric was taken for a router's")
	}
}

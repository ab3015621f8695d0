package engine

import (
	"net/http"
	"time"
)

// Truth is what the engine would serve from its cache now.
type Truth struct {
	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"`
}

// Cached returns how many tokens the prompts of a request have, and how many the engine would serve
// from cache now. endpoint is a path or its last element; body is the request's. It changes nothing
// and looks up several prompts as if each came alone.
func (s *Server) Cached(endpoint string, body []byte) (Truth, error) {
	t, bad := s.truth(endpoint, body)
	if bad != nil {
		return t, bad
	}
	return t, nil
}

func (s *Server) truth(endpoint string, body []byte) (Truth, *apiError) {
	e := endpointOf(endpoint)
	if e == endpointNone {
		return Truth{}, badRequest("kind", "unknown endpoint %q", endpoint)
	}
	c, bad := s.parse(e, body)
	if bad != nil {
		return Truth{}, bad
	}
	c.n, c.output = 1, 0
	f := c.flight()
	var t Truth
	err := s.driver.do(func(time.Duration) {
		for _, seat := range f.seats {
			t.PromptTokens += seat.job.PromptTokens
			t.CachedTokens += s.driver.model.CachedFor(&seat.job)
		}
	})
	if err != nil {
		return t, launchError(err)
	}
	return t, nil
}

// cachedHandler is POST /emulator/cached. The query (kind=messages or kind=/v1/messages) or the
// header X-Emulator-Kind names the endpoint; the default is chat completions.
func (s *Server) cachedHandler(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Query().Get("kind")
	if kind == "" {
		kind = r.Header.Get("X-Emulator-Kind")
	}
	body, bad := s.readBody(w, r)
	var t Truth
	if bad == nil {
		t, bad = s.truth(kind, body)
	}
	if bad != nil {
		s.writeError(w, endpointNone, bad)
		return
	}
	writeJSON(w, http.StatusOK, t)
}

// ServerStats is the body of GET /emulator/stats, in tokens and jobs. A request has one job per
// reply.
type ServerStats struct {
	Running  int `json:"running"`
	Waiting  int `json:"waiting"`
	Decoding int `json:"decoding"`

	Requests int64 `json:"requests"` // to inference endpoints
	Departed int64 `json:"departed"` // requests whose client left before the end
	Faulted  int64 `json:"faulted"`  // requests that suffered a fault

	Submitted int64 `json:"submitted"`
	Finished  int64 `json:"finished"`
	Aborted   int64 `json:"aborted"`
	Preempted int64 `json:"preempted"`

	PromptTokens  int64 `json:"prompt_tokens"`
	CachedTokens  int64 `json:"cached_tokens"`
	PrefillTokens int64 `json:"prefill_tokens"`
	OutputTokens  int64 `json:"output_tokens"`
	EvictedTokens int64 `json:"evicted_tokens"`

	KVTokens int `json:"kv_tokens"`
	KVUsed   int `json:"kv_used"`
	KVShared int `json:"kv_shared"`
	KVPinned int `json:"kv_pinned"`

	Steps       int64   `json:"steps"`
	BusySeconds float64 `json:"busy_s"`
	Uptime      float64 `json:"uptime_s"`
}

// Stats returns counts and totals; zero after Close.
func (s *Server) Stats() ServerStats {
	m, err := s.modelStats()
	if err != nil {
		return ServerStats{}
	}
	s.faults.mu.Lock()
	faulted := s.faults.suffered
	s.faults.mu.Unlock()
	return ServerStats{
		Running: m.Running, Waiting: m.Waiting, Decoding: m.Decoding,
		Requests: s.requests.Load(), Departed: s.aborted.Load(), Faulted: faulted,
		Submitted: m.Submitted, Finished: m.Finished, Aborted: m.Cancelled, Preempted: m.Preempted,
		PromptTokens: m.PromptTokens, CachedTokens: m.CachedTokens, PrefillTokens: m.PrefillTokens,
		OutputTokens: m.OutputTokens, EvictedTokens: m.EvictedTokens,
		KVTokens: m.KVTokens, KVUsed: m.KVUsed, KVShared: m.KVShared, KVPinned: m.KVUsed - m.KVEvictable,
		Steps: m.Steps, BusySeconds: m.Busy.Seconds(), Uptime: time.Since(s.began).Seconds(),
	}
}

func (s *Server) modelStats() (Stats, error) {
	var m Stats
	err := s.driver.do(func(time.Duration) { m = s.driver.model.Stats() })
	return m, err
}

func (s *Server) statsHandler(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

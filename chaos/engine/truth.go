package engine

import (
	"errors"
	"net/http"
	"time"
)

// Truth is what the engine would serve from its cache now.
type Truth struct {
	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"`
}

// Cached returns how many tokens the prompts of a request have, and how many the engine, or the best of its ranks, would serve from
// cache now. endpoint is a path or its last element; body is the request's. It changes nothing
// and looks up several prompts as if each came alone.
func (s *Server) Cached(endpoint string, body []byte) (t Truth, err error) {
	c, err := s.parseFor(endpoint, body)
	if err != nil {
		return t, err
	}
	c.n, c.output = 1, 0
	for _, d := range s.ranks {
		var at Truth
		err = errors.Join(err, d.do(func(time.Duration) {
			for _, seat := range c.flight().seats {
				at.PromptTokens += seat.job.PromptTokens
				at.CachedTokens += d.model.CachedFor(&seat.job)
			}
		}))
		t.PromptTokens, t.CachedTokens = at.PromptTokens, max(t.CachedTokens, at.CachedTokens)
	}
	return t, err
}

// cachedHandler is POST /emulator/cached. The query (kind=messages or kind=/v1/messages) names the
// endpoint; the default is chat completions.
func (s *Server) cachedHandler(_ http.ResponseWriter, r *http.Request, body []byte) (any, error) {
	return s.Cached(r.URL.Query().Get("kind"), body)
}

// ServerStats is the body of GET /emulator/stats, summed over ranks. A request has one job per reply.
type ServerStats struct {
	Stats
	Requests int64 `json:"requests"` // to inference endpoints
	Departed int64 `json:"departed"` // requests whose client left before the end
	Faulted  int64 `json:"faulted"`  // requests that suffered a fault
	Given    int64 `json:"given"`    // prompts whose KV cache another engine began to fetch
}

// Stats returns counts and totals; zero after Close.
func (s *Server) Stats() ServerStats {
	s.faults.mu.Lock()
	out := ServerStats{Requests: s.requests.Load(), Departed: s.aborted.Load(), Faulted: s.faults.suffered, Given: s.leases.given.Load()}
	s.faults.mu.Unlock()
	for _, d := range s.ranks {
		stats, err := d.stats()
		if err != nil {
			return ServerStats{}
		}
		out.add(&stats)
	}
	return out
}

func (s *Server) statsHandler(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

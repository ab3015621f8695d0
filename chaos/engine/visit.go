package engine

import (
	"net/http"
	"time"
)

// Visit is one request to an inference endpoint as the engine saw it, independent of what routers
// report.
type Visit struct {
	Engine string // its listener's host:port; "" if another server listens for it
	ID     string // x-request-id, or ""
	Began  time.Time
	Ended  time.Time // zero while the request runs
	// Departed means that the client left or the connection broke before the answer was complete.
	Departed bool
}

func (s *Server) visits(r *http.Request) (ended func()) {
	if s.cfg.Watch == nil {
		return func() {}
	}
	v := Visit{Engine: s.Addr(), ID: r.Header.Get("X-Request-Id"), Began: time.Now()}
	s.cfg.Watch(v)
	return func() {
		// The context ends before the handler only if the client has left.
		v.Ended, v.Departed = time.Now(), r.Context().Err() != nil
		s.cfg.Watch(v)
	}
}

// Replies returns the text of each reply that an engine of that configuration would give, without
// asking one. It depends only on the prompt, the adapter and the reply length. endpoint is as in
// [Server.Cached].
func Replies(cfg ServerConfig, endpoint string, body []byte) ([][]byte, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c, err := (&Server{cfg: cfg}).parseFor(endpoint, body)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, seat := range c.flight().seats {
		out = append(out, seat.reply)
	}
	return out, nil
}

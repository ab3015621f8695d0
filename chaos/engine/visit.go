package engine

import (
	"net/http"
	"time"
)

// Visit is one request to an inference endpoint as the engine itself saw it, for whoever must know what reached an engine whatever the
// routers say.
type Visit struct {
	Engine string // host:port that it listens on; "" where another server listens for it
	ID     string // x-request-id; "" without
	Began  time.Time
	Ended  time.Time // zero while it is being served
	// Departed says that the client had left, or the connection had broken, before the answer was complete.
	Departed bool
}

// visits tells ServerConfig.Watch of a request now and when the returned function runs, also out of a handler that panics.
func (s *Server) visits(r *http.Request) (ended func()) {
	if s.cfg.Watch == nil {
		return func() {}
	}
	v := Visit{Engine: s.Addr(), ID: r.Header.Get("X-Request-Id"), Began: time.Now()}
	s.cfg.Watch(v)
	return func() {
		// The context ends with the handler, and earlier only if nobody is there to be answered.
		v.Ended, v.Departed = time.Now(), r.Context().Err() != nil
		s.cfg.Watch(v)
	}
}

// Replies returns what an engine of that configuration would answer to a request, without asking one: the text of each reply, in order. It
// depends on the prompt, the model's adapter and the length asked for, and on nothing that an engine has been through. The endpoint is as in
// [Server.Cached].
func Replies(cfg ServerConfig, endpoint string, body []byte) ([][]byte, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	e := endpointOf(endpoint)
	if e == endpointNone {
		return nil, badRequest("kind", "unknown endpoint %q", endpoint)
	}
	c, bad := (&Server{cfg: cfg}).parse(e, body)
	if bad != nil {
		return nil, bad
	}
	var out [][]byte
	for _, seat := range c.flight().seats {
		out = append(out, seat.reply)
	}
	return out, nil
}

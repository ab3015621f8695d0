package engine

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// EventsConfig is how an engine publishes the changes of its cache, in the form of ServerConfig.MetricsStyle. The tags are those of
// command line flags.
type EventsConfig struct {
	Events           string  `name:"events" placeholder:"ADDR" group:"events" help:"Publish cache events at this address (127.0.0.1:0 for any free port), in the form of --metrics. The cache then has keys of --block-tokens. Default: do not."`
	EventsReplay     string  `name:"events-replay" placeholder:"ADDR" group:"events" help:"Replay them at this address. Default: no replay."`
	EventsLoss       float64 `name:"events-loss" placeholder:"PERCENT" group:"events" help:"Batches that subscribers do not get, except by a replay."`
	EventsDuplicates float64 `name:"events-duplicates" placeholder:"PERCENT" group:"events" help:"Batches that they get twice."`
	EventsRestart    int     `name:"events-restart" placeholder:"N" group:"events" help:"After every N batches begin anew: an empty cache, new connections, sequence number 0. Requests continue. Default: never."`
}

func (c EventsConfig) check() error {
	percent := func(x float64) bool { return x >= 0 && x <= 100 }
	switch {
	case !percent(c.EventsLoss) || !percent(c.EventsDuplicates) || c.EventsRestart < 0:
		return fmt.Errorf("%w: cache events: loss %v, duplicates %v, want 0 to 100 percent; restart after %d batches",
			ErrConfig, c.EventsLoss, c.EventsDuplicates, c.EventsRestart)
	case c.Events == "" && c != EventsConfig{}:
		return fmt.Errorf("%w: settings of cache events without an address to publish them at", ErrConfig)
	}
	return nil
}

func (c *ServerConfig) keyTokens() int {
	if c.Events != "" {
		return c.BlockTokens
	}
	return KeyTokens
}

// startEvents makes the model's cache publish its changes.
func (s *Server) startEvents(m *Model) error {
	if s.cfg.Events == "" {
		return nil
	}
	p, err := newPublisher(s.cfg.EventsConfig)
	if err != nil {
		return err
	}
	s.events = p
	batches := 0
	e := &encoder{style: s.cfg.MetricsStyle, block: s.cfg.BlockTokens, adapters: s.cfg.Adapters}
	m.Publish(s.cfg.MetricsStyle, s.cfg.BlockTokens, func(changes []Change) {
		p.publish(e.batch(changes, time.Now()))
		if batches++; s.cfg.EventsRestart > 0 && batches%s.cfg.EventsRestart == 0 && s.enter() {
			go func() { // the model is in the middle of a step
				defer s.work.Done()
				_ = s.driver.do(s.restart) // fails only when the engine closes
			}()
		}
	})
	return nil
}

// restart is what a new process of the engine looks like from outside, but for the requests, which continue.
func (s *Server) restart(now time.Duration) {
	s.driver.model.Clear(now)
	if s.events != nil {
		s.driver.model.cache.journal.forget()
		s.events.restart()
	}
}

// sessionOf is the session id that cache events give: SGLang reads it from the body only.
func (s *Server) sessionOf(r *http.Request, f *fields) string {
	if s.cfg.MetricsStyle == StyleSGLang {
		return f.Session
	}
	return cmp.Or(f.Session, r.Header.Get("X-Session-ID"), f.XArgs.Session)
}

func port(ln net.Listener) int { return ln.Addr().(*net.TCPAddr).Port }

func (s *Server) routeEvents() {
	if s.cfg.MetricsStyle == StyleSGLang {
		s.mux.HandleFunc("GET /server_info", s.serverInfo)
		s.mux.HandleFunc("GET /v1/loads", s.loads)
		s.mux.HandleFunc("GET /flush_cache", s.flushCache)
		s.mux.HandleFunc("POST /flush_cache", s.flushCache)
		return
	}
	s.mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, object{"success": s.clearIdle()})
	})
	if s.events != nil {
		s.mux.HandleFunc("GET /kv_event_sources", s.eventSources)
	}
}

// eventSources is vLLM's list of streams by rank. A wildcard stands for the engine's own host.
func (s *Server) eventSources(w http.ResponseWriter, _ *http.Request) {
	var replay any
	if s.events.router != nil {
		replay = "tcp://*:" + strconv.Itoa(port(s.events.router))
	}
	writeJSON(w, http.StatusOK, object{"0": object{
		"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:" + strconv.Itoa(port(s.events.pub)), "replay_endpoint": replay,
		"buffer_steps": bufferSteps, "hwm": publishQueue, "max_queue_size": publishQueue, "topic": eventTopic,
	}})
}

// serverInfo is the part of SGLang's answer that routers read.
func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	info := object{
		"model_path": s.cfg.Models[0], "page_size": s.cfg.BlockTokens, "max_total_num_tokens": s.cfg.KVTokens,
		"max_running_requests": s.cfg.MaxRunning, "kv_events": nil,
	}
	if s.events != nil {
		e := object{
			"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": port(s.events.pub), "topic": eventTopic,
			"block_size": s.cfg.BlockTokens, "dp_size": 1,
		}
		if s.events.router != nil {
			e["replay_endpoint_port_base"] = port(s.events.router)
		}
		info["kv_events"] = e
	}
	writeJSON(w, http.StatusOK, info)
}

// clearIdle empties the cache unless requests run or wait.
func (s *Server) clearIdle() (done bool) {
	err := s.driver.do(func(now time.Duration) {
		m := s.driver.model
		if done = len(m.running)+len(m.waiting) == 0; done {
			m.Clear(now)
		}
	})
	return done && err == nil
}

func (s *Server) flushCache(w http.ResponseWriter, _ *http.Request) {
	if !s.clearIdle() {
		http.Error(w, "Flush cache failed: requests run or wait.", http.StatusBadRequest)
		return
	}
	_, _ = fmt.Fprintln(w, "Cache flushed.") // the client may have left
}

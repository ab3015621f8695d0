package fleet

import (
	"fmt"
	"sync"

	"grapevine/chaos/engine"
)

// Engine is one emulated engine of a fleet, in this process. It keeps its address over restarts. Safe for concurrent use.
type Engine struct {
	name, addr string
	cfg        engine.ServerConfig
	at         where

	mu     sync.Mutex
	server *engine.Server // nil while stopped
}

func newEngine(name, addr string, at where, cfg engine.ServerConfig) *Engine {
	cfg.Log = cfg.Log.With().Str("backend", name).Logger()
	return &Engine{name: name, addr: addr, cfg: cfg, at: at}
}

// Name is what nodes call it.
func (e *Engine) Name() string { return e.name }

// Addr is the host:port it answers on.
func (e *Engine) Addr() string { return e.addr }

// URL is its base URL.
func (e *Engine) URL() string { return "http://" + e.addr }

// Start starts it with an empty cache. It is an error if it runs.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		return fmt.Errorf("%s: runs already", e.name)
	}
	s, err := engine.NewServer(e.cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	if err := e.at.enter(func() error { return s.Start(e.addr) }); err != nil {
		_ = s.Close()
		return fmt.Errorf("%s: %w", e.name, err)
	}
	e.server = s
	return nil
}

// Stop ends it as a crash would: connections break, jobs and cache are gone. One that does not run is fine.
func (e *Engine) Stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil
	}
	err := e.server.Close()
	e.server = nil
	return err
}

// Server is the running engine, for its statistics and the truth about its cache; nil while stopped.
func (e *Engine) Server() *engine.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

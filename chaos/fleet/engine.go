package fleet

import (
	"errors"
	"fmt"
	"sync"

	"grapevine.example/chaos/engine"
)

// Engine is an emulated engine in this process. Safe for concurrent use.
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

func (e *Engine) Name() string { return e.name }

func (e *Engine) Addr() string { return e.addr }

func (e *Engine) URL() string { return "http://" + e.addr }

// Start begins with an empty cache; it fails if the engine runs.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		return fmt.Errorf("%s: runs already", e.name)
	}
	err := e.at.enter(func() error { // the server listens from NewServer on if it publishes cache events
		s, err := engine.NewServer(e.cfg)
		if err != nil {
			return err
		}
		if err = s.Start(e.addr); err != nil {
			return errors.Join(err, s.Close())
		}
		e.server = s
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	return nil
}

// Stop ends it as a crash would. Idempotent.
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

// Server is nil while stopped.
func (e *Engine) Server() *engine.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

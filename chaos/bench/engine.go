//go:build linux

package main

import (
	"fmt"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/programs"
)

// backendKinds says what the figures of each kind of backend mean.
var backendKinds = map[string]string{
	"engine": "the emulated engine, told to compute in no time: it reads the JSON, renders and hashes the prompt, as any engine must",
	"light":  "a responder that skips the body and writes a fixed answer: no engine is as cheap, so the proxy is all that counts (the harder table)",
}

// engineConfig is an engine without emulated computing time, so that it costs only HTTP, parsing
// and cache: one step prefills any prompt, there is no queue, and memory holds the whole corpus.
func engineConfig() engine.ServerConfig {
	return engine.ServerConfig{
		Config: engine.Config{
			KVTokens: 64 << 20, MaxRunning: 1 << 16, ChunkTokens: 1 << 20,
			PrefillRate: 1e12, DecodeStep: time.Nanosecond,
		},
		Models:      []string{programs.Model},
		IdleTimeout: 10 * time.Minute, // a contender's connections must outlast the other contenders' turns
	}
}

// serveEngines serves until SIGTERM ends the process.
func serveEngines(addrs []string) error {
	for _, a := range addrs {
		s, err := engine.NewServer(engineConfig())
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		if err := s.Start(a); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
	}
	select {}
}

//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"grapevine/chaos/engine"
)

type backendKind struct {
	name   string
	shows  string // meaning of its figures, for the heading of its tables
	stamps bool   // its streams carry the time of every chunk, for measuring delays
}

var (
	engineKind = backendKind{name: "engine",
		shows: "the emulated engine, told to compute in no time: it reads the JSON, renders and hashes the prompt, as any engine must"}
	lightKind = backendKind{name: "light", stamps: true,
		shows: "a responder that skips the body and writes a fixed answer: no engine is as cheap, so the proxy is all that counts (the harder table)"}
)

func kindsOf(name string) ([]backendKind, error) {
	switch name {
	case "both":
		return []backendKind{engineKind, lightKind}, nil
	case engineKind.name:
		return []backendKind{engineKind}, nil
	case lightKind.name:
		return []backendKind{lightKind}, nil
	}
	return nil, fmt.Errorf("-backend %q, want engine, light or both", name)
}

// engineConfig is an engine without emulated computing time, so that it costs only HTTP, parsing
// and cache: one step prefills any prompt, there is no queue, and memory holds the whole corpus.
func engineConfig() engine.ServerConfig {
	return engine.ServerConfig{
		Config: engine.Config{
			KVTokens: 64 << 20, MaxRunning: 1 << 16, ChunkTokens: 1 << 20,
			PrefillRate: 1e12, DecodeStep: time.Nanosecond,
		},
		Models:      []string{"bench"},
		IdleTimeout: 10 * time.Minute, // a contender's connections must outlast the other contenders' turns
	}
}

func serveEngines(addrs []string) (err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	for _, a := range addrs {
		s, err := engine.NewServer(engineConfig())
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		if err := s.Start(a); err != nil {
			return fmt.Errorf("engine: %w", err)
		}
	}
	<-stop
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"grapevine.example/chaos/fleet"
)

// idleEngines are engines that answer probes, and serve no request: one HTTP server at many addresses.
type idleEngines struct {
	server *http.Server
	urls   []string
}

func startIdle(n int) (*idleEngines, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, idleModel)
	})
	idle := &idleEngines{server: &http.Server{Handler: mux}}
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			idle.close()
			return nil, err
		}
		idle.urls = append(idle.urls, "http://"+ln.Addr().String())
		go func() { _ = idle.server.Serve(ln) }() // ErrServerClosed
	}
	return idle, nil
}

// idleModel is none that the traffic asks for.
const idleModel = "emulated-70b"

// atOnce is how many backends are added with one change.
const atOnce = 250

// list adds them to the fleet.
func (idle *idleEngines) list(ctx context.Context, n *fleet.Node) error {
	for from := 0; from < len(idle.urls); from += atOnce {
		var list []map[string]any
		for i, url := range idle.urls[from:min(from+atOnce, len(idle.urls))] {
			list = append(list, map[string]any{"url": url, "name": fmt.Sprintf("idle-%04d", from+i), "models": []string{idleModel}})
		}
		status, text, err := n.Call(ctx, http.MethodPost, "/backends?force=true", map[string]any{"backends": list})
		if err == nil && status != http.StatusOK {
			err = errors.New(strings.TrimSpace(string(text)))
		}
		if err != nil {
			return fmt.Errorf("adding idle engines: %w", err)
		}
	}
	return nil
}

func (idle *idleEngines) close() { _ = idle.server.Close() }

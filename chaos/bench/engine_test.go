//go:build linux

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"grapevine/chaos/engine"
)

func TestEngineBackend(t *testing.T) {
	s, err := engine.NewServer(engineConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	bodies, err := chatBodies(3, 16<<10, false, 1)
	if err != nil {
		t.Fatal(err)
	}
	// Limits suit a slow machine under the race detector; one stall affects one of three attempts.
	var p50 time.Duration
	for range 3 {
		r, err := runPaced(context.Background(), bodies, s.Addr(), 4, 25, 2*time.Second)
		if err != nil || r.errors > 0 || len(r.latencies) != 50 {
			t.Fatalf("%d latencies, %d errors, %v", len(r.latencies), r.errors, err)
		}
		if p50 = r.quantile(0.5); p50 <= 500*time.Millisecond {
			return
		}
	}
	t.Errorf("an engine that computes in no time answers in %v", p50)
}

func TestKindsOf(t *testing.T) {
	for name, want := range map[string]string{"both": "engine light", "engine": "engine", "light": "light", "": "error", "heavy": "error"} {
		kinds, err := kindsOf(name)
		var got []string
		for _, k := range kinds {
			got = append(got, k.name)
		}
		if err != nil {
			got = []string{"error"}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %s", name, got, want)
		}
	}
}

func TestTables(t *testing.T) {
	r := newReport()
	for _, kind := range []backendKind{engineKind, lightKind} {
		res := newResults(&stage{kind: kind, field: []*contender{{Name: "grapevine", proc: &process{}}, {Name: "nginx", proc: &process{}}}})
		for _, name := range []string{"grapevine", "nginx"} {
			res.addThroughput(name, 1<<10, wrkResult{Requests: 100, DurationUS: 1e6}, spent{proxy: time.Millisecond, backend: 2 * time.Millisecond, backendShare: 0.6})
		}
		res.judge()
		r.Runs = append(r.Runs, res)
	}
	text := r.tables()
	for _, want := range []string{"backend engine", "backend light", "20.0", "60 %", "sets the pace"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

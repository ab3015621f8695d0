//go:build linux

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
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
	for range 3 {
		r, err := runPaced(context.Background(), bodies, s.Addr(), 4, 25, 2*time.Second)
		if err != nil || r.errors > 0 || r.units != 50 {
			t.Fatalf("%+v, %v", r, err)
		}
		if r.values[p50] <= 500 {
			return
		}
	}
	t.Error("an engine that computes in no time takes more than half a second")
}

func TestTables(t *testing.T) {
	r := &report{}
	for _, backend := range []string{"engine", "light"} {
		one := &run{Backend: backend, Contenders: []*contender{{Name: "grapevine"}, {Name: "nginx"}}, Others: []float64{0.1}}
		ph, err := throughput(options{rounds: 1}, t.TempDir(), bodySizes[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		tab := &table{Title: ph.title, phase: ph, Series: make(map[string]*series)}
		for i, c := range one.Contenders {
			s := &series{Values: make(map[string][]float64)}
			s.add(sample{values: map[string]float64{rate: float64(100 + 100*i), cpu: 20, backendShare: 60}})
			tab.Series[c.Name] = s
		}
		one.Tables = append(one.Tables, tab)
		r.Runs = append(r.Runs, one)
	}
	text := r.tables()
	for _, want := range []string{"backend engine", "backend light", "20.0", "60 %", "sets the pace", "0.500", "MISSED", "took 10 %"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

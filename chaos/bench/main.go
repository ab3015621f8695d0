//go:build linux

// Command bench compares grapevine, nginx and HAProxy in front of the same backends, with the same
// client in interleaved rounds: requests per second, CPU per request, latency, and the cost of many
// slow streams.
//
// It starts every server on loopback ports, installs nginx, HAProxy and wrk with apt if missing,
// and ends them by process id. Client and backends share the cores with the contenders, so figures
// compare contenders and are no capacities. It tests no correctness beyond counting errors, and it
// needs Linux's /proc. It reports the load of other programs; docs/benchmarks.md says how to give it
// priority over them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"grapevine.example/chaos/programs"
)

type options struct {
	binary, other, serve, backend, only, phases, jsonPath, profiles string

	rounds   int
	duration time.Duration
}

const (
	backendCount = 4 // behind every proxy, so that choosing one is part of the work
	connections  = 64
	seed         = 1 // of the request bodies
)

// servers are what this program runs as a process of its own, by its first argument.
var servers = map[string]func(args []string) error{"backend": serveBackend, "engine": serveEngines, "bare": serveBare}

func main() {
	if len(os.Args) > 2 {
		if serve, ok := servers[os.Args[1]]; ok {
			exit(serve(os.Args[2:]))
		}
	}
	var o options
	flag.StringVar(&o.binary, "grapevine", "bin/grapevine", "the binary under test")
	flag.StringVar(&o.other, "other", "", "a second binary, for the phase other")
	flag.StringVar(&o.serve, "serve", "", "further arguments of every grapevine serve, separated by spaces")
	flag.StringVar(&o.backend, "backend", "engine,light", "backends to put behind the proxies, separated by commas: engine (the emulated engine), light (the least that can answer)")
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds; medians are reported")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "length of one measurement, whole seconds")
	flag.StringVar(&o.jsonPath, "json", "", "also write the results and all configurations as JSON to this file")
	flag.StringVar(&o.only, "only", "nginx,haproxy,bare,grapevine", "contenders to run, separated by commas; direct access always runs")
	flag.StringVar(&o.phases, "phases", "throughput,latency,streams", "measurements to make; streams need the light backend, which stamps their chunks; or sight: what the dashboard and the doctor cost the router; or spans: what traces cost it; or other: what it costs beside another binary")
	flag.StringVar(&o.profiles, "profile", "", "write CPU profiles of grapevine under load into this directory")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 || o.duration < time.Second {
		flag.Usage()
		os.Exit(2)
	}
	// Debian installs nginx and haproxy outside a user's PATH.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(bench(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func bench(ctx context.Context, o options) error {
	switch o.phases {
	case "sight":
		return sight(ctx, o)
	case "spans":
		return spans(ctx, o)
	case "other":
		return other(ctx, o)
	}
	if err := programs.Install(ctx, "nginx", "haproxy", "wrk"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "grapevine-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &report{Date: time.Now().UTC().Format(time.RFC3339), Machine: programs.Machine(), Go: runtime.Version(), Command: strings.Join(os.Args, " ")}
	for _, name := range strings.Split(o.backend, ",") {
		run, err := benchOn(ctx, o, dir, name)
		if err != nil {
			return fmt.Errorf("backend %s: %w", name, err)
		}
		r.Runs = append(r.Runs, run)
	}
	fmt.Print(r.tables())
	if o.jsonPath == "" {
		return nil
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	return errors.Join(err, os.WriteFile(o.jsonPath, append(raw, '\n'), 0o644))
}

func benchOn(ctx context.Context, o options, dir, backend string) (*run, error) {
	st, err := setStage(ctx, o, dir, backend)
	defer st.close()
	if err != nil {
		return nil, err
	}
	r := &run{Backend: backend, Shows: backendKinds[backend], Contenders: st.field}
	phases, err := phasesOf(o, dir, backend)
	if err != nil {
		return nil, err
	}
	for _, ph := range phases {
		if err := st.measure(ctx, o, ph, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Package demo runs the whole of grapevine on one machine: emulated engines and a router on loopback sockets, and live streaming
// traffic through them. It runs the same traffic twice, once with the routing under test and once with round robin, on engines
// that start empty each time, so that what affinity buys is the only difference.
//
// It prints nothing.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/engine"
	"grapevine/chaos/replay"
	"grapevine/chaos/workload"
	"grapevine/node"
)

// Baseline is the strategy that the one under test is compared with: what a plain HTTP balancer does.
const Baseline = "round-robin"

// MaxEngines bounds what one machine is asked to emulate.
const MaxEngines = 32

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("demo settings")

// Config says how large the demo is.
type Config struct {
	Engines  int           // 1 to MaxEngines
	Duration time.Duration // of each of the two runs' arrivals; at least a second
	Seed     uint64        // of the traffic; both runs have the same
	Policy   string        // the strategy compared with Baseline
	Log      zerolog.Logger
	// Progress, if not nil, is told a few times a second how far the run of a strategy is. Calls do not overlap.
	Progress func(policy string, p replay.Progress)
}

// Outcome is what the two runs measured.
type Outcome struct {
	Affinity replay.Result `json:"affinity"`
	Baseline replay.Result `json:"baseline"`
}

// Run runs both, one after the other, and returns when everything it started has ended. When ctx is cancelled it does so early, with
// the context's error.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	var out Outcome
	if cfg.Engines < 1 || cfg.Engines > MaxEngines {
		return out, fmt.Errorf("%w: %d engines, want 1 to %d", ErrConfig, cfg.Engines, MaxEngines)
	}
	if cfg.Duration < time.Second {
		return out, fmt.Errorf("%w: %v of traffic, want a second or more", ErrConfig, cfg.Duration)
	}
	var err error
	if out.Baseline, err = runArm(ctx, cfg, Baseline); err != nil {
		return out, fmt.Errorf("%s: %w", Baseline, err)
	}
	if out.Affinity, err = runArm(ctx, cfg, cfg.Policy); err != nil {
		return out, fmt.Errorf("%s: %w", cfg.Policy, err)
	}
	return out, nil
}

// stopTimeout bounds how long the router may take to let go of what still runs.
const stopTimeout = 10 * time.Second

// runArm starts engines and a router, plays the traffic, and takes everything down.
func runArm(ctx context.Context, cfg Config, policy string) (res replay.Result, err error) {
	w := Workload(cfg.Engines, cfg.Duration)
	src, err := w.Source(workload.Options{Seed: cfg.Seed})
	if err != nil {
		return res, err
	}
	f, err := startFleet(ctx, cfg, policy)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	load := replay.Config{
		Targets: []string{"http://" + f.router.Addr()}, Admins: []string{f.router.AdminAddr()}, Model: modelName, Warmup: w.Warmup, Seed: cfg.Seed,
		Backends: f.names, Policy: policy, Workload: w.Name(), Nodes: 1, Speed: 1, Timeout: time.Minute,
	}
	if cfg.Progress != nil {
		load.Progress = func(p replay.Progress) { cfg.Progress(policy, p) }
	}
	return replay.Run(ctx, load, src)
}

// modelName is what the engines serve.
const modelName = "emulated-8b"

// fleet is the engines and the router in front of them.
type fleet struct {
	engines []*engine.Server
	names   []string
	router  *node.Node
}

// startFleet starts engines with empty caches and a router that knows nothing of them yet. What was started before an error is
// stopped.
func startFleet(ctx context.Context, cfg Config, policy string) (f *fleet, err error) {
	f = &fleet{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	nc := node.Default()
	nc.Listen, nc.Admin, nc.NodeName, nc.Strategy, nc.Log = "127.0.0.1:0", "127.0.0.1:0", "demo", policy, cfg.Log
	for i := range cfg.Engines {
		e, err := engine.NewServer(engine.ServerConfig{Config: EngineConfig(), Models: []string{modelName}, Log: cfg.Log})
		if err != nil {
			return f, err
		}
		f.engines = append(f.engines, e)
		if err := e.Start("127.0.0.1:0"); err != nil {
			return f, err
		}
		f.names = append(f.names, fmt.Sprintf("engine-%d", i))
		nc.Backends = append(nc.Backends, node.Backend{URL: "http://" + e.Addr(), Name: f.names[i], Models: []string{modelName}})
	}
	router, err := node.New(nc)
	if err != nil {
		return f, err
	}
	f.router = router
	return f, router.Start(ctx)
}

// stop takes the router down first, so that it never sees its engines go.
func (f *fleet) stop() error {
	var errs []error
	if f.router != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		errs = append(errs, f.router.Stop(ctx))
	}
	for _, e := range f.engines {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

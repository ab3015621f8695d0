// Package demo runs grapevine on one machine: emulated engines that publish cache events, router processes, and a
// layer-4 balancer that sends every new connection to a random router. It plays live streaming traffic
// twice, with the tested strategy and with round robin, on empty engines and routers, so that
// affinity is the only difference. In each run it kills one router and restarts it some seconds
// later.
//
// It prints nothing.
package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

// Baseline is the strategy to compare with, that of a plain HTTP balancer.
const Baseline = "round-robin"

// MaxEngines and MaxNodes bound the load on one machine.
const (
	MaxEngines = 32
	MaxNodes   = 16
)

var ErrConfig = errors.New("demo settings")

// Config is the size of the demo.
type Config struct {
	Binary   string        // the program grapevine, for the routers
	Env      []string      // extra environment of the routers
	Nodes    int           // routers, 2 to MaxNodes: one of them is killed
	Engines  int           // 1 to MaxEngines
	Duration time.Duration // of the arrivals of each run; at least a second
	Seed     uint64        // of the traffic, the balancer and the choice of the killed router, for both runs
	Policy   string        // the strategy compared with Baseline
	Log      zerolog.Logger
	// Progress, if not nil, is called a few times per second with a run's strategy and progress.
	// Calls of Progress and Event do not overlap.
	Progress func(policy string, p replay.Progress)
	// Event, if not nil, is called when something happens to the fleet.
	Event func(Event)
	// Dashboard, if not nil, shows the fleet of the current run. It remains the caller's.
	Dashboard *Dashboard
}

// Event is what happens in a run.
type Event struct {
	Policy string        // the strategy of the run
	At     time.Duration // since the first request could be sent
	What   string        // a clause: "router node-1 is killed"
}

// Outcome has the measurements of both runs.
type Outcome struct {
	Affinity Arm `json:"affinity"`
	Baseline Arm `json:"baseline"`
}

// Arm is one run.
type Arm struct {
	replay.Result
	Kill Kill `json:"kill"`
}

// Validate returns an ErrConfig for the first setting that Run would refuse.
func (c *Config) Validate() error {
	switch {
	case c.Engines < 1 || c.Engines > MaxEngines:
		return fmt.Errorf("%w: %d engines, want 1 to %d", ErrConfig, c.Engines, MaxEngines)
	case c.Nodes < 2 || c.Nodes > MaxNodes:
		return fmt.Errorf("%w: %d routers, want 2 to %d: one is killed", ErrConfig, c.Nodes, MaxNodes)
	case c.Duration < time.Second:
		return fmt.Errorf("%w: %v of traffic, want a second or more", ErrConfig, c.Duration)
	}
	return nil
}

// Run plays both runs in turn and returns when everything it started has ended. If ctx is
// cancelled, it returns early with its error.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	var out Outcome
	err := cfg.Validate()
	if err != nil {
		return out, err
	}
	cfg.serialize()
	if out.Baseline, err = runArm(ctx, cfg, Baseline); err != nil {
		return out, fmt.Errorf("%s: %w", Baseline, err)
	}
	if out.Affinity, err = runArm(ctx, cfg, cfg.Policy); err != nil {
		return out, fmt.Errorf("%s: %w", cfg.Policy, err)
	}
	return out, nil
}

// serialize keeps the calls of the caller's functions apart, and makes both callable.
func (c *Config) serialize() {
	var mu sync.Mutex
	progress, event := c.Progress, c.Event
	c.Progress = func(policy string, p replay.Progress) {
		if progress != nil {
			mu.Lock()
			defer mu.Unlock()
			progress(policy, p)
		}
	}
	c.Event = func(e Event) {
		if event != nil {
			mu.Lock()
			defer mu.Unlock()
			event(e)
		}
	}
}

// startTimeout bounds the start of a fleet, which takes seconds on an idle machine.
const startTimeout = 45 * time.Second

// healthInterval is the balancer's check interval; two failures remove a router. It is shorter than
// the tens of seconds of cloud balancers because the demo is short; until then clients retry.
const healthInterval = 100 * time.Millisecond

const modelName = "emulated-8b"

func runArm(ctx context.Context, cfg Config, policy string) (arm Arm, err error) {
	w := Workload(cfg.Engines, cfg.Duration)
	src, err := w.Source(workload.Options{Seed: cfg.Seed})
	if err != nil {
		return arm, err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f, err := fleet.Start(starting, fleet.Config{
		Binary: cfg.Binary, Env: cfg.Env, Nodes: cfg.Nodes, Engines: cfg.Engines, CacheEvents: true, Seed: cfg.Seed, Log: cfg.Log,
		Engine:   engine.ServerConfig{Config: EngineConfig(), Models: []string{modelName}},
		Balancer: fleet.BalancerConfig{Interval: healthInterval},
		Settings: map[string]any{"strategy": policy, "log_level": "warn"},
	})
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return arm, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return play(ctx, cfg, f, policy, w, src)
}

func play(ctx context.Context, cfg Config, f *fleet.Fleet, policy string, w *workload.Sessions, src workload.Source) (arm Arm, err error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	happens := func(at time.Duration, what string) { cfg.Event(Event{Policy: policy, At: at, What: what}) }
	k := newKilling(f.Nodes()[cfg.Seed%uint64(cfg.Nodes)], cfg.Duration, happens)
	load := replay.Config{
		Targets: []string{f.URL()}, Model: modelName, Warmup: w.Warmup, Seed: cfg.Seed, Timeout: time.Minute,
		Backends: f.EngineNames(), Policy: policy, Workload: w.Name(), Nodes: cfg.Nodes, Speed: 1,
		NewConnections: true, Retries: sdkRetries,
		Started: func(at time.Time) {
			happens(0, fmt.Sprintf("%d engines and %d routers are ready, traffic begins", cfg.Engines, cfg.Nodes))
			k.start(running, at, cancel)
		},
		Excuse: k.excuse, Observe: k.observe,
	}
	var steady []*fleet.Node
	for _, n := range f.Nodes() {
		if n != k.node {
			steady = append(steady, n)
			load.Admins = append(load.Admins, n.AdminAddr())
		}
	}
	meter, err := newGossipMeter(ctx, steady)
	if err != nil {
		return arm, err
	}
	if cfg.Dashboard != nil {
		cfg.Dashboard.show(steady[0].AdminAddr())
		defer cfg.Dashboard.show("")
	}
	load.Progress = func(p replay.Progress) { cfg.Progress(policy, p) }
	arm.Result, err = replay.Run(running, load, src)
	arm.Kill = k.finish(w.Warmup)
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		err = cause // the script's error, which ended the replay
	}
	if err == nil {
		arm.Gossip.BytesPerSPerNode, err = meter.perSecond(ctx)
	}
	return arm, err
}

const sdkRetries = 2

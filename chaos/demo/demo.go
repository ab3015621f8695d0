// Package demo runs the whole of grapevine on one machine: emulated engines, a fleet of routers that are processes of their own, and a
// layer-4 balancer that sends every new connection to a random one of them. Live streaming traffic runs through it twice, once with the
// routing under test and once with round robin, on engines and routers that start empty each time, so that what affinity buys is
// the only difference. In the middle of each run one router is killed and, some seconds later, started again.
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
	"grapevine/chaos/fleet"
	"grapevine/chaos/replay"
	"grapevine/chaos/workload"
)

// Baseline is the strategy that the one under test is compared with: what a plain HTTP balancer does.
const Baseline = "round-robin"

// MaxEngines and MaxNodes bound what one machine is asked to run.
const (
	MaxEngines = 32
	MaxNodes   = 16
)

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("demo settings")

// Config says how large the demo is.
type Config struct {
	Binary   string        // the program grapevine, for the routers
	Env      []string      // more of the routers' environment
	Nodes    int           // routers, 2 to MaxNodes: one of them is killed
	Engines  int           // 1 to MaxEngines
	Duration time.Duration // of each of the two runs' arrivals; at least a second
	Seed     uint64        // of the traffic, the balancer, and of which router is killed; both runs have the same
	Policy   string        // the strategy compared with Baseline
	Log      zerolog.Logger
	// Progress, if not nil, is told a few times a second how far the run of a strategy is. Calls do not overlap.
	Progress func(policy string, p replay.Progress)
}

// Outcome is what the two runs measured.
type Outcome struct {
	Affinity Arm `json:"affinity"`
	Baseline Arm `json:"baseline"`
}

// Arm is one run.
type Arm struct {
	replay.Result
	Kill Kill `json:"kill"`
}

// Validate reports, as ErrConfig, the first setting that Run would refuse.
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

// Run runs both, one after the other, and returns when everything it started has ended. When ctx is cancelled it does so early, with
// the context's error.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	var out Outcome
	err := cfg.Validate()
	if err != nil {
		return out, err
	}
	if out.Baseline, err = runArm(ctx, cfg, Baseline); err != nil {
		return out, fmt.Errorf("%s: %w", Baseline, err)
	}
	if out.Affinity, err = runArm(ctx, cfg, cfg.Policy); err != nil {
		return out, fmt.Errorf("%s: %w", cfg.Policy, err)
	}
	return out, nil
}

// startTimeout bounds the start of a fleet: seconds, on a machine that does nothing else.
const startTimeout = 45 * time.Second

// healthInterval is how often the balancer asks a router for its health; two failures take it out. Cloud balancers take tens of seconds
// for what takes a fifth of one here: a demo is short, and what clients feel until then is theirs to repair by trying again.
const healthInterval = 100 * time.Millisecond

// modelName is what the engines serve.
const modelName = "emulated-8b"

// runArm starts a fleet, plays the traffic, kills a router under it, and takes everything down.
func runArm(ctx context.Context, cfg Config, policy string) (arm Arm, err error) {
	w := Workload(cfg.Engines, cfg.Duration)
	src, err := w.Source(workload.Options{Seed: cfg.Seed})
	if err != nil {
		return arm, err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f, err := fleet.Start(starting, fleet.Config{
		Binary: cfg.Binary, Env: cfg.Env, Nodes: cfg.Nodes, Engines: cfg.Engines, Seed: cfg.Seed, Log: cfg.Log,
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

// play sends the traffic while the script of the kill runs beside it. Whichever fails ends the other.
func play(ctx context.Context, cfg Config, f *fleet.Fleet, policy string, w *workload.Sessions, src workload.Source) (arm Arm, err error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := newKilling(f.Nodes()[cfg.Seed%uint64(cfg.Nodes)], cfg.Duration)
	load := replay.Config{
		Targets: []string{f.URL()}, Model: modelName, Warmup: w.Warmup, Seed: cfg.Seed, Timeout: time.Minute,
		Backends: f.EngineNames(), Policy: policy, Workload: w.Name(), Nodes: cfg.Nodes, Speed: 1,
		NewConnections: true, Retries: sdkRetries,
		Started: func(at time.Time) { k.start(running, at, cancel) },
		Excuse:  k.excuse, Observe: k.observe,
	}
	var steady []*fleet.Node
	for _, n := range f.Nodes() {
		if n != k.node { // its counters begin anew
			steady = append(steady, n)
			load.Admins = append(load.Admins, n.AdminAddr())
		}
	}
	meter, err := newGossipMeter(ctx, steady)
	if err != nil {
		return arm, err
	}
	if cfg.Progress != nil {
		load.Progress = func(p replay.Progress) { cfg.Progress(policy, p) }
	}
	arm.Result, err = replay.Run(running, load, src)
	arm.Kill = k.finish(w.Warmup)
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		err = cause // of the script: the replay only heard of it
	}
	if err == nil {
		arm.Gossip.BytesPerSPerNode, err = meter.perSecond(ctx)
	}
	return arm, err
}

// sdkRetries is how often the official clients repeat a request whose connection broke before an answer began.
const sdkRetries = 2

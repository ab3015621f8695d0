package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"grapevine/chaos/engine"
	"grapevine/chaos/fleetsim"
	"grapevine/chaos/fleetsim/family"
	"grapevine/chaos/report"
	"grapevine/chaos/workload"
)

type simulateCmd struct {
	workloadFlags `embed:""`
	Engine        engine.Config `embed:""`

	Policy    []string       `name:"policy" default:"prefix,round-robin" placeholder:"NAME" help:"Policies to compare: the strategies of serve, and from the literature argmin, lmetric, two-choice and sglang."`
	Nodes     []int          `name:"nodes" default:"1" placeholder:"N" help:"Routers in the fleet."`
	Share     []string       `name:"share" default:"both" enum:"both,prefix,load,none" placeholder:"WHAT" help:"What routers exchange: both (placements and load), prefix (placements), load, or none."`
	Stale     []string       `name:"staleness" default:"200ms" placeholder:"DELAY" help:"How long after an event all other routers receive it; none: never."`
	Loss      float64        `name:"loss" placeholder:"P" help:"Share of placements that are lost between routers and never sent again."`
	Cut       string         `name:"partition" placeholder:"FROM-TO" help:"Separate the routers into two halves between two times since the start, such as 60s-120s."`
	Backends  int            `name:"backends" placeholder:"N" help:"Number of engines. Default: the generated workload's, or 16 for a trace."`
	Ingress   string         `name:"ingress" enum:"random,sticky" default:"random" help:"Which router a request enters by: any (random), or one per session (sticky)."`
	Hot       string         `name:"hot" enum:"on,off" default:"on" help:"Whether the fleet agrees on which engines hold a hot prefix."`
	HotReps   int            `name:"hot-replicas" placeholder:"R" help:"Hold every hot prefix on this many engines instead of letting the fleet decide."`
	Telemetry string         `name:"telemetry" enum:",vllm,sglang,none" default:"" placeholder:"KIND" help:"What engines report of their load, and routers read: that of vllm (every 5 s) or sglang (every second), or none, the default. In a family: as drawn."`
	Adapters  int            `name:"adapters" placeholder:"N" help:"Give each session one of N LoRA adapters, the k-th with a probability in proportion to 1/k. --adapter-slots and --adapter-load are the engines', --telemetry tells routers of them."`
	Warmup    *time.Duration `name:"warmup" placeholder:"DURATION" help:"Leave requests that arrive before this time out of the report. Default: the generated workload's."`
	Parallel  int            `name:"parallel" placeholder:"N" help:"Runs at the same time. Default: the number of processors."`
	JSON      bool           `name:"json" help:"Print one JSON object."`
	Plot      string         `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine (.svg)."`
	Oracle    []string       `name:"oracle" enum:"contents,load,outputs" placeholder:"WHAT" help:"Play prefix also with perfect knowledge of caches (contents), of the present queues (load) or of answers' lengths (outputs): each alone, and together."`

	Family int `name:"family" placeholder:"N" help:"Play all policies, or those of --policy, on N drawn fleets and workloads, and compare prefix with the best other policy. The draws replace all other flags but --policy, --seed, --requests (measured in each), --oracle, --telemetry, --parallel, --json and --plot."`
	Draw   int `name:"family-draw" placeholder:"K" help:"Play draw K of --seed alone and print every policy."`
}

// Help is shown below the flags.
func (simulateCmd) Help() string {
	return "A generated workload brings engines ten times as fast as a real one, as its load is; the flags below replace what they name. Every combination of --policy, --nodes, --share and --staleness is a run; several print {\"runs\":[...]}."
}

func (c *simulateCmd) Run(s *streams, line *kong.Context) error {
	if c.Family != 0 || c.Draw != 0 {
		return c.family(s, line)
	}
	w, opt, err := c.open(c.Backends)
	if err != nil {
		return err
	}
	cfg := fleetsim.Config{
		Workload: w, Options: opt, Policies: append(c.Policy, family.OraclePolicies(c.Oracle)...), Nodes: c.Nodes, Backends: c.Backends, Engine: c.Engine,
		NoHot: c.Hot == "off", HotReplicas: c.HotReps,
		Ingress: fleetsim.Ingress(c.Ingress), Parallel: c.Parallel, Loss: c.Loss, Adapters: c.Adapters, Telemetry: fleetsim.Telemetry(c.Telemetry),
	}
	for _, s := range c.Share {
		cfg.Share = append(cfg.Share, fleetsim.Share(s))
	}
	for _, s := range c.Stale {
		d, err := fleetsim.ParseStaleness(s)
		if err != nil {
			return usageError{err}
		}
		cfg.Staleness = append(cfg.Staleness, d)
	}
	if cfg.Partition, err = fleetsim.ParsePartition(c.Cut); err != nil {
		return usageError{err}
	}
	if c.Warmup != nil {
		if cfg.Warmup = *c.Warmup; cfg.Warmup == 0 {
			cfg.Warmup = -1
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	progress, all := newProgressLine(s.err), simulated(nil)
	cfg.Progress = func(now fleetsim.Progress) { progress.show("%s", all.update(now)) }
	runs, err := fleetsim.Run(ctx, cfg)
	progress.finish()
	if err != nil {
		return simulationError(err)
	}
	if c.Plot != "" {
		if err := report.WritePlot(c.Plot, runs...); err != nil {
			return err
		}
	}
	if c.JSON {
		return report.WriteJSON(s.out, runs...)
	}
	return report.WriteTable(s.out, runs...)
}

func simulationError(err error) error {
	switch {
	case errors.Is(err, fleetsim.ErrConfig), errors.Is(err, workload.ErrOptions), errors.Is(err, engine.ErrConfig):
		return usageError{err}
	case errors.Is(err, context.Canceled):
		return errors.New("called off")
	}
	return err
}

type simulated []float64

func (s *simulated) update(now fleetsim.Progress) string {
	if *s == nil {
		*s = make([]float64, now.Runs)
	}
	done := *s
	switch {
	case now.Done:
		done[now.Run] = 1
	case now.Total > 0:
		done[now.Run] = float64(now.Ended) / float64(now.Total)
	case now.Span > 0:
		done[now.Run] = min(float64(now.At)/float64(now.Span), 1)
	}
	sum := 0.0
	for _, d := range done {
		sum += d
	}
	return fmt.Sprintf("%3.0f %%, %s on %d: %d requests", 100*sum/float64(now.Runs), now.Policy, now.Nodes, now.Ended)
}

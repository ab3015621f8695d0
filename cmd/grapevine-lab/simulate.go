package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/fleetsim/family"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
	"grapevine.example/cmd/commandline"
	"grapevine.example/proxy/clients"
)

type simulateCmd struct {
	workloadFlags `embed:""`
	Engine        engine.Config `embed:""`

	Policy    []string       `name:"policy" default:"prefix,round-robin" placeholder:"NAME" help:"Policies to compare: the strategies of serve, and from the literature argmin, lmetric, two-choice and sglang; with @N behind it a policy makes other random choices."`
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
	TelDelay  time.Duration  `name:"telemetry-delay" placeholder:"DELAY" help:"With --telemetry: how long a report is on its way."`
	Whole     float64        `name:"unstreamed" placeholder:"SHARE" help:"Share of the requests whose clients get the whole answer at its end, so that routers see no first token."`
	Adapters  int            `name:"adapters" placeholder:"N" help:"Give each session one of N LoRA adapters, the k-th with a probability in proportion to 1/k. --adapter-slots and --adapter-load are the engines', --telemetry tells routers of them."`
	Clients   []string       `name:"clients" placeholder:"NAME:SHARE[:PRIORITY[:WEIGHT]]" help:"Divide the sessions among clients, such as search:1,crawler:10:batch, and show each one's requests: alone, without a queue at the routers, and with it."`
	Queue     []string       `name:"queue" enum:"alone,off,on" placeholder:"WHICH" help:"What to play of the clients: each one alone, all without a queue (off), or with it (on). Default: all three with --clients, else off."`
	QueueTTFT time.Duration  `name:"queue-ttft" default:"1s" placeholder:"DURATION" help:"With a queue: an engine is open while the prefill outstanding there takes less."`
	QueueWait int            `name:"queue-waiting" default:"4" placeholder:"N" help:"With a queue: an engine is open while fewer requests wait for their first token there."`
	InFlight  int            `name:"queue-in-flight" placeholder:"N" help:"With a queue: an engine is open while it has fewer requests. Default: no such bound."`
	Places    int            `name:"queue-requests" default:"2048" placeholder:"N" help:"Requests that may wait at one router."`
	Patience  time.Duration  `name:"queue-timeout" default:"30s" placeholder:"DURATION" help:"How long a request may wait at a router."`
	Warmup    *time.Duration `name:"warmup" placeholder:"DURATION" help:"Leave requests that arrive before this time out of the report. Default: the generated workload's."`
	Parallel  int            `name:"parallel" placeholder:"N" help:"Runs at the same time. Default: the number of processors."`
	JSON      bool           `name:"json" help:"Print one JSON object."`
	Plot      string         `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine (.svg)."`
	Oracle    []string       `name:"oracle" enum:"contents,load,outputs" placeholder:"WHAT" help:"Play prefix also with perfect knowledge of caches (contents), of the present queues (load) or of answers' lengths (outputs): each alone, and together."`
	Events    *time.Duration `name:"events" placeholder:"DELAY" help:"Play prefix also with engines that publish cache events, which the routers that follow them have after this delay, such as 10ms."`

	EventFaults []string `name:"event-fault" placeholder:"FAULT" help:"With --events: loss=SHARE of the batches, for good; cut=FROM-TO, when none come; replay, which brings them after the cut; restart=TIME of the first engine, the next a second later; forget=TIME of the first router that starts again; liars=N engines that do not publish what they evict."`

	Family int `name:"family" placeholder:"N" help:"Play all policies, or those of --policy, on N drawn fleets and workloads, and compare prefix with the best other policy. The draws replace all other flags but --policy, --seed, --requests (measured in each), --oracle, --events, --telemetry, --parallel, --json and --plot."`
	Draw   int `name:"family-draw" placeholder:"K" help:"Play draw K of --seed alone and print every policy."`
}

// Help is shown below the flags.
func (simulateCmd) Help() string {
	return "A generated workload brings engines ten times as fast as a real one, as its load is; the flags below replace what they name. Every combination of --policy, --nodes, --share and --staleness is a run; several print {\"runs\":[...]}."
}

func (c *simulateCmd) Run(s *streams, call commandline.Call) error {
	if c.Family != 0 || c.Draw != 0 {
		return c.family(s, call)
	}
	w, opt, err := c.open(c.Backends)
	if err != nil {
		return err
	}
	cfg := fleetsim.Config{
		Workload: w, Options: opt, Policies: append(c.Policy, family.OraclePolicies(c.Oracle)...), Nodes: c.Nodes, Backends: c.Backends, Engine: c.Engine,
		NoHot: c.Hot == "off", HotReplicas: c.HotReps,
		Ingress: fleetsim.Ingress(c.Ingress), Parallel: c.Parallel, Loss: c.Loss, Adapters: c.Adapters, Telemetry: fleetsim.Telemetry(c.Telemetry),
		TelemetryDelay: c.TelDelay, Unstreamed: c.Whole,
	}
	if cfg.EventFaults, err = fleetsim.ParseEventFaults(c.EventFaults); err != nil {
		return usageError{err}
	}
	if cfg.Clients, err = parseClients(c.Clients); err != nil {
		return usageError{err}
	}
	for _, s := range c.Queue {
		cfg.Queueing = append(cfg.Queueing, fleetsim.Queueing(s))
	}
	cfg.Queue = fleetsim.DefaultQueue
	cfg.Queue.Requests, cfg.Queue.Wait = c.Places, c.Patience
	cfg.Policy.Gate.TTFT, cfg.Policy.Gate.Waiting, cfg.Policy.Gate.InFlight = c.QueueTTFT, c.QueueWait, c.InFlight
	if c.Events != nil {
		cfg.Policies, cfg.EventDelay = append(cfg.Policies, family.WithEvents), *c.Events
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
	if err := report.WriteTable(s.out, runs...); err != nil || len(c.Clients) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	return report.WriteClients(s.out, runs...)
}

// parseClients reads NAME:SHARE[:PRIORITY[:WEIGHT]].
func parseClients(list []string) (out []fleetsim.Client, err error) {
	for _, text := range list {
		bad := func(why string) error {
			return fmt.Errorf("--clients %s: %s: want NAME:SHARE[:PRIORITY[:WEIGHT]], such as crawler:10:batch", text, why)
		}
		parts := strings.Split(text, ":")
		if len(parts) < 2 || len(parts) > 4 || parts[0] == "" {
			return nil, bad(fmt.Sprintf("%d parts", len(parts)))
		}
		c := fleetsim.Client{Name: parts[0], Priority: clients.Default}
		if c.Share, err = strconv.ParseFloat(parts[1], 64); err != nil || !(c.Share > 0) {
			return nil, bad(fmt.Sprintf("share %q is not a number above 0", parts[1]))
		}
		if len(parts) > 2 {
			if c.Priority, err = clients.ParsePriority(parts[2]); err != nil {
				return nil, bad(err.Error())
			}
		}
		if len(parts) > 3 {
			if c.Weight, err = strconv.ParseFloat(parts[3], 64); err != nil || !(c.Weight > 0) {
				return nil, bad(fmt.Sprintf("weight %q is not a number above 0", parts[3]))
			}
		}
		out = append(out, c)
	}
	return out, nil
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

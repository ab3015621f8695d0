package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/demo"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/report"
	"grapevine.example/cmd/commandline"
)

type demoCmd struct {
	routerFlag `embed:""`

	Duration time.Duration `name:"duration" default:"30s" placeholder:"DURATION" help:"Length of the traffic, which runs twice."`
	Seed     uint64        `name:"seed" default:"1" placeholder:"N" help:"Seed of the traffic, the balancer and the choice of the router that is killed."`
	Nodes    int           `name:"nodes" default:"3" placeholder:"N" help:"Routers behind the balancer, two or more. One is killed half-way."`
	Engines  int           `name:"engines" default:"4" placeholder:"N" help:"Emulated engines behind the routers; the traffic grows with them."`
	Policy   string        `name:"policy" default:"prefix" placeholder:"NAME" help:"Strategy to compare with round robin."`
	JSON     bool          `name:"json" help:"Print one JSON object."`
	Plot     string        `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine of both (.svg)."`
}

func (c *demoCmd) Run(s *streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := demo.Config{Nodes: c.Nodes, Engines: c.Engines, Duration: c.Duration, Seed: c.Seed, Policy: c.Policy,
		Log: zerolog.New(s.err).Level(zerolog.ErrorLevel)}
	if err := cfg.Validate(); err != nil {
		return usageError{err}
	}
	var err error
	if cfg.Binary, err = fleet.FindRouter(c.Router); err != nil {
		return err
	}
	if cfg.Dashboard, err = demo.OpenDashboard(); err != nil {
		return fmt.Errorf("dashboard: %w", err)
	}
	defer cfg.Dashboard.Close()
	fmt.Fprintf(s.err, "dashboard until the demo ends: %s\n", cfg.Dashboard.URL())
	if !c.JSON {
		fmt.Fprintln(s.out, demo.Describe(c.Nodes, c.Engines, c.Duration))
	}
	line := newProgressLine(s.err)
	cfg.Progress = func(policy string, p replay.Progress) { line.show("%s", replayed(policy, p, c.Duration)) }
	cfg.Event = func(e demo.Event) {
		line.finish()
		fmt.Fprintf(s.err, "%s, %.1f s: %s\n", e.Policy, e.At.Seconds(), e.What)
	}
	out, err := demo.Run(ctx, cfg)
	line.finish()
	switch {
	case errors.Is(err, demo.ErrConfig):
		return usageError{err}
	case errors.Is(err, context.Canceled):
		return errors.New("called off")
	case err != nil:
		return err
	}
	if c.Plot != "" {
		if err := report.WritePlot(c.Plot, out.Affinity.Report, out.Baseline.Report); err != nil {
			return err
		}
	}
	if c.JSON {
		return commandline.PrintJSON(s.out, out)
	}
	return printDemo(s.out, out)
}

func printDemo(w io.Writer, out demo.Outcome) error {
	a, b := &out.Affinity, &out.Baseline
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(what string, cell func(*demo.Arm) string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t\n", what, cell(a), cell(b))
	}
	fmt.Fprintf(t, "\n\t%s\t%s\t\n", a.Policy, b.Policy)
	row("requests", func(r *demo.Arm) string { return fmt.Sprint(r.Requests) })
	row("errors", func(r *demo.Arm) string { return fmt.Sprint(r.Errors) })
	row("answers cut by the kill", func(r *demo.Arm) string { return fmt.Sprint(r.Cut) })
	row("hit rate", func(r *demo.Arm) string { return share(&r.HitRate) })
	row("before the kill", func(r *demo.Arm) string { return share(r.Kill.HitRate.Before) })
	row("one router down", func(r *demo.Arm) string { return share(r.Kill.HitRate.Down) })
	row("after its restart", func(r *demo.Arm) string { return share(r.Kill.HitRate.After) })
	row("hit rate of follow-up turns", func(r *demo.Arm) string { return share(&r.FollowupCached) })
	row("follow-ups to the same engine", func(r *demo.Arm) string { return share(&r.FollowupSameBackend) })
	row("first token p50", func(r *demo.Arm) string { return fmt.Sprintf("%.0f ms", r.TTFT.P50) })
	row("first token p99", func(r *demo.Arm) string { return fmt.Sprintf("%.0f ms", r.TTFT.P99) })
	row("whole answer p50", func(r *demo.Arm) string { return fmt.Sprintf("%.0f ms", r.E2E.P50) })
	row("load spread", func(r *demo.Arm) string { return fmt.Sprintf("%.2f", r.LoadCov) })
	row("prediction error, of the prompt", func(r *demo.Arm) string { return share(&r.Prediction.Share) })
	row("router's own time, mean", func(r *demo.Arm) string { return fmt.Sprintf("%.0f us", r.RouterOverhead.Mean) })
	row("gossip per router", func(r *demo.Arm) string { return fmt.Sprintf("%.1f kB/s", r.Gossip.BytesPerSPerNode/1e3) })
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range []*demo.Arm{a, b} {
		for _, class := range slices.Sorted(maps.Keys(r.Live.Errors)) {
			fmt.Fprintf(w, "%s: %d failed, %s, e.g. %s\n", r.Policy, r.Live.Errors[class], class, r.Live.Sample[class])
		}
	}
	_, err := fmt.Fprintf(w, "\n%s, of %s and of %s: killed with SIGKILL after %.1f s and %.1f s, started after %.1f s and %.1f s, ready %.2f s and %.2f s later; "+
		"%d and %d connections that broke before an answer began were tried again, as the official clients do\n"+
		"hit rate %s, first token %s at the median and %s at the 99th percentile; load spread is standard deviation over mean of requests per engine\n",
		a.Kill.Node, a.Policy, b.Policy, a.Kill.KilledS, b.Kill.KilledS, a.Kill.RestartS, b.Kill.RestartS,
		a.Kill.ReadyS-a.Kill.RestartS, b.Kill.ReadyS-b.Kill.RestartS, a.Live.Retried, b.Live.Retried,
		times(a.HitRate, b.HitRate, "higher"), times(b.TTFT.P50, a.TTFT.P50, "sooner"), times(b.TTFT.P99, a.TTFT.P99, "sooner"))
	return err
}

func share(x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100**x)
}

func times(x, y float64, how string) string {
	if y == 0 {
		return "not comparable"
	}
	return fmt.Sprintf("%.2f times %s", x/y, how)
}

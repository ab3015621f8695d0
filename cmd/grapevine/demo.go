package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/demo"
	"grapevine/chaos/replay"
	"grapevine/chaos/report"
)

type demoCmd struct {
	Duration time.Duration `name:"duration" default:"20s" placeholder:"DURATION" help:"Of the traffic, which runs twice."`
	Seed     uint64        `name:"seed" default:"1" placeholder:"N" help:"Of the traffic. Equal seeds, equal conversations."`
	Engines  int           `name:"engines" default:"4" placeholder:"N" help:"Emulated engines behind the router; the traffic grows with them."`
	Policy   string        `name:"policy" default:"prefix" placeholder:"NAME" help:"Strategy that is compared with round robin."`
	JSON     bool          `name:"json" help:"Print one JSON object."`
	Plot     string        `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine of both (.svg or .html)."`
}

func (c *demoCmd) Run(s *streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := demo.Config{Engines: c.Engines, Duration: c.Duration, Seed: c.Seed, Policy: c.Policy,
		Log: zerolog.New(s.err).Level(zerolog.ErrorLevel)}
	if !c.JSON {
		if _, err := fmt.Fprintln(s.out, demo.Describe(c.Engines, c.Duration)); err != nil {
			return err
		}
	}
	var bar *progress
	cfg.Progress = func(policy string, p replay.Progress) {
		if bar == nil || bar.what != policy {
			bar.finish()
			bar = newProgress(s.err, c.Duration, policy)
		}
		bar.update(p)
	}
	out, err := demo.Run(ctx, cfg)
	bar.finish()
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
		return printJSON(s.out, out)
	}
	return printDemo(s.out, out)
}

// printDemo writes the comparison, a row for each figure.
func printDemo(w io.Writer, out demo.Outcome) error {
	a, b := &out.Affinity.Report, &out.Baseline.Report
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(what string, cell func(*report.Report) string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t\n", what, cell(a), cell(b))
	}
	fmt.Fprintf(t, "\n\t%s\t%s\t\n", a.Policy, b.Policy)
	row("requests", func(r *report.Report) string { return fmt.Sprint(r.Requests) })
	row("errors", func(r *report.Report) string { return fmt.Sprint(r.Errors) })
	row("hit rate", func(r *report.Report) string { return fmt.Sprintf("%.1f %%", 100*r.HitRate) })
	row("hit rate of follow-up turns", func(r *report.Report) string { return fmt.Sprintf("%.1f %%", 100*r.FollowupCached) })
	row("follow-ups to the same engine", func(r *report.Report) string { return fmt.Sprintf("%.1f %%", 100*r.FollowupSameBackend) })
	row("first token p50", func(r *report.Report) string { return fmt.Sprintf("%.0f ms", r.TTFT.P50) })
	row("first token p99", func(r *report.Report) string { return fmt.Sprintf("%.0f ms", r.TTFT.P99) })
	row("whole answer p50", func(r *report.Report) string { return fmt.Sprintf("%.0f ms", r.E2E.P50) })
	row("load spread", func(r *report.Report) string { return fmt.Sprintf("%.2f", r.LoadCov) })
	row("prediction error, of the prompt", func(r *report.Report) string { return fmt.Sprintf("%.1f %%", 100*r.Prediction.Share) })
	row("router's own time, mean", func(r *report.Report) string { return fmt.Sprintf("%.0f us", r.RouterOverhead.Mean) })
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range []*replay.Result{&out.Affinity, &out.Baseline} {
		for class, n := range r.Live.Errors {
			if _, err := fmt.Fprintf(w, "%s: %d failed, %s, e.g. %s\n", r.Policy, n, class, r.Live.Sample[class]); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "\nhit rate %s, first token %s at the median and %s at the 99th percentile; load spread is standard deviation over mean of requests per engine\n",
		times(a.HitRate, b.HitRate, "higher"), times(b.TTFT.P50, a.TTFT.P50, "sooner"), times(b.TTFT.P99, a.TTFT.P99, "sooner"))
	return err
}

// times says how many times x is of y.
func times(x, y float64, how string) string {
	if y == 0 {
		return "not comparable"
	}
	return fmt.Sprintf("%.2f times %s", x/y, how)
}

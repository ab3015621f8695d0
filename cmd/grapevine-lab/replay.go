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
	"time"

	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
	"grapevine.example/cmd/commandline"
)

type replayCmd struct {
	workloadFlags `embed:""`

	replay.Config `embed:""`

	WarmUp *time.Duration `name:"warmup" placeholder:"DURATION" help:"Leave out of the report what was due before. Generated sessions at their own length: 20s unless given."`
	JSON   bool           `name:"json" help:"Print one JSON object."`
	Plot   string         `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine (.svg)."`
}

func (c *replayCmd) Run(s *streams) error {
	w, opt, err := c.open(c.MinBackends)
	if err != nil {
		return err
	}
	src, err := w.Source(opt)
	if err != nil {
		return usageError{err}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := c.Config
	cfg.Warmup, cfg.Seed = c.warmup(w), c.Options.Seed
	cfg.Workload, cfg.Speed, cfg.Nodes = w.Name(), c.Options.Speed, len(c.Targets)
	if cfg.Model == "" {
		if cfg.Model, err = replay.FirstModel(ctx, c.Targets[0], c.APIKey); err != nil {
			return fmt.Errorf("%w (is %s a router? --model skips the question)", err, c.Targets[0])
		}
	}
	line, span := newProgressLine(s.err), src.Span()
	cfg.Progress = func(p replay.Progress) { line.show("%s", replayed("replaying "+w.Name(), p, span)) }
	res, err := replay.Run(ctx, cfg, src)
	line.finish()
	calledOff := errors.Is(err, context.Canceled)
	switch {
	case errors.Is(err, replay.ErrConfig):
		return usageError{err}
	case err != nil && !calledOff:
		return err
	}
	if err := c.print(s, res); err != nil {
		return err
	}
	switch {
	case calledOff:
		return errors.New("called off; the figures are of what had ended")
	case res.Requests > 0 && res.Errors == res.Requests:
		return errors.New("every request failed")
	}
	return nil
}

func (c *replayCmd) warmup(w workload.Workload) time.Duration {
	if c.WarmUp != nil {
		return *c.WarmUp
	}
	if g, ok := w.(*workload.Sessions); ok && c.Options.Duration == 0 && c.Options.Requests == 0 {
		return g.Warmup
	}
	return 0
}

func (c *replayCmd) print(s *streams, res replay.Result) error {
	if c.Plot != "" && len(res.Series) > 0 {
		if err := report.WritePlot(c.Plot, res.Report); err != nil {
			return err
		}
	}
	if c.JSON {
		return commandline.PrintJSON(s.out, res)
	}
	if err := report.WriteTable(s.out, res.Report); err != nil {
		return err
	}
	return printLive(s.out, res.Live)
}

func printLive(w io.Writer, l replay.Live) error {
	for _, class := range slices.Sorted(maps.Keys(l.Errors)) {
		fmt.Fprintf(w, "failed: %d %s, e.g. %s\n", l.Errors[class], class, l.Sample[class])
	}
	if l.Cancelled > 0 {
		fmt.Fprintf(w, "cancelled under way: %d\n", l.Cancelled)
	}
	_, err := fmt.Fprintf(w, "requests left p50 %.1f ms, p99 %.1f ms after they were due (counted into every latency above)\n",
		l.StartDelay.P50, l.StartDelay.P99)
	return err
}

func replayed(what string, now replay.Progress, span time.Duration) string {
	return fmt.Sprintf("%s: %.0f of %.0f s, %d sent, %d under way, %d failed", what, min(now.Elapsed, span).Seconds(), span.Seconds(), now.Sent, now.InFlight, now.Failed)
}

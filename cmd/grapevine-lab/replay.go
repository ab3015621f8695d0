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

	"grapevine/chaos/replay"
	"grapevine/chaos/report"
	"grapevine/chaos/workload"
	"grapevine/cmd/commandline"
)

type replayCmd struct {
	workloadFlags `embed:""`

	Target      []string       `name:"target" required:"" sep:"none" placeholder:"URL" help:"Router to load. Repeatable: requests are spread over all of them."`
	Admin       []string       `name:"admin" sep:"none" placeholder:"ADDR" help:"Admin address of a router, to report its overhead from its metrics. Repeatable."`
	Spread      string         `name:"spread" enum:"request,session" default:"request" help:"Choice of the target: a random one for each request (request), or one for each session (session)."`
	Model       string         `name:"model" placeholder:"NAME" help:"Model to request. Default: the first that the target lists."`
	APIKey      string         `name:"api-key" env:"OPENAI_API_KEY" placeholder:"KEY" help:"Sent as a bearer token."`
	Engines     int            `name:"backends" placeholder:"N" help:"Engines behind the targets: scales the rate of generated sessions to them, and counts those without a request in the load spread."`
	MaxInFlight int            `name:"max-in-flight" default:"4096" placeholder:"N" help:"Most requests in flight. Requests due beyond this limit count as failed and are not delayed."`
	Timeout     time.Duration  `name:"timeout" default:"10m" placeholder:"DURATION" help:"Most time for a request, from the time when it is due."`
	Warmup      *time.Duration `name:"warmup" placeholder:"DURATION" help:"Leave requests due before this time out of the report. Default for generated sessions at their own length: 20s."`
	Policy      string         `name:"policy" default:"live" placeholder:"NAME" help:"The routers' strategy, as a label for the report."`
	JSON        bool           `name:"json" help:"Print one JSON object."`
	Plot        string         `name:"plot" placeholder:"FILE" help:"Draw hit rate, first-token time and load per engine (.svg)."`
}

func (c *replayCmd) Run(s *streams) error {
	w, opt, err := c.open(c.Engines)
	if err != nil {
		return err
	}
	src, err := w.Source(opt)
	if err != nil {
		return usageError{err}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := replay.Config{
		Targets: c.Target, Admins: c.Admin, Spread: replay.Spread(c.Spread), Model: c.Model, APIKey: c.APIKey,
		MaxInFlight: c.MaxInFlight, Timeout: c.Timeout, Warmup: c.warmup(w), Seed: c.Options.Seed,
		MinBackends: c.Engines, Policy: c.Policy, Workload: w.Name(), Speed: c.Options.Speed, Nodes: len(c.Target),
	}
	if cfg.Model == "" {
		if cfg.Model, err = replay.FirstModel(ctx, c.Target[0], c.APIKey); err != nil {
			return fmt.Errorf("%w (is %s a router? --model skips the question)", err, c.Target[0])
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
	if c.Warmup != nil {
		return *c.Warmup
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
		if _, err := fmt.Fprintf(w, "failed: %d %s, e.g. %s\n", l.Errors[class], class, l.Sample[class]); err != nil {
			return err
		}
	}
	if l.Cancelled > 0 {
		if _, err := fmt.Fprintf(w, "cancelled under way: %d\n", l.Cancelled); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "requests left p50 %.1f ms, p99 %.1f ms after they were due (counted into every latency above)\n",
		l.StartDelay.P50, l.StartDelay.P99)
	return err
}

func replayed(what string, now replay.Progress, span time.Duration) string {
	return fmt.Sprintf("%s: %.0f of %.0f s, %d sent, %d under way, %d failed", what, min(now.Elapsed, span).Seconds(), span.Seconds(), now.Sent, now.InFlight, now.Failed)
}

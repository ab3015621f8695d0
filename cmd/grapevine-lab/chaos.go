package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/scenario"
	"grapevine.example/cmd/commandline"
)

type chaosCmd struct {
	List chaosListCmd `cmd:"" help:"List the scenarios, the faults and the promises."`
	Run  chaosRunCmd  `cmd:"" help:"Run scenarios against real processes on this machine."`
}

type chaosListCmd struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

type chaosList struct {
	Scenarios  []listedScenario     `json:"scenarios"`
	Faults     []scenario.Fault     `json:"faults"`
	Invariants []scenario.Invariant `json:"invariants"`
}

type listedScenario struct {
	Name      string  `json:"name"`
	Proves    string  `json:"proves"`
	Nodes     int     `json:"nodes"`
	Engines   int     `json:"engines"`
	DurationS float64 `json:"duration_s"`
}

func (c *chaosListCmd) Run(s *streams) error {
	l := chaosList{Faults: scenario.Faults(), Invariants: scenario.Invariants()}
	for _, x := range scenario.List() {
		l.Scenarios = append(l.Scenarios, listedScenario{x.Name, x.Proves, x.Nodes, x.Engines, x.Duration.Seconds()})
	}
	if c.JSON {
		return commandline.PrintJSON(s.out, l)
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(s.out, "Scenarios, with what a passed run shows:")
	for _, x := range l.Scenarios {
		fmt.Fprintf(w, "  %s\t%s\n", x.Name, x.Proves)
	}
	fmt.Fprintln(w, "\nFaults, as written in a schedule after the time:")
	for _, x := range l.Faults {
		fmt.Fprintf(w, "  %s\t%s\n", x.Usage, x.Does)
	}
	fmt.Fprintln(w, "\nPromises that every run checks:")
	for _, x := range l.Invariants {
		fmt.Fprintf(w, "  %s\t%s (%s)\n", x.Name, x.Promise, x.Bound)
	}
	return w.Flush()
}

type chaosRunCmd struct {
	routerFlag `embed:""`

	Names    []string      `arg:"" name:"scenario" help:"Scenarios by name (grapevine-lab chaos list), or all."`
	Seed     uint64        `name:"seed" default:"1" placeholder:"N" help:"Seed of the schedule, the traffic and the balancer."`
	Schedule string        `name:"schedule" placeholder:"FILE" help:"File with the events to carry out instead of those that follow from the seed, one per line as a report shows them; - is stdin."`
	Nodes    int           `name:"nodes" placeholder:"N" help:"Number of routers; default: the scenario's."`
	Duration time.Duration `name:"duration" placeholder:"DURATION" help:"Length of the traffic; default: the scenario's."`
	Soak     time.Duration `name:"soak" placeholder:"DURATION" help:"Run one fleet for this long and repeat the scenario's schedule, each time with the next seed."`
	Rate     float64       `name:"rate" placeholder:"N" help:"Conversations started per second, of about five requests each; default: the scenario's."`
	Newer    string        `name:"newer" placeholder:"FILE" help:"The program grapevine of the next release, for upgrade."`
	Loopback bool          `name:"loopback" help:"Run everything in this machine's own network, where links cannot be broken. Default: a network namespace for each member, where the machine allows them."`
	LeaveOut []string      `name:"leave-out" placeholder:"PROMISE" help:"Promise that is not checked, because the machine is too busy for what it measures. Repeatable."`
	JSON     bool          `name:"json" help:"Print one JSON object."`
	HTML     string        `name:"html" placeholder:"FILE" help:"Write verdicts and timelines as one HTML page."`
	Keep     string        `name:"keep" placeholder:"DIR" help:"Directory for logs, configurations and schedules, with a subdirectory for each run."`
}

type chaosOutcome struct {
	Violations int                `json:"violations"`
	Passed     int                `json:"passed"`
	Skipped    int                `json:"skipped"`
	Runs       []*scenario.Report `json:"runs"`
}

func (c *chaosRunCmd) Run(s *streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	names := c.Names
	if slices.Equal(names, []string{"all"}) {
		names = scenario.Names()
	}
	schedule, err := c.schedule(s.in, names)
	if err != nil {
		return err
	}
	runs, err := c.configs(s, names, schedule)
	if err != nil {
		return err
	}
	if !c.Loopback && !fleet.Isolated() && fleet.Supports(fleet.FaultLinks, "") == nil {
		in := s.in
		if c.Schedule == "-" {
			in = strings.NewReader(schedule.String()) // it has been read
		}
		return isolated(ctx, in, s)
	}
	var out chaosOutcome
	for _, cfg := range runs {
		r, err := c.one(ctx, s, cfg)
		switch {
		case ctx.Err() != nil:
			return errors.New("called off")
		case err != nil:
			return fmt.Errorf("%s: %w", cfg.Scenario, err)
		}
		out.Runs = append(out.Runs, r)
		out.Violations += r.Violations
		switch r.Result {
		case scenario.Passed:
			out.Passed++
		case scenario.Skipped:
			out.Skipped++
		}
		if !c.JSON {
			if err := printVerdict(s.out, r); err != nil {
				return err
			}
		}
	}
	if c.HTML != "" {
		err = scenario.WriteHTML(c.HTML, out.Runs...)
	}
	if c.JSON {
		err = errors.Join(err, commandline.PrintJSON(s.out, out))
	}
	if failed := len(out.Runs) - out.Passed - out.Skipped; failed > 0 {
		err = errors.Join(fmt.Errorf("%d of %d runs did not pass, %d violations", failed, len(out.Runs), out.Violations), err)
	}
	return err
}

func (c *chaosRunCmd) configs(s *streams, names []string, schedule scenario.Schedule) (runs []scenario.Config, err error) {
	for _, name := range names {
		cfg := scenario.Config{
			Scenario: name, Seed: c.Seed, Schedule: schedule, Nodes: c.Nodes, Duration: c.Duration, Soak: c.Soak, Rate: c.Rate,
			Loopback: c.Loopback, LeaveOut: c.LeaveOut, Newer: c.Newer, Log: zerolog.New(s.err).Level(zerolog.ErrorLevel),
		}
		if c.Keep != "" {
			cfg.Keep = filepath.Join(c.Keep, fmt.Sprintf("%s-%d", name, c.Seed))
		}
		if err := cfg.Check(); err != nil {
			return nil, usageError{err}
		}
		runs = append(runs, cfg)
	}
	router, err := fleet.FindRouter(c.Router)
	for i := range runs {
		runs[i].Binary = router
	}
	return runs, err
}

func (c *chaosRunCmd) schedule(in io.Reader, names []string) (scenario.Schedule, error) {
	if c.Schedule == "" {
		return nil, nil
	}
	if len(names) != 1 {
		return nil, usageError{fmt.Errorf("--schedule is for one scenario, not %d", len(names))}
	}
	text, err := os.ReadFile(c.Schedule)
	if c.Schedule == "-" {
		text, err = io.ReadAll(in)
	}
	if err != nil {
		return nil, usageError{err}
	}
	sched, err := scenario.Parse(string(text))
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", c.Schedule, err)}
	}
	if sched == nil {
		sched = scenario.Schedule{}
	}
	return sched, nil
}

func (c *chaosRunCmd) one(ctx context.Context, s *streams, cfg scenario.Config) (*scenario.Report, error) {
	if !c.JSON || c.Soak > 0 {
		progress := newChaosProgress(s.err, cfg.Scenario, c.Soak > 0)
		defer progress.line.finish()
		cfg.Progress = progress.update
	}
	return scenario.Run(ctx, cfg)
}

// isolated runs this command line again in a process with a network of its own, in which members
// can have network namespaces. That process prints everything, and this one ends with its code.
func isolated(ctx context.Context, in io.Reader, s *streams) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, s.out, s.err
	if err := fleet.Isolate(cmd); err != nil {
		return err
	}
	// The kernel ends the child with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("no network of its own: %w: run it with --loopback", err)
	}
	end := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) }) // it may have ended
	defer end()
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code > 0 {
		os.Exit(code) // the child has printed why
	}
	return err
}

func printVerdict(out io.Writer, r *scenario.Report) error {
	fmt.Fprintf(out, "%s: %s (seed %d, %s)\n  %s\n", r.Scenario, r.Result, r.Seed, r.Network, r.Proves)
	for _, m := range r.Missing {
		fmt.Fprintf(out, "  %s\n", m)
	}
	if r.Result == scenario.Skipped {
		_, err := fmt.Fprintln(out)
		return err
	}
	for _, e := range r.Events {
		over := "not over"
		if e.OverS != nil {
			over = fmt.Sprintf("over at %.1f s", *e.OverS)
		}
		fmt.Fprintf(out, "  at %.1f s: %s (%s), %s\n", e.BeganS, e.Event, cmp.Or(e.Members, "-"), over)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "  %s\t%s\t%d checked\t%s\n", v.Name, v.State, v.Checked, v.Note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, v := range r.Verdicts {
		for _, x := range v.Violations {
			fmt.Fprintf(out, "  ! %s at %.3f s, %s: %s\n", v.Name, x.At.Seconds(), x.Place, x.Evidence)
		}
	}
	_, err := fmt.Fprintf(out, "  %d requests in %d attempts: %v; the harness took %.0f MiB at most\n  again: %s\n\n", r.Requests, r.Attempts, r.Outcomes, r.Harness.PeakMiB, r.Command)
	return err
}

// chaosProgress shows a run's progress in a terminal's last line; elsewhere, for a soak only, in a
// line per minute.
type chaosProgress struct {
	line *progressLine
	name string
	log  io.Writer
	next time.Duration
}

const chaosLineEvery = time.Minute

func newChaosProgress(w io.Writer, name string, soak bool) *chaosProgress {
	p := &chaosProgress{line: newProgressLine(w), name: name}
	if p.line.w == nil && soak {
		p.log = w
	}
	return p
}

func (p *chaosProgress) update(now scenario.Progress) {
	text := fmt.Sprintf("%s: %s, %.0f of %.0f s, %d requests, %d failed", p.name, now.Phase, min(now.Elapsed, now.Length).Seconds(), now.Length.Seconds(), now.Attempts, now.Failed)
	p.line.show("%s", text)
	if p.log != nil && now.Elapsed >= p.next {
		p.next = now.Elapsed.Truncate(chaosLineEvery) + chaosLineEvery
		fmt.Fprintln(p.log, text)
	}
}

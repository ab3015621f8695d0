package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/fleetsim/family"
	"grapevine.example/chaos/report"
	"grapevine.example/cmd/commandline"
)

// ofFamily are the flags of simulate that a family of draws leaves to the command line.
var ofFamily = []string{"events", "family", "family-draw", "policy", "seed", "requests", "oracle", "telemetry", "parallel", "json", "plot"}

func (c *simulateCmd) family(s *streams, call commandline.Call) error {
	for _, flag := range call.Given {
		if !slices.Contains(ofFamily, flag) {
			return usageError{fmt.Errorf("--%s: the draws of a family decide this", flag)}
		}
	}
	o := family.Options{Seed: c.Options.Seed, Requests: c.Options.Requests, Oracles: c.Oracle, Telemetry: fleetsim.Telemetry(c.Telemetry), Events: c.Events, Parallel: c.Parallel}
	switch {
	case c.Family != 0 && c.Draw != 0:
		return usageError{errors.New("--family plays many draws, --family-draw one: give one of them")}
	case c.Family < 0 || c.Draw < 0 || max(c.Family, c.Draw) > family.MaxDraws:
		return usageError{fmt.Errorf("draw %d: want 1 to %d", c.Family+c.Draw, family.MaxDraws)}
	case c.Options.Requests < 0 || c.Options.Requests > family.MaxRequests:
		return usageError{fmt.Errorf("%d requests in each draw: want 1 to %d, or 0 for as many as drawn", c.Options.Requests, family.MaxRequests)}
	case c.Parallel < 0:
		return usageError{fmt.Errorf("%d draws in parallel: want 1 or more, or 0 for as many as there are processors", c.Parallel)}
	}
	if slices.Contains(call.Given, "policy") { // which has a default for other simulations
		if compares := c.Plot != "" || !c.JSON && c.Draw == 0; compares && !slices.Contains(c.Policy, family.Judged) {
			return usageError{fmt.Errorf("--policy %s: add %s, which a family judges, or print runs with --json", strings.Join(c.Policy, ","), family.Judged)}
		}
		o.Policies = c.Policy
	}
	if o.Parallel == 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	for k := range c.Family {
		o.Draws = append(o.Draws, k+1)
	}
	if c.Draw > 0 {
		o.Draws = []int{c.Draw}
	}
	progress := newProgressLine(s.err)
	o.Progress = func(ended int, took time.Duration, d *family.Draw) {
		progress.show("%d of %d draws; number %d took %.1f s", ended, len(o.Draws), d.Number, took.Seconds())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := family.Play(ctx, o)
	progress.finish()
	if err != nil {
		return simulationError(err)
	}
	if c.Plot != "" {
		var picture bytes.Buffer
		if err := family.Picture(&picture, results, c.Oracle); err != nil {
			return err
		}
		if err := report.WriteFile(c.Plot, picture.Bytes()); err != nil {
			return err
		}
	}
	switch {
	case c.JSON:
		return json.NewEncoder(s.out).Encode(struct {
			Draws []family.Result `json:"draws"`
		}{results})
	case c.Draw > 0:
		fmt.Fprintf(s.out, "%s\n\n", &results[0].Draw)
		return report.WriteTable(s.out, results[0].Runs...)
	}
	return family.Write(s.out, results, c.Oracle)
}

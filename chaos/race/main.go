//go:build linux

// Command race compares how fleets of routers use the caches of engines: grapevine, nginx and
// HAProxy with consistent hashing by session, and the routers for LLM engines in Python's package
// registry, on the same chat, RAG and agents' traffic.
//
// A cell of the race is one contender with one or three routers under one kind of traffic. It starts
// six emulated engines with empty caches and the routers, plays the traffic as an open loop of
// streams, each turn to a random router, and measures after a warm-up. Everything runs on loopback
// and shares the cores, so the figures compare contenders and are no capacities. It needs Linux's
// /proc, and installs what is missing with apt, and with pip into a virtual environment of its own.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/programs"
	"grapevine.example/chaos/workload"
)

type options struct {
	grapevine, lab, venv string
	duration, warmup     time.Duration
	seed                 uint64
}

func main() {
	var o options
	var only, kinds, jsonPath string
	var short bool
	flag.StringVar(&o.grapevine, "grapevine", "bin/grapevine", "the router under test")
	flag.StringVar(&o.lab, "lab", "bin/grapevine-lab", "the program that emulates engines")
	flag.StringVar(&o.venv, "venv", ".venv/race", "directory of the Python environment for the LLM routers, made if missing")
	flag.StringVar(&only, "only", "", "contenders to run, separated by commas: "+strings.Join(names(field), ", ")+"; all if empty")
	flag.StringVar(&kinds, "traffic", "chat,rag,agents", "kinds of traffic, separated by commas")
	flag.DurationVar(&o.duration, "duration", 45*time.Second, "length of each cell; its first third is not counted")
	flag.Uint64Var(&o.seed, "seed", 1, "of the traffic and of the choice of routers, the same in every cell")
	flag.BoolVar(&short, "short", false, "cells of 15 s (unless -duration is given) with three routers, of grapevine, nginx and one LLM router: three minutes")
	flag.StringVar(&jsonPath, "json", "", "also write all settings, versions and reports as JSON to this file")
	flag.Parse()
	if short && !given("duration") {
		o.duration = 15 * time.Second
	}
	if flag.NArg() > 0 || len(split(kinds)) == 0 || o.duration < 3*time.Second {
		flag.Usage()
		os.Exit(2)
	}
	o.warmup = o.duration / 3
	// Debian installs nginx and haproxy outside a user's PATH.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := race(ctx, o, split(only), split(kinds), short, jsonPath); err != nil {
		fmt.Fprintln(os.Stderr, "race:", err)
		os.Exit(1)
	}
}

func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// cell is what one row of the table measures.
type cell struct {
	*contender
	traffic *workload.Sessions
	routers int
}

func race(ctx context.Context, o options, only, kinds []string, short bool, jsonPath string) error {
	entrants, err := choose(only, short)
	if err != nil {
		return err
	}
	kindsOf, err := trafficOf(kinds, o.duration)
	if err != nil {
		return err
	}
	if o.grapevine, err = fleet.FindRouter(o.grapevine); err != nil {
		return err
	}
	r := &result{
		Date: time.Now().UTC().Format(time.RFC3339), Machine: programs.Machine(), Go: runtime.Version(), Command: strings.Join(os.Args, " "),
		Seed: o.seed, DurationS: o.duration.Seconds(), WarmupS: o.warmup.Seconds(), Engines: engineCount, Engine: engineFlags,
		Traffic: kindsOf, Versions: make(map[string]string), Skipped: make(map[string]string),
	}
	if entrants, err = prepare(ctx, o, entrants, r); err != nil {
		return err
	}
	var cells []cell
	for _, t := range kindsOf {
		for _, c := range entrants {
			for _, n := range c.routers {
				if n == 3 || !short {
					cells = append(cells, cell{c, t, n})
				}
			}
		}
	}
	var failed []error // a contender that fails does not end the race of the others
	for i, c := range cells {
		fmt.Fprintf(os.Stderr, "%d of %d: %s, %s, %d routers\n", i+1, len(cells), c.traffic.Label, c.name, c.routers)
		row, err := c.run(ctx, o)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			err = fmt.Errorf("%s, %s, %d routers: %w", c.traffic.Label, c.name, c.routers, err)
			fmt.Fprintln(os.Stderr, err)
			failed = append(failed, err)
		} else {
			r.Rows = append(r.Rows, row)
		}
	}
	fmt.Print(r.text())
	if jsonPath != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		failed = append(failed, err, os.WriteFile(jsonPath, append(raw, '\n'), 0o644))
	}
	if len(only) == 0 && !slices.ContainsFunc(entrants, func(c *contender) bool { return c.pip != "" }) {
		failed = append(failed, errors.New("no LLM router took part, see above"))
	}
	return errors.Join(append(failed, ctx.Err())...)
}

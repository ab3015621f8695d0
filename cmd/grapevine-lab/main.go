// Command grapevine-lab tests the router grapevine: a demonstration, an emulated engine, live load,
// simulation in virtual time, and faults against real fleets. It is not shipped. Each command has a
// file, parses flags, calls a package under chaos, and prints.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. With --json a command prints one JSON object to
// stdout and nothing else; progress and logs go to stderr.
package main

import (
	"fmt"
	"io"
	"os"

	"grapevine.example/cmd/commandline"
)

type cli struct {
	Demo     demoCmd     `cmd:"" help:"Compare affinity with round robin on this machine: engines, routers, live traffic."`
	Engine   engineCmd   `cmd:"" help:"Run an emulated engine."`
	Replay   replayCmd   `cmd:"" help:"Send a workload to running routers and measure."`
	Simulate simulateCmd `cmd:"" help:"Compare policies on a workload in virtual time."`
	Chaos    chaosCmd    `cmd:"" help:"Break a fleet on purpose, and check its promises."`
}

// streams are the standard streams, passed to commands so that none uses globals.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

type usageError struct{ error }

// Usage makes it a commandline.UsageError.
func (usageError) Usage() {}

func main() {
	os.Exit(run(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
}

func run(args []string, s *streams) int {
	return commandline.Run(commandline.Program{
		Name:        "grapevine-lab",
		Description: "What tries grapevine: engines that are emulated, load, simulation, and faults against real routers.",
		Groups: []commandline.Group{
			{Key: "workload", Title: "Workload:"},
			{Key: "engine", Title: "Engine:"},
			{Key: "server", Title: "Server:"},
			{Key: "events", Title: "Cache events:"},
		},
		Version: "grapevine-lab " + commandline.Version(), Out: s.out, Err: s.err,
	}, &cli{}, args, s)
}

type routerFlag struct {
	Router string `name:"router" placeholder:"PATH" help:"The grapevine program to run as routers. Default: the one beside this program, else the one in PATH."`
}

type progressLine struct {
	w    io.Writer
	used bool
}

func newProgressLine(w io.Writer) *progressLine {
	if !commandline.IsTerminal(w) {
		return &progressLine{}
	}
	return &progressLine{w: w}
}

func (p *progressLine) show(format string, args ...any) {
	if p.w != nil {
		p.used = true
		fmt.Fprintf(p.w, "\r\033[K"+format, args...)
	}
}

func (p *progressLine) finish() {
	if p.used {
		fmt.Fprint(p.w, "\r\033[K")
	}
}

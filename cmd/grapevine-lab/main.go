// Command grapevine-lab tries the router grapevine, and is not shipped with it: a demonstration, an emulated engine,
// live load, simulation in virtual time, and faults against real fleets. One file per command. Commands parse flags,
// call a package under chaos that does the work, and print.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. With --json a command prints one JSON object to stdout and nothing else
// there; progress and logs go to stderr.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"grapevine/cmd/commandline"
)

// version is set by the linker: -X main.version=...
var version = "dev"

type cli struct {
	Demo     demoCmd     `cmd:"" help:"Show on this machine what affinity buys: engines, routers, live traffic, twice."`
	Engine   engineCmd   `cmd:"" help:"Run an emulated engine."`
	Replay   replayCmd   `cmd:"" help:"Send a workload to running routers and measure."`
	Simulate simulateCmd `cmd:"" help:"Compare policies on a workload in virtual time."`
	Chaos    chaosCmd    `cmd:"" help:"Break a fleet on purpose, and hold it to its promises."`

	Version kong.VersionFlag `help:"Print the version."`
}

// streams are the standard three, passed to commands so that nothing writes to a global.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is a mistake in how a command was called, found after parsing.
type usageError struct{ error }

// Usage makes it a commandline.UsageError.
func (usageError) Usage() {}

func main() {
	os.Exit(run(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
}

// run executes one command line and returns the exit code.
func run(args []string, s *streams) int {
	return commandline.Program{
		Name:        "grapevine-lab",
		Description: "What tries grapevine: engines that are emulated, load, simulation, and faults against real routers.",
		Groups: []kong.Group{
			{Key: "workload", Title: "Workload:"},
			{Key: "engine", Title: "Engine:"},
			{Key: "server", Title: "Server:"},
		},
		Out: s.out, Err: s.err,
	}.Run(&cli{}, args, kong.Vars{"version": "grapevine-lab " + version}, s)
}

// routerFlag names the router whose processes a command starts; demo and chaos run share it.
type routerFlag struct {
	Router string `name:"router" placeholder:"PATH" help:"The program grapevine whose routers run; if not given, the one beside this program, or else in PATH."`
}

// progressLine is the last line of a terminal, written over again and again. On anything else it shows nothing.
type progressLine struct {
	w    io.Writer // nil: not a terminal
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

// finish clears the line.
func (p *progressLine) finish() {
	if p.used {
		fmt.Fprint(p.w, "\r\033[K")
	}
}

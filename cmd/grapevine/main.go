// Command grapevine is the router and the commands that operate a fleet, one file per command. Exit
// codes: 0 done, 1 failed, 2 wrong usage. --json prints one JSON object to stdout and nothing else
// there.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"grapevine.example/cmd/commandline"
)

const (
	exitFailed = commandline.ExitFailed
	exitUsage  = commandline.ExitUsage
)

type cli struct {
	Serve    serveCmd    `cmd:"" help:"Run a router."`
	Explain  explainCmd  `cmd:"" help:"Show where a running router would send a request, and why."`
	Doctor   doctorCmd   `cmd:"" help:"Show where the prompts of an application diverge too early, and what a mended prompt would save."`
	Backends backendsCmd `cmd:"" help:"List, add, drain and remove the engines of a fleet."`
	Rules    rulesCmd    `cmd:"" help:"Show and replace the routing rules of a fleet."`
	Clients  clientsCmd  `cmd:"" help:"List the clients that may use a router, and make keys for them."`
	Prefixes prefixesCmd `cmd:"" help:"Show the prefixes that several engines hold on purpose."`
	Raft     raftCmd     `cmd:"" help:"Show and repair the Raft group."`
	Nodes    nodesCmd    `cmd:"" help:"List the routers of a fleet, as one of them sees it."`
	Status   statusCmd   `cmd:"" help:"Show the state of a running router."`
	Keys     keysCmd     `cmd:"" help:"Generate, list and change the gossip keys, which admit nodes to a fleet."`
	Version  versionCmd  `cmd:"" help:"Print the version, as --version does."`
}

type streams struct {
	in       io.Reader
	out, err io.Writer
}

type usageError struct{ error }

// Usage implements commandline.UsageError.
func (usageError) Usage() {}

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	os.Exit(run(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
}

func run(args []string, s *streams) int {
	if slices.Equal(args, []string{"--version"}) {
		args = []string{"version"}
	}
	return commandline.Run(program(s), &cli{}, args, s)
}

func program(s *streams) commandline.Program {
	return commandline.Program{
		Name:        "grapevine",
		Description: "A router for LLM inference: each request goes where its prompt is already cached, unless that engine is too busy for it to pay.",
		Groups:      groups, Out: s.out, Err: s.err,
	}
}

var groups = []commandline.Group{
	{Key: "serving", Title: "Serving:"},
	{Key: "backends", Title: "Engines:"},
	{Key: "routing", Title: "Routing:"},
	{Key: "fleet", Title: "Fleet:"},
	{Key: "limits", Title: "Limits:"},
	{Key: "queue", Title: "Queue:"},
	{Key: "timeouts", Title: "Timeouts:"},
	{Key: "watching", Title: "Watching:"},
}

type versionCmd struct{}

func (versionCmd) Run(s *streams) error {
	_, err := fmt.Fprintf(s.out, "grapevine %s (%s, %s/%s)\n", commandline.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func printJSON(w io.Writer, v any) error { return commandline.PrintJSON(w, v) }

// Command grapevine is the router and everything to try it with: one binary,
// one file per command. Commands parse flags, call a package that does the
// work, and print; they hold no logic of their own.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage. With --json a command prints one
// JSON object to stdout and nothing else there; progress and logs go to stderr.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker: -X main.version=...
var version = "dev"

// exit codes, as promised in docs/design.md section 8.
const (
	exitFailed = 1
	exitUsage  = 2
)

type cli struct {
	Serve    serveCmd    `cmd:"" help:"Run a router."`
	Demo     demoCmd     `cmd:"" help:"Show on this machine what affinity buys: engines, a router, live traffic, twice."`
	Engine   engineCmd   `cmd:"" help:"Run an emulated engine."`
	Replay   replayCmd   `cmd:"" help:"Send a workload to running routers and measure."`
	Simulate simulateCmd `cmd:"" help:"Compare policies on a workload in virtual time."`
	Chaos    chaosCmd    `cmd:"" help:"Break a fleet on purpose, and hold it to its promises."`
	Explain  explainCmd  `cmd:"" help:"Show where a running router would send a request, and why."`
	Backends backendsCmd `cmd:"" help:"List, add, drain and remove the engines of a fleet."`
	Rules    rulesCmd    `cmd:"" help:"Show and replace the routing rules of a fleet."`
	Prefixes prefixesCmd `cmd:"" help:"Show the prefixes that several engines hold on purpose."`
	Raft     raftCmd     `cmd:"" help:"Show and mend the group of nodes that agree."`
	Nodes    nodesCmd    `cmd:"" help:"List the routers of a fleet, as one of them sees it."`
	Status   statusCmd   `cmd:"" help:"Show the state of a running router."`
	Keys     keysCmd     `cmd:"" help:"Make, list and change the keys that admit to a fleet."`
	Version  versionCmd  `cmd:"" help:"Print the version, as --version does."`
}

// streams are the standard three, passed to commands so that nothing writes to
// a global.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is a mistake in how a command was called, found after parsing.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	os.Exit(run(os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}))
}

// run executes one command line and returns the exit code.
func run(args []string, s *streams) (code int) {
	// kong leaves after --help by calling exit in the middle of parsing.
	type left struct{ code int }
	defer func() {
		switch v := recover().(type) {
		case nil:
		case left:
			code = v.code
		default:
			panic(v)
		}
	}()
	if slices.Equal(args, []string{"--version"}) {
		args = []string{"version"}
	}
	var c cli
	parser, err := kong.New(&c,
		kong.Name("grapevine"),
		kong.Description("A router for LLM inference: each request goes where its prompt is already cached, unless that engine is too busy for it to pay."),
		kong.Writers(s.out, s.err),
		kong.Exit(func(code int) { panic(left{code}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ExplicitGroups(groups),
		kong.ValueFormatter(helpOf),
		kong.Bind(s),
	)
	if err != nil {
		panic("grapevine: command line: " + err.Error()) // the struct above is wrong, not the user
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		err, command := explainUsage(err, args)
		return complain(s, command, err, exitUsage)
	}
	if err := ctx.Run(); err != nil {
		var usage usageError
		if errors.As(err, &usage) {
			return complain(s, ctx.Command(), err, exitUsage)
		}
		return complain(s, ctx.Command(), err, exitFailed)
	}
	return 0
}

// explainUsage finds the command whose line could not be parsed, so that its own help is
// named, and adds the subcommands it has to the error about a word that is none of them.
func explainUsage(err error, args []string) (explained error, command string) {
	var failed *kong.ParseError
	if !errors.As(err, &failed) {
		return err, ""
	}
	at := failed.Context.Model.Node
	for _, p := range failed.Context.Path {
		// A default command that was not written is not what the user meant to call.
		if p.Command != nil && slices.Contains(args, p.Command.Name) {
			at = p.Command
		}
	}
	var names []string
	for _, child := range at.Children {
		names = append(names, child.Name)
	}
	if len(names) > 0 && strings.HasPrefix(err.Error(), "unexpected argument") {
		err = fmt.Errorf("%w: the commands of %s are %s", err, at.FullPath(), strings.Join(names, ", "))
	}
	return err, strings.TrimSpace(at.Path())
}

// complain prints an error with its remedy to stderr and returns the exit code.
func complain(s *streams, command string, err error, code int) int {
	help := "grapevine --help"
	if command, _, _ = strings.Cut(command, " <"); command != "" { // without its arguments
		help = "grapevine " + command + " --help"
	}
	remedy := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		remedy = ": another process has it (ss -lntup shows which): stop that, or give another address"
	}
	fmt.Fprintf(s.err, "grapevine: %v%s\n", err, remedy)
	if code == exitUsage {
		fmt.Fprintf(s.err, "See %s.\n", help)
	}
	return code
}

// groups are the headings of serve's flags, as the tags of node.Config name them.
var groups = []kong.Group{
	{Key: "serving", Title: "Serving:"},
	{Key: "backends", Title: "Engines:"},
	{Key: "routing", Title: "Routing:"},
	{Key: "fleet", Title: "Fleet:"},
	{Key: "limits", Title: "Limits:"},
	{Key: "timeouts", Title: "Timeouts:"},
	{Key: "watching", Title: "Watching:"},
	{Key: "workload", Title: "Workload:"},
	{Key: "engine", Title: "Engine:"},
	{Key: "server", Title: "Server:"},
}

// helpOf is the help text of a flag with its default and its variable.
func helpOf(v *kong.Value) string {
	var more []string
	if v.HasDefault && v.Default != "" && v.Default != "false" {
		more = append(more, "default "+v.Default)
	}
	for _, env := range v.Tag.Envs {
		more = append(more, "$"+env)
	}
	if len(more) == 0 {
		return v.Help
	}
	return v.Help + " (" + strings.Join(more, ", ") + ")"
}

// printJSON writes one object, indented, and a newline.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

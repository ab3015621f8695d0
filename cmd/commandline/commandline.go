// Package commandline is shared by the programs under cmd: arguments, exit codes, help and JSON.
package commandline

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

// Exit codes (docs/design.md, section 8). 0 is success.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// UsageError is a command's error that ends with ExitUsage; others end with ExitFailed.
type UsageError interface {
	error
	Usage()
}

type Program struct {
	Name, Description string
	Groups            []kong.Group
	Out, Err          io.Writer
}

// Run executes one command line and returns the exit code. commands points to a struct of kong
// commands; their Run methods may take the values in bind.
func (p Program) Run(commands any, args []string, vars kong.Vars, bind ...any) (code int) {
	// kong ends --help by calling exit during parsing.
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
	parser := p.parser(commands, kong.Exit(func(code int) { panic(left{code}) }), vars, kong.Bind(bind...))
	ctx, err := parser.Parse(args)
	if err != nil {
		err, command := explainUsage(err, args)
		return p.complain(command, err, ExitUsage)
	}
	if err := ctx.Run(); err != nil {
		if usage := UsageError(nil); errors.As(err, &usage) {
			return p.complain(ctx.Command(), err, ExitUsage)
		}
		return p.complain(ctx.Command(), err, ExitFailed)
	}
	return 0
}

func (p Program) parser(commands any, more ...kong.Option) *kong.Kong {
	parser, err := kong.New(commands, append([]kong.Option{
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(p.Out, p.Err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ExplicitGroups(p.Groups),
		kong.ValueFormatter(helpOf),
	}, more...)...)
	if err != nil {
		panic(p.Name + ": command line: " + err.Error()) // a defect of the struct
	}
	return parser
}

// Model returns the commands, flags and arguments that Run accepts.
func (p Program) Model(commands any) *kong.Application { return p.parser(commands).Model }

// explainUsage returns a parse error, with subcommands if none was named, and the command whose
// help applies.
func explainUsage(err error, args []string) (explained error, command string) {
	var failed *kong.ParseError
	if !errors.As(err, &failed) {
		return err, ""
	}
	at := failed.Context.Model.Node
	for _, p := range failed.Context.Path {
		// Ignore default commands that are not in the line.
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

func (p Program) complain(command string, err error, code int) int {
	help := p.Name + " --help"
	if command, _, _ = strings.Cut(command, " <"); command != "" { // without its arguments
		help = p.Name + " " + command + " --help"
	}
	remedy := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		remedy = ": another process has it (ss -lntup shows which): stop that, or give another address"
	}
	fmt.Fprintf(p.Err, "%s: %v%s\n", p.Name, err, remedy)
	if code == ExitUsage {
		fmt.Fprintf(p.Err, "See %s.\n", help)
	}
	return code
}

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

func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

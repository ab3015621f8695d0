// Package commandline is what the programs under cmd have in common: kong parses their arguments, mistakes end with
// the same exit codes, help looks the same, and --json prints one object. It holds no command.
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

// Exit codes (docs/design.md, section 8). 0 is done.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// UsageError is an error that a command returns when it was called wrongly: it ends with ExitUsage, any other error with ExitFailed.
type UsageError interface {
	error
	Usage()
}

// Program is one program: its name, what it is for, the headings of its flags, and where its output goes.
type Program struct {
	Name, Description string
	Groups            []kong.Group
	Out, Err          io.Writer
}

// Run executes one command line and returns the exit code. commands is a pointer to a struct of kong's commands; the
// Run method of each may take the values in bind as arguments.
func (p Program) Run(commands any, args []string, vars kong.Vars, bind ...any) (code int) {
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
	parser, err := kong.New(commands,
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(p.Out, p.Err),
		kong.Exit(func(code int) { panic(left{code}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ExplicitGroups(p.Groups),
		kong.ValueFormatter(helpOf),
		vars,
		kong.Bind(bind...),
	)
	if err != nil {
		panic(p.Name + ": command line: " + err.Error()) // the struct of commands is wrong, not the user
	}
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

// explainUsage finds the command whose line could not be parsed, so that the message
// refers to its help, and lists its subcommands if the line names none of them.
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

// PrintJSON writes one object, indented, and a newline.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// IsTerminal reports whether w is a character device: a terminal, or /dev/null, where it makes no difference.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

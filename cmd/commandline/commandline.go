// Package commandline is shared by the programs under cmd: arguments, exit codes, help and JSON.
package commandline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
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

// Program is what Run needs to know besides the commands.
type Program struct {
	Name, Description string
	Version           string  // what --version prints; "": there is no such flag
	Groups            []Group // of flags
	Out, Err          io.Writer
}

// Run executes one command line and returns the exit code. commands points to a struct, see Command. Its commands have a method
// Run(S) error or Run(S, Call) error. These are interfaces, because a method that is found by its name makes the linker keep every
// exported method of the program: two thirds of it.
func Run[S any](p Program, commands any, args []string, streams S) int {
	call, err := p.Parse(commands, args)
	if err != nil {
		return p.complain(call.Command, err, ExitUsage)
	}
	plain, isPlain := call.Command.fields.(interface{ Run(S) error })
	told, isTold := call.Command.fields.(interface{ Run(S, Call) error })
	switch {
	case slices.Contains(call.Given, helpFlag):
		err = call.Command.printHelp(p.Out)
	case slices.Contains(call.Given, versionFlag):
		_, err = fmt.Fprintln(p.Out, p.Version)
	case isPlain:
		err = plain.Run(streams)
	case isTold:
		err = told.Run(streams, call)
	default:
		panic(call.Command.FullPath() + ": no method Run for its streams") // a defect of the struct
	}
	if usage := UsageError(nil); errors.As(err, &usage) {
		return p.complain(call.Command, err, ExitUsage)
	}
	if err != nil {
		return p.complain(call.Command, err, ExitFailed)
	}
	return 0
}

func (p Program) complain(command *Command, err error, code int) int {
	remedy := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		remedy = ": another process has it (ss -lntup shows which): stop that, or give another address"
	}
	fmt.Fprintf(p.Err, "%s: %v%s\n", p.Name, err, remedy)
	if code == ExitUsage {
		fmt.Fprintf(p.Err, "See %s --help.\n", command.FullPath())
	}
	return code
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

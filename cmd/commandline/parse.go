package commandline

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"grapevine.example/node/config/nearest"
)

// Call is what a line calls for.
type Call struct {
	Command *Command
	Given   []string // names of the flags in the line, in its order; variables and defaults are not among them
}

const (
	helpFlag    = "help"
	versionFlag = "version"
)

// Parse fills the struct from a line, the environment and the defaults, in this order of precedence; with --help or --version from
// nothing. With an error the call's command is that whose help applies.
func (p Program) Parse(commands any, args []string) (Call, error) {
	named, args := p.Model(commands).follow(args)
	c := cmp.Or(named.Default, named)
	call := Call{Command: named}
	flags := c.flagSet(args)
	if err := flags.Parse(args); err != nil {
		return call, c.explain(err)
	}
	flags.Visit(func(f *pflag.Flag) { call.Given = append(call.Given, f.Name) })
	if flags.Changed(helpFlag) || flags.Changed(versionFlag) {
		call.Command, _ = named.follow(flags.Args()) // --help before the command
		return call, nil
	}
	missing, err := c.setFlags(call.Given)
	if err != nil {
		return call, err
	}
	lacking, rest, err := c.setArgs(flags.Args())
	if err != nil {
		return call, err
	}
	var below []string
	for _, b := range named.Commands {
		below = append(below, b.Name)
	}
	switch {
	case len(rest) > 0 && len(below) > 0:
		hint := ""
		if c == named { // else the word may be meant for the default command
			hint = meant(rest[0], below)
		}
		return call, fmt.Errorf("unexpected argument %s%s: the commands of %s are %s",
			rest[0], hint, named.FullPath(), strings.Join(below, ", "))
	case len(rest) > 0:
		return call, fmt.Errorf("unexpected argument %s", rest[0])
	case len(c.Commands) > 0:
		return call, fmt.Errorf("expected one of %s", quotedList(below))
	case len(missing) > 0:
		return call, fmt.Errorf("missing flags: %s", strings.Join(missing, ", "))
	case len(lacking) > 0:
		return call, fmt.Errorf("expected %q", strings.Join(lacking, " "))
	}
	call.Command = c
	return call, nil
}

// follow returns the command that the first words name, and the other words.
func (c *Command) follow(words []string) (*Command, []string) {
	for _, below := range c.Commands {
		if len(words) > 0 && below.Name == words[0] {
			return below.follow(words[1:])
		}
	}
	return c, words
}

func (c *Command) flagSet(args []string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(c.FullPath(), pflag.ContinueOnError)
	flags.SortFlags = false
	for _, f := range c.AllFlags() {
		flag := flags.VarPF(&input{value: f, args: args}, f.Name, f.Short, "")
		if f.IsBool() {
			flag.NoOptDefVal = "true"
		}
	}
	return flags
}

// input is the text of a flag in the line.
type input struct {
	value *Value
	args  []string
}

// Set is called for each time that the line has the flag: the last one counts, or all together make a list.
func (i *input) Set(text string) error {
	if len(text) > 1 && text[0] == '-' && slices.Contains(i.args, text) {
		return fmt.Errorf("the value is missing, or is it the next word? Then write --%s=%s", i.value.Name, text)
	}
	return i.value.set(text)
}

func (i *input) String() string { return "" }
func (i *input) Type() string   { return "" }

// explain words an error of pflag.
func (c *Command) explain(err error) error {
	var unknown *pflag.NotExistError
	var lacks *pflag.ValueRequiredError
	var bad *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		if unknown.GetSpecifiedShortnames() != "" {
			return fmt.Errorf("unknown flag -%s", unknown.GetSpecifiedName())
		}
		var names []string
		for _, f := range c.AllFlags() {
			names = append(names, "--"+f.Name)
		}
		name := "--" + unknown.GetSpecifiedName()
		return fmt.Errorf("unknown flag %s%s", name, meant(name, names))
	case errors.As(err, &lacks):
		return fmt.Errorf("--%s: the value is missing", lacks.GetFlag().Name)
	case errors.As(err, &bad):
		return fmt.Errorf("--%s: %w", bad.GetFlag().Name, bad.Unwrap())
	}
	return err
}

// meant asks for the names that begin with the word, or for the nearest one.
func meant(word string, names []string) string {
	var likely []string
	for _, name := range names {
		if strings.HasPrefix(name, word) {
			likely = append(likely, name)
		}
	}
	if name := nearest.Name(word, names); len(likely) == 0 && name != "" {
		likely = []string{name}
	}
	switch len(likely) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(", did you mean %q?", likely[0])
	}
	return ", did you mean one of " + quotedList(likely) + "?"
}

// setFlags sets the flags that the line does not give, and lists those that it has to.
func (c *Command) setFlags(given []string) (missing []string, err error) {
	exclusive := make(map[string]string)
	for _, f := range c.AllFlags() {
		if slices.Contains(given, f.Name) {
			if other := exclusive[f.xor]; f.xor != "" && other != "" {
				return nil, fmt.Errorf("--%s and --%s can't be used together", other, f.Name)
			}
			exclusive[f.xor] = f.Name
			continue
		}
		set, err := f.setDefault()
		if err != nil {
			return nil, err
		}
		if f.Required && !set {
			missing = append(missing, f.flag())
		}
	}
	return missing, nil
}

// setArgs lists the arguments that words have to give and do not, and the words that are none.
func (c *Command) setArgs(words []string) (missing, rest []string, err error) {
	for _, a := range c.Args {
		n := min(1, len(words))
		if a.Repeatable() {
			n = len(words)
		}
		for _, text := range words[:n] {
			if err := a.set(text); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", a.Argument(), err)
			}
		}
		words = words[n:]
		switch {
		case n == 0 && a.Required:
			missing = append(missing, a.Argument())
		case n == 0:
			if _, err := a.setDefault(); err != nil {
				return nil, nil, err
			}
		}
	}
	return missing, words, nil
}

// setDefault sets the value of the variable, else the default one.
func (v *Value) setDefault() (set bool, err error) {
	if text, ok := os.LookupEnv(v.Env); ok && v.Env != "" {
		if err := v.set(text); err != nil {
			return false, fmt.Errorf("--%s: %w (from $%s)", v.Name, err, v.Env)
		}
		return true, nil
	}
	if v.Default == "" {
		return false, nil
	}
	if err := v.set(v.Default); err != nil {
		panic("default of --" + v.Name + ": " + err.Error()) // a defect of the struct
	}
	return true, nil
}

package commandline

import (
	"cmp"
	"fmt"
	"go/doc/comment"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// help is a text of lines of at most width bytes.
type help struct {
	strings.Builder
	width int
}

// widest line of help, in bytes; longer ones are hard to read.
const widest = 100

func (c *Command) printHelp(w io.Writer) error {
	h := &help{width: min(columns(w), widest)}
	fmt.Fprintf(h, "Usage: %s\n", c.Summary())
	for _, text := range []string{c.Help, c.Detail} {
		if text != "" {
			fmt.Fprintf(h, "\n%s\n", strings.Join(wrapped(text, h.width), "\n"))
		}
	}
	var args [][2]string
	for _, a := range c.Args {
		args = append(args, [2]string{a.Argument(), a.explained()})
	}
	h.table("Arguments:", args)
	h.flags(c)
	var commands [][2]string
	for _, leaf := range c.Leaves() {
		commands = append(commands, [2]string{leaf.Path(), leaf.Help})
	}
	h.table("Commands:", commands)
	if c.Parent == nil {
		fmt.Fprintf(h, "\nRun \"%s <command> --help\" for more information on a command.\n", c.Name)
	}
	_, err := io.WriteString(w, h.String())
	return err
}

// flags shows those without a group, the program's first, then each group.
func (h *help) flags(c *Command) {
	titles, tables := []string{""}, make(map[string][]*Value)
	for _, level := range c.lineage() {
		begun := make(map[string]bool)
		for _, f := range level.Flags {
			if !slices.Contains(titles, f.Group) {
				titles = append(titles, f.Group)
			}
			if !begun[f.Group] && len(tables[f.Group]) > 0 {
				tables[f.Group] = append(tables[f.Group], nil) // a blank line
			}
			begun[f.Group] = true
			tables[f.Group] = append(tables[f.Group], f)
		}
	}
	for _, title := range titles {
		indent := ""
		if slices.ContainsFunc(tables[title], func(f *Value) bool { return f != nil && f.Short != "" }) {
			indent = "    "
		}
		var rows [][2]string
		for _, f := range tables[title] {
			switch {
			case f == nil:
				rows = append(rows, [2]string{})
			case f.Short != "":
				rows = append(rows, [2]string{"-" + f.Short + ", " + f.flag(), f.explained()})
			default:
				rows = append(rows, [2]string{indent + f.flag(), f.explained()})
			}
		}
		h.table(cmp.Or(title, "Flags:"), rows)
	}
}

// explained is the help of a value with its default and variable.
func (v *Value) explained() string {
	var more []string
	if v.Default != "" && v.Default != "false" {
		more = append(more, "default "+v.Default)
	}
	if v.Env != "" {
		more = append(more, "$"+v.Env)
	}
	if len(more) == 0 {
		return v.Help
	}
	return v.Help + " (" + strings.Join(more, ", ") + ")"
}

// table shows terms on the left and their explanations on the right; a term too long for its column has a line of its own.
func (h *help) table(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	const indent, gap = 2, 4
	most, left := max(30, (h.width-indent)*3/8), 0
	for _, row := range rows {
		if n := len(row[0]); n < most {
			left = max(left, n)
		}
	}
	fmt.Fprintf(h, "\n%s\n", title)
	for _, row := range rows {
		term := row[0]
		for _, line := range wrapped(row[1], h.width-indent-left-gap) {
			if len(term) >= most {
				fmt.Fprintf(h, "%*s%s\n", indent, "", term)
				term = ""
			}
			h.WriteString(strings.TrimRight(fmt.Sprintf("%*s%-*s%s", indent, "", left+gap, term, line), " ") + "\n")
			term = ""
		}
	}
}

// wrapped breaks a text into lines of at most width bytes, of similar lengths.
func wrapped(text string, width int) []string {
	printer := comment.Printer{TextWidth: width}
	return strings.Split(strings.TrimRight(string(printer.Text(new(comment.Parser).Parse(text))), "\n"), "\n")
}

// columns is the width of the terminal; 80 without one, unless COLUMNS says otherwise.
func columns(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil {
		return n
	}
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}

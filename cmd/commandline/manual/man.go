// Package manual writes the manual pages and shell completions of a program from the definition of its command line. Nothing
// that is shipped links it: a test of each program writes them at release time.
package manual

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"grapevine.example/cmd/commandline"
)

// Page is a page of a manual.
type Page struct {
	Name     string // such as grapevine.yaml
	Chapter  int    // 1: programs, 5: files
	Summary  string // half a sentence
	Sections []Section
}

// Section has a title; its text comes before its entries.
type Section struct {
	Title   string
	Sub     bool     // a subsection of the section before it
	Lines   []string // set as they are, one below the other, before Text
	Text    string
	Entries []Entry
}

// Entry explains a term, such as a flag.
type Entry struct{ Term, Text string }

// File is the page's name in a directory of manual pages.
func (p Page) File() string { return fmt.Sprintf("%s.%d", p.Name, p.Chapter) }

// Roff renders the page with the macros of man(7). source is the program and its version, date is YYYY-MM-DD.
func (p Page) Roff(source, date string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s %d %s %s\n.nh\n.ad l\n", quoted(strings.ToUpper(p.Name)), p.Chapter, date, quoted(source))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escaped(p.Name), escaped(p.Summary))
	for _, s := range p.Sections {
		macro := ".SH"
		if s.Sub {
			macro = ".SS"
		}
		fmt.Fprintf(&b, "%s %s\n", macro, quoted(s.Title))
		if len(s.Lines) > 0 {
			b.WriteString(".nf\n")
			for _, l := range s.Lines {
				fmt.Fprintln(&b, escaped(l))
			}
			b.WriteString(".fi\n")
		}
		if s.Text != "" {
			if len(s.Lines) > 0 {
				b.WriteString(".PP\n")
			}
			fmt.Fprintln(&b, escaped(s.Text))
		}
		for _, e := range s.Entries {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escaped(e.Term), escaped(e.Text))
		}
	}
	return b.Bytes()
}

// escapes also let a line break inside URL[,name=N][,weight=W] and a|b.
var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ", "][", `]\:[`, "|", `|\:`)

// escaped is text as roff prints it; a line of it is no request.
func escaped(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

func quoted(text string) string {
	return `"` + strings.ReplaceAll(escapes.Replace(text), `"`, `""`) + `"`
}

// Pages returns a page for the program and one for each of its commands with all that is below it. more is behind the page of the
// program, and related are further pages that it refers to.
func Pages(app *commandline.Command, related []string, more ...Section) []Page {
	overview := Page{Name: app.Name, Chapter: 1, Summary: sentence(app.Help), Sections: []Section{
		{Title: "SYNOPSIS", Lines: []string{app.Name + " COMMAND [ARGUMENT ...] [FLAG ...]"}},
		{Title: "DESCRIPTION", Text: app.Help + " Each command has a page of its own, and --help."},
		{Title: "COMMANDS"},
	}}
	pages := []Page{{}}
	for _, c := range app.Commands {
		overview.Sections[2].Entries = append(overview.Sections[2].Entries, Entry{c.Name, c.Help})
		page := commandPage(app, c)
		pages = append(pages, page)
		related = append(related, fmt.Sprintf("%s(%d)", page.Name, page.Chapter))
	}
	overview.Sections = append(append(overview.Sections, more...), exits, Section{Title: "SEE ALSO", Text: strings.Join(related, ", ")})
	pages[0] = overview
	return pages
}

var exits = Section{Title: "EXIT STATUS", Entries: []Entry{{"0", "Done."}, {"1", "Failed."}, {"2", "Wrong usage."}}}

func commandPage(app *commandline.Command, c *commandline.Command) Page {
	page := Page{Name: app.Name + "-" + c.Name, Chapter: 1, Summary: sentence(c.Help)}
	leaves := c.Leaves()
	if len(leaves) == 0 {
		leaves = []*commandline.Command{c}
	}
	var synopsis []string
	common := leaves[0].AllFlags()
	for _, l := range leaves {
		synopsis = append(synopsis, l.Summary())
		own := l.AllFlags()
		common = slices.DeleteFunc(common, func(f *commandline.Value) bool {
			return !slices.ContainsFunc(own, func(o *commandline.Value) bool { return same(f, o) })
		})
	}
	page.Sections = []Section{{Title: "SYNOPSIS", Lines: synopsis}, {Title: "DESCRIPTION", Text: strings.TrimSpace(c.Help + " " + c.Detail)}}
	if len(leaves) == 1 {
		if entries := arguments(leaves[0]); len(entries) > 0 {
			page.Sections = append(page.Sections, Section{Title: "ARGUMENTS", Entries: entries})
		}
	} else {
		page.Sections = append(page.Sections, Section{Title: "COMMANDS"})
		for _, l := range leaves {
			own := slices.DeleteFunc(l.AllFlags(), func(f *commandline.Value) bool {
				return slices.ContainsFunc(common, func(o *commandline.Value) bool { return same(f, o) })
			})
			page.Sections = append(page.Sections, Section{Title: l.Path(), Sub: true, Text: l.Help, Entries: append(arguments(l), options(own)...)})
		}
	}
	if len(common) > 0 {
		page.Sections = append(page.Sections, Section{Title: "FLAGS"})
		page.Sections = append(page.Sections, grouped(common)...)
	}
	page.Sections = append(page.Sections, exits, Section{Title: "SEE ALSO", Text: app.Name + "(1)"})
	return page
}

// grouped are the flags without a group, then those of each group in order.
func grouped(all []*commandline.Value) (out []Section) {
	var none []*commandline.Value
	byGroup := make(map[string][]*commandline.Value)
	var order []string
	for _, f := range all {
		if f.Group == "" {
			none = append(none, f)
			continue
		}
		if len(byGroup[f.Group]) == 0 {
			order = append(order, f.Group)
		}
		byGroup[f.Group] = append(byGroup[f.Group], f)
	}
	if len(none) > 0 {
		out = append(out, Section{Title: "General", Sub: true, Entries: options(none)})
	}
	for _, title := range order {
		out = append(out, Section{Title: strings.TrimSuffix(title, ":"), Sub: true, Entries: options(byGroup[title])})
	}
	return out
}

func options(all []*commandline.Value) (out []Entry) {
	for _, f := range all {
		term := "--" + f.Name
		if f.Short != "" {
			term = "-" + f.Short + ", " + term
		}
		if !f.IsBool() {
			term += "=" + f.Form()
		}
		out = append(out, Entry{term, detail(f)})
	}
	return out
}

func arguments(n *commandline.Command) (out []Entry) {
	for _, a := range n.Args {
		out = append(out, Entry{a.Argument(), a.Help})
	}
	return out
}

// detail is the value's help with its default and variable.
func detail(v *commandline.Value) string {
	text := v.Help
	if v.Default != "" && v.Default != "false" {
		text += " Default: " + v.Default + "."
	}
	if v.Env != "" {
		text += " Variable: " + v.Env + "."
	}
	return text
}

func same(a, b *commandline.Value) bool {
	return a.Name == b.Name && a.Help == b.Help && a.Default == b.Default
}

// sentence is the text as half a sentence, as indexes of manual pages show it.
func sentence(text string) string {
	text, _, _ = strings.Cut(text, ":")
	text = strings.TrimSuffix(text, ".")
	if text == "" {
		return ""
	}
	return strings.ToLower(text[:1]) + text[1:]
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grapevine/node/admin"
)

type rulesCmd struct {
	Show  rulesShowCmd  `cmd:"" default:"withargs" help:"Show the rules that a router goes by (the default)."`
	Apply rulesApplyCmd `cmd:"" help:"Make a file the rules of the whole fleet."`
}

type rulesShowCmd struct {
	Text bool `name:"text" help:"Print the text as it was applied, and nothing else."`
	adminFlags
}

func (c *rulesShowCmd) Run(s *streams) error {
	print := printRules
	if c.Text {
		print = func(out io.Writer, set *admin.RuleSet) error {
			_, err := io.WriteString(out, set.Text)
			return err
		}
	}
	return show(&c.adminFlags, s, (*admin.Client).Rules, print)
}

func printRules(out io.Writer, set *admin.RuleSet) error {
	if set.Source == "fleet" {
		fmt.Fprintf(out, "Rules of the fleet, version %d. The first that matches wins.\n", set.Version)
	} else {
		fmt.Fprintln(out, "This router's own rules: none were applied to the fleet. The first that matches wins.")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "#\tMODEL\tPATH\tHEADER\tSTRATEGY")
	for i, r := range set.Rules {
		header := r.Header
		if r.HeaderValue != "" {
			header += ": " + r.HeaderValue
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i, cmp.Or(r.Model, "-"), cmp.Or(r.Path, "-"), cmp.Or(header, "-"), r.Strategy)
	}
	return w.Flush()
}

type rulesApplyCmd struct {
	Path      string  `arg:"" name:"file" placeholder:"FILE" help:"YAML with a list under the key rules; - is stdin."`
	DryRun    bool    `name:"dry-run" help:"Only show what would change."`
	IfVersion *uint64 `name:"if-version" placeholder:"N" help:"Replace the rules only if they have this version (grapevine rules show)."`
	adminFlags
}

const maxRulesFile = 1 << 20

func (c *rulesApplyCmd) Run(s *streams) error {
	text, err := readInput(s, c.Path, maxRulesFile)
	if err != nil {
		return err
	}
	return show(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.RuleChange, error) {
		return client.ApplyRules(ctx, string(text), c.IfVersion, c.DryRun)
	}, printRuleChange)
}

func printRuleChange(out io.Writer, done *admin.RuleChange) error {
	var b strings.Builder
	b.WriteString(done.Difference)
	switch {
	case done.Difference == "":
		fmt.Fprintf(&b, "nothing changes: version %d has the same text\n", done.Version)
	case done.DryRun:
		fmt.Fprintf(&b, "dry run: nothing was changed, version %d is in force\n", done.Version)
	default:
		fmt.Fprintf(&b, "applied: version %d\n", done.Version)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

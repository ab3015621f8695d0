package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

type rulesCmd struct {
	Show   rulesShowCmd   `cmd:"" default:"withargs" help:"Show the rules that a router goes by (the default)."`
	Add    rulesAddCmd    `cmd:"" help:"Add a rule to those of the whole fleet."`
	Remove rulesRemoveCmd `cmd:"" help:"Remove a rule from those of the whole fleet."`
	Check  rulesCheckCmd  `cmd:"" help:"Look for mistakes in a file, without a router."`
	Apply  rulesApplyCmd  `cmd:"" help:"Make a file the rules of the whole fleet."`
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
	fmt.Fprintln(w, "#\tNAME\tMODEL\tPATH\tHEADER\tSHARE\tSESSION\tTO\tPOOL\tFALLBACK\tSTRATEGY")
	for i, r := range set.Rules {
		header := r.Header
		if r.HeaderValue != "" {
			header += ": " + r.HeaderValue
		}
		fmt.Fprint(w, i)
		for _, text := range []string{
			r.Name, r.Model, r.Path, header, r.Share, r.Session, r.To, strings.Join(r.Pool, ","), strings.Join(r.Fallback, ","), r.Strategy,
		} {
			fmt.Fprint(w, "\t", plain(cmp.Or(text, "-")))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

type rulesAddCmd struct {
	Rule   string `arg:"" name:"rule" placeholder:"RULE" help:"The rule, as serve --rule takes it: [name=N][,model=M]...[,strategy=NAME]."`
	At     *int   `name:"at" placeholder:"PLACE" help:"Its place from 0, as show numbers them: the first rule that matches wins. Without it, behind the last."`
	DryRun bool   `name:"dry-run" help:"Only show what would change."`
	adminFlags
}

func (c *rulesAddCmd) Run(s *streams) error {
	place := -1
	if c.At != nil {
		place = *c.At
	}
	return c.editRules(s, c.DryRun, func(text string) (string, error) { return config.AddRule(text, c.Rule, place) })
}

type rulesRemoveCmd struct {
	Which  string `arg:"" name:"rule" placeholder:"RULE" help:"Its name, else its place, as show has them."`
	DryRun bool   `name:"dry-run" help:"Only show what would change."`
	adminFlags
}

func (c *rulesRemoveCmd) Run(s *streams) error {
	return c.editRules(s, c.DryRun, func(text string) (string, error) { return config.RemoveRule(text, c.Which) })
}

// editRules changes the text of the fleet's rules, unless somebody else has changed it meanwhile.
func (a *adminFlags) editRules(s *streams, dry bool, edit func(text string) (string, error)) error {
	return show(a, s, func(client *admin.Client, ctx context.Context) (*admin.RuleChange, error) {
		set, err := client.Rules(ctx)
		if err != nil {
			return nil, err
		}
		if set.Source != "fleet" && len(set.Rules) > 0 {
			return nil, fmt.Errorf("this router goes by the %d rules of its own configuration, which rules of the fleet replace: "+
				"write all into a file and use grapevine rules apply", len(set.Rules))
		}
		text, err := edit(set.Text)
		if err != nil {
			return nil, err
		}
		return client.ApplyRules(ctx, text, &set.Version, dry)
	}, printRuleChange)
}

type rulesCheckCmd struct {
	Path string `arg:"" name:"file" placeholder:"FILE" help:"YAML with a list under the key rules; - is stdin."`
}

func (c *rulesCheckCmd) Run(s *streams) error {
	text, err := readInput(s, c.Path, maxRulesFile)
	if err != nil {
		return err
	}
	rules, err := config.ParseRules(string(text))
	if err != nil {
		var errs []error
		for _, mistake := range config.Mistakes(err) {
			mistake.File = c.Path
			errs = append(errs, &mistake)
		}
		return errors.Join(errs...)
	}
	_, err = fmt.Fprintf(s.out, "%s: %d rules\n", c.Path, len(rules))
	return err
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

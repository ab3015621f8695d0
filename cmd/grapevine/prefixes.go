package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
)

type prefixesCmd struct {
	Hot prefixesHotCmd `cmd:"" default:"withargs" help:"List the hot prefixes, or turn their replication on and off."`
}

type prefixesHotCmd struct {
	Enable  bool `name:"enable" xor:"switch" help:"Replicate hot prefixes in the whole fleet."`
	Disable bool `name:"disable" xor:"switch" help:"Stop replicating hot prefixes in the whole fleet."`
	adminFlags
}

func (c *prefixesHotCmd) Run(s *streams) error {
	if c.Enable || c.Disable {
		return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
			return client.SwitchPrefixes(ctx, c.Enable)
		}, "replication of hot prefixes: "+map[bool]string{true: "on", false: "off"}[c.Enable])
	}
	return show(&c.adminFlags, s, (*admin.Client).Prefixes, printPrefixes)
}

func printPrefixes(out io.Writer, list *admin.PrefixList) error {
	if !list.Enabled {
		fmt.Fprintln(out, "Replication of hot prefixes is off.")
	}
	if len(list.Prefixes) == 0 {
		_, err := fmt.Fprintln(out, "No prefix is hot.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ANCHOR\tTOKENS\tSHARE\tWORK\tREPLICAS\tHOT FOR\tCHANGED\tEXPIRES IN\tBACKENDS")
	for _, p := range list.Prefixes {
		fmt.Fprintf(w, "%s\t%d\t%.0f %%\t%.2f\t%d\t%s\t%s ago\t%s\t%s\n", p.Anchor, p.Tokens, 100*p.Share, p.Work, p.Replicas,
			seconds(p.AgeS), seconds(p.ChangedS), seconds(p.ExpiresS), someOf(p.Backends))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, p := range list.Prefixes {
		fmt.Fprintf(out, "%s: %s\n", p.Anchor, p.Why)
	}
	return nil
}

const namesShown = 4

func someOf(names []string) string {
	if len(names) <= namesShown {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], " "), len(names)-namesShown)
}

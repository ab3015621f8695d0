package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

type backendsCmd struct {
	adminFlags
}

func (c *backendsCmd) Run(s *streams) error {
	client, ctx, cancel := c.client()
	defer cancel()
	list, err := client.Backends(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, list)
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tSTATE\tACTIVE\tPREFILL\tHORIZON\tKV CACHE\tMODELS\tURL")
	for _, b := range list.Backends {
		models := strings.Join(b.Models, ",")
		if models == "" {
			models = "(any)"
		}
		cache := "?"
		if b.KVTokens > 0 {
			cache = fmt.Sprintf("%d", b.KVTokens)
		}
		if b.Engine != nil {
			cache += fmt.Sprintf(", %.0f %% used", 100*b.Engine.KVUsage)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n",
			b.ID, b.Name, b.State, b.Active, b.PrefillTokens, seconds(b.HorizonS), cache, models, b.URL)
	}
	return w.Flush()
}

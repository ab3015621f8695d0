package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"grapevine.example/node/admin"
)

type nodesCmd struct {
	adminFlags
}

func (c *nodesCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, (*admin.Client).Nodes, printNodes)
}

// clocksApartMS is the clock difference above which gossip corrects for it.
const clocksApartMS = 500

func printNodes(out io.Writer, list *admin.NodeList) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tSINCE\tLAG\tRTT\tRECEIVED\tSENT\tMISSED\tGOSSIP\tDATA\tVERSION")
	for i := range list.Nodes {
		n := &list.Nodes[i]
		name, state := n.Name, n.State
		lag, rtt, received, sent, missed := "-", "-", "-", "-", "-"
		if n.Self {
			name += " *"
		} else {
			if n.State == "alive" && !n.Connected {
				state += ", not connected"
			}
			if n.State == "alive" {
				lag = fmt.Sprintf("%.1f ms", n.LagMS)
			}
			if n.Connected {
				rtt = fmt.Sprintf("%.1f ms", n.RTTMS)
			}
			received, sent = amount(n.ReceivedBytes), amount(n.SentBytes)
			missed = fmt.Sprint(n.Missed)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			name, state, seconds(n.SinceS), lag, rtt, received, sent, missed, cmp.Or(n.Gossip, "-"), cmp.Or(n.Data, "-"), cmp.Or(n.Version, "-"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range list.Nodes {
		if n.LastError != "" && !n.Connected && n.State == "alive" {
			fmt.Fprintf(out, "%s: %s\n", n.Name, n.LastError)
		}
		if n.Connected && math.Abs(n.OffsetMS) >= clocksApartMS {
			where := "behind"
			if n.OffsetMS < 0 {
				where = "ahead"
			}
			fmt.Fprintf(out, "%s: its clock is %s %s: this is allowed for, but set it right\n", n.Name, seconds(math.Abs(n.OffsetMS)/1000), where)
		}
	}
	for _, seed := range list.Seeds {
		if seed.Error != "" {
			fmt.Fprintf(out, "join %s, %s ago: %s\n", seed.Seed, seconds(seed.AgeS), seed.Error)
		}
	}
	for _, r := range list.Refusals {
		fmt.Fprintf(out, "turned away %s ago (%d times): %s\n", seconds(r.AgeS), r.Count, r.Error)
	}
	return nil
}

func amount(bytes uint64) string {
	switch {
	case bytes < 10_000:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
	default:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
}

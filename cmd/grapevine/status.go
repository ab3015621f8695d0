package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"grapevine.example/node/admin"
)

type statusCmd struct {
	adminFlags
}

func (c *statusCmd) Run(s *streams) error {
	return show(&c.adminFlags, s, (*admin.Client).Status, printStatus)
}

func printStatus(out io.Writer, st *admin.Status) error {
	ready := "ready"
	if !st.Ready {
		ready = "not ready: " + st.NotReady
	}
	picks := fmt.Sprintf("%d picks", st.Picks)
	if rungs := countsText(st.Rungs); rungs != "" {
		picks += " (" + rungs + ")"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node\t%s, up %s, %s\n", st.Node, seconds(st.UptimeS), ready)
	fmt.Fprintf(w, "version\t%s (%s)\n", st.Version, st.GoVersion)
	fmt.Fprintf(w, "listen\t%s, admin %s\n", st.Listen, st.Admin)
	if c := st.Certificate; c != nil {
		valid := "until " + c.NotAfter.UTC().Format(time.RFC3339)
		if c.Problem != "" {
			valid = c.Problem + ": clients refuse it"
		}
		fmt.Fprintf(w, "tls\tcertificate %s\n", valid)
	}
	fmt.Fprintf(w, "strategy\t%s over %d backends, blocks of %d bytes, key %s\n", st.Strategy, st.Backends, st.BlockBytes, st.KeyID)
	fmt.Fprintf(w, "requests\t%d in flight on %d connections, %s\n", st.InFlight, st.Connections, picks)
	if caches := countsText(st.Caches); caches != "" {
		fmt.Fprintf(w, "caches\t%s\n", caches)
	}
	for i, a := range st.Affinity {
		label := ""
		if i == 0 {
			label = "affinity"
		}
		fmt.Fprintf(w, "%s\t%s, %.3g requests/s: %s\n", label, modelText(a.Model), a.RequestsPerS, a.Verdict)
	}
	fmt.Fprintf(w, "tree\t%d facts in %s\n", st.Tree.Facts, amount(uint64(st.Tree.Bytes)))
	if f := st.Fleet; f == nil {
		fmt.Fprintln(w, "fleet\talone")
	} else {
		fmt.Fprintf(w, "fleet\t%d nodes, %.0f ms behind them, %.0f %% warm, %d decisions blind, %d nodes incomplete\n",
			f.Nodes, f.StalenessMS, 100*f.WarmFraction, f.BlindDecisions, f.Incomplete)
	}
	if r := st.Reload; r != nil {
		fmt.Fprintf(w, "reload\t%s ago%s\n", seconds(r.AgeS), refusedText(r.Error))
		for _, c := range r.Applied {
			fmt.Fprintf(w, "\tapplied %s\n", plain(c.String()))
		}
		for _, c := range r.AtNextStart {
			fmt.Fprintf(w, "\tat the next start %s\n", plain(c.String()))
		}
	}
	return w.Flush()
}

func refusedText(reason string) string {
	if reason == "" {
		return ""
	}
	return ", refused: " + plain(reason)
}

func modelText(model string) string {
	switch model {
	case "":
		return "requests without a model"
	case "*":
		return "models that no engine lists"
	}
	return plain(model)
}

// seconds formats seconds for people: 4.2s, 12m30s, 26h3m0s.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// countsText lists the names that count something, in order.
func countsText[N int | uint64](counts map[string]N) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
		}
	}
	return strings.Join(parts, ", ")
}

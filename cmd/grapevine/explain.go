package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grapevine.example/node/admin"
)

type explainCmd struct {
	adminFlags
	Body   string   `arg:"" optional:"" default:"-" placeholder:"FILE" help:"File with the request body; - is stdin."`
	Path   string   `name:"path" default:"/v1/chat/completions" placeholder:"PATH" help:"Path the request would have."`
	Header []string `name:"header" short:"H" sep:"none" placeholder:"NAME: VALUE" help:"Header the request would have. Repeatable."`
}

const maxExplain = 256 << 20

func (c *explainCmd) Run(s *streams) error {
	body, err := readInput(s, c.Body, maxExplain)
	if err != nil {
		return err
	}
	headers := make(map[string]string, len(c.Header))
	for _, h := range c.Header {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return usagef("header %q: write NAME: VALUE", h)
		}
		headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return show(&c.adminFlags, s, func(client *admin.Client, ctx context.Context) (*admin.Receipt, error) {
		return client.Explain(ctx, c.Path, headers, body)
	}, printReceipt)
}

// target says where a rule sends the request.
func target(r *admin.Receipt) (text string) {
	if r.Asked != "" {
		text += fmt.Sprintf("; engines are asked for %s", plain(r.Model))
	}
	if r.Pool != "" {
		text += "; pool " + plain(r.Pool)
	}
	if r.Fallback {
		text += ", the fallback: the rule's own has no eligible engine"
	}
	return text
}

func printReceipt(out io.Writer, r *admin.Receipt) error {
	fmt.Fprintf(out, "%s\n", r.Backend)
	fmt.Fprintf(out, "  by %s, rung %s; %d of %d prompt tokens expected in its cache (%d of %d blocks)\n",
		r.Strategy, r.Rung, r.PredictedTokens, r.PromptTokens, r.MatchedBlocks, r.Blocks)
	if r.Rule != "" || r.Pool != "" {
		fmt.Fprintf(out, "  rule %s%s\n", cmp.Or(plain(r.Rule), "without a name"), target(r))
	}
	if r.Exact {
		fmt.Fprintln(out, "  its cache is known by the engine's events")
	}
	if r.Replicas > 0 {
		fmt.Fprintf(out, "  begins with the hot prefix %s, held on %d backends\n", r.Hot, r.Replicas)
	}
	if r.Note != "" {
		fmt.Fprintf(out, "  note: %s\n", r.Note)
	}
	if p := r.Prefill; p != nil {
		remote := fmt.Sprintf("%.3f s at %s with queue and transfer (%d tokens in its cache)", p.RemoteS, p.Backend, p.PredictedTokens)
		alone := fmt.Sprintf("%.3f s at %s with the delay of its running requests", p.AloneS, r.Backend)
		if p.Elsewhere {
			fmt.Fprintf(out, "  prefill at %s: %s, against %s\n", p.Backend, remote, alone)
		} else {
			fmt.Fprintf(out, "  prefill at %s: %s, against %s\n", r.Backend, alone, remote)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if r.Why != "" { // strategy prefix
		fmt.Fprintf(out, "  why: %s\n", r.Why)
		if r.LoadFrom != "" {
			fmt.Fprintf(out, "  load: as %s report it, %.1f s old\n", r.LoadFrom, r.LoadAgeS)
		}
		fmt.Fprintln(w, "backend\tblocks\theld tokens\tactive\ttokens/s\tage\twait s\tzone s\tcompute s\tlater s\tcost s\t")
		for _, c := range r.Candidates {
			fmt.Fprintf(w, "%s\t%d\t%.0f\t%d\t%.0f\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t\n",
				c.Backend, c.MatchedBlocks, c.HeldTokens, c.Active, c.Rate, seconds(c.AgeS), c.WaitS, c.ZoneS, c.ComputeS, c.LaterS, c.Cost)
		}
		return w.Flush()
	}
	fmt.Fprintln(w, "backend\tblocks\theld tokens\tqueued tokens\tactive\ttokens/s\tage\tcost\t")
	for _, c := range r.Candidates {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%d\t%.0f\t%s\t%.4g\t\n",
			c.Backend, c.MatchedBlocks, c.HeldTokens, c.QueuedTokens, c.Active, c.Rate, seconds(c.AgeS), c.Cost)
	}
	return w.Flush()
}

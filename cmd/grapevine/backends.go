package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

type backendsCmd struct {
	List   backendsListCmd   `cmd:"" default:"withargs" help:"List the engines as one router sees them (the default)."`
	Add    backendsAddCmd    `cmd:"" help:"Add engines to the fleet: all of them or none."`
	Drain  backendsDrainCmd  `cmd:"" help:"Send engines no new requests; running requests continue."`
	Resume backendsResumeCmd `cmd:"" help:"End the drain of engines."`
	Label  backendsLabelCmd  `cmd:"" help:"Replace the labels of an engine, by which rules name pools."`
	Remove backendsRemoveCmd `cmd:"" help:"Take engines out of the fleet: all of them or none."`
}

type backendsListCmd struct {
	Consistent bool `name:"consistent" help:"Show every change that was confirmed at any router before; fails without a leader."`
	adminFlags
}

func (c *backendsListCmd) Run(s *streams) error {
	ask := (*admin.Client).Backends
	if c.Consistent {
		ask = (*admin.Client).CurrentBackends
	}
	return show(&c.adminFlags, s, ask, printBackends)
}

func printBackends(out io.Writer, list *admin.BackendList) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tACTIVE\tFLEET\tPREFILL\tRATE\tHORIZON\tKNOWN\tKV CACHE\tREPORT\tMODELS\tLABELS\tSOURCE\tURL")
	own := 0
	for i := range list.Backends {
		b := &list.Backends[i]
		models := plain(strings.Join(b.Models, ","))
		if models == "" {
			models = "(any)"
		}
		cache := "?"
		if b.KVTokens > 0 {
			cache = fmt.Sprintf("%d", b.KVTokens)
		}
		if b.Engine != nil && b.Engine.KVUsage >= 0 {
			cache += fmt.Sprintf(", %.0f %% used", 100*b.Engine.KVUsage)
		}
		rate := fmt.Sprintf("%.0f", b.Rate)
		if b.RateFrom != "" {
			rate += " by " + plain(b.RateFrom)
		}
		report := "-"
		if b.Engine != nil {
			report = fmt.Sprintf("%s %.1f s ago", plain(b.Engine.From), b.Engine.AgeS)
		}
		state := b.State
		if b.Drained && state != "draining" {
			state += ", drained"
		}
		if b.Role != "" {
			state += ", " + b.Role
		}
		if !b.Agreed {
			own++
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			b.Name, state, b.Active, b.FleetActive, b.PrefillTokens, rate, seconds(b.HorizonS), cmp.Or(b.Cache.Known, "?"), cache, report, models, cmp.Or(strings.Join(b.Labels, ","), "-"), cmp.Or(b.Source, "-"), b.URL)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, b := range list.Backends {
		if b.Reason != "" {
			fmt.Fprintf(out, "%s: %s for %s%s: %s\n", b.Name, b.State, seconds(b.SinceS), onWord(&b), plain(b.Reason))
		}
	}
	if own > 0 {
		fmt.Fprintln(out, "This is the router's own list: the fleet's agreed list has not arrived (see grapevine raft status).")
	}
	return nil
}

func onWord(b *admin.BackendStatus) string {
	by := b.DownBy
	if b.State == "draining" {
		by = b.DrainedBy
	}
	if by == "" {
		return ""
	}
	return ", by " + by
}

// plain replaces line breaks and terminal escapes in text of engines and operators.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

type backendsAddCmd struct {
	URLs      []string `arg:"" name:"url" placeholder:"URL" help:"http://host:port of an engine; with #ranks behind it, a backend for each of its data-parallel ranks."`
	Name      string   `name:"name" placeholder:"NAME" help:"Its name, for one engine; host:port if left out."`
	Models    []string `name:"model" placeholder:"MODEL" help:"Model that it serves. Without it the router asks the engine. Repeatable."`
	Weight    float64  `name:"weight" placeholder:"W" help:"Its share of the work; an engine without a weight has 1."`
	KVTokens  int64    `name:"kv-tokens" placeholder:"N" help:"Size of its KV cache. Without it the router asks the engine."`
	Role      string   `name:"role" enum:"both,prefill,decode" default:"both" help:"Part of a request that it computes: both, prefill or decode."`
	Bootstrap uint16   `name:"bootstrap-port" placeholder:"PORT" help:"Bootstrap port of SGLang's prefill engines, for SGLang engines of role prefill or decode."`
	Labels    []string `name:"label" placeholder:"NAME=VALUE" help:"Label for rules; zone=NAME also says how far it is. Repeatable."`
	Force     bool     `name:"force" help:"Add it even if no engine answers at the URL now."`
	adminFlags
}

func (c *backendsAddCmd) Run(s *streams) error {
	if c.Name != "" && len(c.URLs) > 1 {
		return usagef("--name is the name of one engine, and %d are given", len(c.URLs))
	}
	var role raftstore.Role
	if err := role.UnmarshalText([]byte(c.Role)); err != nil {
		return err
	}
	var add []admin.NewBackend
	for _, u := range c.URLs {
		add = append(add, admin.NewBackend{
			Name: c.Name, URL: u, Models: c.Models, Weight: c.Weight, KVTokens: c.KVTokens,
			Role: role, BootstrapPort: c.Bootstrap, Labels: c.Labels,
		})
	}
	return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
		return client.AddBackends(ctx, add, c.Force)
	}, "added "+strings.Join(c.URLs, ", "))
}

func (f *adminFlags) change(s *streams, ask func(*admin.Client, context.Context) (*admin.Changed, error), text string) error {
	return show(f, s, ask, func(out io.Writer, done *admin.Changed) error {
		if !done.Changed {
			text += " (it was so already)"
		}
		_, err := fmt.Fprintln(out, text)
		return err
	})
}

func forced(client *admin.Client, force bool) *admin.Client {
	if force {
		return client.Forced()
	}
	return client
}

type backendsDrainCmd struct {
	Names   []string      `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	Reason  string        `name:"reason" placeholder:"TEXT" help:"Reason, shown in the list of engines."`
	Wait    bool          `name:"wait" help:"Return when no router has a request at these engines."`
	Timeout time.Duration `name:"timeout" default:"30m" placeholder:"DURATION" help:"How long to wait at most."`
	Force   bool          `name:"force" help:"Drain them even if no other active engine is left in the fleet or for a model."`
	adminFlags
}

func (c *backendsDrainCmd) Run(s *streams) error {
	return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
		done, err := forced(client, c.Force).SetBackendState(ctx, c.Names, "drain", c.Reason)
		if err == nil && c.Wait {
			waiting, cancel := context.WithTimeout(context.Background(), c.Timeout)
			defer cancel()
			err = awaitIdle(waiting, client, c.Names, func(text string) { fmt.Fprintln(s.err, text) })
		}
		return done, err
	}, "drained "+strings.Join(c.Names, ", "))
}

const (
	idlePoll = 250 * time.Millisecond
	// idleCalm without requests counts as idle: other routers report some tenths of a second late.
	idleCalm = 2 * time.Second
)

// pollTimeout bounds one check, in case the router hangs.
const pollTimeout = 5 * time.Second

func awaitIdle(ctx context.Context, client *admin.Client, names []string, tell func(string)) error {
	calm, last, known := time.Now(), int64(0), false
	for ctx.Err() == nil {
		running, err := runningAt(ctx, client, names)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		if !known || running != last {
			tell(fmt.Sprintf("%d requests still run", running))
			last, known = running, true
		}
		if running > 0 {
			calm = time.Now()
		} else if time.Since(calm) >= idleCalm {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(idlePoll):
		}
	}
	switch {
	case !known:
		return errors.New("the drain stays, but the time is over and the router did not report the running requests")
	case last == 0:
		return fmt.Errorf("the drain stays, but the time is over and nothing must run for %s; nothing does now", idleCalm)
	}
	return fmt.Errorf("the drain stays, but the time is over and %d requests still run", last)
}

func runningAt(ctx context.Context, client *admin.Client, names []string) (running int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	list, err := client.Backends(ctx)
	if err != nil {
		return 0, fmt.Errorf("the drain stays, but the wait has ended: %w", err)
	}
	for i := range list.Backends {
		if b := &list.Backends[i]; slices.Contains(names, b.Name) {
			if !b.Drained {
				return 0, fmt.Errorf("%s is no longer drained: an operator has resumed it", b.Name)
			}
			running += b.FleetActive
		}
	}
	return running, nil
}

type backendsResumeCmd struct {
	Names []string `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	adminFlags
}

func (c *backendsResumeCmd) Run(s *streams) error {
	return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
		return client.SetBackendState(ctx, c.Names, "resume", "")
	}, "resumed "+strings.Join(c.Names, ", "))
}

type backendsLabelCmd struct {
	Name   string   `arg:"" name:"name" placeholder:"NAME" help:"Its name, as list shows it."`
	Labels []string `arg:"" optional:"" name:"label" placeholder:"NAME=VALUE" help:"All its labels from now on; none removes them."`
	adminFlags
}

func (c *backendsLabelCmd) Run(s *streams) error {
	return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
		return client.SetLabels(ctx, c.Name, c.Labels)
	}, "labelled "+c.Name)
}

type backendsRemoveCmd struct {
	Names []string `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	Force bool     `name:"force" help:"Remove them even if no other active engine is left in the fleet or for a model."`
	adminFlags
}

func (*backendsRemoveCmd) Help() string {
	return "Running requests finish. Take the engine out of the configuration of the routers too: one that starts with it adds it again."
}

func (c *backendsRemoveCmd) Run(s *streams) error {
	return c.change(s, func(client *admin.Client, ctx context.Context) (*admin.Changed, error) {
		return forced(client, c.Force).RemoveBackends(ctx, c.Names)
	}, "removed "+strings.Join(c.Names, ", "))
}

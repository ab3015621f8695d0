package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"grapevine/node"
)

// backendsCmd are the operations on the engines of a fleet. Any router takes them.
type backendsCmd struct {
	List   backendsListCmd   `cmd:"" default:"withargs" help:"List the engines as one router sees them (the default)."`
	Add    backendsAddCmd    `cmd:"" help:"Add engines to the fleet: all of them or none."`
	Drain  backendsDrainCmd  `cmd:"" help:"Give engines no new requests; what runs there ends in peace."`
	Resume backendsResumeCmd `cmd:"" help:"End the drain of engines."`
	Remove backendsRemoveCmd `cmd:"" help:"Take engines out of the fleet: all of them or none."`
}

type backendsListCmd struct {
	adminFlags
}

func (c *backendsListCmd) Run(s *streams) error {
	client, ctx, cancel := c.client()
	defer cancel()
	list, err := client.Backends(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, list)
	}
	return printBackends(s.out, list)
}

// printBackends shows the engines, and why those that are not active are not.
func printBackends(out io.Writer, list *node.BackendList) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tSTATE\tACTIVE\tFLEET\tPREFILL\tHORIZON\tKV CACHE\tMODELS\tSOURCE\tURL")
	own := 0
	for i := range list.Backends {
		b := &list.Backends[i]
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
		state := b.State
		if b.Drained && state != "draining" {
			state += ", drained"
		}
		if !b.Agreed {
			own++
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n",
			b.ID, b.Name, state, b.Active, b.FleetActive, b.PrefillTokens, seconds(b.HorizonS), cache, models, orDash(b.Source), b.URL)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, b := range list.Backends {
		if b.Reason != "" {
			fmt.Fprintf(out, "%s: %s for %s: %s\n", b.Name, b.State, seconds(b.SinceS), b.Reason)
		}
	}
	if own > 0 {
		fmt.Fprintln(out, "This is the router's own list: it knows of nothing that the fleet has agreed on (see grapevine raft status).")
	}
	return nil
}

type backendsAddCmd struct {
	URLs     []string `arg:"" name:"url" placeholder:"URL" help:"http://host:port of an engine."`
	Name     string   `name:"name" placeholder:"NAME" help:"Its name, for one engine; host:port if left out."`
	Models   []string `name:"model" placeholder:"MODEL" help:"What it serves; it is asked if left out. Repeatable."`
	Weight   float64  `name:"weight" placeholder:"W" help:"Its share of the work against the others' 1."`
	KVTokens int64    `name:"kv-tokens" placeholder:"N" help:"Size of its KV cache; it is asked if left out."`
	Zone     string   `name:"zone" placeholder:"ZONE" help:"Where it stands."`
	Role     string   `name:"role" placeholder:"ROLE" help:"What it is for."`
	Force    bool     `name:"force" help:"Add it even if nobody answers there now."`
	adminFlags
}

func (c *backendsAddCmd) Run(s *streams) error {
	if c.Name != "" && len(c.URLs) > 1 {
		return usagef("--name is the name of one engine, and %d are given", len(c.URLs))
	}
	var add []node.NewBackend
	for _, u := range c.URLs {
		add = append(add, node.NewBackend{
			Name: c.Name, URL: u, Models: c.Models, Weight: c.Weight, KVTokens: c.KVTokens, Zone: c.Zone, Role: c.Role,
		})
	}
	client, ctx, cancel := c.client()
	defer cancel()
	done, err := client.AddBackends(ctx, add, c.Force)
	return c.report(s, done, err, "added %s", strings.Join(c.URLs, ", "))
}

// report prints what became of a change.
func (f *adminFlags) report(s *streams, done *node.Changed, err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	if f.JSON {
		return printJSON(s.out, done)
	}
	text := fmt.Sprintf(format, args...)
	if !done.Changed {
		text += " (it was so already)"
	}
	_, err = fmt.Fprintln(s.out, text)
	return err
}

type backendsDrainCmd struct {
	Names   []string      `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	Reason  string        `name:"reason" placeholder:"TEXT" help:"Why, for those who look."`
	Wait    bool          `name:"wait" help:"Return when no router has a request there any more."`
	Timeout time.Duration `name:"timeout" default:"30m" placeholder:"DURATION" help:"How long to wait at most."`
	adminFlags
}

func (c *backendsDrainCmd) Run(s *streams) error {
	client, ctx, cancel := c.client()
	defer cancel()
	done, err := client.SetBackendState(ctx, c.Names, "drain", c.Reason)
	if err == nil && c.Wait {
		err = awaitIdle(client, c.Names, c.Timeout, func(text string) { fmt.Fprintln(s.err, text) })
	}
	return c.report(s, done, err, "drained %s", strings.Join(c.Names, ", "))
}

const (
	// idlePoll is how often a drain is looked at.
	idlePoll = 250 * time.Millisecond
	// idleCalm is how long nothing must run before that counts: what other routers
	// have there is known some tenths of a second late, and so is the drain to them.
	idleCalm = 2 * time.Second
)

// awaitIdle returns when no router has had a request at any of the engines for a
// while. tell is told how many there are whenever that changes.
func awaitIdle(client *node.Client, names []string, timeout time.Duration, tell func(string)) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	calm, last := time.Now(), int64(-1)
	for {
		list, err := client.Backends(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("not idle within %s: %d requests still run", timeout, last)
		}
		if err != nil {
			return err
		}
		running := int64(0)
		for i := range list.Backends {
			if b := &list.Backends[i]; slices.Contains(names, b.Name) {
				if !b.Drained {
					return fmt.Errorf("%s is not drained any more: somebody has resumed it", b.Name)
				}
				running += b.FleetActive
			}
		}
		if running != last {
			tell(fmt.Sprintf("%d requests still run", running))
			last = running
		}
		if running > 0 {
			calm = time.Now()
		} else if time.Since(calm) >= idleCalm {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not idle within %s: %d requests still run", timeout, running)
		case <-time.After(idlePoll):
		}
	}
}

type backendsResumeCmd struct {
	Names []string `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	adminFlags
}

func (c *backendsResumeCmd) Run(s *streams) error {
	client, ctx, cancel := c.client()
	defer cancel()
	done, err := client.SetBackendState(ctx, c.Names, "resume", "")
	return c.report(s, done, err, "resumed %s", strings.Join(c.Names, ", "))
}

type backendsRemoveCmd struct {
	Names []string `arg:"" name:"name" placeholder:"NAME" help:"Names, as list shows them."`
	adminFlags
}

// Help is shown below the flags.
func (*backendsRemoveCmd) Help() string {
	return "What runs there goes on to its end. Take the engine out of the configuration of the routers too: one that starts with it adds it again."
}

func (c *backendsRemoveCmd) Run(s *streams) error {
	client, ctx, cancel := c.client()
	defer cancel()
	done, err := client.RemoveBackends(ctx, c.Names)
	return c.report(s, done, err, "removed %s", strings.Join(c.Names, ", "))
}

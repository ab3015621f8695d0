package family

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/report"
	"grapevine.example/proxy/policy"
)

// Judged is the policy that is compared with the others and with itself.
const Judged = policy.Prefix

// Result is a played draw. Runs are those of all policies in the drawn fleet, the judged one first,
// then the judged one with perfect knowledge. A fleet of several nodes has one more run, the last: the
// judged policy on one node. Without the judged policy there are only the others' runs.
type Result struct {
	Draw Draw            `json:"draw"`
	Runs []report.Report `json:"runs"`
}

// Bounds of what a mistyped flag can ask for. All calls of a draw are in memory while it is played.
const (
	MaxDraws    = 10_000
	MaxRequests = 50_000
)

// Options select what to play.
type Options struct {
	Seed     uint64
	Draws    []int // numbers, from 1
	Requests int   // measured in each draw, at most MaxRequests; 0: as drawn
	// Policies to play; nil: all. Write and Picture need the judged one among them.
	Policies []string
	// Oracles are of fleetsim.Oracles, each played alone and, if several, all together.
	Oracles []string
	// Events, if set, plays the judged policy also with engines that publish cache events, which nodes have so much later.
	Events    *time.Duration
	Telemetry fleetsim.Telemetry // in all draws; "": as drawn
	Parallel  int                // draws at once, at least 1
	// Progress, if set, hears of every draw that ends. It is not called concurrently.
	Progress func(ended int, took time.Duration, d *Draw)
}

// Play plays the draws and returns their results in the order of o.Draws, or else the first error, or
// ctx's.
func Play(ctx context.Context, o Options) ([]Result, error) {
	policies := fleetsim.Policies()
	if o.Policies != nil {
		policies = slices.Clone(o.Policies)
	}
	if i := slices.Index(policies, Judged); i > 0 {
		policies[0], policies[i] = policies[i], policies[0]
	}
	policies = append(policies, OraclePolicies(o.Oracles)...)
	if o.Events != nil {
		policies = append(policies, WithEvents)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([]Result, len(o.Draws))
	var mu sync.Mutex
	var wg sync.WaitGroup
	next, ended := 0, 0
	for range min(o.Parallel, len(out)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(out) || ctx.Err() != nil {
					return
				}
				began := time.Now()
				d := NewDraw(o.Seed, o.Draws[i], o.Requests)
				d.Telemetry = cmp.Or(o.Telemetry, d.Telemetry)
				if o.Events != nil {
					d.eventDelay = *o.Events
				}
				r, err := play(ctx, d, policies)
				if err != nil {
					cancel(fmt.Errorf("draw %d of seed %d: %w", o.Draws[i], o.Seed, err))
					return
				}
				mu.Lock()
				out[i] = r
				if ended++; o.Progress != nil {
					o.Progress(ended, time.Since(began), &r.Draw)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return out, nil
}

// WithEvents is the judged policy with engines that publish cache events.
const WithEvents = Judged + "+" + fleetsim.Events

// OraclePolicies names the judged policy with each oracle and, if there are several, with all.
func OraclePolicies(oracles []string) (names []string) {
	for _, o := range oracles {
		names = append(names, Judged+"+"+o)
	}
	if len(oracles) > 1 {
		names = append(names, Judged+"+"+strings.Join(oracles, "+"))
	}
	return names
}

func play(ctx context.Context, d Draw, policies []string) (Result, error) {
	cfg := d.config(d.build())
	cfg.Policies, cfg.Nodes = policies, []int{d.Nodes}
	r := Result{Draw: d}
	var err error
	if r.Runs, err = fleetsim.Run(ctx, cfg); err != nil || d.Nodes == 1 || !slices.Contains(policies, Judged) {
		return r, err
	}
	cfg.Policies, cfg.Nodes = []string{Judged}, []int{1}
	alone, err := fleetsim.Run(ctx, cfg)
	r.Runs = append(r.Runs, alone...)
	return r, err
}

// judged is the judged policy in the drawn fleet.
func (r *Result) judged() *report.Report { return &r.Runs[0] }

// alone is the judged policy on one node; nil if that is the drawn fleet.
func (r *Result) alone() *report.Report {
	if r.Draw.Nodes == 1 {
		return nil
	}
	return &r.Runs[len(r.Runs)-1]
}

// others are the other policies, without oracles.
func (r *Result) others() (out []*report.Report) {
	for i := range r.Runs {
		if p := &r.Runs[i]; p.Policy != Judged && !strings.Contains(p.Policy, "+") {
			out = append(out, p)
		}
	}
	return out
}

// run is a policy's in the drawn fleet.
func (r *Result) run(policy string) *report.Report {
	return &r.Runs[slices.IndexFunc(r.Runs, func(p report.Report) bool { return p.Policy == policy })]
}

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"grapevine.example/chaos/programs"
)

// sightBodies are the prompts of the measurement, at 1,000 requests/s.
var sightBodies = []bodySize{{1 << 10, 512, 1000}, {16 << 10, 128, 1000}}

// pageAsks is what the dashboard's pages Fleet and Prefixes ask while they are open, and how often; of the history what is new.
var pageAsks = []struct {
	every time.Duration
	paths []string
}{
	{3 * time.Second, []string{"/status", "/nodes", "/raft", "/history?coarse=false&since_ms="}},
	{10 * time.Second, []string{"/receipts", "/status", "/prefixes", "/prefixes/tree"}},
}

// sight prints the router's CPU time per request at a fixed rate: as it is, while two pages of its dashboard are open, and without the
// doctor's samples.
func sight(ctx context.Context, o options) error {
	return sideBySide(ctx, o, "grapevine,again,page,unsampled", func(used map[string][]float64) {
		fmt.Printf("  without the doctor %.1f us; with two pages open %.1f us\n", median(used["unsampled"]), median(used["page"]))
		fmt.Printf("  doctor: %s; pages: %s\n", ratios(used["grapevine"], used["unsampled"]), ratios(used["page"], used["grapevine"]))
	})
}

// spans prints it without traces, with those of one request in ten, the default, and with those of all.
func spans(ctx context.Context, o options) error {
	return sideBySide(ctx, o, "grapevine,again,tenth,every", func(used map[string][]float64) {
		fmt.Printf("  spans of a tenth: %s; of all: %s\n", ratios(used["tenth"], used["grapevine"]), ratios(used["every"], used["grapevine"]))
	})
}

// other prints it beside another binary's, such as one from which something was cut. Two routers run each: processes of one binary share
// its pages in the processor's caches, and a single one of another takes 5 % more time.
func other(ctx context.Context, o options) error {
	if o.other == "" {
		return errors.New("phase other: name the binary with -other")
	}
	return sideBySide(ctx, o, "grapevine,again,other,other again", func(used map[string][]float64) {
		both := func(one, two string) []float64 {
			sums := slices.Clone(used[one])
			for i := range sums {
				sums[i] += used[two][i]
			}
			return sums
		}
		fmt.Printf("  of the other %.1f us, the same again: %s\n", median(used["other"]), ratios(used["other again"], used["other"]))
		fmt.Printf("  both beside both of the other: %s\n", ratios(both("grapevine", "again"), both("other", "other again")))
	})
}

// sideBySide gives report the microseconds of CPU time per request of the contenders, by round. Each is a router of its own in front of
// the same backends. They run at the same time, so that other programs disturb all alike; "again" is as "grapevine" is, and shows what
// is left of the disturbance.
func sideBySide(ctx context.Context, o options, contenders string, report func(used map[string][]float64)) error {
	dir, err := os.MkdirTemp("", "grapevine-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o.only = contenders
	st, err := setStage(ctx, o, dir, "light")
	defer st.close()
	if err != nil {
		return err
	}
	field := st.field[1:] // without direct access
	fmt.Printf("%s, %s\n", programs.Machine(), time.Now().UTC().Format(time.DateOnly))
	for _, size := range sightBodies {
		bodies, err := chatBodies(size.distinct, size.bytes, false, seed)
		if err != nil {
			return err
		}
		used := make(map[string][]float64)
		for round := range o.rounds + 1 { // the first one warms up
			us, errs := make([]float64, len(field)), make([]error, len(field))
			var all sync.WaitGroup
			for i, x := range field {
				all.Go(func() { us[i], errs[i] = sightOnce(ctx, o, size, bodies, x) })
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
			for i, x := range field {
				if round > 0 {
					used[x.Name] = append(used[x.Name], us[i])
				}
			}
		}
		fmt.Printf("%d KiB bodies at %d requests/s, %d rounds of %v: CPU us/request %.1f\n",
			size.bytes>>10, size.rate, o.rounds, o.duration, median(used["grapevine"]))
		fmt.Printf("  the same again: %s\n", ratios(used["again"], used["grapevine"]))
		report(used)
	}
	return nil
}

// ratios describes those of what ran at the same time.
func ratios(a, b []float64) string {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	slices.Sort(all)
	return fmt.Sprintf("%.3f times as much (median of rounds; half of them %.3f to %.3f)", median(all), all[len(all)/4], all[(3*len(all)-1)/4])
}

// sightOnce returns the microseconds of CPU time that a router took for each request of one round, with what its pages asked.
func sightOnce(ctx context.Context, o options, size bodySize, bodies [][]byte, x *contender) (usPerRequest float64, err error) {
	before, err := threadTime(x.proc.PID())
	if err != nil {
		return 0, err
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, len(pageAsks))
	open := 0
	if x.Name == "page" {
		for _, p := range pageAsks {
			open++
			go func() { failed <- askAs(asking, x.admin, p.paths, p.every) }()
		}
	}
	s, err := runPaced(ctx, bodies, x.addr, connections, size.rate, o.duration)
	after, errTime := threadTime(x.proc.PID())
	stop()
	for range open {
		err = errors.Join(err, <-failed)
	}
	if err = errors.Join(err, errTime); err == nil && (s.errors > 0 || s.units == 0) {
		err = fmt.Errorf("%s: %d of %d requests failed", x.Name, s.errors, s.units+s.errors)
	}
	return float64(after-before) / 1000 / float64(max(s.units, 1)), err
}

// askAs asks what an open page does until ctx ends. What ctx interrupts is no error.
func askAs(ctx context.Context, admin string, paths []string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for _, path := range paths {
			if strings.HasSuffix(path, "=") {
				path += strconv.FormatInt(time.Now().Add(-2*every).UnixMilli(), 10)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, nil)
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if ctx.Err() != nil {
				return nil
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s, %w", path, resp.Status, err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// threadTime returns the nanoseconds that the present threads of a process have run; /proc/PID/stat counts in hundredths of a second.
func threadTime(pid int) (ns int64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("no threads of process %d: %w", pid, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		ns += n
	}
	return ns, nil
}

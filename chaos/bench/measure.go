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
	"runtime"
	"slices"
	"strings"
	"time"
)

// bodySize is a size and number of bodies, and the fixed rate for latency, well below one core's
// capacity, so that latency shows added work and no queue.
type bodySize struct{ bytes, distinct, rate int }

var bodySizes = []bodySize{{1 << 10, 512, 1000}, {128 << 10, 64, 300}}

// phase is a measurement that every contender undergoes in turn.
type phase struct {
	name    string // of its profile
	title   string // of its table
	columns []column
	bar     bar // that grapevine is held to
	warm    bool
	rounds  int
	run     func(ctx context.Context, x *contender, d time.Duration) (sample, error)
}

// sample is what one measurement of a contender yields.
type sample struct {
	units  int // requests or chunks, by which CPU time is divided
	errors int
	values map[string]float64
}

// The values of samples. The first two are added by measure.
const (
	cpu          = "cpu_us"
	backendCPU   = "backend_cpu_us"
	backendShare = "backend_share_percent" // of all CPUs
	rate         = "requests_per_s"
	p50          = "p50_ms"
	p99          = "p99_ms"
	memory       = "rss_mib"
)

func phasesOf(o options, dir, backend string) ([]phase, error) {
	var phases []phase
	for _, name := range strings.Split(o.phases, ",") {
		switch name {
		case "throughput", "latency":
			for _, s := range bodySizes {
				bodies, err := chatBodies(s.distinct, s.bytes, false, seed)
				if err != nil {
					return nil, err
				}
				ph := latency(o, s, bodies)
				if name == "throughput" {
					if ph, err = throughput(o, dir, s, bodies); err != nil {
						return nil, err
					}
				}
				phases = append(phases, ph)
			}
		case "streams":
			if backend != "light" {
				continue
			}
			bodies, err := chatBodies(1, 4<<10, true, seed)
			if err != nil {
				return nil, err
			}
			phases = append(phases, streams(o, slowStreams, bodies[0]))
		default:
			return nil, fmt.Errorf("no phase %q", name)
		}
	}
	return phases, nil
}

func throughput(o options, dir string, s bodySize, bodies [][]byte) (phase, error) {
	c, err := writeCorpus(dir, bodies, s.bytes)
	return phase{
		name:  fmt.Sprint(s.bytes),
		title: fmt.Sprintf("%d KiB bodies, as fast as they are answered", s.bytes>>10),
		columns: []column{{"requests/s", "%.0f", of(median, rate)}, {"min", "%.0f", of(slices.Min, rate)}, {"max", "%.0f", of(slices.Max, rate)},
			{"CPU us/request", "%.1f", of(median, cpu)}, {"backend's", "%.1f", of(median, backendCPU)}, {"backend's share", "%.0f %%", of(median, backendShare)},
			{"p50 ms", "%.2f", of(median, p50)}, {"p99 ms", "%.2f", of(median, p99)}},
		bar:    bar{What: fmt.Sprintf("requests/s at %d KiB against nginx", s.bytes>>10), Want: ">= 0.90", key: rate},
		warm:   true, // fills connection pools, heaps and the router's tree
		rounds: o.rounds,
		run: func(ctx context.Context, x *contender, d time.Duration) (sample, error) {
			return runWrk(ctx, c, x.addr, d)
		},
	}, err
}

func latency(o options, s bodySize, bodies [][]byte) phase {
	return phase{
		name:  fmt.Sprintf("latency-%d", s.bytes),
		title: fmt.Sprintf("%d KiB bodies at %d requests/s, from the time each was due", s.bytes>>10, s.rate),
		columns: []column{{"p50 ms", "%.2f", of(median, p50)}, {"p99 ms", "%.2f", of(median, p99)},
			{"added p50", "%.2f", addedOf(p50)}, {"added p99", "%.2f", addedOf(p99)}},
		bar:  bar{What: fmt.Sprintf("p99 at %d KiB and %d/s beyond nginx's, ms", s.bytes>>10, s.rate), Want: "<= 1.00", key: p99},
		warm: true,
		// Many short windows: a pause of 50 ms then spoils the p99 of one window, and the median
		// ignores it.
		rounds: o.rounds * int(o.duration.Seconds()),
		run: func(ctx context.Context, x *contender, _ time.Duration) (sample, error) {
			return runPaced(ctx, bodies, x.addr, connections, s.rate, time.Second)
		},
	}
}

func streams(o options, load streamLoad, body []byte) phase {
	return phase{
		name:  "streams",
		title: fmt.Sprintf("%d slow streams, %.0f chunks/s together", load.count, float64(load.count)/load.period.Seconds()),
		columns: []column{{"delay p50 ms", "%.2f", of(median, p50)}, {"p99 ms", "%.2f", of(median, p99)},
			{"added p50", "%.2f", addedOf(p50)}, {"added p99", "%.2f", addedOf(p99)},
			{"CPU us/chunk", "%.1f", of(median, cpu)}, {"RSS MiB", "%.0f", of(median, memory)}},
		bar:    bar{What: fmt.Sprintf("p99 chunk delay of %d streams beyond nginx's, ms", load.count), Want: "<= 1.00", key: p99},
		rounds: (o.rounds + 1) / 2, // each takes three times as long as the rounds of other phases
		run: func(ctx context.Context, x *contender, _ time.Duration) (sample, error) {
			return runStreams(ctx, load, body, x.streamAddr, x.proc.PID())
		},
	}
}

// measure runs a phase. Rounds are the outer loop, so that a disturbance hits all contenders alike.
func (st *stage) measure(ctx context.Context, o options, ph phase, r *run) error {
	field := slices.DeleteFunc(slices.Clone(st.field), func(x *contender) bool { return ph.name == "streams" && x.streamAddr == "" })
	t := &table{Title: ph.title, phase: ph, Series: make(map[string]*series)}
	r.Tables = append(r.Tables, t)
	for _, x := range field {
		t.Series[x.Name] = &series{Values: make(map[string][]float64)}
		if ph.warm {
			fmt.Fprintf(os.Stderr, "%s, warming up %s\n", ph.title, x.Name)
			if _, err := ph.run(ctx, x, time.Second); err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
		}
	}
	for round := range ph.rounds {
		for i := range field {
			x := field[(i+round)%len(field)] // each contender follows each other one
			fmt.Fprintf(os.Stderr, "%s, round %d/%d: %s\n", ph.title, round+1, ph.rounds, x.Name)
			s, others, err := st.measureOnce(ctx, o, ph, x)
			if err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
			t.Series[x.Name].add(s)
			r.Others = append(r.Others, others)
		}
	}
	return nil
}

func (st *stage) measureOnce(ctx context.Context, o options, ph phase, x *contender) (s sample, others float64, err error) {
	before, err := readMoment(x.proc.PID(), st.backend.PID())
	if err != nil {
		return s, 0, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- writeProfile(ctx, o, x, ph.name) }()
	s, err = ph.run(ctx, x, o.duration)
	if err := errors.Join(err, <-profiled, ctx.Err()); err != nil {
		return s, 0, err
	}
	after, err := readMoment(x.proc.PID(), st.backend.PID())
	if err != nil {
		return s, 0, err
	}
	all := float64(after.at.Sub(before.at)) * float64(runtime.NumCPU())
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(1, s.units)) }
	if x.proc != nil {
		s.values[cpu] = each(after.contender - before.contender)
	}
	s.values[backendCPU] = each(after.backend - before.backend)
	s.values[backendShare] = 100 * float64(after.backend-before.backend) / all
	return s, max(0, float64((after.busy-before.busy)-(after.ours-before.ours))/all), nil
}

// writeProfile writes a CPU profile of a contender during one measurement, replacing earlier rounds.
// Profiling costs the contender a percent or two.
func writeProfile(ctx context.Context, o options, x *contender, name string) error {
	if o.profiles == "" || x.admin == "" {
		return nil
	}
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", x.admin, max(1, int(o.duration.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s, %w", resp.Status, err)
	}
	if err := os.MkdirAll(o.profiles, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.profiles, x.Name+"-"+name+".pprof"), raw, 0o644)
}

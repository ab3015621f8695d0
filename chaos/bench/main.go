//go:build linux

// Command bench compares grapevine, nginx and HAProxy in front of the same backends, with the same
// client in interleaved rounds: requests per second, CPU per request, latency, and the cost of many
// slow streams.
//
// It starts every server on loopback ports, installs nginx, HAProxy and wrk with apt if missing,
// and ends them by process id. Client and backends share the cores with the contenders, so figures
// compare contenders and are no capacities. It tests no correctness beyond counting errors, and it
// needs Linux's /proc.
//
// It reports the load of other programs. Where that cannot be stopped, root can give the bench
// priority: chrt -r 5 go run ./chaos/bench (nice has no effect between sessions where the kernel
// groups tasks by session).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

type options struct {
	binary   string
	backend  string
	extra    []string
	rounds   int
	duration time.Duration
	conns    int
	streams  streamLoad
	seed     uint64
	jsonPath string
	only     string
	phases   string
	strict   bool
	profiles string
	patience time.Duration
}

// bodySize is one row of the throughput test: size and number of bodies, and the fixed rate for
// latency, well below one core's capacity, so that latency shows added work and no queue.
type bodySize struct{ bytes, distinct, rate int }

var bodySizes = []bodySize{{1 << 10, 512, 1000}, {128 << 10, 64, 300}}

// backendCount is the number of backends behind every proxy, so that choosing one is part of the
// work.
const backendCount = 4

func cpuCount() int { return runtime.NumCPU() }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "backend" {
		exit(serveBackend(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "engine" {
		exit(serveEngines(os.Args[2:]))
	}
	if len(os.Args) > 3 && os.Args[1] == "bare" {
		exit(serveBare(os.Args[2], os.Args[3:]))
	}
	var o options
	var extra string
	flag.StringVar(&o.binary, "grapevine", "bin/grapevine", "the binary under test")
	flag.StringVar(&o.backend, "backend", "both", "what stands behind the proxies: engine (the emulated engine), light (the least that can answer), or both, one after the other")
	flag.StringVar(&extra, "serve-flags", "", "more flags for grapevine serve, separated by blanks")
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds; medians are reported")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "length of one measurement, whole seconds")
	flag.IntVar(&o.conns, "conns", 64, "client connections")
	flag.IntVar(&o.streams.count, "streams", 1000, "concurrent slow streams")
	flag.IntVar(&o.streams.chunks, "chunks", 50, "chunks per stream")
	flag.DurationVar(&o.streams.period, "period", 200*time.Millisecond, "time between two chunks of a stream")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the request bodies")
	flag.StringVar(&o.jsonPath, "json", "", "write the results as JSON to this file, or to stdout (-) instead of the tables")
	flag.StringVar(&o.only, "only", "", "contenders to run, separated by commas, of nginx,haproxy,bare,grapevine; direct access always runs")
	flag.StringVar(&o.phases, "phases", "throughput,latency,streams", "measurements to make; streams need the light backend, which stamps their chunks")
	flag.StringVar(&o.profiles, "profile", "", "write CPU profiles of grapevine under load into this directory")
	flag.DurationVar(&o.patience, "patience", 2*time.Minute, "how long measurements wait, all together, for others to leave the machine alone")
	flag.BoolVar(&o.strict, "strict", false, "exit 1 if a bar is missed")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 || o.duration < time.Second || o.conns < 2 || o.streams.count < 1 || o.streams.chunks < 1 {
		flag.Usage()
		os.Exit(2)
	}
	o.extra = strings.Fields(extra)
	// Debian installs nginx and haproxy outside a user's PATH.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(bench(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func bench(ctx context.Context, o options) error {
	kinds, err := kindsOf(o.backend)
	if err != nil {
		return err
	}
	if err := install(ctx, os.Stderr, "nginx", "haproxy", "wrk"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "grapevine-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := newReport()
	for _, kind := range kinds {
		res, err := benchOn(ctx, o, dir, kind)
		if err != nil {
			return fmt.Errorf("backend %s: %w", kind.name, err)
		}
		r.Runs = append(r.Runs, res)
	}
	if err := publish(o, r); err != nil {
		return err
	}
	if o.strict && !r.passed() {
		return fmt.Errorf("a bar was missed")
	}
	return nil
}

func benchOn(ctx context.Context, o options, dir string, kind backendKind) (*results, error) {
	st, err := setStage(ctx, o, dir, kind)
	defer st.close()
	if err != nil {
		return nil, err
	}
	res := newResults(st)
	if err := measure(ctx, o, dir, st, res); err != nil {
		return nil, err
	}
	res.judge()
	return res, nil
}

type stage struct {
	kind    backendKind
	backend *process
	field   []*contender
	started []*process
}

func (st *stage) close() {
	for i := len(st.started) - 1; i >= 0; i-- {
		st.started[i].stop()
	}
}

// setStage starts the backends and the contenders and waits until each answers. The caller closes
// the stage even after an error; it is never nil.
func setStage(ctx context.Context, o options, dir string, kind backendKind) (*stage, error) {
	st := &stage{kind: kind}
	backends, err := freeAddrs(backendCount)
	if err != nil {
		return st, err
	}
	self, err := os.Executable()
	if err != nil {
		return st, err
	}
	mode := "backend"
	if kind.name == engineKind.name {
		mode = "engine"
	}
	if st.backend, err = startProcess(mode, append([]string{self, mode}, backends...)...); err != nil {
		return st, err
	}
	st.started = append(st.started, st.backend)
	if err := st.backend.await(ctx, backends[0]); err != nil {
		return st, err
	}
	st.field = []*contender{{Name: "direct", Version: "no proxy, one of the backends", addr: backends[0], streamAddr: backends[0]}}
	starters := []struct {
		name  string
		start func() (*contender, error)
	}{
		{"nginx", func() (*contender, error) { return startNginx(dir, backends) }},
		{"haproxy", func() (*contender, error) { return startHAProxy(dir, backends) }},
		{"bare", func() (*contender, error) { return startBare(self, backends) }},
		{"grapevine", func() (*contender, error) { return startGrapevine(o.binary, backends, o.extra) }},
	}
	for _, s := range starters {
		if o.only != "" && !strings.Contains(","+o.only+",", ","+s.name+",") {
			continue
		}
		c, err := s.start()
		if err != nil {
			return st, err
		}
		st.started = append(st.started, c.proc)
		if err := c.proc.await(ctx, c.addr); err != nil {
			return st, err
		}
		st.field = append(st.field, c)
	}
	return st, nil
}

// measure runs the phases. Within a phase rounds are the outer loop, so that a disturbance hits all
// contenders alike.
func measure(ctx context.Context, o options, dir string, st *stage, res *results) error {
	for _, phase := range strings.Split(o.phases, ",") {
		var err error
		switch phase {
		case "throughput":
			err = measureThroughput(ctx, o, dir, st, res)
		case "latency":
			err = measureLatency(ctx, o, st, res)
		case "streams":
			if !st.kind.stamps {
				continue
			}
			err = measureStreams(ctx, o, st, res)
		default:
			err = fmt.Errorf("no phase %q", phase)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func measureThroughput(ctx context.Context, o options, dir string, st *stage, res *results) error {
	for _, s := range bodySizes {
		bodies, err := chatBodies(s.distinct, s.bytes, false, o.seed)
		if err != nil {
			return err
		}
		c, err := writeCorpus(dir, bodies, s.bytes)
		if err != nil {
			return err
		}
		res.Command = append(res.Command, strings.Join(wrkCommand(c, "ADDR", o.conns, o.duration), " "))
		for _, x := range st.field { // warms connection pools, heaps and the router's tree, unmeasured
			note("%d B, warming up %s", s.bytes, x.Name)
			if _, err := runWrk(ctx, c, x.addr, o.conns, time.Second); err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
		}
		for round := range o.rounds {
			for i := range st.field {
				x := st.field[(i+round)%len(st.field)] // rotates the order, so that each contender follows each other one
				note("%d B, round %d/%d: %s", s.bytes, round+1, o.rounds, x.Name)
				q, err := beginMeasurement(ctx, o, res, st, x)
				if err != nil {
					return err
				}
				profiled := startProfile(ctx, o, x, fmt.Sprintf("%d", s.bytes))
				r, err := runWrk(ctx, c, x.addr, o.conns, o.duration)
				if err := errors.Join(err, <-profiled); err != nil {
					return fmt.Errorf("%s: %w", x.Name, err)
				}
				cpu, err := q.end(res)
				if err != nil {
					return err
				}
				res.addThroughput(x.Name, s.bytes, r, cpu)
			}
		}
	}
	return nil
}

func measureLatency(ctx context.Context, o options, st *stage, res *results) error {
	for _, s := range bodySizes {
		bodies, err := chatBodies(s.distinct, s.bytes, false, o.seed)
		if err != nil {
			return err
		}
		for _, x := range st.field {
			note("%d B at %d/s, warming up %s", s.bytes, s.rate, x.Name)
			if _, err := runPaced(ctx, bodies, x.addr, o.conns, s.rate, time.Second); err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
		}
		// Many short windows: a pause of 50 ms then spoils the p99 of one window, and the median
		// ignores it.
		windows := o.rounds * int(o.duration.Seconds())
		for w := range windows {
			for i := range st.field {
				x := st.field[(i+w)%len(st.field)]
				note("%d B at %d/s, window %d/%d: %s", s.bytes, s.rate, w+1, windows, x.Name)
				q, err := beginMeasurement(ctx, o, res, st, x)
				if err != nil {
					return err
				}
				r, err := runPaced(ctx, bodies, x.addr, o.conns, s.rate, time.Second)
				if err != nil {
					return fmt.Errorf("%s: %w", x.Name, err)
				}
				if _, err := q.end(res); err != nil {
					return err
				}
				res.addLatency(x.Name, s, r)
			}
		}
	}
	return nil
}

type measurement struct {
	contender, backend int
	atStart, atBackend usage
	before             machineTime
}

type spent struct {
	proxy, backend time.Duration
	backendShare   float64
}

func beginMeasurement(ctx context.Context, o options, res *results, st *stage, x *contender) (measurement, error) {
	m := measurement{contender: x.pid(), backend: st.backend.cmd.Process.Pid}
	waited, err := awaitQuiet(ctx, o.patience-res.waited)
	res.waited += waited
	if err != nil {
		return m, err
	}
	if m.atStart, err = usageOf(m.contender); err != nil {
		return m, err
	}
	if m.atBackend, err = usageOf(m.backend); err != nil {
		return m, err
	}
	m.before, err = readMachineTime()
	return m, err
}

func (m measurement) end(res *results) (spent, error) {
	contender, err := usageOf(m.contender)
	if err != nil {
		return spent{}, err
	}
	backend, err := usageOf(m.backend)
	if err != nil {
		return spent{}, err
	}
	s := spent{proxy: contender.cpu - m.atStart.cpu, backend: backend.cpu - m.atBackend.cpu}
	s.backendShare = float64(s.backend) / float64(time.Since(m.before.at)*time.Duration(cpuCount()))
	others, err := othersSince(m.before)
	res.Others = append(res.Others, others)
	return s, err
}

func measureStreams(ctx context.Context, o options, st *stage, res *results) error {
	bodies, err := chatBodies(1, 4<<10, true, o.seed)
	if err != nil {
		return err
	}
	var streaming []*contender
	for _, x := range st.field {
		if x.streamAddr != "" {
			streaming = append(streaming, x)
		}
	}
	field := streaming
	rounds := (o.rounds + 1) / 2 // each takes three times as long as the rounds of other phases
	for round := range rounds {
		for i := range field {
			x := field[(i+round)%len(field)]
			note("%d streams, round %d/%d: %s", o.streams.count, round+1, rounds, x.Name)
			q, err := beginMeasurement(ctx, o, res, st, x)
			if err != nil {
				return err
			}
			profiled := startProfile(ctx, o, x, "streams")
			r := runStreams(ctx, o.streams, bodies[0], x.streamAddr, x.pid())
			if err := errors.Join(ctx.Err(), <-profiled); err != nil {
				return fmt.Errorf("%s: %w", x.Name, err)
			}
			cpu, err := q.end(res)
			if err != nil {
				return err
			}
			res.addStreams(x.Name, o.streams, r, cpu)
		}
	}
	return nil
}

func note(format string, args ...any) {
	if onTerminal() {
		fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
		return
	}
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func clearNote() {
	if onTerminal() {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

func onTerminal() bool {
	fi, err := os.Stderr.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

func publish(o options, r *report) error {
	clearNote()
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	if o.jsonPath == "-" {
		_, err := os.Stdout.Write(raw)
		return err
	}
	if _, err := io.WriteString(os.Stdout, r.tables()); err != nil {
		return err
	}
	if o.jsonPath == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.jsonPath), 0o755); err != nil {
		return err
	}
	return os.WriteFile(o.jsonPath, raw, 0o644)
}

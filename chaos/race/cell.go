//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/programs"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

// stage is the running programs of one cell.
type stage struct {
	dir     string
	engines []string // host:port
	ends    []func() error

	// Of the routers:
	targets []string // URLs
	pids    []int
	configs []string // the configuration file, or else the command line
}

// close ends the programs. An error names routers of grapevine that had ended before; routers of others
// that end make requests fail, which the row counts.
func (st *stage) close() (err error) {
	for _, end := range slices.Backward(st.ends) {
		err = errors.Join(err, end())
	}
	return err
}

// start runs a program until the stage closes.
func (st *stage) start(ctx context.Context, dir, addr string, argv ...string) (*programs.Process, error) {
	p, err := programs.Start(ctx, dir, addr, argv...)
	if err == nil {
		st.ends = append(st.ends, func() error { p.Stop(); return nil })
	}
	return p, err
}

func (st *stage) startEngines(ctx context.Context, lab string) (err error) {
	if st.engines, err = programs.FreeAddrs(engineCount); err != nil {
		return err
	}
	for _, addr := range st.engines {
		argv := append([]string{lab, "engine", "--listen", addr, "--model", programs.Model, "--log-level", "warn"}, engineFlags...)
		if _, err := st.start(ctx, st.dir, addr, argv...); err != nil {
			return err
		}
	}
	return nil
}

func (st *stage) addRouter(addr string, pid int, config string) {
	st.targets = append(st.targets, "http://"+addr)
	st.pids = append(st.pids, pid)
	st.configs = append(st.configs, config)
}

// startFleet starts grapevine's routers as a fleet with gossip, or one without.
func (st *stage) startFleet(ctx context.Context, binary string, n int) error {
	var backends []map[string]any
	for _, addr := range st.engines {
		backends = append(backends, map[string]any{"url": "http://" + addr})
	}
	f, err := fleet.Start(ctx, fleet.Config{
		Binary: binary, Nodes: n, Alone: n == 1, NoBalancer: true, Dir: st.dir,
		Settings: map[string]any{"backends": backends, "log_level": "warn"},
	})
	if err != nil {
		return err
	}
	st.ends = append(st.ends, f.Close)
	for _, node := range f.Nodes() {
		if err := programs.Await(ctx, node.Addr()); err != nil {
			return err
		}
		config, err := os.ReadFile(filepath.Join(st.dir, node.Name()+".yaml"))
		if err != nil {
			return err
		}
		st.addRouter(node.Addr(), node.PID(), string(config))
	}
	return nil
}

// startRouter starts one router of another contender.
func (st *stage) startRouter(ctx context.Context, c *contender, venv string) error {
	addrs, err := programs.FreeAddrs(2)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(st.dir, c.program)
	if err != nil {
		return err
	}
	addr, config, argv := addrs[0], "", []string(nil)
	if c.pip == "" {
		if c.program == "nginx" {
			addr = addrs[1] // does not buffer answers
		}
		config, argv, err = programs.Configure(c.program, programs.Setting{Dir: dir, Addrs: addrs, Backends: st.engines, Threads: 1, Balance: c.balance})
		if err != nil {
			return err
		}
	} else {
		host, port, _ := net.SplitHostPort(addrs[0])
		_, metrics, _ := net.SplitHostPort(addrs[1])
		argv = append([]string{filepath.Join(venv, "bin", c.program)}, c.flags...)
		argv = append(argv, "--host", host, "--port", port, "--prometheus-port", metrics, "--log-level", "error", "--worker-urls")
		for _, e := range st.engines {
			argv = append(argv, "http://"+e)
		}
		config = strings.Join(argv, " ")
	}
	p, err := st.start(ctx, dir, addr, argv...)
	if err != nil {
		return err
	}
	st.addRouter(addr, p.PID(), config)
	return nil
}

func (c cell) startRouters(ctx context.Context, o options, st *stage) error {
	if c.program == "" {
		return st.startFleet(ctx, o.grapevine, c.routers)
	}
	for range c.routers {
		if err := st.startRouter(ctx, c.contender, o.venv); err != nil {
			return err
		}
	}
	return nil
}

// startTime bounds the start of the programs of a cell.
const startTime = time.Minute

// run starts the cell's programs, plays the traffic and ends them.
func (c cell) run(ctx context.Context, o options) (*row, error) {
	dir, err := os.MkdirTemp("", "grapevine-race-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	st := &stage{dir: dir}
	starting, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("the programs did not start in %v", startTime))
	defer cancel()
	err = st.startEngines(starting, o.lab)
	if err == nil {
		err = c.startRouters(starting, o, st)
	}
	var r *row
	if err == nil {
		r, err = c.play(ctx, o, st)
	}
	return r, errors.Join(err, st.close())
}

// patience is how long a client waits for the end of its answer.
const patience = time.Minute

func (c cell) play(ctx context.Context, o options, st *stage) (*row, error) {
	src, err := c.traffic.Source(workload.Options{Seed: o.seed})
	if err != nil {
		return nil, err
	}
	cpu, _ := programs.Usage(st.pids...)
	machine, ours, err := programs.Busy()
	if err != nil {
		return nil, err
	}
	start, completed := time.Now(), 0
	res, err := replay.Run(ctx, replay.Config{
		Targets: st.targets, Model: programs.Model, Timeout: patience, Warmup: o.warmup, Seed: o.seed,
		Policy: c.name, Workload: c.traffic.Label, Nodes: c.routers,
		Observe: func(e replay.Ended) {
			if !e.Failed && e.End >= o.warmup && e.End < o.duration {
				completed++
			}
		},
	}, src)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(start).Seconds()
	cpuEnd, rss := programs.Usage(st.pids...)
	machineEnd, oursEnd, err := programs.Busy()
	if err != nil {
		return nil, err
	}
	others := (machineEnd - machine) - (oursEnd - ours)
	return &row{
		Contender: c.name, Traffic: c.traffic.Label, Routers: c.routers,
		CompletedPerS: float64(completed) / (o.duration - o.warmup).Seconds(),
		Cores:         (cpuEnd - cpu).Seconds() / elapsed, RSSMiB: float64(rss) / (1 << 20), OthersCores: max(0, others.Seconds()/elapsed),
		Configs: st.configs, Report: res,
	}, nil
}

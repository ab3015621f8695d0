package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func NewBalancer(addr string, targets []Target, cfg BalancerConfig) (*Balancer, error) {
	return newBalancer(here{}, addr, targets, cfg)
}

func (b *Balancer) WaitHealthy(ctx context.Context, name string, healthy bool) error {
	return waitHealthy(ctx, b, name, healthy)
}

func (f *Fleet) Dir() string { return f.dir }

func (f *Fleet) Secret() string { return f.secret }

func (f *Fleet) Key() []byte { return f.key }

func (f *Fleet) Guest(i int) string { return f.net.of(f.cfg.Nodes+f.cfg.Engines+1+i, gossipPort) }

// InNetwork runs a short f in the node's network.
func (n *Node) InNetwork(f func() error) error { return n.thread.do(f) }

// Beside starts another program, which ends with this process; stop kills it and waits. Its output goes to the file at log.
func (f *Fleet) Beside(log, program string, args ...string) (stop func() error, err error) {
	t, err := newThread(nil) // in the network of this process
	if err != nil {
		return nil, err
	}
	p, err := startProcess(t, log, program, args, nil)
	if err != nil {
		t.close()
		return nil, err
	}
	return func() error {
		defer t.close()
		return p.kill()
	}, nil
}

func (n *Node) ConfigFile() string { return n.config }

// KeyFile has the gossip key; the node reads it at its start, and rewrites it when keys rotate.
func (n *Node) KeyFile() string { return n.key }

func (n *Node) DataDir() string { return n.dataDir }

type Usage struct {
	CPU time.Duration // user and system time of all threads, in steps of 10 ms
	RSS int64         // resident bytes now
}

func (n *Node) Usage() (Usage, error) {
	if !n.Running() {
		return Usage{}, errNotRunning
	}
	return usageOf(n.PID())
}

// clockTick is the unit of times in /proc/PID/stat.
const clockTick = 10 * time.Millisecond

func usageOf(pid int) (Usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The command in parentheses may contain any. Fields after it, from 0: 11 user time, 12 system
	// time, 21 resident pages.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 22 {
		return Usage{}, fmt.Errorf("short stat of process %d", pid)
	}
	var n [3]int64
	for i, at := range []int{11, 12, 21} {
		if n[i], err = strconv.ParseInt(f[at], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("stat of process %d: %w", pid, err)
		}
	}
	return Usage{CPU: time.Duration(n[0]+n[1]) * clockTick, RSS: n[2] * int64(os.Getpagesize())}, nil
}

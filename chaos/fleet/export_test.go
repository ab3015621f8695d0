package fleet

// What only tests need of a fleet.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// NewBalancer starts a balancer in this machine's network, until Close.
func NewBalancer(addr string, targets []Target, cfg BalancerConfig) (*Balancer, error) {
	return newBalancer(here{}, addr, targets, cfg)
}

// WaitHealthy is Fleet.WaitHealthy for a balancer without a fleet.
func (b *Balancer) WaitHealthy(ctx context.Context, name string, healthy bool) error {
	return waitHealthy(ctx, b, name, healthy)
}

// Dir is the directory of configurations, keys and logs.
func (f *Fleet) Dir() string { return f.dir }

// Secret is the nodes' common secret of the prompt hashes, empty if they are alone.
func (f *Fleet) Secret() string { return f.secret }

// Key is the gossip key at the start.
func (f *Fleet) Key() []byte { return f.key }

// Guest returns the i-th gossip address that Config.Guests reserves.
func (f *Fleet) Guest(i int) string { return f.net.of(f.cfg.Nodes+f.cfg.Engines+1+i, gossipPort) }

// InNetwork runs f, which should be short, on the thread that starts the node's processes. In a
// switched fleet, sockets and processes that f itself opens, not in another goroutine, are in the
// node's network.
func (n *Node) InNetwork(f func() error) error { return n.thread.do(f) }

// DataDir is the directory of the node's raft data, or empty. Removing it while the node is down
// emulates a lost disk.
func (n *Node) DataDir() string { return n.dataDir }

// Usage is what a process has used since it started.
type Usage struct {
	CPU time.Duration // user and system time of all threads, in steps of 10 ms
	RSS int64         // resident bytes now
}

// Usage returns what the running process has used since it started.
func (n *Node) Usage() (Usage, error) {
	if !n.Running() {
		return Usage{}, errNotRunning
	}
	return usageOf(n.PID())
}

// clockTick is the unit of times in /proc/PID/stat, fixed at 1/100 s.
const clockTick = 10 * time.Millisecond

func usageOf(pid int) (Usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	// The command is in parentheses and may contain blanks and parentheses. Fields after it, from
	// 0: state, ..., 11 user time, 12 system time, ..., 21 resident pages.
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

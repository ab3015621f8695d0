package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// Node is one router of a fleet: a process that can be started, ended in several ways, and started again under the same name, addresses
// and files. Safe for concurrent use.
type Node struct {
	name                string
	data, admin, gossip string
	config, key, log    string // files
	dataDir             string // empty: it keeps nothing
	env                 []string
	control             control
	cert                *certificate // nil: derived from the key
	thread              *thread
	http                *http.Client
	token               string // of the admin API; empty: none is asked for

	mu     sync.Mutex // guards what follows, and what control and cert have in files
	binary string
	proc   *process // the latest; nil before the first start
	began  time.Time
}

// Usage is what a process has used since it started.
type Usage struct {
	CPU time.Duration // user and system time of all its threads, in steps of 10 ms
	RSS int64         // resident bytes now
}

// errNotRunning is returned where a running process is needed.
var errNotRunning = errors.New("not running")

// Name is the node's name, in x-grapevine-node too.
func (n *Node) Name() string { return n.name }

// Addr is where it takes traffic, AdminAddr its admin API, GossipAddr where other nodes reach it; host:port each.
func (n *Node) Addr() string { return n.data }

// AdminAddr is the host:port of its admin API.
func (n *Node) AdminAddr() string { return n.admin }

// GossipAddr is the host:port other nodes reach it at.
func (n *Node) GossipAddr() string { return n.gossip }

// writeConfig writes the settings, by their YAML keys, as the node's configuration file.
func (n *Node) writeConfig(settings map[string]any) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return os.WriteFile(n.config, text, 0o600)
}

// Start starts the process and returns; see WaitReady. It is an error if it runs.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != nil && n.proc.running() {
		return fmt.Errorf("%s: runs already", n.name)
	}
	if err := n.control.reset(); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	env := append(slices.Clone(n.env), controlEnv+"="+n.control.path)
	p, err := startProcess(n.thread, n.log, n.binary, []string{"serve", "--config", n.config}, env)
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	n.proc, n.began = p, time.Now()
	return nil
}

// InNetwork runs f, which should be short, on the thread that starts the node's processes. In a switched fleet that is in the node's
// network: what f starts or opens there (itself, not in another goroutine) is where the node is.
func (n *Node) InNetwork(f func() error) error { return n.thread.do(f) }

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

// Running says whether the process runs.
func (n *Node) Running() bool {
	p := n.process()
	return p != nil && p.running()
}

// PID is the id of the latest process, 0 before the first.
func (n *Node) PID() int {
	if p := n.process(); p != nil {
		return p.pid()
	}
	return 0
}

// DataDir is where it keeps what the fleet has agreed on, empty if it keeps nothing. Whoever removes it while the node does not run gets a
// node that has lost its disk.
func (n *Node) DataDir() string { return n.dataDir }

// Started is when the latest process was started.
func (n *Node) Started() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.began
}

// Kill ends the process with SIGKILL and returns when it is gone. One that does not run is fine.
func (n *Node) Kill() error {
	p := n.process()
	if p == nil {
		return nil
	}
	if err := p.kill(); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// Terminate drains the node with SIGTERM and returns when it has exited, or ctx ends: it is killed then. The error also says if it
// exited with another code than 0. One that does not run is fine.
func (n *Node) Terminate(ctx context.Context) error {
	p := n.process()
	if p == nil {
		return nil
	}
	if err := p.terminate(ctx); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// Signal sends the process a signal: SIGSTOP and SIGCONT for instance.
func (n *Node) Signal(sig os.Signal) error {
	p := n.process()
	if p == nil {
		return fmt.Errorf("%s: %w", n.name, errNotRunning)
	}
	return p.signal(sig)
}

// Usage returns what the running process has used since it started.
func (n *Node) Usage() (Usage, error) {
	p := n.process()
	if p == nil || !p.running() {
		return Usage{}, fmt.Errorf("%s: %w", n.name, errNotRunning)
	}
	u, err := usageOf(p.pid())
	if err != nil {
		return u, fmt.Errorf("%s: %w", n.name, err)
	}
	return u, nil
}

// Ready says whether the node asks for traffic now.
func (n *Node) Ready(ctx context.Context) bool { return n.ready(ctx) == nil }

// WaitReady returns when the node asks for traffic. If it ends before, or ctx does, the error tells what it last said.
func (n *Node) WaitReady(ctx context.Context) error {
	var last, died error
	err := poll(ctx, 10*time.Millisecond, func() bool {
		if p := n.process(); p == nil || !p.running() {
			if died = errNotRunning; p != nil && p.died() != nil {
				died = p.died()
			}
			return true
		}
		last = n.ready(ctx)
		return last == nil
	})
	if err = errors.Join(err, died); err != nil {
		return fmt.Errorf("%s is not ready: %w\n%s", n.name, errors.Join(err, last), n.Log())
	}
	return nil
}

// died returns an error if the process ended although nobody here ended it.
func (n *Node) died() error {
	p := n.process()
	if p == nil {
		return nil
	}
	if err := p.died(); err != nil {
		return fmt.Errorf("%s: %w\n%s", n.name, err, n.Log())
	}
	return nil
}

// shownLog is how much of a node's log an error shows.
const shownLog = 8 << 10

// Log returns the end of what the node has logged, over all its processes.
func (n *Node) Log() string { return tail(n.log, shownLog) }

func (n *Node) files(dir string) {
	base := filepath.Join(dir, n.name)
	n.config, n.key, n.log, n.control = base+".yaml", base+".key", base+".log", control{base + ".control"}
}

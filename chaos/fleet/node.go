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

// Node is one router process that can be started, ended in several ways, and started again with the
// same name, addresses and files. Safe for concurrent use.
type Node struct {
	name                string
	data, admin, gossip string
	config, key, log    string // file paths
	dataDir             string // empty: no persistent data
	env                 []string
	control             control
	cert                *certificate // nil: derived from the key
	thread              *thread
	http                *http.Client
	token               string // of the admin API; may be empty

	mu     sync.Mutex // guards the fields below and the files of control and cert
	binary string
	proc   *process // the latest; nil before the first start
	began  time.Time
}

// Usage is what a process has used since it started.
type Usage struct {
	CPU time.Duration // user and system time of all threads, in steps of 10 ms
	RSS int64         // resident bytes now
}

var errNotRunning = errors.New("not running")

// Name is the node's name, as in x-grapevine-node.
func (n *Node) Name() string { return n.name }

// Addr is the host:port for traffic.
func (n *Node) Addr() string { return n.data }

// AdminAddr is the host:port of its admin API.
func (n *Node) AdminAddr() string { return n.admin }

// GossipAddr is the host:port for other nodes.
func (n *Node) GossipAddr() string { return n.gossip }

func (n *Node) writeConfig(settings map[string]any) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return os.WriteFile(n.config, text, 0o600)
}

// Start starts the process and returns at once; see WaitReady. It fails if the process runs.
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

// InNetwork runs f, which should be short, on the thread that starts the node's processes. In a
// switched fleet, sockets and processes that f itself opens, not in another goroutine, are in the
// node's network.
func (n *Node) InNetwork(f func() error) error { return n.thread.do(f) }

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

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

// DataDir is the directory of the node's raft data, or empty. Removing it while the node is down
// emulates a lost disk.
func (n *Node) DataDir() string { return n.dataDir }

// Started is when the latest process was started.
func (n *Node) Started() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.began
}

// Kill ends the process with SIGKILL and returns when it has ended. It is no error if none runs.
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

// Terminate drains the node with SIGTERM and returns when it has exited; if ctx ends first, it
// kills it. A nonzero exit code is an error. It is no error if none runs.
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

// Signal sends the process a signal such as SIGSTOP.
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

// Ready reports whether the node is ready for traffic.
func (n *Node) Ready(ctx context.Context) bool { return n.ready(ctx) == nil }

// WaitReady returns when the node is ready. If the process or ctx ends first, the error includes
// the last answer.
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

// shownLog bounds the log in an error, in bytes.
const shownLog = 8 << 10

// Log returns the end of the node's log, over all its processes.
func (n *Node) Log() string { return tail(n.log, shownLog) }

func (n *Node) files(dir string) {
	base := filepath.Join(dir, n.name)
	n.config, n.key, n.log, n.control = base+".yaml", base+".key", base+".log", control{base + ".control"}
}

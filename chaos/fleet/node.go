package fleet

import (
	"cmp"
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

	"grapevine.example/node/admin"
)

// Node is a router process that can be ended and started again with the same name, addresses and
// files. Safe for concurrent use.
type Node struct {
	*admin.Client

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
}

var errNotRunning = errors.New("not running")

func (n *Node) Name() string { return n.name }

// Addr is the host:port for traffic.
func (n *Node) Addr() string { return n.data }

func (n *Node) AdminAddr() string { return n.admin }

func (n *Node) GossipAddr() string { return n.gossip }

func (n *Node) writeConfig(settings map[string]any) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return n.named(err)
	}
	return os.WriteFile(n.config, text, 0o600)
}

// Start does not wait for readiness. It fails if the process runs.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc.running() {
		return fmt.Errorf("%s: runs already", n.name)
	}
	if err := n.control.reset(); err != nil {
		return n.named(err)
	}
	env := append(slices.Clone(n.env), controlEnv+"="+n.control.path)
	p, err := startProcess(n.thread, n.log, n.binary, []string{"serve", "--config", n.config}, env)
	if err == nil {
		n.proc = p
	}
	return n.named(err)
}

func (n *Node) named(err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", n.name, err)
	}
	return err
}

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

func (n *Node) Running() bool { return n.process().running() }

// PID is that of the latest process, 0 before the first.
func (n *Node) PID() int { return n.process().pid() }

// Kill ends the process with SIGKILL and waits; no error if none runs.
func (n *Node) Kill() error { return n.named(n.process().kill()) }

// Terminate drains the node with SIGTERM and waits; if ctx ends first, it kills it. A nonzero exit
// code is an error.
func (n *Node) Terminate(ctx context.Context) error { return n.named(n.process().terminate(ctx)) }

func (n *Node) signal(sig os.Signal) error { return n.named(n.process().signal(sig)) }

// WaitReady fails with the node's last answer and its log.
func (n *Node) WaitReady(ctx context.Context) error {
	var last, died error
	err := poll(ctx, 10*time.Millisecond, func() bool {
		if p := n.process(); !p.running() {
			died = cmp.Or(p.died(), errNotRunning)
			return true
		}
		last = n.Ready(ctx)
		return last == nil
	})
	if err = errors.Join(err, died); err != nil {
		return fmt.Errorf("%s is not ready: %w\n%s", n.name, errors.Join(err, last), n.Log())
	}
	return nil
}

func (n *Node) died() error {
	if err := n.process().died(); err != nil {
		return fmt.Errorf("%s: %w\n%s", n.name, err, n.Log())
	}
	return nil
}

// shownLog is in bytes.
const shownLog = 8 << 10

// Log returns the end of the node's log, over all its processes.
func (n *Node) Log() string { return tail(n.log, shownLog) }

func (n *Node) files(dir string) {
	base := filepath.Join(dir, n.name)
	n.config, n.key, n.log, n.control = base+".yaml", base+".key", base+".log", control{base + ".control"}
}

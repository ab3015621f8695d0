// Package fleet is a fleet of routers as a value: real processes of the grapevine binary, emulated engines behind them and a layer-4
// balancer in front, started together, broken by name, and gone without a trace when it is closed or when whoever made it dies.
//
// The nodes have addresses of their own, on loopback or (see Isolate) each in a network namespace, where the links between them can be
// cut. It breaks nothing by itself and judges nothing: that is for whoever uses it.
package fleet

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/engine"
	"grapevine/node"
)

// Config says what a fleet consists of. Binary and Nodes have no default.
type Config struct {
	Binary  string   // the program grapevine, see FindRouter
	Env     []string // more of the environment of its processes: NAME=VALUE
	Nodes   int      // node-0, node-1, ...
	Engines int      // engine-0, ...; all in this process
	Engine  engine.ServerConfig

	// Alone leaves gossip out: every node knows only what it sees itself.
	Alone bool
	// Guests are gossip addresses kept for members that this process runs itself; see Guest.
	Guests int
	// Founders is how many nodes, the first ones, found the fleet's agreement together and vote, 3 or 5. Default 3, and none in a smaller
	// fleet: every node goes by its own list then. Spares is how many others, the last ones, have a data directory, too: they may vote
	// when a voter is lost.
	Founders, Spares int
	// Later is how many nodes, the last ones, are left to be started by whoever wants them.
	Later int
	// Settings are more settings of every node, by their keys in the configuration file; they replace what is there.
	Settings map[string]any

	// Switched gives every node, every engine, the balancer and the clients a network namespace of their own, joined by a switch
	// whose links can be broken one by one and in one direction; see SetLink. Only in a process started by Isolate.
	Switched bool
	// HAProxy has HAProxy in TCP mode in front, set up as in deploy/example, in place of the balancer of this package.
	HAProxy bool
	// Certificates gives each node a certificate of one authority to show to other nodes, in place of one derived from their key.
	Certificates bool

	// NoBalancer leaves out the balancer.
	NoBalancer bool
	Balancer   BalancerConfig // its Log and, if zero, its Seed are those of the fleet
	Seed       uint64

	Dir string // for configurations, keys and logs, kept; default: a temporary directory, removed by Close
	Log zerolog.Logger
}

// Fleet is a running fleet. Safe for concurrent use.
type Fleet struct {
	cfg     Config
	dir     string
	secret  string // of the prompt hashes
	key     []byte // of gossip
	token   string // of the admin APIs; empty on loopback, where they trust their machine
	temp    bool
	janitor *janitor // of a temporary directory
	addrs   addresses
	wires   wires // nil unless switched
	threads []*thread

	authority *authority // nil: nodes derive their certificates
	nodes     []*Node
	engines   []*Engine
	balancer  *Balancer // nil without, and with HAProxy
	haproxy   *haproxy
	http      *http.Client

	once     sync.Once
	closeErr error
}

// Start starts engines and nodes, waits until all nodes ask for traffic, and starts the balancer. ctx bounds the start only. After an
// error everything is down again, and the error shows what the nodes logged.
func Start(ctx context.Context, cfg Config) (*Fleet, error) {
	f := &Fleet{cfg: cfg, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second}}}
	if err := f.start(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context) error {
	if f.cfg.Nodes < 1 || f.cfg.Engines < 0 {
		return fmt.Errorf("fleet: %d nodes and %d engines, want one node or more", f.cfg.Nodes, f.cfg.Engines)
	}
	if f.cfg.Founders == 0 && f.cfg.Nodes >= defaultFounders {
		f.cfg.Founders = defaultFounders
	}
	if c := &f.cfg; c.Founders+c.Spares > c.Nodes || c.Later > c.Nodes || min(c.Founders, c.Spares, c.Later) < 0 {
		return fmt.Errorf("fleet: %d founders and %d spares, %d nodes later, of %d", c.Founders, c.Spares, c.Later, c.Nodes)
	}
	if err := f.makeDir(); err != nil {
		return err
	}
	if err := f.makeAddresses(); err != nil {
		return err
	}
	if err := f.startEngines(); err != nil {
		return err
	}
	if err := f.makeNodes(); err != nil {
		return err
	}
	now := f.nodes[:len(f.nodes)-f.cfg.Later]
	for _, n := range now {
		if err := n.Start(); err != nil {
			return err
		}
	}
	for _, n := range now {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
	}
	if err := f.WaitMesh(ctx); err != nil {
		return err
	}
	if f.cfg.NoBalancer {
		return nil
	}
	return f.startBalancer(ctx)
}

func (f *Fleet) makeDir() (err error) {
	if f.dir = f.cfg.Dir; f.dir != "" {
		return os.MkdirAll(f.dir, 0o700)
	}
	f.temp = true
	if f.dir, err = os.MkdirTemp("", "grapevine-fleet-"); err == nil {
		f.janitor, err = newJanitor(f.dir)
	}
	return err
}

func nodeName(i int) string   { return fmt.Sprintf("node-%d", i) }
func engineName(i int) string { return fmt.Sprintf("engine-%d", i) }

func (f *Fleet) makeAddresses() error {
	members := f.cfg.Nodes + f.cfg.Engines + 1 + f.cfg.Guests
	switch {
	case f.cfg.Switched && f.cfg.Guests > 0:
		return errors.New("fleet: this process has no place in a switched fleet for guests")
	case f.cfg.Switched:
		var names []string
		for i := range f.cfg.Nodes {
			names = append(names, nodeName(i))
		}
		for i := range f.cfg.Engines {
			names = append(names, engineName(i))
		}
		w, err := newWires(f.cfg.Seed, append(names, BalancerName, ClientsName))
		if err != nil {
			return err
		}
		f.wires, f.addrs = w, w
		return nil
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	l, err := lease(members)
	if err != nil {
		return err
	}
	f.addrs = l
	return nil
}

func (f *Fleet) startEngines() error {
	for i := range f.cfg.Engines {
		cfg := f.cfg.Engine
		cfg.Log = f.cfg.Log
		name := engineName(i)
		e := newEngine(name, f.addrs.of(f.cfg.Nodes+i, dataPort), f.at(name), cfg)
		if err := e.Start(); err != nil {
			return err
		}
		f.engines = append(f.engines, e)
	}
	return nil
}

// makeNodes writes everybody's files: equal ones but for names and addresses, as an operator would.
func (f *Fleet) makeNodes() error {
	common := map[string]any{"backends": f.backends(), "log_format": "json"}
	if !f.cfg.Alone {
		var random [32]byte
		_, _ = rand.Read(random[:]) // never fails
		f.secret = hex.EncodeToString(random[:])
		f.key = make([]byte, 32)
		_, _ = rand.Read(f.key)
		path := filepath.Join(f.dir, "secret")
		if err := os.WriteFile(path, []byte(f.secret+"\n"), 0o600); err != nil {
			return err
		}
		common["secret_file"], common["join"] = path, f.GossipAddrs()
		if f.cfg.Certificates {
			a, err := newAuthority(f.dir)
			if err != nil {
				return err
			}
			f.authority = a
		}
	}
	if f.wires != nil { // nodes take the harness for another machine then
		f.token = rand.Text()
		path := filepath.Join(f.dir, "admin-token")
		if err := os.WriteFile(path, []byte(f.token+"\n"), 0o600); err != nil {
			return err
		}
		common["admin_token_file"] = path
	}
	maps.Copy(common, f.cfg.Settings)
	for i := range f.cfg.Nodes {
		n, err := f.makeNode(i, common)
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, n)
	}
	return nil
}

// defaultFounders is the smallest group that outlives the loss of a node.
const defaultFounders = 3

func (f *Fleet) makeNode(i int, common map[string]any) (*Node, error) {
	n := &Node{
		name: nodeName(i), data: f.addrs.of(i, dataPort), admin: f.addrs.of(i, adminPort), gossip: f.addrs.of(i, gossipPort),
		binary: f.cfg.Binary, env: f.cfg.Env, http: f.http, token: f.token,
	}
	n.files(f.dir)
	var err error
	switch {
	case f.wires != nil:
		n.thread = f.wires.thread(n.name)
	case i > 0:
		n.thread = f.threads[0] // one thread forks them all
	default:
		n.thread, err = newThread(nil)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(f.threads, n.thread) {
		f.threads = append(f.threads, n.thread)
	}
	settings := map[string]any{"listen": n.data, "admin": n.admin, "node_name": n.name}
	if !f.cfg.Alone {
		// A file for each: a node rewrites its own when keys are rotated.
		settings["gossip"], settings["gossip_key_file"] = n.gossip, n.key
		if f.authority != nil {
			cert, files, err := f.authority.issue(f.dir, n.name, n.gossip)
			if err != nil {
				return nil, err
			}
			n.cert = cert
			maps.Copy(settings, files)
		}
		if i < f.cfg.Founders || i >= f.cfg.Nodes-f.cfg.Spares {
			n.dataDir = filepath.Join(f.dir, n.name+".data")
			settings["data_dir"] = n.dataDir
		}
		if i < f.cfg.Founders {
			settings["bootstrap_expect"], settings["voters"] = f.cfg.Founders, f.cfg.Founders
		} else if f.cfg.Founders > 0 {
			settings["voters"] = f.cfg.Founders
		}
		if err := os.WriteFile(n.key, []byte(base64.StdEncoding.EncodeToString(f.key)+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	maps.Copy(settings, common)
	return n, n.writeConfig(settings)
}

func (f *Fleet) backends() []map[string]any {
	out := []map[string]any{}
	for _, e := range f.engines {
		b := map[string]any{"url": e.URL(), "name": e.Name()}
		if len(e.cfg.Models) > 0 {
			b["models"] = e.cfg.Models
		}
		out = append(out, b)
	}
	return out
}

func (f *Fleet) startBalancer(ctx context.Context) (err error) {
	targets := make([]Target, len(f.nodes))
	for i, n := range f.nodes {
		targets[i] = Target{n.Name(), n.Addr()}
	}
	cfg := f.cfg.Balancer
	cfg.Log = f.cfg.Log
	if cfg.Seed == 0 {
		cfg.Seed = f.cfg.Seed
	}
	addr := f.addrs.of(f.cfg.Nodes+f.cfg.Engines, dataPort)
	if f.cfg.HAProxy {
		t := f.threads[0]
		if f.wires != nil {
			t = f.wires.thread(BalancerName)
		}
		f.haproxy, err = startHAProxy(ctx, t, f.dir, addr, targets)
		return err
	}
	f.balancer, err = newBalancer(f.at(BalancerName), addr, targets, cfg)
	return err
}

// Nodes returns all nodes, running or not. The caller may keep the slice.
func (f *Fleet) Nodes() []*Node { return slices.Clone(f.nodes) }

// Node returns a node by name, nil if there is none.
func (f *Fleet) Node(name string) *Node {
	for _, n := range f.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Engines returns all engines, running or not. The caller may keep the slice.
func (f *Fleet) Engines() []*Engine { return slices.Clone(f.engines) }

// EngineNames are the names of all engines, as nodes give them in x-grapevine-backend.
func (f *Fleet) EngineNames() []string {
	out := make([]string, len(f.engines))
	for i, e := range f.engines {
		out[i] = e.Name()
	}
	return out
}

// Balancer returns the balancer of this package, nil without one.
func (f *Fleet) Balancer() *Balancer { return f.balancer }

// URL is the base URL that clients use: that of the balancer, whichever it is.
func (f *Fleet) URL() string {
	if f.haproxy != nil {
		return "http://" + f.haproxy.addr
	}
	return "http://" + f.balancer.Addr()
}

// Targets returns what the balancer, whichever it is, did with each node.
func (f *Fleet) Targets(ctx context.Context) ([]TargetStats, error) {
	if f.haproxy != nil {
		return f.haproxy.stats(ctx)
	}
	return f.balancer.Stats(), nil
}

// WaitHealthy returns when the balancer, whichever it is, takes the node for healthy, or for not, as asked, or when ctx ends.
func (f *Fleet) WaitHealthy(ctx context.Context, node string, healthy bool) error {
	if f.haproxy != nil {
		return f.haproxy.waitHealthy(ctx, node, healthy)
	}
	return f.balancer.WaitHealthy(ctx, node, healthy)
}

// Dir is where configurations, keys and logs are until Close.
func (f *Fleet) Dir() string { return f.dir }

// Secret is the nodes' common secret of the prompt hashes, Key their gossip key at the start; both empty if they are alone.
func (f *Fleet) Secret() string { return f.secret }

// Key is the gossip key that the fleet was started with. The caller must not change it.
func (f *Fleet) Key() []byte { return f.key }

// GossipAddrs are the addresses at which all nodes look for each other.
func (f *Fleet) GossipAddrs() []string {
	out := make([]string, f.cfg.Nodes)
	for i := range out {
		out[i] = f.addrs.of(i, gossipPort)
	}
	return out
}

// Guest is the i-th of the gossip addresses that Config.Guests keeps for members in this process.
func (f *Fleet) Guest(i int) string { return f.addrs.of(f.cfg.Nodes+f.cfg.Engines+1+i, gossipPort) }

// Check returns an error if a node, or HAProxy, ended although nobody here ended it.
func (f *Fleet) Check() error {
	var errs []error
	for _, n := range f.nodes {
		errs = append(errs, n.died())
	}
	if f.haproxy != nil {
		errs = append(errs, f.haproxy.died())
	}
	return errors.Join(errs...)
}

// WaitMesh returns when every running node hears every other running node's news, which is some time after they have found each other;
// at once if they are alone.
func (f *Fleet) WaitMesh(ctx context.Context) error {
	if f.cfg.Alone {
		return nil
	}
	var missing error
	err := poll(ctx, 20*time.Millisecond, func() bool {
		for _, n := range f.nodes {
			if missing = f.hearsAll(ctx, n); missing != nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("the nodes have not all found each other: %w (%w)\n%s", err, missing, f.nodes[0].Log())
	}
	return nil
}

// hearsAll says what a running node does not hear yet.
func (f *Fleet) hearsAll(ctx context.Context, n *Node) error {
	if !n.Running() {
		return nil
	}
	list, err := n.Fleet(ctx)
	if err != nil {
		return err
	}
	for _, other := range f.nodes {
		if other == n || !other.Running() {
			continue
		}
		heard := slices.ContainsFunc(list.Nodes, func(p node.NodeStatus) bool {
			return p.Name == other.name && p.State == "alive" && p.Connected
		})
		if !heard {
			return fmt.Errorf("%s does not hear %s", n.name, other.name)
		}
	}
	return nil
}

// Partition cuts the network between the two groups of nodes, named, in both directions: what is sent is lost without a word. Engines,
// balancer and admin APIs stay reachable from both. It adds to what is cut already, and takes the place of what SetLink said of these
// links. Only switched fleets can.
func (f *Fleet) Partition(a, b []string) (err error) {
	if f.wires == nil {
		return errNotSwitched
	}
	for _, x := range a {
		for _, y := range b {
			err = errors.Join(err, f.wires.setLink(x, y, Link{Loss: 1}), f.wires.setLink(y, x, Link{Loss: 1}))
		}
	}
	return err
}

// Close ends everything: processes with SIGKILL, by their ids, then the rest. It returns when nothing is left. The error says what did
// not go as it should, among others that a node had died before. Idempotent.
func (f *Fleet) Close() error {
	f.once.Do(func() { f.closeErr = f.close() })
	return f.closeErr
}

func (f *Fleet) close() error {
	errs := []error{f.Check()}
	if f.balancer != nil {
		errs = append(errs, f.balancer.Close())
	}
	if f.haproxy != nil {
		errs = append(errs, f.haproxy.Close())
	}
	for _, n := range f.nodes {
		errs = append(errs, n.Kill())
	}
	for _, e := range f.engines {
		errs = append(errs, e.Stop())
	}
	f.http.CloseIdleConnections()
	if f.addrs != nil {
		errs = append(errs, f.addrs.Close())
	}
	for _, t := range f.threads {
		t.close()
	}
	if f.temp {
		errs = append(errs, os.RemoveAll(f.dir))
	}
	if f.janitor != nil {
		errs = append(errs, f.janitor.Close())
	}
	return errors.Join(errs...)
}

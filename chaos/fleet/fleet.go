// Package fleet starts a fleet on one machine: router processes, emulated engines and a layer-4
// balancer, on loopback or in network namespaces. Callers break members by name. Close, or the
// death of the calling process, removes everything.
package fleet

import (
	"cmp"
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

	"grapevine.example/chaos/engine"
	"grapevine.example/node/admin"
)

type Config struct {
	Binary  string   // the program grapevine, see FindRouter
	Env     []string // extra environment of its processes: NAME=VALUE
	Nodes   int
	Engines int // engine-0, ...; all in this process
	Engine  engine.ServerConfig
	// CacheEvents makes engines publish cache events, on addresses of their own.
	CacheEvents bool

	// Alone turns gossip off.
	Alone bool
	// Guests is the number of gossip addresses reserved for members in this process.
	Guests int
	// Founders is how many first nodes found the raft group: 3 or 5; default 3, none in a smaller
	// fleet. Spares is how many last nodes also have a data directory and may replace a voter.
	Founders, Spares int
	// Later is how many last nodes Start leaves to the caller.
	Later int
	// Settings override every node's, by key of the configuration file.
	Settings map[string]any

	// Switched gives all members network namespaces with links that SetLink breaks. Needs a process
	// started by Isolate.
	Switched bool
	// HAProxy replaces this package's balancer by HAProxy, configured as in deploy/example.
	HAProxy bool
	// Guarded makes the admin APIs ask for a token, which they also do if Switched.
	Guarded bool
	// Certificates come from one authority instead of being derived.
	Certificates bool

	NoBalancer bool
	Balancer   BalancerConfig // its Log and, if zero, its Seed come from the fleet
	Seed       uint64

	Dir string // for configurations, keys and logs, kept; default: a temporary directory, removed by Close
	Log zerolog.Logger
}

// Fleet is safe for concurrent use.
type Fleet struct {
	cfg    Config
	dir    string
	secret string // of the prompt hashes
	key    []byte // of gossip
	token  string // of the admin APIs; empty on loopback, which they trust
	net    network
	ends   []func() error // undo the steps of start, in their order

	authority *authority // nil: nodes derive their certificates
	nodes     []*Node
	engines   []*Engine
	front     front // nil without
	http      *http.Client

	once     sync.Once
	closeErr error
}

// Start starts all and waits until the nodes are ready; ctx bounds the start only. An error
// includes the nodes' logs and leaves nothing running.
func Start(ctx context.Context, cfg Config) (*Fleet, error) {
	f := &Fleet{cfg: cfg, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
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
	for _, step := range []func(context.Context) error{f.makeDir, f.makeAddresses, f.startEngines, f.makeNodes, f.startNodes, f.WaitMesh, f.startBalancer} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) startNodes(ctx context.Context) error {
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
	return nil
}

func (f *Fleet) makeDir(context.Context) (err error) {
	if f.dir = f.cfg.Dir; f.dir != "" {
		return os.MkdirAll(f.dir, 0o700)
	}
	if f.dir, err = os.MkdirTemp("", "grapevine-fleet-"); err != nil {
		return err
	}
	j, err := newJanitor(f.dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(f.dir))
	}
	f.ends = append(f.ends, j.Close, func() error { return os.RemoveAll(f.dir) })
	return nil
}

func (f *Fleet) write(name, line string) (string, error) {
	path := filepath.Join(f.dir, name)
	return path, os.WriteFile(path, []byte(line+"\n"), 0o600)
}

// Names are what-0, what-1 and so on: a fleet's nodes are called node, its engines engine.
func Names(what string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", what, i))
	}
	return out
}

func (f *Fleet) makeAddresses(context.Context) (err error) {
	if f.cfg.Switched {
		if f.cfg.Guests > 0 {
			return errors.New("fleet: this process has no place in a switched fleet for guests")
		}
		members := slices.Concat(Names("node", f.cfg.Nodes), Names("engine", f.cfg.Engines), []string{BalancerName, ClientsName})
		f.net, err = newSwitched(f.cfg.Seed, members)
	} else if err = raiseLoopback(); err == nil {
		f.net, err = lease(f.cfg.Nodes + f.cfg.Engines + 1 + f.cfg.Guests)
	}
	if err == nil {
		f.ends = append(f.ends, f.net.Close)
	}
	return err
}

func (f *Fleet) startEngines(context.Context) error {
	for i, name := range Names("engine", f.cfg.Engines) {
		cfg := f.cfg.Engine
		cfg.Log = f.cfg.Log
		if f.cfg.CacheEvents {
			cfg.Events, cfg.EventsReplay = f.net.of(f.cfg.Nodes+i, adminPort), f.net.of(f.cfg.Nodes+i, gossipPort)
		}
		e := newEngine(name, f.net.of(f.cfg.Nodes+i, dataPort), f.net.at(name), cfg)
		if err := e.Start(); err != nil {
			return err
		}
		f.engines = append(f.engines, e)
		f.ends = append(f.ends, e.Stop)
	}
	return nil
}

func (f *Fleet) makeNodes(context.Context) (err error) {
	common := map[string]any{"backends": f.backends(), "log_format": "json"}
	if !f.cfg.Alone {
		var random [64]byte
		_, _ = rand.Read(random[:])
		f.secret, f.key = hex.EncodeToString(random[:32]), random[32:]
		common["join"] = f.GossipAddrs()
		if common["secret_file"], err = f.write("secret", f.secret); err != nil {
			return err
		}
		if f.cfg.Certificates {
			if f.authority, err = newAuthority(f.dir); err != nil {
				return err
			}
		}
	}
	if f.cfg.Switched || f.cfg.Guarded { // else loopback is trusted
		f.token = rand.Text()
		if common["admin_token_file"], err = f.write("admin-token", f.token); err != nil {
			return err
		}
	}
	maps.Copy(common, f.cfg.Settings)
	for i, name := range Names("node", f.cfg.Nodes) {
		n, err := f.makeNode(i, name, common)
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, n)
		f.ends = append(f.ends, n.Kill)
	}
	return nil
}

const defaultFounders = 3

func (f *Fleet) makeNode(i int, name string, common map[string]any) (*Node, error) {
	n := &Node{
		name: name, data: f.net.of(i, dataPort), admin: f.net.of(i, adminPort), gossip: f.net.of(i, gossipPort),
		binary: f.cfg.Binary, env: f.cfg.Env, http: f.http, token: f.token, thread: f.net.thread(name),
	}
	n.Client = admin.NewClient(n.admin).WithToken(f.token, "")
	n.files(f.dir)
	settings := map[string]any{"listen": n.data, "admin": n.admin, "node_name": n.name, "response_headers": "all"}
	if !f.cfg.Alone {
		// A node rewrites its file when keys rotate.
		settings["gossip"], settings["gossip_key_file"] = n.gossip, n.key
		if f.authority != nil {
			var files map[string]any
			var err error
			if n.cert, files, err = f.authority.issue(f.dir, n.name, n.gossip); err != nil {
				return nil, err
			}
			maps.Copy(settings, files)
		}
		if i < f.cfg.Founders || i >= f.cfg.Nodes-f.cfg.Spares {
			n.dataDir = filepath.Join(f.dir, n.name+".data")
			settings["data_dir"] = n.dataDir
		}
		if f.cfg.Founders > 0 {
			settings["voters"] = f.cfg.Founders
		}
		if i < f.cfg.Founders {
			settings["founders"] = f.GossipAddrs()[:f.cfg.Founders]
		}
		if _, err := f.write(filepath.Base(n.key), base64.StdEncoding.EncodeToString(f.key)); err != nil {
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
	if f.cfg.NoBalancer {
		return nil
	}
	targets := make([]Target, len(f.nodes))
	for i, n := range f.nodes {
		targets[i] = Target{n.Name(), n.Addr()}
	}
	addr := f.net.of(f.cfg.Nodes+f.cfg.Engines, dataPort)
	if f.cfg.HAProxy {
		f.front, err = startHAProxy(ctx, f.net.thread(BalancerName), f.dir, addr, targets)
	} else {
		cfg := f.cfg.Balancer
		cfg.Log, cfg.Seed = f.cfg.Log, cmp.Or(cfg.Seed, f.cfg.Seed)
		var b *Balancer
		if b, err = newBalancer(f.net.at(BalancerName), addr, targets, cfg); err == nil {
			f.front = b
		}
	}
	if err == nil {
		f.ends = append(f.ends, f.front.Close)
	}
	return err
}

// Nodes returns all nodes, running or not.
func (f *Fleet) Nodes() []*Node { return slices.Clone(f.nodes) }

// Running returns the nodes whose process runs.
func (f *Fleet) Running() []*Node {
	return slices.DeleteFunc(f.Nodes(), func(n *Node) bool { return !n.Running() })
}

// Node returns a node by name, or nil.
func (f *Fleet) Node(name string) *Node { return named(f.nodes, name) }

// Engine returns an engine by name, or nil.
func (f *Fleet) Engine(name string) *Engine { return named(f.engines, name) }

func named[T interface{ Name() string }](list []T, name string) (none T) {
	for _, x := range list {
		if x.Name() == name {
			return x
		}
	}
	return none
}

// Engines returns all engines, running or not.
func (f *Fleet) Engines() []*Engine { return slices.Clone(f.engines) }

// EngineNames are as in x-grapevine-backend.
func (f *Fleet) EngineNames() []string { return Names("engine", len(f.engines)) }

// Token is that of the admin APIs; empty if they trust loopback.
func (f *Fleet) Token() string { return f.token }

// URL is the balancer's base URL.
func (f *Fleet) URL() string { return "http://" + f.front.Addr() }

type front interface {
	Addr() string
	Close() error
	healthy(ctx context.Context, name string) (bool, error)
	died() error
}

// WaitHealthy waits until the balancer takes the node for healthy, or not.
func (f *Fleet) WaitHealthy(ctx context.Context, node string, healthy bool) error {
	return waitHealthy(ctx, f.front, node, healthy)
}

func waitHealthy(ctx context.Context, b front, name string, healthy bool) error {
	var last error
	err := poll(ctx, 5*time.Millisecond, func() bool {
		var is bool
		if is, last = b.healthy(ctx, name); last == nil && is == healthy {
			return true
		}
		died := b.died()
		last = cmp.Or(died, last)
		return died != nil
	})
	if err = errors.Join(err, last); err != nil {
		return fmt.Errorf("the balancer does not take %s for healthy=%v: %w", name, healthy, err)
	}
	return nil
}

func (f *Fleet) GossipAddrs() []string {
	out := make([]string, f.cfg.Nodes)
	for i := range out {
		out[i] = f.net.of(i, gossipPort)
	}
	return out
}

// Check returns an error if a node or HAProxy ended by itself.
func (f *Fleet) Check() error {
	var errs []error
	for _, n := range f.nodes {
		errs = append(errs, n.died())
	}
	if f.front != nil {
		errs = append(errs, f.front.died())
	}
	return errors.Join(errs...)
}

// WaitMesh waits until every running node receives the gossip of every other.
func (f *Fleet) WaitMesh(ctx context.Context) error {
	if f.cfg.Alone {
		return nil
	}
	var missing error
	err := poll(ctx, 20*time.Millisecond, func() bool {
		for _, n := range f.Running() {
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

func (f *Fleet) hearsAll(ctx context.Context, n *Node) error {
	list, err := n.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, other := range f.Running() {
		heard := slices.ContainsFunc(list.Nodes, func(p admin.NodeStatus) bool {
			return p.Name == other.name && p.State == "alive" && p.Connected
		})
		if other != n && !heard {
			return fmt.Errorf("%s does not hear %s", n.name, other.name)
		}
	}
	return nil
}

// Partition drops all packets between two groups of members. Needs Config.Switched.
func (f *Fleet) Partition(a, b []string) (err error) {
	for _, x := range a {
		for _, y := range b {
			err = errors.Join(err, f.SetLink(x, y, Link{Loss: 1}), f.SetLink(y, x, Link{Loss: 1}))
		}
	}
	return err
}

// Close kills and removes everything. The error includes nodes that died before. Idempotent.
func (f *Fleet) Close() error {
	f.once.Do(func() { f.closeErr = f.close() })
	return f.closeErr
}

func (f *Fleet) close() error {
	errs := []error{f.Check()}
	for _, end := range slices.Backward(f.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

package raftstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/chaos/bubble"
)

// patience is long because a slow machine is no failure.
const patience = 60 * time.Second

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	if role := os.Getenv(childVariable); role != "" {
		childMain(role)
		return
	}
	flag.Parse()
	// Tests wait for timers and disks more than for processors.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := m.Run()
	if code == 0 {
		var err error
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err = goleak.Find(); err == nil {
				break
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var lastHost atomic.Uint32

// host returns a loopback address of this process alone, so a killed node's port stays free.
func host() string {
	pid, n := os.Getpid(), lastHost.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+(pid>>8)&63+int(n>>8)&63, pid&255, 1+n%250)
}

var errKilled = errors.New("the process was killed")

// node is a store that can be killed and restarted.
type node struct {
	fleet *fleet
	index int
	name  string
	dir   string
	at    atomic.Pointer[string]
	// edit runs before each start.
	edit func(*Config)

	store atomic.Pointer[Store] // nil while the node is down
	id    atomic.Pointer[string]
	left  atomic.Bool
	hang  atomic.Pointer[chan struct{}] // writes block until it is closed
	fail  atomic.Pointer[error]         // writes fail with it
}

func (n *node) addr() string { return *n.at.Load() }

type fleet struct {
	t        testing.TB
	founders []string
	nodes    []*node

	wire *wire // nil: loopback

	mu   sync.Mutex
	cuts map[[2]string]bool
}

// quickTimers are long where a slow machine could look broken.
func quickTimers() Timers {
	return Timers{
		// With a short lease, a starved machine deposes every leader.
		Heartbeat: 700 * time.Millisecond, Lease: 700 * time.Millisecond, Commit: 10 * time.Millisecond,
		Poll: 30 * time.Millisecond, Stable: 100 * time.Millisecond, Settle: 100 * time.Millisecond, Call: patience,
		Write: 20 * time.Second, Reopen: 100 * time.Millisecond,
		SnapshotEvery: 200 * time.Millisecond, SnapshotAfter: 64, KeepLog: 32,
	}
}

// virtually runs a test in virtual time; disk writes are real.
func virtually(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	bubble.Test(t, test)
}

// newFleet starts no node; its network is in memory.
func newFleet(t testing.TB, size int, edit func(*Config)) *fleet {
	return makeFleet(t, newWire(memoryDir(t)), size, edit)
}

func newRealFleet(t testing.TB, size int, edit func(*Config)) *fleet {
	return makeFleet(t, nil, size, edit)
}

func makeFleet(t testing.TB, wire *wire, size int, edit func(*Config)) *fleet {
	f := &fleet{t: t, cuts: make(map[[2]string]bool), wire: wire}
	for i := range size {
		f.founders = append(f.founders, f.add(string(rune('a'+i)), edit).addr())
	}
	t.Cleanup(f.stop)
	return f
}

func (f *fleet) add(name string, edit func(*Config)) *node {
	n := &node{fleet: f, index: len(f.nodes), name: name, edit: edit}
	addr := fmt.Sprintf("127.0.0.%d:7947", len(f.nodes)+1)
	if f.wire != nil {
		n.dir = filepath.Join(f.wire.dir, name)
		if err := os.MkdirAll(n.dir, 0o700); err != nil {
			f.t.Fatal(err)
		}
	} else {
		n.dir = f.t.TempDir()
		ln, err := net.Listen("tcp", host()+":0")
		if err != nil {
			f.t.Fatal(err)
		}
		addr = ln.Addr().String()
		ln.Close()
	}
	n.at.Store(&addr)
	f.mu.Lock()
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	return n
}

func (f *fleet) start() *fleet {
	f.t.Helper()
	for _, n := range f.nodes {
		n.start()
	}
	return f
}

func (f *fleet) stop() {
	f.heal()
	for _, n := range f.all() {
		n.resume()
		n.kill()
	}
}

func (f *fleet) all() []*node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*node(nil), f.nodes...)
}

func (n *node) peers() []Peer {
	var list []Peer
	for _, other := range n.fleet.all() {
		if other == n {
			continue
		}
		p := Peer{Name: other.name, Addr: other.addr(), Server: true, Left: other.left.Load()}
		if id := other.id.Load(); id != nil {
			p.ID = *id
		}
		if s := other.store.Load(); s != nil {
			p.Alive = !p.Left && !n.fleet.severed(n.addr(), other.addr())
		}
		list = append(list, p)
	}
	return list
}

func (f *fleet) severed(a, b string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cuts[[2]string{a, b}]
}

func (f *fleet) isolate(some ...*node) {
	inside := make(map[*node]bool)
	for _, n := range some {
		inside[n] = true
	}
	all := f.all()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range all {
		for _, b := range all {
			if inside[a] != inside[b] {
				f.cuts[[2]string{a.addr(), b.addr()}] = true
			}
		}
	}
}

func (f *fleet) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cuts)
}

func (n *node) config() Config {
	cfg := Config{
		Dir: n.dir, Founders: n.fleet.founders, Server: true, Timers: quickTimers(), Peers: n.peers,
		Constants:   Constants{KeyID: 7, BlockBytes: 1024, Cluster: "test"},
		beforeWrite: n.write, Log: zerolog.Nop(),
	}
	if testing.Verbose() && os.Getenv("GRAPEVINE_LOG") != "" {
		cfg.Log = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: "05.000"}).
			With().Timestamp().Str("node", n.name).Logger()
	}
	if n.edit != nil {
		n.edit(&cfg)
	}
	return cfg
}

func (n *node) write() error {
	if hang := n.hang.Load(); hang != nil {
		<-*hang
	}
	if err := n.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (n *node) pause() {
	hang := make(chan struct{})
	n.hang.Store(&hang)
}

func (n *node) resume() {
	if hang := n.hang.Swap(nil); hang != nil {
		close(*hang)
	}
}

func (n *node) open() (s *Store, err error) {
	cfg := n.config()
	until(n.fleet.t, "port "+n.addr(), func() (ok bool) {
		cfg.Streams, err = n.listen()
		return err == nil
	})
	err = whenFree(n.fleet.t, func() error {
		if cfg.Streams == nil {
			if cfg.Streams, err = n.listen(); err != nil {
				return err
			}
		}
		s, err = Open(cfg)
		cfg.Streams = nil // Open closes them if it fails
		return err
	})
	return s, err
}

func (n *node) listen() (s Streams, err error) {
	if n.fleet.wire != nil {
		s, err = n.fleet.wire.listen(n.addr())
	} else {
		s, err = listenPlain(n.addr())
	}
	if err != nil {
		return nil, err
	}
	return cuttable{s, n}, nil
}

// cuttable drops what isolated nodes send each other.
type cuttable struct {
	Streams
	node *node
}

func (c cuttable) Dial(ctx context.Context, addr string) (net.Conn, error) {
	cut := func() bool { return c.node.fleet.severed(c.node.addr(), addr) }
	if cut() {
		<-ctx.Done() // dropped packets get no answer
		return nil, ctx.Err()
	}
	conn, err := c.Streams.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cut: cut}, nil
}

type cutConn struct {
	net.Conn
	cut  func() bool
	lost atomic.Bool // a loss is for good, as packets are never sent again
}

func (c *cutConn) isLost() bool {
	if c.cut() {
		c.lost.Store(true)
	}
	return c.lost.Load()
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.isLost() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.isLost() {
			return n, err
		}
	}
}

type plain struct{ net.Listener }

func listenPlain(addr string) (Streams, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return plain{l}, nil
}

func (plain) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// whenFree retries while a killed store still uses the data file.
func whenFree(t testing.TB, do func() error) (err error) {
	until(t, "the data file", func() bool {
		err = do()
		return err == nil || !strings.Contains(err.Error(), "in use by another process")
	})
	return err
}

func (n *node) start() *Store {
	n.fleet.t.Helper()
	s, err := n.open()
	if err != nil {
		n.fleet.t.Fatal(err)
	}
	id := s.ID()
	n.id.Store(&id)
	if err := s.Start(context.Background()); err != nil {
		n.fleet.t.Fatal(err)
	}
	n.store.Store(s)
	return s
}

// kill ends the node without a further write or message.
func (n *node) kill() {
	s := n.store.Swap(nil)
	if s == nil {
		return
	}
	s.mu.Lock()
	s.stopping = true
	inst := s.instance
	s.mu.Unlock()
	if inst != nil && inst.disk != nil {
		inst.disk.fail(errKilled)
	}
	s.cancel()
	<-s.stopped
}

func (n *node) halt() {
	if s := n.store.Swap(nil); s != nil {
		s.Stop(context.Background())
	}
}

func (f *fleet) running() []*Store {
	var list []*Store
	for _, n := range f.all() {
		if s := n.store.Load(); s != nil {
			list = append(list, s)
		}
	}
	return list
}

func (f *fleet) leader() *node {
	f.t.Helper()
	var leader *node
	until(f.t, "a leader", func() bool {
		leader = nil
		for _, n := range f.all() {
			if s := n.store.Load(); s != nil && s.isLeader(s.current()) {
				if leader != nil {
					return false
				}
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

func apply(t testing.TB, s *Store, c Command) Result {
	t.Helper()
	r, err := s.Apply(context.Background(), c)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	return r
}

func backend(name string) Backend {
	return Backend{Name: name, URL: "http://" + name + ".test:8000", Models: []string{"m"}, Weight: 1, Source: Admin}
}

func add(names ...string) AddBackends {
	var c AddBackends
	for _, n := range names {
		c.Backends = append(c.Backends, backend(n))
	}
	return c
}

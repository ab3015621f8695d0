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
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// patience is how long a test waits for what has to come. It is long because
// nothing is learned from a slow machine; what does come ends the wait.
const patience = 60 * time.Second

// TestMain makes the package fail if a test leaves a goroutine behind. Tests run
// beside each other, so this is asked once, at the end.
func TestMain(m *testing.M) {
	if role := os.Getenv(childVariable); role != "" {
		childMain(role)
		return
	}
	flag.Parse()
	// They wait for timers and disks much more than for processors.
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

// until polls until a condition holds, and fails the test if it never does.
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

// host gives a loopback address of this process's own, so that a port on it that
// a killed node gives up is still free when the node comes back.
func host() string {
	pid, n := os.Getpid(), lastHost.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+(pid>>8)&63+int(n>>8)&63, pid&255, 1+n%250)
}

// errKilled is what the disk of a killed node gives.
var errKilled = errors.New("the process was killed")

// node is a store that can be killed and started again on the same data and address.
type node struct {
	fleet *fleet
	index int
	name  string
	dir   string
	at    atomic.Pointer[string]
	// edit changes the configuration before each start.
	edit func(*Config)

	store atomic.Pointer[Store] // nil while killed or stopped
	id    atomic.Pointer[string]
	left  atomic.Bool
	hang  atomic.Pointer[chan struct{}] // writes block until it is closed
	fail  atomic.Pointer[error]         // writes fail with it
}

// addr is where the node listens.
func (n *node) addr() string { return *n.at.Load() }

// fleet is some nodes on loopback and the faults between them.
type fleet struct {
	t      testing.TB
	expect int
	nodes  []*node

	wire *wire // in place of loopback; nil: loopback

	mu   sync.Mutex
	cuts map[[2]string]bool // of addresses, both orders
}

// quickTimers are timers for tests: quick where time is only waited for, patient
// where a slow machine could be taken for a broken one.
func quickTimers() Timers {
	return Timers{
		// A leader that a starved machine keeps from its heartbeats is deposed, and
		// with a short lease no other lasts longer.
		Heartbeat: 700 * time.Millisecond, Lease: 700 * time.Millisecond, Commit: 10 * time.Millisecond,
		Poll: 30 * time.Millisecond, Stable: 100 * time.Millisecond, Settle: 100 * time.Millisecond, Call: patience,
		Write: 20 * time.Second, Reopen: 100 * time.Millisecond,
		SnapshotEvery: 200 * time.Millisecond, SnapshotAfter: 64, KeepLog: 32,
	}
}

// virtually runs a test in virtual time: waiting costs nothing, and a busy machine is not taken for a
// broken node. Writes to disk are real.
func virtually(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// newFleet makes nodes that expect each other, and starts none. They meet on a network in memory, so
// the test runs virtually.
func newFleet(t testing.TB, size int, edit func(*Config)) *fleet {
	return makeFleet(t, newWire(memoryDir(t)), size, edit)
}

// newRealFleet makes such nodes on loopback.
func newRealFleet(t testing.TB, size int, edit func(*Config)) *fleet {
	return makeFleet(t, nil, size, edit)
}

func makeFleet(t testing.TB, wire *wire, size int, edit func(*Config)) *fleet {
	f := &fleet{t: t, expect: size, cuts: make(map[[2]string]bool), wire: wire}
	for i := range size {
		f.add(string(rune('a'+i)), edit)
	}
	t.Cleanup(f.stop)
	return f
}

// add makes one more node.
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

// peers is what gossip tells a node: the nodes that run and can be reached.
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
			p.Expect = s.cfg.Expect
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

// isolate cuts the nodes off from all others, not from each other.
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

// config is the configuration of the next start.
func (n *node) config() Config {
	cfg := Config{
		Dir: n.dir, Expect: n.fleet.expect, Server: true, Timers: quickTimers(), Peers: n.peers,
		Constants: Constants{KeyID: 7, BlockBytes: 1024, Cluster: "test"},
		Faults: &Faults{
			Cut:   func(addr string) bool { return n.fleet.severed(n.addr(), addr) },
			Write: n.write,
		},
		Log: zerolog.Nop(),
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

// write is the fault before each write to the node's disk.
func (n *node) write() error {
	if hang := n.hang.Load(); hang != nil {
		<-*hang
	}
	if err := n.fail.Load(); err != nil {
		return *err
	}
	return nil
}

// pause lets the disk hang until resume.
func (n *node) pause() {
	hang := make(chan struct{})
	n.hang.Store(&hang)
}

func (n *node) resume() {
	if hang := n.hang.Swap(nil); hang != nil {
		close(*hang)
	}
}

// open makes the node's store on its address without starting it.
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
		cfg.Streams = nil // closed if it is not in use
		return err
	})
	return s, err
}

func (n *node) listen() (Streams, error) {
	if n.fleet.wire != nil {
		return n.fleet.wire.listen(n.addr())
	}
	return listenPlain(n.addr())
}

// plain are unauthenticated TCP connections in place of the fleet's streams.
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

// whenFree does what opens a data file, again while the file is in use: who was
// killed may still wait for the disk.
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

// kill ends the node without a goodbye: from one moment on nothing is sent and
// nothing is written, and leadership is handed to nobody.
func (n *node) kill() {
	s := n.store.Swap(nil)
	if s == nil {
		return
	}
	s.mu.Lock()
	s.stopping = true
	l := s.life
	s.mu.Unlock()
	if l != nil && l.disk != nil {
		l.disk.fail(errKilled)
	}
	s.cancel()
	<-s.stopped
}

// halt ends the node in good order.
func (n *node) halt() {
	if s := n.store.Swap(nil); s != nil {
		s.Stop(context.Background())
	}
}

// running are the stores that run now.
func (f *fleet) running() []*Store {
	var list []*Store
	for _, n := range f.all() {
		if s := n.store.Load(); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// leader waits for a leader that others follow, and gives its node.
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

// apply commits a command at a node and fails the test if that is refused.
func apply(t testing.TB, s *Store, c Command) Result {
	t.Helper()
	r, err := s.Apply(context.Background(), c)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	return r
}

// backend is a spec with this name and a URL of its own.
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

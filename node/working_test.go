package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/node/notify"
	"grapevine.example/node/share"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

func works(t *testing.T, n *Node) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return n.Working(ctx)
}

func TestWorking(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, "test")
	a.issue("localhost")
	for name, change := range map[string]func(*config.Config){
		"alone":          func(*config.Config) {},
		"PROXY protocol": func(c *config.Config) { c.ProxyProtocol = true },
		"TLS":            func(c *config.Config) { c.TLSCert, c.TLSKey = a.file("localhost"), a.file("localhost-key") },
		"every address":  func(c *config.Config) { c.Listen = ":0" },
		"dead engine": func(c *config.Config) {
			c.Backends = []config.Backend{{URL: "http://127.0.0.1:1", Models: []string{"m"}}}
		},
		"no connections": func(c *config.Config) { c.MaxConnections = 1 },
		"in a fleet":     func(c *config.Config) { *c = fleetConfig("test", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			change(&cfg)
			n, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Working(t.Context()); err != nil {
				t.Errorf("not started: %v", err)
			}
			if err := n.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer stopNode(t, n)
			if cfg.MaxConnections == 1 {
				c, err := net.Dial("tcp", n.Addr())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				eventually(t, "the only connection is taken", func() bool { return n.proxy.Connections() == 1 })
			}
			if err := works(t, n); err != nil {
				t.Error(err)
			}
			if name == "alone" {
				n.Drain(t.Context(), 0)
				if err := works(t, n); err != nil {
					t.Errorf("in the grace of a drain: %v", err)
				}
			}
			stopNode(t, n)
			if err := n.Working(t.Context()); err != nil {
				t.Errorf("stopped: %v", err)
			}
		})
	}
}

// TestDeafDataPort: a port that accepts nothing is found, and differs from a closed one.
func TestDeafDataPort(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig())
	finds := func(want string) {
		t.Helper()
		eventually(t, want, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
			defer cancel()
			err := n.Working(ctx)
			return err != nil && strings.Contains(err.Error(), want)
		})
	}

	// The kernel accepts connections for this socket; the program does not.
	deaf, err := net.Listen("tcp", elsewhere())
	if err != nil {
		t.Fatal(err)
	}
	own := n.Addr()
	n.addr.Store(deaf.Addr().String())
	finds("data port: no connection is accepted")
	deaf.Close()
	finds("data port: dial tcp")
	n.addr.Store(own)
	if err := works(t, n); err != nil {
		t.Errorf("after it went on: %v", err)
	}
}

type gate struct {
	*backends.Registry
	sync.Mutex
}

func (g *gate) Key(b prefixtree.Backend) (uint32, bool) {
	g.Lock()
	defer g.Unlock()
	return g.Registry.Key(b)
}

func TestWatchdogOfStuckNode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	env := map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1500000"}
	manager, err := notify.FromEnvironment(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	next := func() string {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		size, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:size])
	}
	cfg := fleetConfig("test", nil, "http://127.0.0.1:1")
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	names := &gate{Registry: n.backends.Numbers()}
	n.knowledge.shared = share.New(n.tree, prefixtree.NewOutbox(0), n.router, names)
	n.raftTimers = patientRaft
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	n.place(t, new(policy.Attempt), chain(1, 40))()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		manager.Watch(ctx, n, func(error) {})
	}()
	defer func() { cancel(); <-done }()

	for !strings.HasPrefix(next(), "WATCHDOG=1\nSTATUS=") {
	}
	names.Lock()
	for !strings.Contains(next(), "not working: the loop that tells other nodes stands still") {
	}
	if got := next(); strings.Contains(got, "WATCHDOG") {
		t.Errorf("a node that is stuck says %q", got)
	}
	names.Unlock()
	for !strings.HasPrefix(next(), "WATCHDOG=1\nSTATUS=") {
	}
}

func TestSummary(t *testing.T) {
	n := startNode(t, testConfig("http://127.0.0.1:1"))
	if got := n.Summary(); got != "ready, 1 engine, 0 requests in flight" {
		t.Error(got)
	}
	n.Drain(t.Context(), 0)
	if got := n.Summary(); !strings.HasPrefix(got, "not ready: draining, ") {
		t.Error(got)
	}
	f := startNode(t, fleetConfig("test", nil))
	eventually(t, "the summary of a fleet of one", func() bool {
		return f.Summary() == "ready, 1 node, 0 engines, 0 requests in flight"
	})
}

func TestPatience(t *testing.T) {
	cfg := fleetConfig("test", nil)
	cfg.WarmDeadline, cfg.DrainGrace, cfg.DrainClose, cfg.DrainTimeout = 5*time.Minute, time.Minute, 2*time.Second, time.Hour
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if d := n.StartWithin(); d <= 5*time.Minute || d > 6*time.Minute {
		t.Errorf("start within %v", d)
	}
	if d := n.StopWithin(); d <= time.Hour+62*time.Second || d > time.Hour+2*time.Minute {
		t.Errorf("stop within %v", d)
	}
}

func TestReload(t *testing.T) {
	leakCheck(t)
	a := newAuthority(t, "test")
	first := a.issue("localhost")
	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey = a.file("localhost"), a.file("localhost-key")
	n := startNode(t, cfg)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	presents := func(want *big.Int) {
		t.Helper()
		c, err := tls.Dial("tcp", n.Addr(), &tls.Config{RootCAs: roots, ServerName: "localhost"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := c.ConnectionState().PeerCertificates[0].SerialNumber; got.Cmp(want) != 0 {
			t.Errorf("certificate %v, want %v", got, want)
		}
	}
	presents(first)
	second := a.issue("localhost")
	presents(first)
	if _, err := n.Reload(*n.Running()); err != nil {
		t.Fatal(err)
	}
	presents(second)
	if err := os.Remove(cfg.TLSKey); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reload(*n.Running()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "tls_cert") {
		t.Errorf("without a key: %v", err)
	}
	presents(second)
}

func TestDiffering(t *testing.T) {
	a := config.Default()
	a.Backends = []config.Backend{{URL: "http://a:1"}}
	b := config.Default()
	b.Backends = []config.Backend{{URL: "http://a:1", Name: "a:1", Weight: 1}}
	for _, c := range []*config.Config{&a, &b} {
		if err := c.Validate("", nil); err != nil {
			t.Fatal(err)
		}
	}
	if keys := a.Differing(b); len(keys) != 0 {
		t.Errorf("the same, said shorter: %v", keys)
	}
	b.Backends[0].Weight, b.LogLevel = 2, "debug"
	if keys := a.Differing(b); !slices.Equal(keys, []string{"backends", "log_level"}) {
		t.Errorf("differing in %v", keys)
	}
}

package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/chaos/bubble"
)

const patience = 90 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		var err error
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
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

func eventually(t *testing.T, what string, ok func() bool, describe func() any) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s; have %v", patience, what, describe())
		}
	}
}

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

type testNode struct {
	*List
	mu     sync.Mutex
	events []Event
	served []*Conn
}

func (n *testNode) seen(k Kind, name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := 0
	for _, e := range n.events {
		if e.Kind == k && e.Member.Name == name {
			c++
		}
	}
	return c
}

func (n *testNode) reported() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

func (n *testNode) state(name string) State {
	for _, m := range n.Members() {
		if m.Name == name {
			return m.State
		}
	}
	return ""
}

func testConfig(name string) Config {
	return Config{
		Self: Info{
			Name: name, Version: "test", ProtocolMin: 1, ProtocolMax: 1,
			Cluster: "test", KeyID: 0x1f2e0000, BlockBytes: 512,
		},
		Bind:           "127.0.0.1:0",
		Keys:           [][]byte{key(1)},
		RejoinInterval: time.Second,
		Log:            zerolog.Nop(),
	}
}

func echo(c *Conn) { _, _ = io.Copy(c, c) }

func patient(_ int, cfg *Config) {
	cfg.ProbeInterval, cfg.ProbeTimeout = 15*time.Second, 10*time.Second
}

func start(t *testing.T, cfg Config) *testNode {
	t.Helper()
	return startWith(t, cfg, nil)
}

func startWith(t *testing.T, cfg Config, before func(*List)) *testNode {
	t.Helper()
	return startOn(t, hostNetwork{}, cfg, before)
}

func startOn(t *testing.T, network network, cfg Config, before func(*List)) *testNode {
	t.Helper()
	n := &testNode{}
	cfg.OnEvent = func(e Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	}
	if cfg.Serve == nil {
		cfg.Serve = echo
	}
	serve := cfg.Serve
	cfg.Serve = func(c *Conn) {
		n.mu.Lock()
		n.served = append(n.served, c)
		n.mu.Unlock()
		serve(c)
	}
	if os.Getenv("MEMBER_TEST_LOG") != "" {
		cfg.Log = zerolog.New(zerolog.NewTestWriter(t)).With().Timestamp().Str("node", cfg.Self.Name).Logger()
	}
	l, err := newList(cfg, network)
	if err != nil {
		t.Fatal(err)
	}
	n.List = l
	if before != nil {
		before(l)
	}
	if err := l.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, n) })
	return n
}

func stop(t *testing.T, n *testNode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func fleet(t *testing.T, n int, edit func(i int, cfg *Config)) []*testNode {
	t.Helper()
	return fleetOf(t, n, edit, func(int, *List) {})
}

func fleetOf(t *testing.T, n int, edit func(i int, cfg *Config), before func(i int, l *List)) []*testNode {
	t.Helper()
	nodes := make([]*testNode, n)
	for i := range nodes {
		cfg := testConfig(fmt.Sprintf("node-%d", i))
		if i > 0 {
			cfg.Join = []string{nodes[0].Self().Addr}
		}
		if edit != nil {
			edit(i, &cfg)
		}
		nodes[i] = startWith(t, cfg, func(l *List) { before(i, l) })
	}
	whole(t, nodes)
	return nodes
}

func virtualFleet(t *testing.T, n int) (nodes []*testNode, network *memNet) {
	t.Helper()
	network = &memNet{}
	t.Cleanup(func() { time.Sleep(time.Minute) }) // memberlist's probes end some time after Shutdown
	for i := range n {
		nodes = append(nodes, startVirtual(t, network, fmt.Sprintf("node-%d", i), i+1, 1))
	}
	whole(t, nodes)
	return nodes, network
}

// The node is at 10.0.0.host and joins by 10.0.0.1.
func startVirtual(t *testing.T, network *memNet, name string, host int, incarnation uint64) *testNode {
	t.Helper()
	at := virtualAddr(host)
	cfg := testConfig(name)
	cfg.Bind, cfg.Self.Incarnation = at.String(), incarnation
	if host != 1 {
		cfg.Join = []string{virtualAddr(1).String()}
	}
	return startOn(t, memHost{network, at}, cfg, nil)
}

func virtualAddr(host int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(host)}), 7946)
}

func whole(t *testing.T, nodes []*testNode) {
	t.Helper()
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				eventually(t, a.Self().Name+" knows "+b.Self().Name, func() bool {
					m, ok := a.table.get(b.Self().Name)
					return ok && m.State == StateAlive && m.Info == b.Self()
				}, func() any { return fmt.Sprint(a.Members(), a.JoinErrors()) })
			}
		}
	}
}

func say(c net.Conn, text string) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != text {
		return fmt.Errorf("%q came back for %q", buf, text)
	}
	return c.SetDeadline(time.Time{})
}

func dialed(t *testing.T, a, b *testNode) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := a.Dial(ctx, b.Self())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFleet(t *testing.T) {
	nodes := fleet(t, 3, patient)
	if !nodes[0].Joined() || !nodes[1].Joined() {
		t.Error("not joined")
	}
	for _, a := range nodes {
		for _, b := range nodes {
			if a == b {
				continue
			}
			c := dialed(t, a, b)
			if c.Peer != b.Self() {
				t.Errorf("peer %+v", c.Peer)
			}
			if err := say(c, "hello"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "one event", func() bool { return a.seen(Joined, b.Self().Name) == 1 }, func() any { return a.reported() })
		}
	}
	other := nodes[1].Self()
	other.Name = "node-9"
	if c, err := nodes[0].Dial(context.Background(), other); err == nil {
		_ = c.Close()
		t.Error("another node answered, and that was fine")
	}
	for _, e := range nodes[1].JoinErrors() {
		if e.Err != nil {
			t.Error(e)
		}
	}
}

func TestFailureDetection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes, _ := virtualFleet(t, 4)
		begin := time.Now()
		stop(t, nodes[3])
		for _, n := range nodes[:3] {
			eventually(t, "the dead node is found dead", func() bool { return n.seen(Failed, "node-3") > 0 }, func() any { return n.reported() })
		}
		if d := time.Since(begin); d > 6*time.Second {
			t.Errorf("dead everywhere after %v", d)
		}
		if s := nodes[0].state("node-3"); s != StateFailed {
			t.Error(s)
		}
		if _, err := nodes[3].Dial(context.Background(), nodes[0].Self()); !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
	})
}

func TestLeave(t *testing.T) {
	nodes := fleet(t, 3, patient)
	begin := time.Now()
	if err := nodes[2].Leave(patience); err != nil {
		t.Fatal(err)
	}
	t.Logf("said after %v", time.Since(begin).Round(time.Millisecond))
	for _, n := range nodes[:2] {
		eventually(t, "the node that left is gone", func() bool { return n.state("node-2") != StateAlive }, func() any { return n.Members() })
		eventually(t, "and is known to have left", func() bool { return n.seen(Left, "node-2") == 1 }, func() any { return n.reported() })
	}
	if err := nodes[2].Leave(time.Second); err != nil {
		t.Error("twice:", err)
	}
	stop(t, nodes[2])
	if err := nodes[2].Leave(time.Second); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	// A timeout of 0 does not wait without bound.
	if err := nodes[1].Leave(0); err != nil && !errors.Is(err, ErrUnconfirmed) {
		t.Error(err)
	}
	eventually(t, "the last node is alone", func() bool { return nodes[0].state("node-1") != StateAlive }, func() any { return nodes[0].Members() })
	if err := nodes[0].Leave(time.Nanosecond); err != nil {
		t.Error(err)
	}
}

// A process that restarts at its address before detection is not its predecessor.
func TestRestart(t *testing.T) {
	nodes := fleet(t, 3, patient)
	old := nodes[2].Self()
	stop(t, nodes[2])
	cfg := testConfig("node-2")
	patient(2, &cfg)
	cfg.Self.Incarnation = old.Incarnation + 1
	cfg.Bind = old.Addr
	cfg.Join = []string{nodes[0].Self().Addr}
	again := start(t, cfg)
	whole(t, []*testNode{nodes[0], nodes[1], again})
	for _, n := range nodes[:2] {
		eventually(t, "failed, then joined", func() bool {
			var kinds []Kind
			for _, e := range n.reported() {
				if e.Member.Name == "node-2" {
					kinds = append(kinds, e.Kind)
				}
			}
			return slices.Equal(kinds, []Kind{Joined, Failed, Joined})
		}, func() any { return n.reported() })
	}
}

func TestSeedRestartsAlone(t *testing.T) {
	nodes := fleet(t, 3, patient)
	old := nodes[0].Self()
	stop(t, nodes[0])
	cfg := testConfig("node-0")
	patient(0, &cfg)
	cfg.Self.Incarnation = old.Incarnation - 1 // the clock was set back
	cfg.Bind = old.Addr
	cfg.RejoinInterval = time.Hour
	again := start(t, cfg)
	nodes[0] = again
	if err := say(dialed(t, nodes[1], again), "you again"); err != nil {
		t.Fatal(err)
	}
	whole(t, nodes)
}

func TestMovedNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes, network := virtualFleet(t, 2)
		stop(t, nodes[1])
		whole(t, []*testNode{nodes[0], startVirtual(t, network, "node-1", 3, 2)})
	})
}

// memberlist never heals a partition by itself.
func TestRejoinAfterPartition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes, network := virtualFleet(t, 4)
		sides := make(map[netip.AddrPort]int)
		for i := range nodes {
			sides[virtualAddr(i+1)] = i / 2
		}
		network.partition(sides)
		for i, a := range nodes {
			for j, b := range nodes {
				if i/2 != j/2 {
					eventually(t, "the other side is dead", func() bool { return a.state(b.Self().Name) == StateFailed }, func() any { return a.Members() })
				}
			}
		}
		eventually(t, "each side is whole", func() bool {
			return nodes[0].state("node-1") == StateAlive && nodes[2].state("node-3") == StateAlive
		}, func() any { return []any{nodes[0].Members(), nodes[2].Members()} })
		network.partition(nil)
		begin := time.Now()
		whole(t, nodes)
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("healed after %v", d)
		}
	})
}

package member

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

const testProtocol = "test/1"

func serveStreams(t *testing.T, s *Streams) {
	t.Helper()
	t.Cleanup(func() { _ = s.Close() })
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
}

func streamsOf(t *testing.T, n int, edit func(i int, cfg *Config)) (nodes []*testNode, streams []*Streams) {
	t.Helper()
	streams = make([]*Streams, n)
	nodes = fleetOf(t, n, edit, func(i int, l *List) {
		streams[i] = l.Streams(testProtocol)
		serveStreams(t, streams[i])
	})
	return nodes, streams
}

// roundTrip reads, since a TLS 1.3 client sees a refusal only then.
func roundTrip(t *testing.T, s *Streams, addr string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte{7}); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func TestStreams(t *testing.T) {
	nodes, streams := streamsOf(t, 2, patient)
	both := func(when string) {
		t.Helper()
		for i := range streams {
			if err := roundTrip(t, streams[i], nodes[1-i].Self().Addr); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	both("before")
	addr := nodes[0].Self().Addr
	lone := func(name string, k byte) *Streams {
		cfg := testConfig(name)
		cfg.Keys = [][]byte{key(k)}
		var s *Streams
		startWith(t, cfg, func(l *List) { s = l.Streams(testProtocol) })
		return s
	}
	if err := roundTrip(t, lone("stranger", 9), addr); err == nil || !strings.Contains(err.Error(), "gossip key") {
		t.Errorf("a node with another key: %v", err)
	}
	cfg := testConfig("other")
	var other *Streams
	startWith(t, cfg, func(l *List) { other = l.Streams("test/2") })
	if err := roundTrip(t, other, addr); err == nil {
		t.Error("another protocol is accepted")
	}
	old := FingerprintOf(key(1))
	rotate(t, nodes[0], KeyInstall, key(2), 2)
	both("after install")
	rotate(t, nodes[0], KeyUse, key(2), 2)
	both("after use")
	rotate(t, nodes[0], KeyRemove, old[:], 2)
	both("after removal")
	if err := roundTrip(t, lone("late", 1), addr); err == nil {
		t.Error("the removed key still admits")
	}
}

func TestStreamsEndWithTheirKey(t *testing.T) {
	nodes, streams := streamsOf(t, 2, patient)
	c, err := streams[0].Dial(t.Context(), nodes[1].Self().Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	old := FingerprintOf(key(1))
	rotate(t, nodes[0], KeyInstall, key(2), 2)
	rotate(t, nodes[0], KeyUse, key(2), 2)
	rotate(t, nodes[0], KeyRemove, old[:], 2)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err = c.Read(make([]byte, 1))
	if ne, ok := err.(net.Error); err == nil || ok && ne.Timeout() {
		t.Errorf("the connection stays open: %v", err)
	}
}

func TestStreamsOfTheOperator(t *testing.T) {
	authority := newTestAuthority(t)
	nodes, streams := streamsOf(t, 2, func(i int, cfg *Config) {
		patient(i, cfg)
		cfg.TLS = authority.config(t, cfg.Self.Name, authority)
	})
	for i := range streams {
		if err := roundTrip(t, streams[i], nodes[1-i].Self().Addr); err != nil {
			t.Error(err)
		}
	}
	cfg := testConfig("database")
	cfg.TLS = authority.config(t, "database", authority)
	var other *Streams
	startWith(t, cfg, func(l *List) { other = l.Streams(testProtocol) })
	if err := roundTrip(t, other, nodes[0].Self().Addr); err == nil {
		t.Error("another service of the operator is admitted")
	}
}

func TestStreamsBeforeStart(t *testing.T) {
	early, err := New(testConfig("early"))
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, &testNode{List: early})
	s := early.Streams(testProtocol)
	serveStreams(t, s)
	if _, err := s.Dial(t.Context(), "127.0.0.1:1"); err == nil {
		t.Error("a port that is not open dials")
	}
	if err := early.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := early.Listen(t.Context()); err == nil {
		t.Error("a port is opened twice")
	}
	addr := early.Self().Addr
	if s.Addr().String() != addr || addr == "" {
		t.Errorf("the streams' address is %v, the node's %q", s.Addr(), addr)
	}
	var late *Streams
	node := startWith(t, testConfig("late"), func(l *List) { late = l.Streams(testProtocol) })
	if err := roundTrip(t, late, addr); err != nil {
		t.Errorf("a stream before the start: %v", err)
	}
	if _, err := node.probe(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "starting") {
		t.Errorf("a hello before the start: %v", err)
	}
	early.Describe(func(self *Info) { self.RaftID = "r1" })
	if err := early.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if peer, err := node.probe(t.Context(), addr); err != nil || peer.RaftID != "r1" {
		t.Errorf("a hello after the start: %+v, %v", peer, err)
	}
}

func TestStreamsEndWithTheList(t *testing.T) {
	nodes, streams := streamsOf(t, 2, patient)
	c, err := streams[0].Dial(t.Context(), nodes[1].Self().Addr)
	if err != nil {
		t.Fatal(err)
	}
	stop(t, nodes[0])
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives the list")
	}
	if _, err := streams[0].Accept(); err == nil {
		t.Error("a stopped list accepts")
	}
	if _, err := streams[0].Dial(t.Context(), nodes[1].Self().Addr); err == nil {
		t.Error("a stopped list dials")
	}
}

package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

func TestChangesComeAfterOwnList(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1", "http://127.0.0.1:2"))
	if err != nil {
		t.Fatal(err)
	}
	n.raftTimers.Call = patientChange
	s := agree(t, n, raftstore.Config{Timers: n.raftTimers})
	change := raftstore.AddBackends{Backends: []raftstore.Backend{{Name: "early", URL: "http://127.0.0.1:3"}}}
	early, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.change(early, change); !errors.Is(err, admin.ErrNotProposed) || admin.RefusalOf(err).Status != 503 {
		t.Errorf("a change before the node's own list: %v", err)
	}
	if st := s.State(); len(st.Backends) != 0 {
		t.Errorf("it was made: %+v", st.Backends)
	}
	waiting := make(chan error)
	go func() {
		_, err := n.change(t.Context(), change)
		waiting <- err
	}()
	n.proposeOwn(t.Context(), s)
	if err := <-waiting; err != nil {
		t.Errorf("a change after it: %v", err)
	}
	st := s.State()
	last, _ := st.Backend("early")
	for i := range st.Backends {
		if b := &st.Backends[i]; b.Name != "early" && b.Version >= last.Version {
			t.Errorf("%s came at version %d, the change at %d", b.Name, b.Version, last.Version)
		}
	}
	if len(st.Backends) != 3 {
		t.Errorf("%d backends, want the two configured and the operator's", len(st.Backends))
	}
}

func agree(t *testing.T, n *Node, cfg raftstore.Config) *raftstore.Store {
	t.Helper()
	s, err := raftstore.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	n.store.Store(s)
	return s
}

func TestChangeSaysWhoIsMissing(t *testing.T) {
	t.Parallel()
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := member.New(member.Config{Bind: "127.0.0.1:0", Self: member.Info{Name: "alone", ProtocolMin: 1, ProtocolMax: 1}})
	if err != nil {
		t.Fatal(err)
	}
	streams := list.Streams(raftstore.ALPN)
	if err := list.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = list.Stop(context.Background()) })
	gone := strings.TrimSuffix(elsewhere(), "0") + "1"
	agree(t, n, raftstore.Config{
		Streams: streams, Join: true, Timers: raftstore.Timers{Call: time.Hour},
		Peers: func() []raftstore.Peer {
			return []raftstore.Peer{{ID: "2", Name: "r2", Addr: gone, Server: true}}
		},
	})
	change := func(patience time.Duration) error {
		n.raftTimers.Call = patience
		answered := make(chan error, 1)
		go func() {
			_, err := n.change(t.Context(), raftstore.SetSwitches{})
			answered <- err
		}()
		select {
		case err := <-answered:
			return err
		case <-time.After(time.Minute):
			t.Fatal("a change waits for a minute")
			return nil
		}
	}
	err = change(4 * time.Second) // for the question to the other voters
	if !errors.Is(err, admin.ErrNotProposed) || !errors.Is(err, raftstore.ErrNoLeader) || admin.RefusalOf(err).Status != 503 {
		t.Errorf("before the list was put to anybody: %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "unreachable: r2 ("+gone+")") {
		t.Errorf("%q does not say who is missing", err)
	}
	close(n.said)
	if err := change(0); !errors.Is(err, raftstore.ErrNoLeader) {
		t.Errorf("after it: %v", err)
	}
}

func TestAnotherFleetIsRefused(t *testing.T) {
	t.Parallel()
	addrs := founderAddrs(t, 2)
	var nodes []*Node
	for i, name := range []string{"one", "two"} {
		n := startNode(t, founding(t, name, addrs[i:i+1], 0))
		eventually(t, "a group", func() bool { return n.store.Load().Origin() != 0 && n.store.Load().State().Version > 0 })
		nodes = append(nodes, n)
	}
	stopNode(t, nodes[1])
	cfg := nodes[1].cfg
	cfg.Founders, cfg.Join = nil, addrs[:1]
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var mismatch *member.MismatchError
	if err := n.Start(t.Context()); !errors.Is(err, ErrRefused) || !errors.As(err, &mismatch) || mismatch.Field != member.FieldGroup || !strings.Contains(err.Error(), "empty their data_dir") {
		t.Errorf("a node of another fleet starts with %v", err)
	}
}

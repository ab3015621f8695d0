package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"grapevine.example/raftstore"
)

// TestRecoveredApart: the second of two separately recovered nodes does not start, even alone.
func TestRecoveredApart(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	nodes := startAgreeing(t, e.URL)
	for _, n := range nodes {
		kill(t, n)
	}
	again := func(old *Node) (*Node, error) {
		cfg := old.cfg
		cfg.Gossip = old.GossipAddr()
		cfg.WarmDeadline = patientChange
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n.raftTimers = patientRaft
		n.raftTimers.Call, n.raftTimers.Settle = patientChange, 100*time.Millisecond
		return n, n.Start(t.Context())
	}
	for _, n := range nodes[:2] {
		if err := raftstore.Recover(n.cfg.DataDir, []raftstore.Server{{ID: n.store.Load().ID(), Addr: n.GossipAddr(), Voter: true}}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := again(nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, first) })
	if ok, err := first.store.Load().Proven(); !ok || err != nil {
		t.Errorf("a start has not waited for the recovered data: %v, %v", ok, err)
	}
	if _, err := client(first).Forced().SetBackendState(t.Context(), []string{first.cfg.Backends[0].Name}, "drain", "after the loss"); err != nil {
		t.Error(err)
	}
	for range 2 {
		_, err = again(nodes[1])
		if !errors.Is(err, ErrRefused) || !errors.Is(err, raftstore.ErrBarred) {
			t.Fatalf("the second is started: %v", err)
		}
		for _, want := range []string{"data_dir", first.GossipAddr(), "empty its data directory", "recover here once more"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not name %q", err, want)
			}
		}
	}
}

// TestRecoveredInDoubt: a node whose recovered data stays in doubt serves, but refuses changes.
func TestRecoveredInDoubt(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	cfg := testConfig(e.URL)
	cfg.DataDir, cfg.Secret = t.TempDir(), "a secret that is kept"
	n := startNode(t, cfg)
	eventually(t, "an agreement", func() bool { return n.backends.Roster().Version > 0 })
	id := n.store.Load().ID()
	stopNode(t, n)
	if err := raftstore.Recover(cfg.DataDir, []raftstore.Server{{ID: id, Addr: "local", Voter: true}, {ID: "gone", Addr: "127.0.0.2:1", Voter: true}}); err != nil {
		t.Fatal(err)
	}
	cfg.WarmDeadline = 200 * time.Millisecond
	n = startNodeWithin(t, cfg, 0)
	if status, _, _ := chat(t, n, chatBody("m", "hello")); status != 200 {
		t.Error(status)
	}
	eventually(t, "it says what it waits for", func() bool {
		st, err := n.Raft()
		return err == nil && st.Waiting == "for a leader of the recovered group"
	})
	if _, err := client(n).SwitchPrefixes(t.Context(), false); err == nil {
		t.Error("a change is taken")
	}
}

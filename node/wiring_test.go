package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
)

func TestGossipConfig(t *testing.T) {
	c := fleetConfig("one", []string{"10.0.0.1:7946"})
	c.GossipAdvertise, c.Cluster, c.GossipBudget, c.WarmDeadline, c.Version = "10.0.0.9:1234", "other", 1<<20, 3*time.Second, "v1"
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	g, err := n.gossipConfig()
	if err != nil {
		t.Fatal(err)
	}
	m := &g.Member
	if g.Budget != 1<<20 || g.SnapshotDeadline != 3*time.Second || m.Advertise != "10.0.0.9:1234" || m.Bind != "127.0.0.1:0" || m.Insecure || len(m.Join) != 1 {
		t.Errorf("%+v", g)
	}
	if s := m.Self; s.Name != "one" || s.Cluster != "other" || s.Version != "v1" || s.KeyID != n.hasher.KeyID() || s.BlockBytes != 512 {
		t.Errorf("%+v", s)
	}
}

// A node without cache events is heard, but is no follower of any engine.
func TestNodeWithoutEventsDoesNotFollow(t *testing.T) {
	t.Parallel()
	nodes := startFleet(t, 2)
	cfg := fleetConfig("without", []string{nodes[0].GossipAddr()})
	cfg.Events = config.EventsOff
	without := startNode(t, cfg)
	eventually(t, "three nodes that hear each other", func() bool { return len(nodes[0].heardNodes()) == 2 && len(without.heardNodes()) == 2 })
	if peers := nodes[0].followingNodes(); !slices.Equal(peers, []string{nodes[1].Name()}) {
		t.Errorf("%s takes %v for followers, want %s alone", nodes[0].Name(), peers, nodes[1].Name())
	}
	if peers := without.followingNodes(); len(peers) != 2 {
		t.Errorf("the node without events takes %v for followers, want the two others", peers)
	}
}

func TestTakenNameIsWaitedFor(t *testing.T) {
	t.Parallel()
	nodes := startFleet(t, 2)
	moved, err := New(fleetConfig("two", []string{nodes[0].GossipAddr()}))
	if err != nil {
		t.Fatal(err)
	}
	defer stopNode(t, moved)
	moved.nameWait = 10 * time.Minute
	started := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { started <- moved.Start(ctx) }()
	eventually(t, "the name is taken", func() bool {
		ready, why := moved.ready.get()
		return !ready && strings.Contains(why, `two nodes are named "two"`)
	})
	stopNode(t, nodes[1])
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	awaitFleet(t, nodes[0], moved)
}

func TestFactsOfEngines(t *testing.T) {
	s := factsStatus(map[uint32]prefixtree.FactSum{0xabc: {Count: 3, XOR: 0xff}, 1: {Count: 4, XOR: 0xf0}})
	if s.Count != 7 || s.XOR != "000000000000000f" || s.Backends["00000abc"] != (admin.FactsOf{Count: 3, XOR: "00000000000000ff"}) || len(s.Backends) != 2 {
		t.Errorf("%+v", s)
	}
	if s := factsStatus(nil); s.Count != 0 || s.XOR != "0000000000000000" || s.Backends == nil {
		t.Errorf("of nothing: %+v", s)
	}
}

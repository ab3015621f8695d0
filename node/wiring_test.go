package node

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"grapevine/node/admin"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

const maxFactTime = prefixtree.Time(math.MaxInt64)

func sameFacts(a, b *knower) (count uint64, same bool) {
	at := max(a.at, b.at)
	count, xor := a.tree.FactDigest(at, 0, maxFactTime, a.numbers)
	n, x := b.tree.FactDigest(at, 0, maxFactTime, b.numbers)
	return count, n == count && x == xor
}

func TestAllNewsTravels(t *testing.T) {
	t.Parallel()
	one, two := newKnower(t, "a"), newKnower(t, "a")
	one.at -= 5 * 60_000 // facts ahead of the clock count as now
	check := func(what string, want uint64, kind prefixtree.Kind) {
		t.Helper()
		tell(t, one, two)
		two.at = one.at
		if n, same := sameFacts(one, two); n != want || !same {
			t.Errorf("after %s there are %d facts, want %d; the other node knows the same: %v", what, n, want, same)
		}
		if one.announced.posted.count(kind) == 0 {
			t.Errorf("%s has posted nothing of its kind", what)
		}
	}
	prompt := chain(1, 16)
	begin := func() *policy.Attempt {
		a := new(policy.Attempt)
		one.q = policy.Request{Hashes: prompt, PromptBytes: len(prompt) * 512}
		if err := one.router.Pick(&one.q, one.at, a); err != nil {
			t.Fatal(err)
		}
		a.Dispatched(one.at)
		return a
	}
	a := begin()
	check("a placement", 16, prefixtree.Add)
	one.at += 60_000
	a.End(policy.Outcome{PromptTokens: 2048, CachedTokens: 0, OutputTokens: 5}, one.at)
	check("a long request", 16, prefixtree.Touch)

	other := prompt
	prompt = chain(2, 12)
	a = begin()
	check("another placement", 28, prefixtree.Add)
	a.End(policy.Outcome{Failed: policy.Reset, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, one.at)
	check("its failure", 16, prefixtree.Revert)

	prompt = chain(3, 8)
	begin().End(policy.Outcome{PromptTokens: 1024, CachedTokens: 0, OutputTokens: 5}, one.at)
	check("a prompt that the engine will lose", 24, prefixtree.Add)
	prompt = other
	for range 3 { // none of the expected blocks is cached
		one.at += 20_000
		a = begin()
		one.at += 1000
		a.End(policy.Outcome{PromptTokens: 2048, CachedTokens: 0, OutputTokens: 5}, one.at)
	}
	check("a restart of the engine", 16, prefixtree.Fence)
}

func TestLearnedElsewhere(t *testing.T) {
	k := newKnower(t, "a")
	for seed := range 200 {
		k.serve(t, new(policy.Attempt), chain(seed, 20), -1)
	}
	before := k.tree.Horizon(0)
	k.PeerState("one", appendState(nil, []keyedClaim{{prefixtree.BackendKey("a"), claim{reach: 400, reachWeight: 10}}}))
	if got := k.tree.Horizon(0); got >= before/2 {
		t.Errorf("a horizon of %v, %v before, after others have seen a cache of a tenth", got, before)
	}
	k.DropPeer("one")
	if got := k.tree.Horizon(0); got != before {
		t.Errorf("a horizon of %v, %v before those who told otherwise were there", got, before)
	}
	if blind := k.router.Stats().Blind; blind != 0 {
		t.Errorf("%d decisions were blind, by a node that is alone", blind)
	}
	k.Fleet(3, time.Second)
	k.serve(t, new(policy.Attempt), chain(1, 20), -1)
	if blind := k.router.Stats().Blind; blind != 1 {
		t.Errorf("%d decisions were blind, of one beside nodes that tell nothing", blind)
	}
}

func TestAnnouncerForgetsItsLongest(t *testing.T) {
	k := newKnower(t, "a")
	k.announced.Record(0, chain(1, 3*maxKeptFacts*4), k.at, nil)
	for range 10 {
		if b := k.announced.buffer(); cap(*b) > maxKeptFacts {
			t.Fatalf("a buffer for %d facts is kept", cap(*b))
		}
	}
}

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

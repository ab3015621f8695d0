package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// hotStore is a store of hot prefixes alone, leading or following.
type hotStore struct {
	mu      sync.Mutex
	state   raftstore.State
	at      int64 // unix ms
	follows bool
	err     error
}

func (s *hotStore) Leading() bool { return !s.follows }

func (s *hotStore) State() *raftstore.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.state
	now.Hot = slices.Clone(now.Hot)
	return &now
}

func (s *hotStore) Apply(_ context.Context, c raftstore.Command) (raftstore.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return raftstore.Result{}, s.err
	}
	for _, h := range c.(raftstore.SetHot).Changes {
		i := slices.IndexFunc(s.state.Hot, func(p raftstore.HotPrefix) bool { return p.Anchor == h.Anchor })
		switch {
		case h.Remove && i >= 0:
			s.state.Hot = slices.Delete(s.state.Hot, i, i+1)
		case h.Remove:
		case i < 0:
			s.state.Hot = append(s.state.Hot, raftstore.HotPrefix{Anchor: h.Anchor, Depth: h.Depth, R: h.R, Expires: h.Expires, Since: s.at, LastChange: s.at})
		default:
			p := &s.state.Hot[i]
			if p.R != h.R {
				p.LastChange = s.at
			}
			p.R, p.Depth, p.Expires = h.R, h.Depth, h.Expires
		}
	}
	return raftstore.Result{Changed: true}, nil
}

// hotRig is one node's replicator on eight engines with a manual clock.
type hotRig struct {
	t     *testing.T
	k     *knower
	h     *replicator
	store *hotStore
	at    time.Time
	next  int
}

func newHotRig(t *testing.T) *hotRig {
	k := newKnower(t, "a", "b", "c", "d", "e", "f", "g", "h")
	r := &hotRig{t: t, k: k, store: &hotStore{state: raftstore.State{Switches: raftstore.Switches{Hot: true}}}, at: time.UnixMilli(int64(k.at))}
	r.h = &replicator{router: k.router, log: zerolog.Nop(), others: k.heard.works, store: func() hotAgreement { return r.store }}
	return r
}

// hotChain is a prompt of 40 blocks, of which the first 32 are hot.
func hotChain(own int) []prefixtree.Hash {
	return append(slices.Clone(chain(1, 32)), chain(1000+own, 8)...)
}

// run serves 20 requests a second, hot of each ten with the hot prefix, and looks every five
// seconds.
func (r *hotRig) run(seconds, hot int) {
	for range seconds * 20 {
		r.at = r.at.Add(50 * time.Millisecond)
		r.next++
		hashes := chain(100_000+r.next, 40)
		if r.next%10 < hot {
			hashes = hotChain(r.next)
		}
		var a policy.Attempt
		at := millis(r.at)
		if err := r.k.router.Pick(&policy.Request{Hashes: hashes, PromptBytes: len(hashes) * 512}, at, &a); err != nil {
			r.t.Fatal(err)
		}
		a.Dispatched(at)
		a.FirstToken(at)
		a.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, at)
		if r.next%100 == 0 {
			r.store.at = r.at.UnixMilli()
			r.h.look(r.t.Context(), r.at)
		}
	}
}

func (r *hotRig) decision() *policy.Decision {
	d := new(policy.Decision)
	if err := r.k.router.Explain(&policy.Request{Hashes: hotChain(-1), PromptBytes: 40 * 512}, millis(r.at), d); err != nil {
		r.t.Fatal(err)
	}
	return d
}

// TestHotPrefixComesAndGoes: a prefix gets stable holders while a fifth of all requests have it.
func TestHotPrefixComesAndGoes(t *testing.T) {
	r := newHotRig(t)
	r.run(30, 2)
	hot := r.store.State().Hot
	if len(hot) != 1 || hot[0].Anchor != uint64(hotChain(0)[31]) || hot[0].R != 4 || hot[0].Depth < 3500 || hot[0].Depth > 4500 {
		t.Fatalf("agreed on %+v, want the 32nd block %x on 4", hot, hotChain(0)[31])
	}
	r.run(5, 2)
	if d := r.decision(); d.Rung != policy.Hot || d.Replicas != 4 || uint64(d.Hot) != hot[0].Anchor {
		t.Errorf("rung %v, %x on %d", d.Rung, d.Hot, d.Replicas)
	}
	changes := r.h.changes.Load()
	r.run(150, 2)
	if now := r.store.State().Hot; len(now) != 1 || now[0].R != 4 || now[0].Expires <= hot[0].Expires || r.h.changes.Load() != changes {
		t.Errorf("after two and a half minutes alike: %+v, %d changes", now, r.h.changes.Load()-changes)
	}
	if f := r.h.figures(); f.prefixes != 1 || f.replicas != 4 || f.refused != 0 {
		t.Errorf("figures: %+v", f)
	}
	r.run(120, 0)
	if now := r.store.State().Hot; len(now) != 0 {
		t.Errorf("two minutes after the last request: %+v", now)
	}
	if d := r.decision(); d.Replicas != 0 {
		t.Errorf("given up, and on %d", d.Replicas)
	}
}

func TestHotPrefixIsSwitchedOff(t *testing.T) {
	r := newHotRig(t)
	r.run(30, 2)
	off := r.store.State()
	off.Switches.Hot = false
	r.h.adopt(off, r.at)
	if d := r.decision(); d.Replicas != 0 || d.Rung == policy.Hot {
		t.Errorf("switched off, and by rung %v on %d", d.Rung, d.Replicas)
	}
	if c := r.h.decide(true, off, r.at); c != nil || r.h.sizer != nil {
		t.Errorf("switched off, and decides %+v", c)
	}
	r.h.adopt(r.store.State(), r.at)
	if d := r.decision(); d.Replicas != 4 {
		t.Errorf("switched on, and on %d", d.Replicas)
	}
	r.h.adopt(r.store.State(), r.at.Add(time.Hour))
	if d := r.decision(); d.Replicas != 0 {
		t.Errorf("expired an hour ago, and on %d", d.Replicas)
	}
}

// TestHotPrefixesOfOlderStates: a late look does not restore an older state.
func TestHotPrefixesOfOlderStates(t *testing.T) {
	n := unstarted(t, "a", "b", "c")
	anchor := hotChain(0)[31]
	on, off := stateWith(1, firstGeneration, "a", "b", "c"), stateWith(2, firstGeneration, "a", "b", "c")
	on.Switches.Hot = true
	on.Hot = []raftstore.HotPrefix{{Anchor: uint64(anchor), Depth: 4096, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}}
	off.Hot = on.Hot
	replicas := func() int {
		d := new(policy.Decision)
		if err := n.router.Explain(&policy.Request{Hashes: hotChain(1), PromptBytes: 40 * 512}, now(), d); err != nil {
			t.Fatal(err)
		}
		return d.Replicas
	}
	n.adopt(on)
	if got := replicas(); got != 2 {
		t.Fatalf("agreed on, and on %d", got)
	}
	n.adopt(off)
	if got := replicas(); got != 0 {
		t.Errorf("switched off, and on %d", got)
	}
	n.hot.adopt(on, time.Now())
	if got := replicas(); got != 0 {
		t.Errorf("switched off, and by an older state on %d", got)
	}
}

// TestOnlyTheLeaderDecides: followers adopt; failed commands are counted and retried.
func TestOnlyTheLeaderDecides(t *testing.T) {
	r := newHotRig(t)
	r.store.follows = true
	r.run(60, 2)
	if hot := r.store.State().Hot; len(hot) != 0 {
		t.Fatalf("a follower had written down %+v", hot)
	}
	r.store.follows, r.store.err = false, errors.New("no quorum")
	r.run(30, 2)
	if r.h.refused.Load() == 0 || len(r.store.State().Hot) != 0 || r.h.changes.Load() != 0 {
		t.Errorf("%d refused, %d changes, %+v", r.h.refused.Load(), r.h.changes.Load(), r.store.State().Hot)
	}
	r.store.err = nil
	r.run(5, 2)
	if hot := r.store.State().Hot; len(hot) != 1 {
		t.Errorf("a quorum again, and agreed on %+v", hot)
	}
}

func TestLeaderCountsWhatOthersTell(t *testing.T) {
	seer, leader := newHotRig(t), newHotRig(t)
	seer.store.follows = true
	for range 6 {
		seer.run(5, 2)
		heat := seer.k.router.OwnHeat(heatAnchors, heatPaces, millis(seer.at))
		leader.k.PeerState("seer", appendHeat(appendState(nil, nil), &heat))
		leader.at = seer.at
		leader.h.look(t.Context(), leader.at)
	}
	hot := leader.store.State().Hot
	if len(hot) != 1 || hot[0].Anchor != uint64(hotChain(0)[31]) {
		t.Fatalf("agreed on %+v", hot)
	}
	leader.k.DropPeer("seer")
	if w := leader.h.work(leader.at); len(w) != 0 {
		t.Errorf("the node is gone, and its work counts: %+v", w)
	}
}

// TestEveryOneDrainedHasAnHeir: drained holders are replaced by warmed backends.
func TestEveryOneDrainedHasAnHeir(t *testing.T) {
	r := newHotRig(t)
	r.run(35, 2)
	pool, ok := poolOf(hotChain(0)[31], r.h.work(r.at))
	if !ok {
		t.Fatal("nobody tells of the prefix")
	}
	p := policy.HotPrefix{Anchor: hotChain(0)[31], Replicas: 4}
	order := r.k.router.HotSet(pool, policy.HotPrefix{Anchor: p.Anchor, Replicas: 8})
	var warmed []string
	r.h.warm = func(ctx context.Context, anchor prefixtree.Hash, backends []string) {
		if _, limited := ctx.Deadline(); !limited || anchor != p.Anchor {
			t.Errorf("prefix %x is computed, with a deadline: %v", anchor, limited)
		}
		warmed = append(warmed, backends...)
	}
	r.h.leave(t.Context(), []string{order[1], order[4], order[2]})
	if want := order[5:7]; !slices.Equal(warmed, want) {
		t.Errorf("%v compute it, want %v", warmed, want)
	}
}

// hotBody begins with six thousand bytes that all of them share.
func hotBody(i int) string {
	return chatBody("m", strings.Repeat(longText, 120)+strings.Repeat(fmt.Sprintf("And this is prompt %d. ", i), 100))
}

// hotAnchor is the last block that hot bodies share.
func hotAnchor(t *testing.T, n *Node) prefixtree.Hash {
	t.Helper()
	var q [2]policy.Request
	for i := range q {
		if err := n.proxy.Describe([]byte("/v1/chat/completions"), func(string) []byte { return nil }, []byte(hotBody(i)), &q[i]); err != nil || len(q[i].Hashes) < 14 {
			t.Fatalf("%d blocks: %v", len(q[i].Hashes), err)
		}
	}
	at := 0
	for q[0].Hashes[at+1] == q[1].Hashes[at+1] {
		at++
	}
	return q[0].Hashes[at]
}

// TestPrefixesOfANode: agreed prefixes show everywhere, move before a drain, and can be switched
// off.
func TestPrefixesOfANode(t *testing.T) {
	leakCheck(t)
	var urls []string
	for range 6 {
		urls = append(urls, newFakeEngine(t, "m").URL)
	}
	n := startAgreed(t, testConfig(urls...))
	body := hotBody(0)
	anchor := hotAnchor(t, n)
	if _, err := n.change(t.Context(), raftstore.SetHot{Changes: []raftstore.HotChange{{Anchor: uint64(anchor), Depth: 1536, R: 2, Expires: time.Now().Add(time.Hour).UnixMilli()}}}); err != nil {
		t.Fatal(err)
	}
	r, err := explain(t, n, "/v1/chat/completions", nil, body)
	if err != nil || r.Rung != "hot" || r.Replicas != 2 || r.Hot != fmt.Sprintf("%016x", uint64(anchor)) {
		t.Fatalf("receipt %+v: %v", r, err)
	}
	for i := range 4 {
		if status, _, _ := chat(t, n, hotBody(i)); status != 200 {
			t.Fatal(status)
		}
	}
	if m := scrape(t, n); m["grapevine_hot_prefixes"] != 1 || m["grapevine_hot_prefix_replicas"] != 2 {
		t.Errorf("the metrics say %v prefixes, %v replicas", m["grapevine_hot_prefixes"], m["grapevine_hot_prefix_replicas"])
	}
	list, err := admin(n).Prefixes(t.Context())
	if err != nil || !list.Enabled || len(list.Prefixes) != 1 {
		t.Fatalf("%+v: %v", list, err)
	}
	p := list.Prefixes[0]
	if p.Anchor != r.Hot || p.Tokens != 1536 || p.Replicas != 2 || p.Share != 1 || len(p.Backends) != 2 || !slices.Contains(p.Backends, r.Backend) || !strings.Contains(p.Why, "100 %") {
		t.Errorf("%+v", p)
	}
	if _, err := admin(n).SetBackendState(t.Context(), p.Backends[:1], "drain", ""); err != nil {
		t.Fatal(err)
	}
	after, err := admin(n).Prefixes(t.Context())
	if err != nil || len(after.Prefixes) != 1 {
		t.Fatalf("%+v: %v", after, err)
	}
	if b := after.Prefixes[0].Backends; len(b) != 2 || b[0] != p.Backends[1] || slices.Contains(b, p.Backends[0]) {
		t.Errorf("after the drain of %s it is on %v, before on %v", p.Backends[0], b, p.Backends)
	}
	if _, err := admin(n).SwitchPrefixes(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if r, err := explain(t, n, "/v1/chat/completions", nil, body); err != nil || r.Replicas != 0 || r.Rung == "hot" {
		t.Errorf("switched off: %+v: %v", r, err)
	}
	if m := scrape(t, n); m["grapevine_hot_prefixes"] != 0 {
		t.Error("the metrics say that it is in force")
	}
}

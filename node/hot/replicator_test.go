package hot

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

type store struct {
	mu      sync.Mutex
	state   raftstore.State
	at      int64 // unix ms
	follows bool
	err     error
}

func (s *store) Leading() bool { return !s.follows }

func (s *store) State() *raftstore.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.state
	now.Hot = slices.Clone(now.Hot)
	return &now
}

func (s *store) Apply(_ context.Context, c raftstore.Command) (raftstore.Result, error) {
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

type rig struct {
	t      *testing.T
	router *policy.Router
	h      *Replicator
	store  *store
	at     time.Time
	next   int
}

func newRig(t *testing.T) *rig {
	tree, err := prefixtree.New(prefixtree.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, store: &store{state: raftstore.State{Switches: raftstore.Switches{Hot: true}}}, at: time.Now()}
	if r.router, err = policy.NewRouter(policy.Config{Seed: 1}, tree); err != nil {
		t.Fatal(err)
	}
	var list []policy.Backend
	for i, name := range strings.Split("abcdefgh", "") {
		list = append(list, policy.Backend{ID: prefixtree.Backend(i), Name: name, Weight: 1})
	}
	view, err := policy.NewView(list, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.router.SetView(view)
	r.h = New(Config{Router: r.router, Log: zerolog.Nop()})
	return r
}

func chain(seed, blocks int) []prefixtree.Hash {
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	hashes := make([]prefixtree.Hash, blocks)
	for i := range hashes {
		hashes[i] = prefixtree.Hash(rnd.Uint64())
	}
	return hashes
}

// hotChain is a prompt of 40 blocks, of which the first 32 are hot.
func hotChain(own int) []prefixtree.Hash {
	return append(slices.Clone(chain(1, 32)), chain(1000+own, 8)...)
}

// run serves 20 requests a second, hot of each ten with the hot prefix.
func (r *rig) run(seconds, hot int) {
	for range seconds * 20 {
		r.at = r.at.Add(50 * time.Millisecond)
		r.next++
		hashes := chain(100_000+r.next, 40)
		if r.next%10 < hot {
			hashes = hotChain(r.next)
		}
		var a policy.Attempt
		at := millis(r.at)
		if err := r.router.Pick(&policy.Request{Hashes: hashes, PromptBytes: len(hashes) * 512}, at, &a); err != nil {
			r.t.Fatal(err)
		}
		a.Dispatched(at)
		a.FirstToken(at)
		a.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, at)
		if r.next%100 == 0 {
			r.store.at = r.at.UnixMilli()
			r.h.look(r.t.Context(), r.store, r.at)
		}
	}
}

func (r *rig) decision() *policy.Decision {
	d := new(policy.Decision)
	if err := r.router.Explain(&policy.Request{Hashes: hotChain(-1), PromptBytes: 40 * 512}, millis(r.at), d); err != nil {
		r.t.Fatal(err)
	}
	return d
}

func TestHotPrefixComesAndGoes(t *testing.T) {
	r := newRig(t)
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
	if f := r.h.inForce; len(f) != 1 || f[0].Replicas != 4 || r.h.failed.Load() != 0 {
		t.Errorf("in force: %+v, %d failures", f, r.h.failed.Load())
	}
	r.run(150, 0)
	if now := r.store.State().Hot; len(now) != 0 {
		t.Errorf("two and a half minutes after the last request: %+v", now)
	}
	if d := r.decision(); d.Replicas != 0 {
		t.Errorf("given up, and on %d", d.Replicas)
	}
}

func TestHotPrefixIsSwitchedOff(t *testing.T) {
	r := newRig(t)
	r.run(30, 2)
	off := r.store.State()
	off.Switches.Hot = false
	r.h.Adopt(off, r.at)
	if d := r.decision(); d.Replicas != 0 || d.Rung == policy.Hot {
		t.Errorf("switched off, and by rung %v on %d", d.Rung, d.Replicas)
	}
	if c := r.h.decide(true, off, r.at); c != nil || r.h.sizer != nil {
		t.Errorf("switched off, and decides %+v", c)
	}
	r.h.Adopt(r.store.State(), r.at)
	if d := r.decision(); d.Replicas != 4 {
		t.Errorf("switched on, and on %d", d.Replicas)
	}
	r.h.Adopt(r.store.State(), r.at.Add(time.Hour))
	if d := r.decision(); d.Replicas != 0 {
		t.Errorf("expired an hour ago, and on %d", d.Replicas)
	}
}

func TestHotPrefixesOfOlderStates(t *testing.T) {
	r := newRig(t)
	on, off := r.store.State(), r.store.State()
	on.Version, off.Version, off.Switches.Hot = 1, 2, false
	on.Hot = []raftstore.HotPrefix{{Anchor: uint64(hotChain(0)[31]), Depth: 4096, R: 2, Expires: r.at.Add(time.Hour).UnixMilli()}}
	off.Hot = on.Hot
	for i, c := range []struct {
		state    *raftstore.State
		replicas int
	}{{on, 2}, {off, 0}, {on, 0}} {
		r.h.Adopt(c.state, r.at)
		if got := r.decision().Replicas; got != c.replicas {
			t.Errorf("step %d: on %d, want %d", i, got, c.replicas)
		}
	}
}

func TestOnlyTheLeaderDecides(t *testing.T) {
	r := newRig(t)
	r.store.follows = true
	r.run(60, 2)
	if hot := r.store.State().Hot; len(hot) != 0 {
		t.Fatalf("a follower had written down %+v", hot)
	}
	r.store.follows, r.store.err = false, errors.New("no quorum")
	r.run(30, 2)
	if r.h.failed.Load() == 0 || len(r.store.State().Hot) != 0 || r.h.changes.Load() != 0 {
		t.Errorf("%d refused, %d changes, %+v", r.h.failed.Load(), r.h.changes.Load(), r.store.State().Hot)
	}
	r.store.err = nil
	r.run(5, 2)
	if hot := r.store.State().Hot; len(hot) != 1 {
		t.Errorf("a quorum again, and agreed on %+v", hot)
	}
}

func TestLeaderCountsPeersWork(t *testing.T) {
	seer, leader := newRig(t), newRig(t)
	seer.store.follows = true
	var reported []demand.Work
	leader.h.cfg.Peers = func(sum Sum) { sum.Add(reported) }
	for range 6 {
		seer.run(5, 2)
		reported = seer.router.OwnWork(MaxPools, millis(seer.at))
		leader.at = seer.at
		leader.h.look(t.Context(), leader.store, leader.at)
	}
	hot := leader.store.State().Hot
	if len(hot) != 1 || hot[0].Anchor != uint64(hotChain(0)[31]) {
		t.Fatalf("agreed on %+v", hot)
	}
	reported = nil
	if w := leader.h.work(leader.at); len(w) != 0 {
		t.Errorf("the peer is gone, and its work counts: %+v", w)
	}
}

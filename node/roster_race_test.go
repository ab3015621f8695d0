package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

// TestPicksAmongChanges: models are learned between the adoptions.
func TestPicksAmongChanges(t *testing.T) {
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	n.proposed.Store(true)
	engines := [2]*fakeEngine{newFakeEngine(t), newFakeEngine(t)} // behind the two names of backend 0
	addr := func(name string) string {
		switch name {
		case "b0-0":
			return strings.TrimPrefix(engines[0].URL, "http://")
		case "b0-1":
			return strings.TrimPrefix(engines[1].URL, "http://")
		}
		return name + ":80"
	}
	state := func(version uint64) *raftstore.State {
		s := &raftstore.State{Version: version}
		for id := range uint16(8) {
			b := raftstore.Backend{Generation: uint32(version) + 1, Weight: 1, State: raftstore.BackendState(version / 3 % 2), Since: 1}
			b.Name = fmt.Sprintf("b%d-%d", id, (version+uint64(id))%2)
			b.URL = "http://" + addr(b.Name)
			if id == 0 {
				b.State = raftstore.Active
			}
			if id != 5 || version%4 != 0 {
				s.Backends = append(s.Backends, b)
			}
		}
		return s
	}
	n.adopt(state(1))
	var over atomic.Bool
	var pickers sync.WaitGroup
	for range 4 {
		pickers.Go(func() {
			p, a := &picker{n}, new(policy.Attempt)
			for i := 0; !over.Load(); i++ {
				q := policy.Request{Model: []byte("m"), PromptBytes: 1000}
				target, err := p.Pick(&q, a)
				switch {
				case errors.Is(err, policy.ErrNoBackend):
					t.Error("no backend, and the first is always there")
					return
				case err != nil:
					t.Error(err)
					return
				}
				if d := a.Decision(); d.Name != target.Name || target.Addr != addr(target.Name) || target.ID != d.Backend {
					t.Errorf("a decision for %s leads to %+v", d.Name, target)
				}
				a.Dispatched(now())
				a.FirstToken(now())
				a.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, now())
			}
		})
	}
	for version := uint64(2); version < 400; version++ {
		n.adopt(state(version))
		if version%5 > 0 {
			continue
		}
		u := n.backends.Roster().Named(fmt.Sprintf("b0-%d", version%2))
		want := []string{"m", fmt.Sprint("m", version)}
		engines[version%2].setModels(want...)
		n.backends.AskModels(t.Context(), u)
		if got, _, failure := n.backends.Models(u); !slices.Equal(got, want) || failure != "" {
			t.Errorf("version %d: learned %v, want %v: %s", version, got, want, failure)
		}
	}
	over.Store(true)
	pickers.Wait()
	for _, u := range n.backends.Roster().List {
		if tokens, active := n.router.Load(u.ID); tokens != 0 || active != 0 {
			t.Errorf("%s: %d tokens and %d requests are left", u.Name, tokens, active)
		}
	}
	if st := n.router.Stats(); st.DoubleEnds != 0 {
		t.Errorf("%d attempts ended twice", st.DoubleEnds)
	}
}

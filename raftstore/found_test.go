package raftstore

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// A promise holds for one founder until the founder gives its group up or is gone, also after a
// restart.
func TestPromiseIsExclusive(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *Config) { c.Expect = 3 }) // one too few to found
		n, founder := f.nodes[0], f.nodes[1]
		s := n.start()
		founder.start()
		first := promiseRequest{Group: newGroup(), Founder: founder.store.Load().ID(), Addr: founder.addr()}
		second := promiseRequest{Group: newGroup(), Founder: "zz", Addr: "127.0.0.1:1"}
		refused := func(req promiseRequest, text string) {
			t.Helper()
			if err := s.promise(t.Context(), req); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("promise to %s: error is %v, want %q in it", req.Founder, err, text)
			}
		}
		given := func(req promiseRequest) {
			t.Helper()
			if err := s.promise(t.Context(), req); err != nil {
				t.Errorf("promise to %s: %v", req.Founder, err)
			}
			if id := s.identity(); id.Group != req.Group || id.member() {
				t.Errorf("after a promise to %s this node is %+v", req.Founder, id)
			}
		}
		refused(promiseRequest{}, "names no group")
		// as if the founder had drawn this group
		b := founder.store.Load()
		b.identMu.Lock()
		if err := b.setIdentity(identity{ID: b.ID(), Group: first.Group, Founder: b.ID(), FounderAddr: founder.addr()}); err != nil {
			t.Fatal(err)
		}
		b.identMu.Unlock()
		given(first)
		given(first) // repeating is allowed
		refused(second, "promised to "+first.Founder)

		n.kill()
		s = n.start()
		refused(second, "promised to "+first.Founder)

		// The founder is silent but alive for gossip.
		f.isolate(n)
		alive := n.edit
		n.kill()
		n.edit = func(c *Config) {
			alive(c)
			c.Peers = func() []Peer { return []Peer{{ID: first.Founder, Addr: first.Addr, Alive: true}} }
		}
		s = n.start()
		refused(second, "does not answer")

		n.kill()
		n.edit = alive
		founder.kill()
		f.heal()
		s = n.start()
		given(second)

		// A member promises nothing and joins no other group.
		third := joinRequest{Group: newGroup(), Leader: "x"}
		if err := s.join(t.Context(), third); err != nil {
			t.Fatal(err)
		}
		if err := s.join(t.Context(), third); err != nil {
			t.Errorf("taken in twice: %v", err)
		}
		refused(first, "belongs to group "+third.Group.String())
		if err := s.join(t.Context(), joinRequest{Group: newGroup()}); err == nil || !strings.Contains(err.Error(), "belongs to group") {
			t.Errorf("taken in by a second group: %v", err)
		}
		if err := s.join(t.Context(), joinRequest{Group: newGroup(), Format: commandFormat + 1}); err == nil || !strings.Contains(err.Error(), "format") {
			t.Errorf("taken in by a group of newer programs: %v", err)
		}
	})
}

// Of two founders, the one with the higher id gives way.
func TestLowerFounderWins(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *Config) { c.Expect = 3 })
		s := f.nodes[0].start()
		own, err := s.promiseSelf()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.promise(t.Context(), promiseRequest{Group: newGroup(), Founder: "zz", Addr: "127.0.0.1:1"}); err == nil {
			t.Error("a founder gives way to a higher one")
		}
		lower := promiseRequest{Group: newGroup(), Founder: "!", Addr: "127.0.0.1:1"}
		if err := s.promise(t.Context(), lower); err != nil {
			t.Fatal(err)
		}
		if err := s.bootstrap(s.current(), own, nil); err != nil {
			t.Fatal(err)
		}
		if len(s.current().servers()) != 0 || s.identity().Group != lower.Group {
			t.Error("a founder that gave way has founded its group")
		}
		if again, err := s.promiseSelf(); err != nil || again != (groupID{}) {
			t.Errorf("a node that promised its help means to found group %s, %v", again, err)
		}
	})
}

// A founder is bound only once it has founded.
func TestFounderRestarts(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *Config) { c.Expect = 3 })
		n := f.nodes[0]
		s := n.start()
		if _, err := s.promiseSelf(); err != nil {
			t.Fatal(err)
		}
		n.kill()
		s = n.start()
		if id := s.identity(); id.Group != (groupID{}) || id.Founder != "" {
			t.Errorf("after a restart before the founding: %+v", id)
		}
		group, err := s.promiseSelf()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.bootstrap(s.current(), group, []raft.Server{s.self()}); err != nil {
			t.Fatal(err)
		}
		// as if the node had died before it stored its membership
		s.identMu.Lock()
		if err := s.setIdentity(identity{ID: s.id, Group: group, Founder: s.id}); err != nil {
			t.Fatal(err)
		}
		s.identMu.Unlock()
		n.kill()
		s = n.start()
		if id := s.identity(); id.Group != group || !id.member() {
			t.Errorf("after a restart behind the founding: %+v", id)
		}
	})
}

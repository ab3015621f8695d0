package raftstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// lost is a killed fleet with a committed backend.
func lost(t *testing.T, size int) *fleet {
	f := newFleet(t, size, nil).start()
	apply(t, f.running()[0], add("one"))
	for _, n := range f.nodes {
		until(t, n.name+" to know", func() bool { return has(n.store.Load().State(), "one") })
	}
	for _, n := range f.nodes {
		n.kill()
	}
	return f
}

func (n *node) voter() Server { return Server{*n.id.Load(), n.addr(), true} }

func (n *node) recover(servers ...Server) {
	n.fleet.t.Helper()
	if err := whenFree(n.fleet.t, func() error { return Recover(n.dir, servers) }); err != nil {
		n.fleet.t.Fatal(err)
	}
}

func (n *node) inService() *Store {
	n.fleet.t.Helper()
	s := n.store.Load()
	until(n.fleet.t, n.name+" to be in service", func() bool {
		ok, err := s.Proven()
		if err != nil {
			n.fleet.t.Fatal(err)
		}
		return ok
	})
	return s
}

func barred(t *testing.T, s *Store, why string) {
	t.Helper()
	_, err := s.Apply(context.Background(), add("never"))
	if _, readErr := s.Read(context.Background()); !errors.Is(err, ErrBarred) || !errors.Is(readErr, ErrBarred) || !strings.Contains(err.Error(), why) {
		t.Errorf("a change gives %v, a read %v; want ErrBarred with %q", err, readErr, why)
	}
	if has(s.State(), "never") {
		t.Error("a refused change was made")
	}
}

// Of two survivors recovered separately, the second refuses changes until it is emptied or
// recovered again.
func TestRecoverApart(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"follows", "is recovered again"} {
		t.Run(second, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				f := lost(t, 3)
				a, b := f.nodes[0], f.nodes[1]
				a.recover(a.voter())
				b.recover(b.voter())
				a.start()
				apply(t, a.inService(), add("two"))
				s := b.start()
				until(t, "the second to find the first", func() bool {
					_, err := s.Proven()
					return errors.Is(err, ErrBarred)
				})
				until(t, "the second to lead itself", func() bool { return s.Leading() })
				barred(t, s, "start it with join")
				if p := s.Status().Problem; !strings.Contains(p, a.store.Load().Status().Group) || !strings.Contains(p, a.addr()) || !strings.Contains(p, "recover here once more") {
					t.Errorf("the problem is told as %q", p)
				}
				b.kill()
				err := whenFree(t, func() error { _, err := b.open(); return err })
				if !errors.Is(err, ErrBarred) || !strings.Contains(err.Error(), b.dir) || !strings.Contains(err.Error(), a.addr()) {
					t.Errorf("the second is started again: %v", err)
				}
				if second == "follows" {
					if err := os.RemoveAll(b.dir); err != nil {
						t.Fatal(err)
					}
					b.edit = func(c *Config) { c.Founders, c.Join = nil, true }
					s = b.start()
					until(t, "the second to follow", func() bool { return has(s.State(), "two") })
					return
				}
				a.kill()
				b.recover(b.voter())
				b.start()
				apply(t, b.inService(), add("three"))
				if state := b.store.Load().State(); !has(state, "one") || has(state, "two") {
					t.Errorf("the state is %+v", state)
				}
			})
		})
	}
}

// Recovered again with equal servers, they form one group without loss.
func TestRecoverApartAtOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := lost(t, 3)
		a, b := f.nodes[0], f.nodes[1]
		a.recover(a.voter())
		b.recover(b.voter())
		for _, n := range []*node{a, b} {
			n.edit = func(c *Config) {
				c.Met = func() bool { return a.store.Load() != nil && b.store.Load() != nil }
			}
			n.start()
		}
		for _, n := range []*node{a, b} {
			s := n.store.Load()
			until(t, "both to see each other", func() bool { return s.Leading() && strings.Contains(s.Status().Waiting, "for the operator") })
			barred(t, s, "run grapevine raft recover on both")
		}
		a.kill()
		b.kill()
		a.recover(a.voter(), b.voter())
		a.recover(b.voter(), a.voter()) // repeating changes nothing
		b.recover(a.voter(), b.voter())
		a.start()
		b.start()
		b.inService()
		apply(t, a.inService(), add("two"))
		until(t, "b to know", func() bool { return has(b.store.Load().State(), "two") && has(b.store.Load().State(), "one") })
	})
}

func TestRecoverWithoutNeed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := lost(t, 3)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		a.recover(a.voter())
		b.start()
		c.start()
		apply(t, b.store.Load(), add("two"))
		s := a.start()
		until(t, "the majority to be found", func() bool {
			_, err := s.Proven()
			return err != nil && strings.Contains(err.Error(), "has a majority")
		})
		until(t, "it to lead itself", s.Leading)
		barred(t, s, "has a majority")
		apply(t, c.store.Load(), add("three"))
	})
}

// When recovered groups meet, only one continues.
func TestRecoveredGroupsMeet(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := lost(t, 3)
		a, b := f.nodes[0], f.nodes[1]
		a.recover(a.voter())
		b.recover(b.voter())
		f.isolate(a)
		for _, n := range []*node{a, b} {
			n.start()
			apply(t, n.inService(), add(n.name+"s-own"))
		}
		f.heal()
		goes, ends := a.store.Load(), b.store.Load()
		if ends.Status().Group < goes.Status().Group {
			goes, ends = ends, goes
		}
		until(t, "one to yield", func() bool { return strings.Contains(ends.Status().Problem, "recovered apart") })
		barred(t, ends, "give one up")
		until(t, "the other to tell", func() bool { return strings.Contains(goes.Status().Problem, "another group") })
		apply(t, goes, add("more"))
	})
}

package raftstore

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func voters(s *Store) (ids []string) {
	for _, server := range s.Status().Servers {
		if server.Voter {
			ids = append(ids, server.ID)
		}
	}
	return ids
}

// Two nodes get votes together, so there are never two voters for long.
func TestOneNodeGrows(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, nil).start()
		first := f.nodes[0].store.Load()
		apply(t, first, add("alone"))
		join := func(c *Config) { c.Founders, c.Join = nil, true }
		b := f.add("b", join)
		b.start()
		until(t, "b to follow", func() bool { return has(b.store.Load().State(), "alone") })
		if got := voters(first); len(got) != 1 {
			t.Errorf("voters of two nodes are %v", got)
		}
		f.add("c", join).start()
		d := f.add("d", func(c *Config) { c.Dir, c.Founders, c.Join = "", nil, true })
		d.start()
		until(t, "three voters", func() bool { return len(voters(first)) == 3 })
		until(t, "d to follow", func() bool { return has(d.store.Load().State(), "alone") })
		apply(t, d.store.Load(), add("by-a-guest"))
		if slices.Contains(voters(first), d.store.Load().ID()) {
			t.Error("a node that forgets may vote")
		}
		if st := first.Status(); len(st.Servers) != 4 || st.Group == "" || st.Problem != "" {
			t.Errorf("status is %+v", st)
		}
		f.nodes[0].halt()
		apply(t, b.store.Load(), add("after"))
	})
}

func TestVoterLeaves(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		stand := f.add("stand-by", func(c *Config) { c.Founders, c.Join = nil, true })
		stand.start()
		until(t, "the stand-by to follow", func() bool { return has(stand.store.Load().State(), "one") })
		leaver := f.others(f.leader())[0]
		id := leaver.store.Load().ID()
		leaver.halt()
		leaver.left.Store(true)
		until(t, "the stand-by to vote in its place", func() bool {
			s := f.leader().store.Load()
			known := slices.ContainsFunc(s.Status().Servers, func(v ServerStatus) bool { return v.ID == id })
			return len(voters(s)) == 3 && !known && slices.Contains(voters(s), stand.store.Load().ID())
		})
		apply(t, stand.store.Load(), add("two"))
	})
}

func TestDeadVoterIsReplaced(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.Dead = 300 * time.Millisecond }).start()
		apply(t, f.running()[0], add("one"))
		dead := f.others(f.leader())[0]
		id := *dead.id.Load()
		dead.kill()
		stand := f.add("stand-by", func(c *Config) {
			c.Founders, c.Join, c.Timers.Stable = nil, true, 300*time.Millisecond
		})
		if got := voters(f.leader().store.Load()); len(got) != 3 || !slices.Contains(got, id) {
			t.Errorf("voters are %v", got)
		}
		stand.start()
		until(t, "the stand-by to vote in its place", func() bool {
			got := voters(f.leader().store.Load())
			return len(got) == 3 && !slices.Contains(got, id)
		})
		dead.start()
		apply(t, stand.store.Load(), add("two"))
		until(t, "the dead one to be back", func() bool { return has(dead.store.Load().State(), "two") })
	})
}

func TestMovedNode(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		moved := f.others(f.leader())[0]
		moved.kill()
		elsewhere := "127.0.0.9:7947"
		moved.at.Store(&elsewhere)
		s := moved.start()
		apply(t, f.leader().store.Load(), add("two"))
		until(t, "the server to be known at its new address", func() bool {
			return has(s.State(), "two") && slices.ContainsFunc(f.leader().store.Load().Status().Servers, func(v ServerStatus) bool {
				return v.ID == s.ID() && v.Addr == moved.addr() && v.Voter
			})
		})
	})
}

func TestVoterWithBrokenDiskIsReplaced(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.Dead = 300 * time.Millisecond }).start()
		apply(t, f.running()[0], add("one"))
		broken := f.others(f.leader())[0]
		id := broken.store.Load().ID()
		cause := error(syscall.EIO)
		broken.fail.Store(&cause)
		apply(t, f.running()[0], add("two"))
		until(t, "the disk to have failed", func() bool { return broken.store.Load().Status().Role == "failed" })
		stand := f.add("stand-by", func(c *Config) { c.Founders, c.Join, c.Timers.Dead = nil, true, 300*time.Millisecond })
		stand.start()
		until(t, "the stand-by to vote in its place", func() bool {
			got := voters(f.leader().store.Load())
			return len(got) == 3 && !slices.Contains(got, id) && slices.Contains(got, stand.store.Load().ID())
		})
	})
}

func TestForeignGroup(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 2, func(c *Config) { c.Founders = nil })
		f.isolate(f.nodes[0])
		for _, s := range f.start().running() {
			apply(t, s, add("mine-"+s.ID()))
		}
		f.heal()
		for _, s := range f.running() {
			until(t, "the other group to be reported", func() bool {
				return strings.Contains(s.Status().Problem, "another group")
			})
		}
		a, b := f.nodes[0].store.Load(), f.nodes[1].store.Load()
		if len(a.State().Backends) != 1 || len(b.State().Backends) != 1 || a.Status().Group == b.Status().Group {
			t.Error("two groups have become one")
		}
		f.nodes[1].kill()
		if err := os.RemoveAll(f.nodes[1].dir); err != nil {
			t.Fatal(err)
		}
		f.nodes[1].edit = func(c *Config) { c.Founders, c.Join = nil, true }
		s := f.nodes[1].start()
		until(t, "the other to follow", func() bool { return has(s.State(), "mine-"+a.ID()) })
		until(t, "the problem to be gone", func() bool { return a.Status().Problem == "" })
	})
}

func TestConstantsMustAgree(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, nil).start()
		a := f.nodes[0].store.Load()
		until(t, "constants", func() bool { return a.State().Constants.BlockBytes == 1024 })
		other := func(c *Config) { c.Founders, c.Join, c.Constants.BlockBytes = nil, true, 512 }
		b := f.add("b", other)
		s := b.start()
		err := s.join(joinRequest{Group: a.group(), Constants: a.State().Constants})
		if err == nil || !strings.Contains(err.Error(), "fleet has cluster \"test\", block bytes 1024, key id 00000007, this node has cluster \"test\", block bytes 512") {
			t.Errorf("join: %v", err)
		}
		until(t, "b to say why it is not taken in", func() bool { return strings.Contains(s.Status().Problem, "block bytes") })
		for range 10 {
			time.Sleep(a.cfg.Timers.Poll)
			if len(a.Status().Servers) > 1 {
				t.Fatal("a node with other constants was taken in")
			}
		}
		b.kill()
		b.edit = func(c *Config) { c.Founders, c.Join = nil, true }
		s = b.start()
		until(t, "b to follow", func() bool { return s.State().Constants.BlockBytes == 1024 })
		b.kill()
		b.edit = other
		s = b.start()
		until(t, "the difference to be told", func() bool { return strings.Contains(s.Status().Problem, "block bytes") })
	})
}

// A server that was removed is taken in again when it returns.
func TestRemovedServerReturns(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		victim := f.others(f.leader())[0]
		id := victim.store.Load().ID()
		victim.kill()
		s := f.leader().store.Load()
		if err := s.current().raft.RemoveServer(raft.ServerID(id), 0, patience).Error(); err != nil {
			t.Fatal(err)
		}
		until(t, "the others to know that it is removed", func() bool { return !slices.Contains(voters(s), id) })
		apply(t, s, add("two"))
		back := victim.start()
		until(t, "it to vote again", func() bool { return slices.Contains(voters(f.leader().store.Load()), id) })
		until(t, "it to know", func() bool { return has(back.State(), "two") })
	})
}

func TestSnapshotIsSent(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("first"))
		away := f.others(f.leader())[0]
		away.kill()
		s := f.leader().store.Load()
		for i := range 150 {
			apply(t, s, SetSwitches{Switches{Hot: i%2 == 0}})
		}
		apply(t, s, add("last"))
		until(t, "the old log to be dropped", func() bool {
			first, err := (&logStore{disk: f.leader().store.Load().current().disk}).FirstIndex()
			return err == nil && first > 20
		})
		back := away.start()
		until(t, "the node to catch up", func() bool { return has(back.State(), "last") && has(back.State(), "first") })
	})
}

func TestUnwillingAreForgotten(t *testing.T) {
	s := &Store{unwilling: map[string]string{"gone:1": "no", "here:1": "no"}}
	silent := errors.New("no answer")
	s.takeIn(t.Context(), nil, nil, []answered{{Peer: Peer{Addr: "here:1"}, err: silent}, {Peer: Peer{Addr: "new:1"}, err: silent}})
	if len(s.unwilling) != 1 || s.unwilling["here:1"] == "" {
		t.Errorf("%v", s.unwilling)
	}
}

// A follower that could not read a change would stop its machine.
func TestNothingThatAnOlderServerCannotRead(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		leader := f.leader().store.Load()
		apply(t, leader, add("a"))
		label := UpdateBackend{Name: "a", Labels: ptr([]string{"zone=a"})}
		var err error
		until(t, "a refusal that names the older server", func() bool {
			leader.mu.Lock()
			for id, h := range leader.health {
				if id != leader.id {
					h.format, h.name = silentFormat, "old-node" // until it is asked again
				}
			}
			leader.mu.Unlock()
			_, err = f.running()[0].Apply(t.Context(), label)
			return err != nil
		})
		if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "old-node runs an older release") {
			t.Fatal(err)
		}
		until(t, "the servers' own answers", func() bool {
			leader.mu.Lock()
			defer leader.mu.Unlock()
			for _, h := range leader.health {
				if h.format != 0 && h.format != newestFormat {
					return false
				}
			}
			return true
		})
		apply(t, leader, label)
	})
}

// A node of the release before labels joins and follows until somebody uses labels, and again once the group has forgotten them.
func TestOlderNodeJoins(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 1, nil).start()
		s := f.nodes[0].store.Load()
		apply(t, s, add("one"))
		join := func(c *Config) { c.Founders, c.Join = nil, true }
		older := func(c *Config) {
			join(c)
			c.knows = silentFormat
		}
		b := f.add("b", older)
		b.start()
		until(t, "b to follow", func() bool { return has(b.store.Load().State(), "one") })
		label := UpdateBackend{Name: "one", Labels: ptr([]string{"zone=a"})}
		until(t, "the leader to have asked b", func() bool { return s.olderThan(newestFormat) == "b" })
		if _, err := s.Apply(t.Context(), label); !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "node b runs an older release") {
			t.Fatalf("a label that b cannot read: %v", err)
		}
		b.kill()
		b.edit = join
		b.start()
		until(t, "the upgrade of b", func() bool { return s.olderThan(newestFormat) == "" })
		apply(t, s, label)

		c := f.add("c", older)
		late := c.start()
		refusal := joinRequest{Group: s.group(), Format: newestFormat, Constants: s.State().Constants}
		if err := late.join(refusal); err == nil || !strings.Contains(err.Error(), "format 3, this program knows 2: upgrade this node") {
			t.Errorf("join: %v", err)
		}
		for range 10 {
			time.Sleep(s.cfg.Timers.Poll)
			if n := len(s.Status().Servers); n != 2 {
				t.Fatalf("%d servers, although c cannot read labels", n)
			}
		}
		apply(t, s, UpdateBackend{Name: "one", Labels: ptr([]string(nil))})
		for i := range 150 { // snapshots, which drop the entries with labels
			apply(t, s, SetSwitches{Switches{Hot: i%2 == 0}})
		}
		until(t, "c to follow", func() bool { return has(late.State(), "one") })
		if format, err := s.current().formatInUse(); err != nil || format != firstFormat {
			t.Errorf("format %d is in use, want %d: %v", format, firstFormat, err)
		}
	})
}

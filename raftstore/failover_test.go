package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

func has(st *State, name string) bool {
	_, ok := st.Backend(name)
	return ok
}

func (f *fleet) others(not *node) []*node {
	var list []*node
	for _, n := range f.all() {
		if n != not && n.store.Load() != nil {
			list = append(list, n)
		}
	}
	return list
}

func TestLeaderKilled(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("before"))
		leader := f.leader()
		began := time.Now()
		leader.kill()
		survivor := f.others(leader)[0].store.Load()
		apply(t, survivor, add("after"))
		t.Logf("the first write after the death of the leader took %v", time.Since(began).Round(time.Millisecond))
		st, err := survivor.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !has(st, "before") || !has(st, "after") {
			t.Errorf("backends are %v", st.Backends)
		}
		back := leader.start()
		until(t, "the killed node to catch up", func() bool { return has(back.State(), "after") })
	})
}

func TestStopHandsLeadershipOn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		old := f.leader()
		term := old.store.Load().Status().Term
		s := old.store.Load()
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Status().Role != "stopped" {
			t.Errorf("role is %q", s.Status().Role)
		}
		old.store.Store(nil)
		next := f.leader()
		if got := next.store.Load().Status().Term; got < term {
			t.Errorf("term is %d after %d", got, term)
		}
		apply(t, f.running()[0], add("two"))
	})
}

// Writes fail soon and name the missing nodes; committed state survives a restart.
func TestMajorityLost(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.Call = 2 * time.Second }).start()
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		until(t, "the first write", func() bool {
			_, err := a.store.Load().Apply(t.Context(), add("kept"))
			return err == nil || errors.Is(err, ErrExists)
		})
		for _, n := range f.all() {
			until(t, "the write to be known", func() bool {
				applied, err := noted(n.store.Load().current().disk)
				return has(n.store.Load().State(), "kept") && err == nil && applied >= n.store.Load().State().Version
			})
		}
		b.kill()
		c.kill()
		var err error
		until(t, "an error that names the missing", func() bool {
			began := time.Now()
			_, err = a.store.Load().Apply(t.Context(), add("lost"))
			t.Logf("a write without a majority failed after %v: %v", time.Since(began).Round(time.Millisecond), err)
			return err != nil && strings.Contains(err.Error(), "2 of 3 voters unreachable")
		})
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUncertain) {
			t.Errorf("error is %v", err)
		}
		for _, n := range []*node{b, c} {
			if want := fmt.Sprintf("%s (%s)", n.name, n.addr()); !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not name %s", err, want)
			}
		}
		if _, err := a.store.Load().Read(t.Context()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("read without a majority: %v", err)
		}
		a.kill()
		if s := a.start(); !has(s.State(), "kept") {
			t.Error("a node that starts without a majority has forgotten what was agreed on")
		}
		b.start()
		until(t, "writes to come back", func() bool {
			_, err := a.store.Load().Apply(t.Context(), add("again"))
			return err == nil || errors.Is(err, ErrExists)
		})
	})
}

func TestLeaderWithHungDisk(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.Write = time.Second }).start()
		apply(t, f.running()[0], add("before"))
		leader := f.leader()
		leader.pause()
		t.Cleanup(leader.resume)
		survivor := f.others(leader)[0].store.Load()
		began := time.Now()
		apply(t, survivor, add("during"))
		t.Logf("the first write to a leader with a hung disk took %v", time.Since(began).Round(time.Millisecond))
		until(t, "the failure to be told", func() bool {
			st := leader.store.Load().Status()
			return st.Role == "failed" && strings.Contains(st.Problem, "did not answer")
		})
		if _, err := leader.store.Load().Apply(t.Context(), add("handed-on")); err != nil {
			t.Errorf("a node with a failed disk does not hand a write on: %v", err)
		}
		leader.resume()
		until(t, "the node to take part again", func() bool {
			return leader.store.Load().Status().Problem == "" && has(leader.store.Load().State(), "handed-on")
		})
	})
}

func TestIdleLeaderWithHungDisk(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.Write, c.Timers.Probe = time.Second, 200*time.Millisecond }).start()
		apply(t, f.running()[0], add("one"))
		leader := f.leader()
		leader.pause()
		t.Cleanup(leader.resume)
		until(t, "another leader", func() bool {
			for _, n := range f.others(leader) {
				if s := n.store.Load(); s.isLeader(s.current()) {
					return true
				}
			}
			return false
		})
	})
}

func TestLeaderWithFullDisk(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("before"))
		leader := f.leader()
		full := error(&fs.PathError{Op: "write", Path: "raft.db", Err: syscall.ENOSPC})
		leader.fail.Store(&full)
		apply(t, f.others(leader)[0].store.Load(), add("during"))
		until(t, "the failure to be told", func() bool {
			return strings.Contains(leader.store.Load().Status().Problem, "no space left")
		})
		leader.fail.Store(nil)
		until(t, "the node to take part again", func() bool { return has(leader.store.Load().State(), "during") })
	})
}

func TestFailedFsyncIsFinal(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("before"))
		leader := f.leader()
		broken := error(syscall.EIO)
		leader.fail.Store(&broken)
		apply(t, f.others(leader)[0].store.Load(), add("during"))
		until(t, "the failure to be told", func() bool {
			return strings.Contains(leader.store.Load().Status().Problem, "before a restart")
		})
		leader.fail.Store(nil)
		s := leader.store.Load()
		for range 10 {
			time.Sleep(s.cfg.Timers.Reopen / 5)
			if s.current() != nil {
				t.Fatal("the disk was used again")
			}
		}
		leader.kill()
		leader.start()
		until(t, "the node to take part again", func() bool { return has(leader.store.Load().State(), "during") })
	})
}

// The majority side continues; the other side catches up later.
func TestPartition(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 5, nil).start()
		apply(t, f.running()[0], add("before"))
		leader := f.leader()
		minority := []*node{leader, f.others(leader)[0]}
		f.isolate(minority...)
		majority := f.others(leader)[1:]
		apply(t, majority[0].store.Load(), add("during"))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if st, err := leader.store.Load().Read(ctx); err == nil {
			t.Errorf("the minority reads %v", st.Backends)
		}
		f.heal()
		for _, n := range f.all() {
			until(t, "everybody to know", func() bool { return has(n.store.Load().State(), "during") })
		}
		st, err := leader.store.Load().Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Backends) != 2 {
			t.Errorf("backends are %v", st.Backends)
		}
	})
}

func TestTransfer(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		for _, to := range f.all() {
			for _, at := range f.running() {
				if err := at.Transfer(t.Context(), *to.id.Load()); err != nil {
					t.Errorf("transfer to %s: %v", to.name, err)
				}
			}
			until(t, "leadership to be with "+to.name, func() bool {
				s := to.store.Load()
				if !s.isLeader(s.current()) {
					_ = s.Transfer(t.Context(), s.ID()) // an election may have interfered
					return false
				}
				return true
			})
		}
		if err := f.running()[0].Transfer(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "no voter") {
			t.Errorf("transfer to nobody: %v", err)
		}
	})
}

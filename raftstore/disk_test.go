package raftstore

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

var errFull = error(&fs.PathError{Op: "write", Path: dataFile, Err: syscall.ENOSPC})

// The node reports the failure and votes again when the disk works.
func TestFullDiskFollowsInMemory(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"full": errFull, "broken": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				f := newFleet(t, 3, nil).start()
				apply(t, f.running()[0], add("one"))
				ill := f.others(f.leader())[0]
				other := f.others(ill)[0].store.Load()
				ill.noted("one")
				ill.fail.Store(&cause)
				apply(t, other, add("two"))
				until(t, "the failure", func() bool { return ill.store.Load().Status().DiskFailed })
				apply(t, other, SetBackendState{Names: []string{"one"}, Action: Drain})
				follows := func(what string, holds func(*State) bool) {
					t.Helper()
					until(t, what, func() bool {
						st := ill.store.Load().Status()
						if !st.DiskFailed || st.Role != "failed" || !strings.HasPrefix(st.Problem, "disk failed: ") || st.Writes.Failed == 0 {
							t.Fatalf("status is %+v", st)
						}
						return holds(ill.store.Load().State())
					})
				}
				follows("the drain to be seen", func(st *State) bool { b, _ := st.Backend("one"); return b.Drained })
				ill.kill()
				if s := ill.start(); !has(s.State(), "one") {
					t.Error("a node that starts on a failed disk does not serve what it has kept")
				}
				apply(t, ill.store.Load(), add("three")) // forwarded to the leader and visible here at once
				if !has(ill.store.Load().State(), "three") {
					t.Error("a change that was made through the node is not seen there")
				}
				if st, err := ill.store.Load().Read(t.Context()); err != nil || !has(st, "three") {
					t.Errorf("a read through the node gives %v, %v", st, err)
				}
				apply(t, other, add("four"))
				follows("the state after a restart", func(st *State) bool { return has(st, "four") })
				ill.fail.Store(nil)
				if name == "broken" {
					ill.kill()
					ill.start()
				}
				until(t, "the node to take part again", func() bool {
					st := ill.store.Load().Status()
					return !st.DiskFailed && st.Problem == "" && st.Committed >= other.State().Version
				})
			})
		})
	}
}

func (n *node) noted(name string) (version uint64) {
	n.fleet.t.Helper()
	until(n.fleet.t, n.name+" to note "+name, func() bool {
		s := n.store.Load()
		version = s.State().Version
		index, err := noted(s.current().disk)
		return err == nil && has(s.State(), name) && index >= version
	})
	return version
}

func applyShort(s *Store, c Command) error {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Apply(ctx, c)
	return err
}

func TestNotedNeverGoesBack(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Timers.SnapshotAfter, c.Timers.KeepLog = 4, 4 }).start()
		a := f.nodes[0]
		for i := range 20 {
			apply(t, f.running()[0], add(fmt.Sprint("b", i)))
		}
		until(t, "a snapshot", func() bool {
			meta, _, err := snapshotStore{a.store.Load().current().disk}.load(false)
			return err == nil && meta != nil
		})
		apply(t, f.running()[0], add("after-the-snapshot"))
		last := a.noted("after-the-snapshot")
		for _, n := range f.all() {
			n.kill()
		}
		for range 3 {
			s := a.start()
			if got := s.State().Version; got < last {
				t.Fatalf("a node that starts alone knows version %d, and knew %d before", got, last)
			}
			began := time.Now()
			until(t, "it to look around", func() bool { return time.Since(began) > 5*s.cfg.Timers.Poll })
			a.kill()
		}
	})
}

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
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

func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return f.Name()
}

func applyShort(s *Store, c Command) error {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Apply(ctx, c)
	return err
}

// A lone node on a full disk serves its state and takes changes once there is space.
func TestAloneOnAFullDisk(t *testing.T) {
	for _, how := range []string{"full", "read-only"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t, "600k")
			synctest.Test(t, func(t *testing.T) { aloneOnAFullDisk(t, dir, how) })
		})
	}
}

func aloneOnAFullDisk(t *testing.T, dir, how string) {
	cfg := Config{Dir: filepath.Join(dir, "raft"), Server: true, Timers: quickTimers()}
	var s *Store
	start := func() {
		t.Helper()
		opened, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s = opened
		if err = s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	t.Cleanup(func() { s.Stop(context.Background()) })
	apply(t, s, add("one", "two"))
	apply(t, s, SetRules{Text: "rules: []"})
	apply(t, s, SetBackendState{Names: []string{"one"}, Action: Drain})
	until(t, "the end to be noted", func() bool {
		index, err := noted(s.current().disk)
		return err == nil && index >= s.State().Version
	})
	var free func() error
	if how == "full" {
		file := fill(t, dir)
		free = func() error { return os.Remove(file) }
		for i := 0; !s.Status().DiskFailed; i++ {
			_ = applyShort(s, add(fmt.Sprint("more-", i)))
		}
	}
	version := s.State().Version
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if how == "read-only" {
		remount := func(how string) error {
			return exec.Command("mount", "-o", "remount,"+how, dir).Run()
		}
		if err := remount("ro"); err != nil {
			t.Fatal(err)
		}
		free = func() error { return remount("rw") }
	}
	for range 2 {
		start()
		st := s.State()
		if b, _ := st.Backend("one"); !b.Drained || !has(st, "two") || st.Rules.Text != "rules: []" || how == "read-only" && st.Version != version {
			t.Fatalf("the state is %+v, of version %d it was before", st, version)
		}
		for range 3 { // each takes longer than Timers.Reopen
			err := applyShort(s, add("refused"))
			if !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), "this node's disk failed: ") {
				t.Fatalf("a change is refused with %v", err)
			}
			if st := s.Status(); st.Role != "failed" || !st.DiskFailed || st.Writes.Failed == 0 {
				t.Fatalf("status is %+v", st)
			}
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	if err := free(); err != nil {
		t.Fatal(err)
	}
	apply(t, s, add("after"))
	if st := s.Status(); st.DiskFailed || st.Problem != "" || !has(s.State(), "two") {
		t.Errorf("status is %+v", st)
	}
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

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"grapevine.example/chaos/bubble"
)

// mount starts no process: until a child runs its program it holds this process's files, so a data
// file stays locked and its file system busy.
func mount(dir string, flags uintptr) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", flags, "size=600k")
}

func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := mount(dir, 0); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
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

// A lone node on a full disk serves its state and takes changes once there is space.
func TestAloneOnAFullDisk(t *testing.T) {
	for _, how := range []string{"full", "read-only"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t)
			bubble.Test(t, func(t *testing.T) { aloneOnAFullDisk(t, dir, how) })
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
		if err := mount(dir, syscall.MS_REMOUNT|syscall.MS_RDONLY); err != nil {
			t.Fatal(err)
		}
		free = func() error { return mount(dir, syscall.MS_REMOUNT) }
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

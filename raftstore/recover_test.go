package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A survivor becomes a group with every acknowledged write; returning lost nodes do no harm.
func TestRecover(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		apply(t, f.running()[1], add("two"))
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		until(t, "a to know", func() bool { return has(a.store.Load().State(), "two") })
		group, id := a.store.Load().Status().Group, a.store.Load().ID()
		if err := Recover(a.dir, []Server{{ID: id, Addr: a.addr(), Voter: true}}); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("recovery under a running node: %v", err)
		}
		for _, n := range f.all() {
			n.kill()
		}
		var sv Survivor
		err := whenFree(t, func() (err error) {
			sv, err = Inspect(a.dir)
			return err
		})
		if err != nil || sv.ID != id || sv.Group != group || len(sv.Servers) != 3 || sv.LastIndex < 3 {
			t.Errorf("the survivor is %+v, %v", sv, err)
		}
		if err := Recover(a.dir, []Server{{ID: id, Addr: a.addr(), Voter: true}}); err != nil {
			t.Fatal(err)
		}
		if sv, err = Inspect(a.dir); err != nil || len(sv.Servers) != 1 || sv.Backends != 2 || sv.Group == group {
			t.Errorf("the recovered survivor is %+v, %v", sv, err)
		}
		a.start()
		s := a.inService()
		apply(t, s, add("three"))
		for _, name := range []string{"one", "two", "three"} {
			if !has(s.State(), name) {
				t.Errorf("%s is lost", name)
			}
		}
		st := s.Status()
		if len(st.Servers) != 1 || st.Group == group {
			t.Errorf("status after recovery is %+v", st)
		}
		b.start()
		c.start()
		until(t, "the old group to be barred", func() bool {
			_, err := b.store.Load().Apply(t.Context(), add("elsewhere"))
			return errors.Is(err, ErrBarred) && strings.Contains(err.Error(), "was given up and recovered as "+st.Group)
		})
		until(t, "the old group to be noticed", func() bool { return strings.Contains(s.Status().Problem, "another group") })
		apply(t, s, add("four"))
		if has(s.State(), "elsewhere") {
			t.Error("the old group has written into the new one")
		}
		for _, n := range []*node{b, c} {
			n.kill()
			if err := os.RemoveAll(n.dir); err != nil {
				t.Fatal(err)
			}
			n.edit = func(c *Config) { c.Founders, c.Join = nil, true }
			n.start()
		}
		until(t, "three voters", func() bool { return len(voters(s)) == 3 })
		apply(t, c.store.Load(), add("five"))
		for _, name := range []string{"one", "two", "three", "four"} {
			if !has(c.store.Load().State(), name) {
				t.Errorf("%s is lost to the new node", name)
			}
		}
	})
}

// A node without data finds the group recovered from its own.
func TestFollowerOfALostGroup(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		d := f.add("d", func(c *Config) { c.Dir, c.Founders, c.Join = "", nil, true })
		follower := d.start()
		apply(t, f.running()[0], add("one"))
		for _, s := range []*Store{a.store.Load(), follower} {
			until(t, "both to know", func() bool { return has(s.State(), "one") })
		}
		for _, n := range []*node{a, b, c} {
			n.kill()
		}
		if err := whenFree(t, func() error { return Recover(a.dir, []Server{{*a.id.Load(), a.addr(), true}}) }); err != nil {
			t.Fatal(err)
		}
		a.start()
		s := a.inService()
		apply(t, s, add("two"))
		until(t, "the follower to notice", func() bool {
			return strings.Contains(follower.Status().Problem, "was given up and recovered as "+s.Status().Group) && strings.Contains(follower.Status().Problem, "restart this node")
		})
		if !has(follower.State(), "one") {
			t.Error("the follower has forgotten what was agreed on")
		}
		until(t, "the leader to notice", func() bool { return strings.Contains(s.Status().Problem, "another group") })
		d.kill()
		follower = d.start()
		until(t, "the follower to follow", func() bool { return has(follower.State(), "two") })
		for _, s := range []*Store{s, follower} {
			until(t, "the problem to be gone", func() bool { return s.Status().Problem == "" })
		}
	})
}

func TestRecoverTwoOfFive(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 5, nil).start()
		apply(t, f.running()[0], add("one"))
		a, b := f.nodes[0], f.nodes[1]
		for _, n := range []*node{a, b} {
			until(t, "both to know", func() bool { return has(n.store.Load().State(), "one") })
		}
		for _, n := range f.all() {
			n.kill()
		}
		one, two := Server{*a.id.Load(), a.addr(), true}, Server{*b.id.Load(), b.addr(), true}
		for dir, servers := range map[string][]Server{a.dir: {one, two}, b.dir: {two, one}} {
			if err := whenFree(t, func() error { return Recover(dir, servers) }); err != nil {
				t.Fatal(err)
			}
		}
		a.start()
		b.start()
		b.inService()
		apply(t, a.inService(), add("two"))
		until(t, "b to know", func() bool { return has(b.store.Load().State(), "two") && has(b.store.Load().State(), "one") })
	})
}

func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "none")
	self := Server{ID: id, Addr: "h:1", Voter: true}
	for _, c := range []struct {
		name, dir string
		servers   []Server
		text      string
	}{
		{"no data", empty, []Server{self}, "no such file"},
		{"nothing agreed on yet", dir, []Server{self}, "never been in a group"},
		{"not among the servers", dir, []Server{{ID: "x", Addr: "h:1", Voter: true}}, "is not among the servers"},
		{"no servers", dir, nil, "no voter is given"},
		{"no voter", dir, []Server{{ID: id, Addr: "h:1"}}, "no voter is given"},
		{"twice", dir, []Server{self, self}, "given twice"},
		{"no address", dir, []Server{{ID: id, Voter: true}}, "servers[0]"},
	} {
		if err := Recover(c.dir, c.servers); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Inspect(empty); err == nil {
		t.Error("no data can be inspected")
	}
	if _, err := os.Stat(empty); err == nil {
		t.Error("recovery has made a directory")
	}
}

// Only one process opens a data file; opening reports damage.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir, Server: true, Timers: quickTimers()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, s, add("one"))
	if _, err := Open(Config{Dir: dir, Server: true}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, dataFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(raw), "http://one.test:8000")
	if at < 0 {
		t.Fatal("the command is not in the file")
	}
	for ; at >= 0; at = strings.Index(string(raw), "http://one.test:8000") {
		raw[at] = 'X'
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Server: true}); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("damaged data is opened: %v", err)
	}
}

// A failed disk refuses all later writes.
func TestDiskLatch(t *testing.T) {
	t.Parallel()
	var fail error
	hang := make(chan struct{})
	hung := false
	var counts writeCounts
	d, err := openDisk(t.TempDir(), patience, func() error {
		if hung {
			<-hang
		}
		return fail
	}, &counts)
	if err != nil {
		t.Fatal(err)
	}
	logs := &logStore{disk: d}
	if err := logs.Set([]byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	hung, d.deadline = true, 20*time.Millisecond
	began := time.Now()
	if err := logs.Set([]byte("k"), []byte("w")); !errors.Is(err, errDiskHung) {
		t.Errorf("a write that hangs: %v after %v", err, time.Since(began))
	}
	if d.close(10 * time.Millisecond) {
		t.Error("a hung disk is closed")
	}
	if cause := d.failure(); !mayReopen(cause) {
		t.Errorf("a disk that hung must not be opened again: %v", cause)
	}
	fail = syscall.EIO // the hung write finally fails
	close(hang)
	until(t, "the disk to be let go of", d.over)
	if cause := d.failure(); mayReopen(cause) {
		t.Errorf("a disk whose fsync failed may be opened again: %v", cause)
	}
	if err := logs.Set([]byte("k"), []byte("x")); err == nil {
		t.Error("a failed disk takes writes")
	}
	if st := counts.stats(); st.Failed == 0 || st.Count < 2 {
		t.Errorf("stats are %+v", st)
	}
}

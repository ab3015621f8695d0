package raftstore

import (
	"testing"
)

func TestFleetOfOne(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		s, err := Open(Config{Dir: dir, Server: true, Timers: quickTimers(), Constants: Constants{BlockBytes: 512}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		apply(t, s, add("one"))
		st, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b, ok := st.Backend("one")
		if !ok || b.Generation != 1 || b.State != Active || b.URL != "http://one.test:8000" {
			t.Errorf("backend is %+v", b)
		}
		until(t, "constants", func() bool { return s.State().Constants.BlockBytes == 512 })
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Apply(t.Context(), add("two")); err == nil {
			t.Error("a stopped store takes commands")
		}
	}
}

func TestThreeNodes(t *testing.T) {
	t.Parallel()
	f := newRealFleet(t, 3, nil).start()
	for i, s := range f.running() {
		apply(t, s, add(string(rune('x'+i))))
		if _, ok := s.State().Backend(string(rune('x' + i))); !ok {
			t.Error("the node that was asked does not know what it has committed")
		}
	}
	for _, s := range f.running() {
		st, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Backends) != 3 {
			t.Errorf("%s reads %d backends", s.ID(), len(st.Backends))
		}
	}
}

// TestAStopLosesNothing: the next process serves what was committed before it has a quorum.
func TestAStopLosesNothing(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), Server: true, Timers: quickTimers(), Constants: Constants{BlockBytes: 512}}
	var names []string
	for _, name := range []string{"one", "two", "three"} {
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, earlier := range names {
			if _, ok := s.State().Backend(earlier); !ok {
				t.Errorf("%s is missing", earlier)
			}
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		apply(t, s, add(name))
		names = append(names, name)
		if err := s.Stop(t.Context()); err != nil { // at once
			t.Fatal(err)
		}
	}
}

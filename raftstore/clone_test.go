package raftstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A copy of a live voter's data takes no part in raft.
func TestCloneIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f := newFleet(t, 3, nil).start()
		apply(t, f.running()[0], add("one"))
		original := f.others(f.leader())[0]
		original.kill()
		raw, err := os.ReadFile(filepath.Join(original.dir, dataFile))
		if err != nil {
			t.Fatal(err)
		}
		original.start()
		clone := f.add("clone", nil)
		if err := os.WriteFile(filepath.Join(clone.dir, dataFile), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		until(t, "the voter to be back", func() bool {
			return original.store.Load().Status().Leader != ""
		})
		copied := clone.start()
		until(t, "the leader to say so", func() bool {
			problem := f.leader().store.Load().Status().Problem
			return strings.Contains(problem, *original.id.Load()) && strings.Contains(problem, clone.addr()) && strings.Contains(problem, cloneRemedy)
		})
		for i, s := range []*Store{f.nodes[0].store.Load(), f.nodes[1].store.Load(), f.nodes[2].store.Load()} {
			apply(t, s, add("after-"+f.nodes[i].name))
		}
		for _, v := range f.leader().store.Load().Status().Servers {
			if v.Addr == clone.addr() {
				t.Errorf("the copy has taken the place of the voter: %+v", v)
			}
		}
		if has(copied.State(), "after-a") {
			t.Error("the copy takes part")
		}
		// With the original dead, the copy is a moved node.
		original.kill()
		until(t, "the copy to be taken for the node", func() bool { return has(copied.State(), "after-c") })
	})
}

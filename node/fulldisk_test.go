package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"grapevine.example/node/config"
)

// TestFullDiskKeepsUp: a node with a full disk follows, reports it, and votes once space returns.
func TestFullDiskKeepsUp(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	first, second := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	nodes := startAgreeingWith(t, func(c *config.Config) {
		if c.NodeName == "three" {
			c.DataDir = filepath.Join(dir, "raft")
		}
	}, first.URL, second.URL)
	ill, well := nodes[2], nodes[:2]
	name := ill.backends.Roster().List[0].Name
	fill, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 512))
	}
	if fill.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	diskFailed := func() bool {
		st, err := ill.Raft()
		return err == nil && st.Role == "failed" && st.DiskFailed && strings.HasPrefix(st.Problem, "disk failed: ")
	}
	// Long rules use up the file's free pages.
	for i := 0; !diskFailed(); i++ {
		rules := fmt.Sprintf("# %d %s\nrules:\n  - strategy: prefix\n", i, strings.Repeat("x", 32<<10))
		if _, err := client(well[0]).ApplyRules(t.Context(), rules, nil, false); err != nil {
			t.Fatal(err)
		}
		if i == 200 {
			t.Fatal("the disk does not fail")
		}
	}
	if _, err := client(well[1]).SetBackendState(t.Context(), []string{name}, "drain", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drain is seen by all", func() bool {
		if !diskFailed() {
			t.Fatal("the failure is not shown any more")
		}
		return inState(nodes, name, "draining")
	})
	if m := scrape(t, ill); m["grapevine_raft_disk_failed"] != 1 || m["grapevine_raft_write_failures_total"] == 0 {
		t.Errorf("metrics show %v and %v", m["grapevine_raft_disk_failed"], m["grapevine_raft_write_failures_total"])
	}
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node takes part again", func() bool {
		st, err := ill.Raft()
		return err == nil && !st.DiskFailed && st.Role != "failed" && st.Leader != ""
	})
}

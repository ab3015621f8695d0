package fleet_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"grapevine/chaos/fleet"
)

// isolated runs the calling test again in a process with a network of its own, and says whether this is that process. Where there are no
// namespaces the test is skipped, or fails if required.
func isolated(t *testing.T, required bool) bool {
	t.Helper()
	if fleet.Isolated() {
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if d, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(d).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "GRAPEVINE="+grapevine(t))
	err := fleet.Isolate(cmd)
	if err == nil {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		err = cmd.Start()
	}
	if err != nil && !required {
		t.Skipf("no network namespaces here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("in its own network: %v", err)
	}
	return false
}

// reach says whether one node can be reached from another's network within the given time.
func reach(t *testing.T, from, to *fleet.Node, patience time.Duration) (ok bool) {
	t.Helper()
	err := from.InNetwork(func() error {
		// A socket belongs to the network of the thread that opens it, and for a literal address Dial opens it itself.
		c, err := net.DialTimeout("tcp", to.Addr(), patience)
		if ok = err == nil; ok {
			_ = c.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// TestPartition: two nodes in networks of their own reach each other, do not while they are cut off, and do again.
func TestPartition(t *testing.T) {
	if !isolated(t, false) {
		return
	}
	for round := range 2 { // the second finds no trace of the first
		f := start(t, fleet.Config{Nodes: 3, Engines: 1, Alone: true, Isolated: true})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		a, b, c := f.Node("node-0"), f.Node("node-1"), f.Node("node-2")
		check := func(what string, want bool) {
			t.Helper()
			patience := 20 * time.Second
			if !want {
				patience = time.Second // it is all spent
			}
			if got := reach(t, a, b, patience); got != want {
				t.Errorf("round %d, %s: node-0 reaches node-1: %v", round, what, got)
			}
			if got := reach(t, b, a, patience); got != want {
				t.Errorf("round %d, %s: node-1 reaches node-0: %v", round, what, got)
			}
			if !reach(t, a, c, 20*time.Second) || !reach(t, c, a, 20*time.Second) {
				t.Errorf("round %d, %s: node-0 and node-2 do not reach each other", round, what)
			}
			for range 10 { // clients and engines are where they were
				if _, err := chat(ctx, f.URL()); err != nil {
					t.Errorf("round %d, %s: %v", round, what, err)
				}
			}
		}
		check("before", true)
		if err := f.Partition([]string{"node-0"}, []string{"node-1"}); err != nil {
			t.Fatal(err)
		}
		check("cut", false)
		if err := f.Heal(); err != nil {
			t.Fatal(err)
		}
		check("healed", true)
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		restart(ctx, t, b) // in the same network
		check("restarted", true)
		if err := f.Partition([]string{"node-0"}, []string{"nobody"}); err == nil {
			t.Error("cut off from nobody")
		}
		cancel()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDiesWithHarness: a harness that is killed takes its nodes with it.
func TestDiesWithHarness(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GRAPEVINE="+grapevine(t), orphanEnv+"="+pids)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	var text []byte
	for len(text) == 0 && time.Now().Before(deadline) {
		text, _ = os.ReadFile(pids)
		time.Sleep(5 * time.Millisecond)
	}
	var started [2]int
	var dir string
	if _, err := fmt.Sscan(string(text), &started[0], &started[1], &dir); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	defer os.RemoveAll(dir) // what a killed harness cannot do itself
	for _, pid := range started {
		if !alive(pid) {
			t.Fatalf("%d does not run", pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range started {
		for alive(pid) && !zombie(t, pid) {
			if time.Now().After(deadline) {
				t.Fatalf("%d has outlived the harness", pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// zombie says whether a process has ended and its new parent has not noticed yet.
func zombie(t *testing.T, pid int) bool {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true // gone altogether
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(rest, "Z")
}

// TestUsage: what a process uses grows, and is that of the process.
func TestUsage(t *testing.T) {
	f := start(t, fleet.Config{Nodes: 1, Engines: 1, Alone: true})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := f.Nodes()[0]
	first, err := n.Usage()
	if err != nil || first.RSS < 4<<20 || first.RSS > 1<<30 {
		t.Fatalf("%+v, %v", first, err)
	}
	for now := first; now.CPU < first.CPU+50*time.Millisecond; {
		if _, err := chat(ctx, f.URL()); err != nil {
			t.Fatal(err)
		}
		if now, err = n.Usage(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil { // also of one that is stopped
		t.Fatal(err)
	}
	if _, err := n.Usage(); err == nil {
		t.Error("usage of a dead process")
	}
}

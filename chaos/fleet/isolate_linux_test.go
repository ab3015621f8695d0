package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func isolated(t *testing.T, required bool) bool {
	t.Helper()
	if fleet.Isolated() {
		return true
	}
	t.Parallel()
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if d, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(d).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "GRAPEVINE="+grapevine(t))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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

func reach(t *testing.T, from, to *fleet.Node, wait time.Duration) (ok bool) {
	t.Helper()
	err := from.InNetwork(func() error {
		// A socket belongs to the network of its thread: for a literal address the calling one.
		c, err := net.DialTimeout("tcp", to.Addr(), wait)
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

func TestPartition(t *testing.T) {
	if !isolated(t, false) {
		return
	}
	for round := range 2 {
		f := start(t, fleet.Config{Nodes: 3, Engines: 1, Alone: true, Switched: true})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		a, b, c := f.Node("node-0"), f.Node("node-1"), f.Node("node-2")
		check := func(what string, want bool) {
			t.Helper()
			wait := patience
			if !want {
				wait = enough
			}
			if got := reach(t, a, b, wait); got != want {
				t.Errorf("round %d, %s: node-0 reaches node-1: %v", round, what, got)
			}
			if got := reach(t, b, a, wait); got != want {
				t.Errorf("round %d, %s: node-1 reaches node-0: %v", round, what, got)
			}
			if !reach(t, a, c, patience) || !reach(t, c, a, patience) {
				t.Errorf("round %d, %s: node-0 and node-2 do not reach each other", round, what)
			}
			for range 10 {
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
		restart(ctx, t, b)
		check("restarted", true)
		if err := f.Partition([]string{"node-0"}, []string{"missing"}); err == nil {
			t.Error("cut off a member that does not exist")
		}
		cancel()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDiesWithHarness(t *testing.T) {
	t.Parallel()
	for _, isolate := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated=%v", isolate), func(t *testing.T) { diesWithHarness(t, isolate) })
	}
}

func diesWithHarness(t *testing.T, isolate bool) {
	report := filepath.Join(t.TempDir(), "report")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GRAPEVINE="+grapevine(t), orphanEnv+"="+report)
	cmd.Stderr = os.Stderr
	if isolate {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := fleet.Isolate(cmd); err != nil {
			t.Skip(err)
		}
	}
	if err := cmd.Start(); err != nil {
		if isolate {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	var text []byte
	for len(text) == 0 && time.Now().Before(deadline) {
		text, _ = os.ReadFile(report)
		time.Sleep(5 * time.Millisecond)
	}
	dir := strings.TrimSpace(string(text))
	if dir == "" {
		t.Fatal("no fleet started")
	}
	if n := len(processesOf(t, dir)); n < 3 {
		t.Fatalf("%d processes run", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for {
		left := processesOf(t, dir)
		if _, err := os.Stat(dir); len(left) == 0 && errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the harness has left %s, and %v", dir, left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func processesOf(t *testing.T, dir string) (out []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(all) == 0 {
		t.Fatalf("no processes, %v", err)
	}
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if strings.Contains(string(text), dir+"/") || strings.HasSuffix(string(text), dir+"\x00") {
			out = append(out, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return out
}

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
	if err := n.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Usage(); err == nil {
		t.Error("usage of a dead process")
	}
}

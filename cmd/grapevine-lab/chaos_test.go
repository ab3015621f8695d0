package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"grapevine.example/chaos/scenario"
	"grapevine.example/cmd/commandline"
)

func TestChaosList(t *testing.T) {
	text := lab("chaos", "list")
	if text.code != 0 || text.err != "" {
		t.Fatalf("exit %d, stderr %q", text.code, text.err)
	}
	var list chaosList
	out := lab("chaos", "list", "--json")
	if err := json.Unmarshal([]byte(out.out), &list); err != nil || out.code != 0 {
		t.Fatalf("exit %d, %v", out.code, err)
	}
	if len(list.Scenarios) != len(scenario.Names()) || len(list.Faults) != len(scenario.Faults()) || len(list.Invariants) != len(scenario.Invariants()) {
		t.Errorf("%d scenarios, %d faults, %d promises", len(list.Scenarios), len(list.Faults), len(list.Invariants))
	}
	for _, name := range []string{"router-loss", "leader-loss", "majority-loss", "rolling-restart", "partition-heal", "asymmetric-partition", "engine-loss", "engine-amnesia",
		"hot-prefix", "slow-disk", "full-disk", "nlb-drain", "packet-loss", "upgrade", "everything-at-once"} {
		if !strings.Contains(text.out, "  "+name+" ") {
			t.Errorf("%s is not listed", name)
		}
	}
	for _, s := range list.Scenarios {
		if s.Proves == "" || s.Nodes == 0 || s.Engines == 0 || s.DurationS == 0 {
			t.Errorf("%+v", s)
		}
	}
}

func build(t *testing.T) (dir, program string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", dir+"/", "grapevine.example/cmd/grapevine", "grapevine.example/cmd/grapevine-lab").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir, filepath.Join(dir, "grapevine-lab")
}

func TestChaosCalledOff(t *testing.T) {
	programs, program := build(t)
	for _, network := range [][]string{{"--loopback"}, nil} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{"chaos", "run", "router-loss", "--keep", dir}, network...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		log := filepath.Join(dir, "router-loss-1", "node-2.log")
		for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if text, err := os.ReadFile(log); err == nil && bytes.Contains(text, []byte(`"message":"ready"`)) {
				break
			}
			select {
			case err := <-ended:
				t.Fatalf("it ended by itself: %v\n%s%s", err, out.String(), errs.String())
			default:
			}
			if time.Now().After(deadline) {
				t.Fatal("no node was ready")
			}
		}
		if n := len(running(t, programs)); runtime.GOOS == "linux" && n < 4 {
			t.Errorf("%d processes run, want the harness and three nodes", n)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			t.Fatal("it did not end")
		}
		if code := cmd.ProcessState.ExitCode(); code != commandline.ExitFailed || !strings.Contains(errs.String(), "called off") {
			t.Errorf("exit %d, stderr %q", code, errs.String())
		}
		for deadline := time.Now().Add(time.Minute); len(running(t, programs)) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("still running: %v", running(t, programs))
			}
		}
	}
}

func running(t *testing.T, dir string) (pids []string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range found {
		if path, err := os.Readlink(exe); err == nil && filepath.Dir(path) == dir {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

func TestChaosProgress(t *testing.T) {
	for _, soak := range []bool{false, true} {
		var out bytes.Buffer
		p := newChaosProgress(&out, "endurance", soak)
		for at := time.Duration(0); at < 200*time.Second; at += 250 * time.Millisecond {
			p.update(scenario.Progress{Phase: "traffic", Elapsed: at, Length: 300 * time.Second, Attempts: int(at / time.Second)})
		}
		p.line.finish()
		want := ""
		if soak {
			for _, at := range []int{0, 60, 120, 180} {
				want += fmt.Sprintf("endurance: traffic, %d of 300 s, %d requests, 0 failed\n", at, at)
			}
		}
		if out.String() != want {
			t.Errorf("soak %v: %q, want %q", soak, out.String(), want)
		}
	}
}

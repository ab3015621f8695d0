package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"grapevine/chaos/scenario"
)

// TestChaosList: everything that there is is listed, for people and for machines.
func TestChaosList(t *testing.T) {
	text := grapevine(t, "", "chaos", "list")
	if text.code != 0 || text.err != "" {
		t.Fatalf("exit %d, stderr %q", text.code, text.err)
	}
	var list chaosList
	out := grapevine(t, "", "chaos", "list", "--json")
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

// TestChaosCalledOff: an interrupt takes down what was started, and says so.
func TestChaosCalledOff(t *testing.T) {
	// The real program: it starts itself.
	dir := t.TempDir()
	program := filepath.Join(dir, "grapevine")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "chaos", "run", "router-loss", "--keep", dir, "--nodes", "3")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	log := filepath.Join(dir, "router-loss-1", "node-2.log")
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(log); err == nil && bytes.Contains(text, []byte(`"message":"ready"`)) {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended by itself: %v\n%s", err, errs.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("no node was ready") // and the context ends the program
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		t.Fatal("it did not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(errs.String(), "called off") {
		t.Errorf("exit %d, stderr %q", code, errs.String())
	}
	for _, name := range []string{"node-0", "node-1", "node-2"} {
		text, err := os.ReadFile(filepath.Join(dir, "router-loss-1", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^listen: (\S+)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no address in %s", text)
		}
		if c, err := net.Dial("tcp", string(found[1])); err == nil {
			_ = c.Close()
			t.Errorf("%s is still there", name)
		}
	}
}

package fleet_test

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"grapevine/chaos/fleet"
)

// TestOrdinaryClock: the clock of a program as it is shipped cannot be stepped, and the error says what to do.
func TestOrdinaryClock(t *testing.T) {
	f := start(t, fleet.Config{Nodes: 1, Alone: true, NoBalancer: true})
	for what, err := range map[string]error{"StepClock": f.Nodes()[0].StepClock(time.Hour), "Steppable": fleet.Steppable(grapevine(t))} {
		if err == nil || !strings.Contains(err.Error(), "make build-chaos") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestStepClock: a node whose clock goes forward and back by an hour logs the time that it sees, stays in the fleet, and answers, and the other
// node's clock is left alone.
func TestStepClock(t *testing.T) {
	t.Parallel()
	program := os.Getenv("GRAPEVINE_STEPPABLE")
	if program == "" || runtime.GOOS != "linux" {
		t.Skip("GRAPEVINE_STEPPABLE names no program with a clock that can be stepped (make build-chaos)")
	}
	if err := fleet.Steppable(program); err != nil {
		t.Fatal(err)
	}
	f := start(t, fleet.Config{Nodes: 3, Engines: 1, Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := f.Node("node-1")
	if err := n.Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	n.UseBinary(program)
	restart(ctx, t, n)
	year := time.Now().Add(400 * 24 * time.Hour)
	if err := n.StepClock(time.Until(year)); err != nil {
		t.Fatal(err)
	}
	shown := func() bool { return strings.Contains(n.Log(), `"time":"`+year.UTC().Format("2006-")) }
	if err := n.Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	restart(ctx, t, n)
	if !shown() {
		t.Errorf("nothing is logged in %d:\n%s", year.Year(), n.Log())
	}
	if strings.Contains(f.Node("node-0").Log(), `"time":"`+year.UTC().Format("2006-")) {
		t.Error("node-0 logs in the future, too")
	}
	served(t, f)
	if err := n.StepClock(-time.Until(year)); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitMesh(ctx); err != nil {
		t.Fatal(err)
	}
	served(t, f)
}

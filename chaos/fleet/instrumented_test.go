package fleet_test

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestOrdinaryProgram(t *testing.T) {
	f := start(t, fleet.Config{Nodes: 1, Alone: true, NoBalancer: true})
	for what, err := range map[string]error{
		"StepClock": f.Nodes()[0].StepClock(time.Hour), "FillDisk": f.Nodes()[0].FillDisk(), "Supports": fleet.Supports(fleet.FaultInstrumented, grapevine(t)),
	} {
		if err == nil || !strings.Contains(err.Error(), "make build-chaos") || !strings.Contains(err.Error(), "--router bin/grapevine-chaos") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func instrumented(t *testing.T) string {
	t.Helper()
	program := os.Getenv("GRAPEVINE_INSTRUMENTED")
	if program == "" || runtime.GOOS != "linux" {
		t.Skip("GRAPEVINE_INSTRUMENTED names no instrumented program (make build-chaos)")
	}
	if err := fleet.Supports(fleet.FaultInstrumented, program); err != nil {
		t.Fatal(err)
	}
	return program
}

func TestStepClock(t *testing.T) {
	t.Parallel()
	program := instrumented(t)
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

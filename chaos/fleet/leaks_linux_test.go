package fleet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
)

type holdings struct {
	files    []string
	networks int
}

func held(t *testing.T) (h holdings) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if path, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil {
			h.files = append(h.files, path)
		}
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads, %v", err)
	}
	networks := map[string]bool{}
	for _, thread := range threads {
		if ns, err := os.Readlink(thread + "/ns/net"); err == nil {
			networks[ns] = true
		}
	}
	h.networks = len(networks)
	return h
}

func TestNothingIsHeld(t *testing.T) {
	need(t, fleet.FaultLinks)
	if !isolated(t, false) {
		return
	}
	path := grapevine(t)
	t.Setenv("TMPDIR", t.TempDir())
	whole := fleet.Config{Binary: path, Nodes: 3, Engines: 1, Switched: true, Certificates: true,
		HAProxy: fleet.Supports(fleet.FaultHAProxy, "") == nil, Engine: engine.ServerConfig{Models: []string{model}}}
	failing := func(edit func(*fleet.Config)) func(context.Context) error {
		return func(ctx context.Context) error {
			cfg := whole
			edit(&cfg)
			f, err := fleet.Start(ctx, cfg)
			if err == nil {
				_ = f.Close()
				return fmt.Errorf("%+v started", cfg)
			}
			return nil
		}
	}
	broken := func(ctx context.Context) error {
		f, err := fleet.Start(ctx, whole)
		if err != nil {
			return err
		}
		if err := f.SetLink(fleet.Everybody, fleet.Everybody, fleet.Link{Loss: 0.5, Delay: 5 * time.Second}); err != nil {
			t.Error(err)
		}
		return f.Close()
	}
	unanswered := func(ctx context.Context) error {
		cfg := whole
		cfg.HAProxy, cfg.Balancer = false, fleet.BalancerConfig{Interval: 5 * time.Millisecond, Timeout: 100 * time.Millisecond}
		f, err := fleet.Start(ctx, cfg)
		if err != nil {
			return err
		}
		if err := f.SetLink(fleet.BalancerName, fleet.Everybody, fleet.Link{Loss: 1}); err != nil {
			t.Error(err)
		}
		if err := f.WaitHealthy(ctx, "node-0", false); err != nil {
			t.Error(err)
		}
		return f.Close()
	}
	var before holdings
	const long = 2 * time.Minute
	for i, round := range []struct {
		name   string
		within time.Duration
		run    func(context.Context) error
	}{
		{"the first of its kind", long, broken},
		{"engines do not start", long, failing(func(c *fleet.Config) { c.Engine = engine.ServerConfig{MaxModelLen: 1} })},
		{"no program", long, failing(func(c *fleet.Config) { c.Binary = "/does/not/exist" })},
		{"nodes do not start", long, failing(func(c *fleet.Config) { c.Settings = map[string]any{"strategy": "no-such"} })},
		{"out of time", time.Millisecond, failing(func(*fleet.Config) {})},
		{"broken", long, broken},
		{"unanswered", long, unanswered},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), round.within)
		if err := round.run(ctx); err != nil {
			t.Errorf("%s: %v", round.name, err)
		}
		cancel()
		if i == 0 {
			before = settled(t, holdings{files: make([]string, 1<<10), networks: 1})
			continue
		}
		if now := settled(t, before); len(now.files) > len(before.files) || now.networks > 1 {
			t.Errorf("%s: held before %+v, now %+v", round.name, before, now)
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// settled waits, because threads end some time after their goroutines.
func settled(t *testing.T, most holdings) (now holdings) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		now = held(t)
		if len(now.files) <= len(most.files) && now.networks <= most.networks || time.Now().After(deadline) {
			return now
		}
	}
}

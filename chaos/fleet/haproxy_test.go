package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine/chaos/fleet"
)

// TestHAProxy: HAProxy spreads connections over the nodes, notices one that is killed and one that is back, and is gone with the fleet.
func TestHAProxy(t *testing.T) {
	t.Parallel()
	if err := fleet.Supports(fleet.FaultHAProxy); err != nil {
		t.Skip(err)
	}
	f := start(t, fleet.Config{Nodes: 2, Engines: 1, Alone: true, HAProxy: true, Dir: t.TempDir(), Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	answers := func() map[string]bool {
		t.Helper()
		seen := map[string]bool{}
		for range 10 {
			who, err := chatFrom(ctx, f.DialClient, f.URL())
			if err != nil {
				t.Fatal(err)
			}
			seen[who] = true
		}
		return seen
	}
	if seen := answers(); len(seen) != 2 {
		t.Errorf("10 connections saw %v", seen)
	}
	targets, err := f.Targets(ctx)
	if err != nil || len(targets) != 2 || targets[0].Connections < 1 || targets[1].Connections < 1 || !targets[0].Healthy || !targets[1].Healthy {
		t.Errorf("%+v, %v", targets, err)
	}
	n := f.Node("node-1")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitHealthy(ctx, "node-1", false); err != nil {
		t.Fatal(err)
	}
	if seen := answers(); len(seen) != 1 || !seen["node-0"] {
		t.Errorf("with node-1 dead %v answered", seen)
	}
	restart(ctx, t, n)
	if err := f.WaitHealthy(ctx, "node-1", true); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(f.Dir(), "haproxy.cfg"))
}

// same holds a configuration to the one that operators are given.
func same(t *testing.T, path string) {
	t.Helper()
	settings := func(path string) (out []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(strings.TrimSpace(line), " send-proxy-v2 check-send-proxy")
			word, _, _ := strings.Cut(line, " ")
			switch {
			case line == "", word == "#", slices.Contains([]string{"log", "user", "group", "stats", "maxconn", "bind", "server"}, word), line == "option tcplog":
			default:
				out = append(out, line)
			}
		}
		return out
	}
	got, want := settings(path), settings("../../deploy/example/haproxy.cfg")
	if !slices.Equal(got, want) {
		t.Errorf("HAProxy is set up with\n%s\nand not with\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

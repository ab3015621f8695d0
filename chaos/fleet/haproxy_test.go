package fleet_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestHAProxy(t *testing.T) {
	t.Parallel()
	if err := fleet.Supports(fleet.FaultHAProxy, ""); err != nil {
		t.Skip(err)
	}
	f := start(t, fleet.Config{Nodes: 2, Engines: 1, Alone: true, HAProxy: true, Dir: t.TempDir(), Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// On a stalled machine HAProxy may take a live node for dead for a while.
	answeredBy := func(want ...string) {
		t.Helper()
		for {
			seen := map[string]bool{}
			var err error
			for range 10 {
				var who string
				if who, err = chatFrom(ctx, f.DialClient, f.URL()); err != nil {
					break
				}
				seen[who] = true
			}
			if got := slices.Sorted(maps.Keys(seen)); err == nil && slices.Equal(got, want) {
				return
			} else if ctx.Err() != nil {
				t.Fatalf("10 connections saw %v, %v, want %v", got, err, want)
			}
		}
	}
	answeredBy("node-0", "node-1")
	n := f.Node("node-1")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitHealthy(ctx, "node-1", false); err != nil {
		t.Fatal(err)
	}
	answeredBy("node-0")
	restart(ctx, t, n)
	if err := f.WaitHealthy(ctx, "node-1", true); err != nil {
		t.Fatal(err)
	}
	answeredBy("node-0", "node-1")
	same(t, filepath.Join(f.Dir(), "haproxy.cfg"))
}

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

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
)

const model = "emulated"

func start(t *testing.T, cfg fleet.Config) *fleet.Fleet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if cfg.Binary == "" {
		cfg.Binary = grapevine(t)
	}
	if cfg.Engine.Models == nil {
		cfg.Engine.Models = []string{model}
	}
	cfg.Log = zerolog.Nop()
	f, err := fleet.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range f.Nodes() {
				t.Logf("%s:\n%s", n.Name(), n.Log())
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func chat(ctx context.Context, base string) (node string, err error) { return chatFrom(ctx, nil, base) }

func chatFrom(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), base string) (node string, err error) {
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}],"max_tokens":2}`, model)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return resp.Header.Get("X-Grapevine-Node"), err
}

func served(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 10 {
		if _, err := chatFrom(ctx, f.DialClient, f.URL()); err != nil {
			t.Error(err)
		}
	}
}

func awaitPeer(ctx context.Context, t *testing.T, n *fleet.Node, peer string, heard bool) {
	t.Helper()
	for {
		list, err := n.Nodes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Nodes {
			if p.Name == peer && p.Connected == heard {
				return
			}
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestLife(t *testing.T) {
	f := start(t, fleet.Config{Nodes: 2, Engines: 1, Alone: true, Balancer: fleet.BalancerConfig{Interval: 20 * time.Millisecond, Timeout: 10 * time.Second},
		Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := f.Node("node-1")
	seen := map[string]bool{}
	for range 40 {
		who, err := chat(ctx, f.URL())
		if err != nil {
			t.Fatal(err)
		}
		seen[who] = true
	}
	if !seen["node-0"] || !seen["node-1"] {
		t.Errorf("40 connections saw %v", seen)
	}
	if s := f.Engines()[0].Server().Stats(); s.Requests != 40 {
		t.Errorf("the engine had %d requests", s.Requests)
	}
	pids := []int{f.Node("node-0").PID(), n.PID()}

	if err := n.Kill(); err != nil || n.Running() || alive(n.PID()) {
		t.Fatalf("after Kill: %v, running %v", err, n.Running())
	}
	if err := f.WaitHealthy(ctx, "node-1", false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if who, err := chat(ctx, f.URL()); err != nil || who != "node-0" {
			t.Fatalf("with node-1 dead: %q, %v", who, err)
		}
	}
	restart(ctx, t, n)
	if n.PID() == pids[1] {
		t.Error("the same process")
	}
	pids = append(pids, n.PID())
	if err := f.WaitHealthy(ctx, "node-1", true); err != nil {
		t.Fatal(err)
	}
	if err := n.Terminate(ctx); err != nil || n.Running() {
		t.Fatalf("Terminate: %v", err)
	}
	restart(ctx, t, n)
	pids = append(pids, n.PID())
	if st, err := n.Status(ctx); err != nil || st.Node != "node-1" || st.Listen != n.Addr() {
		t.Errorf("%+v, %v", st, err)
	}
	if err := f.Check(); err != nil {
		t.Errorf("all were ended by the test: %v", err)
	}
	leavesNothing(t, f, pids)
}

func leavesNothing(t *testing.T, f *fleet.Fleet, pids []int) {
	t.Helper()
	dir, n := f.Dir(), f.Node("node-1")
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory: %v", err)
	}
	for _, addr := range []string{n.Addr(), n.AdminAddr(), f.Engines()[0].Addr(), strings.TrimPrefix(f.URL(), "http://")} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Errorf("something is left: %v", err)
			continue
		}
		_ = ln.Close()
	}
}

func restart(ctx context.Context, t *testing.T, n *fleet.Node) {
	t.Helper()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(); err == nil {
		t.Fatal("started twice")
	}
}

func TestUnnoticedDeath(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Config{Binary: grapevine(t), Nodes: 1, Alone: true, NoBalancer: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := f.Nodes()[0]
	if err := syscall.Kill(n.PID(), syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	for n.Running() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := n.WaitReady(ctx); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("WaitReady: %v", err)
	}
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), "goroutine ") {
		t.Errorf("Check: %v", err)
	}
	for range 2 {
		if f.Close() == nil {
			t.Error("Close said nothing, or forgot it")
		}
	}
}

func TestFailedStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := grapevine(t)
	t.Setenv("TMPDIR", t.TempDir()) // other programs create directories in the default one
	_, err := fleet.Start(ctx, fleet.Config{Binary: path, Nodes: 2, Alone: true, Settings: map[string]any{"strategy": "no-such"}})
	if err == nil || !strings.Contains(err.Error(), "no-such") || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("%v", err)
	}
	for _, bad := range []fleet.Config{{}, {Nodes: 1, Engines: -1}, {Nodes: 1, Engines: 1000}, {Nodes: 1, Binary: "/does/not/exist"},
		{Nodes: 1, Switched: true}, {Nodes: 2, Later: 3}, {Nodes: 4, Founders: 3, Spares: 2}, {Nodes: 2, Founders: 3}, {Nodes: 1, Engines: 1, Engine: engine.ServerConfig{MaxModelLen: 1}}} {
		if f, err := fleet.Start(ctx, bad); err == nil {
			t.Errorf("%+v started", bad)
			_ = f.Close()
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	errs := make(chan error)
	const fleets = 4
	path := grapevine(t)
	for range fleets {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			f, err := fleet.Start(ctx, fleet.Config{Binary: path, Nodes: 2, Engines: 1, Alone: true, Seed: 7, Engine: engine.ServerConfig{Models: []string{model}}})
			if err == nil {
				_, err = chat(ctx, f.URL())
				err = errors.Join(err, f.Close())
			}
			errs <- err
		}()
	}
	for range fleets {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestEngineRestart(t *testing.T) {
	f := start(t, fleet.Config{Nodes: 1, Engines: 1, Alone: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := f.Engines()[0]
	if _, err := chat(ctx, f.URL()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Stop(), e.Stop()); err != nil || e.Server() != nil {
		t.Fatalf("%v, %v", err, e.Server())
	}
	if _, err := chat(ctx, f.URL()); err == nil {
		t.Error("an answer without an engine")
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err == nil {
		t.Error("started twice")
	}
	deadline, cancelRetry := context.WithTimeout(ctx, 50*time.Second)
	defer cancelRetry()
	for {
		if _, err := chat(deadline, f.URL()); err == nil {
			break
		} else if deadline.Err() != nil {
			t.Fatal(err)
		}
	}
	if s := e.Server().Stats(); s.Finished < 1 || s.CachedTokens != 0 {
		t.Errorf("%+v", s)
	}
}

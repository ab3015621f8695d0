package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

// TestMain fails if a goroutine is left, except fasthttp's for the Date header and net/http's
// closing connections, which last half a second.
func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	if code == 0 {
		if err := goleak.Find(
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
			goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var built struct {
	once      sync.Once
	path, dir string
	err       error
}

func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.path = os.Getenv("GRAPEVINE"); built.path != "" {
			return
		}
		if built.dir, built.err = os.MkdirTemp("", "grapevine-test-"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "grapevine")
		if out, err := exec.Command("go", "build", "-o", built.path, "grapevine.example/cmd/grapevine").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

func TestEffectInVirtualTime(t *testing.T) {
	for seed := range uint64(3) {
		w := Workload(4, 30*time.Second)
		runs, err := fleetsim.Run(context.Background(), fleetsim.Config{
			Workload: w, Options: workload.Options{Seed: seed}, Policies: []string{"prefix", Baseline}, Nodes: []int{3},
			Backends: w.Backends, Engine: EngineConfig(), Warmup: w.Warmup, HideCapacity: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		a, b := runs[0], runs[1]
		if a.Policy != "prefix" || b.Policy != Baseline {
			t.Fatalf("runs of %s and %s", a.Policy, b.Policy)
		}
		if a.HitRate < 1.7*b.HitRate || a.TTFT.P50 > b.TTFT.P50 || a.TTFT.P99 > b.TTFT.P99 || a.LoadCov > 0.4 {
			t.Errorf("seed %d: hit rate %v against %v, first token %+v against %+v, load spread %v", seed, a.HitRate, b.HitRate, a.TTFT, b.TTFT, a.LoadCov)
		}
		if b.Utilization < 0.5 || b.Utilization > 0.95 {
			t.Errorf("seed %d: the baseline's engines compute %v of the time", seed, b.Utilization)
		}
	}
}

func settings(t *testing.T) Config {
	t.Helper()
	return Config{Binary: binary(t), Nodes: 2, Engines: 2, Duration: 3 * time.Second, Seed: 1, Policy: "prefix", Log: zerolog.Nop()}
}

func TestRun(t *testing.T) {
	seen := map[string]int{}
	cfg := settings(t)
	cfg.Progress = func(policy string, p replay.Progress) { seen[policy]++ }
	dashboard, err := OpenDashboard()
	if err != nil {
		t.Fatal(err)
	}
	defer dashboard.Close()
	if status, page := get(t, dashboard.URL()); status != http.StatusServiceUnavailable || !strings.Contains(page, "starting") {
		t.Errorf("before the first run: %d %q", status, page)
	}
	var events []string
	cfg.Dashboard = dashboard
	cfg.Event = func(e Event) {
		events = append(events, e.Policy+": "+e.What)
		for path, want := range map[string]string{"": "<title>grapevine", "../status": `"node-0"`} { // node-1 is killed
			if status, page := get(t, dashboard.URL()+path); status != http.StatusOK || !strings.Contains(page, want) {
				t.Errorf("%s: %s%s: %d %.200q, want %s", e.What, dashboard.URL(), path, status, page, want)
			}
		}
	}
	out, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	a, b := out.Affinity, out.Baseline
	for _, arm := range []Arm{a, b} {
		if arm.Errors != 0 || arm.Live.LostReplies > arm.Cut {
			t.Errorf("errors: %v %v, %d cut, %d replies lost", arm.Live.Errors, arm.Live.Sample, arm.Cut, arm.Live.LostReplies)
		}
		k := arm.Kill
		if k.Node != "node-1" || k.KilledS < 1.2 || k.RestartS < 1.8 || k.ReadyS <= k.RestartS || k.HitRate.Before == nil || k.HitRate.Down == nil || arm.Gossip.BytesPerSPerNode <= 0 {
			t.Errorf("kill %+v, gossip %+v", k, arm.Gossip)
		}
	}
	if a.Requests < 10 || b.Requests < 10 || a.PromptTokens == 0 || a.TTFT.P50 <= 0 || a.Policy != "prefix" || b.Policy != Baseline {
		t.Errorf("affinity %+v\nbaseline %+v", a.Report, b.Report)
	}
	if len(a.Backends) != 2 || len(b.Backends) != 2 || b.Rungs["rotate"]+b.Cut < b.Requests {
		t.Errorf("affinity on %+v, baseline on %+v by %v", a.Backends, b.Backends, b.Rungs)
	}
	if seen["prefix"] == 0 || seen[Baseline] == 0 {
		t.Errorf("progress %v", seen)
	}
	var want []string
	for _, policy := range []string{Baseline, "prefix"} {
		for _, what := range []string{"2 engines and 2 routers are ready, traffic begins", "router node-1 is killed with SIGKILL",
			"router node-1 is started again", "router node-1 is ready again"} {
			want = append(want, policy+": "+what)
		}
	}
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	raw, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var shape map[string]map[string]any
	if err := json.Unmarshal(raw, &shape); err != nil || len(shape) != 2 || shape["affinity"]["hit_rate"] == nil || shape["baseline"]["load_cov"] == nil ||
		shape["affinity"]["kill"] == nil {
		t.Errorf("%v, %s", err, raw)
	}
}

// get bounds the answer by a minute.
func get(t *testing.T, url string) (status int, page string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(text)
}

func TestExcuses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Config{Binary: binary(t), Nodes: 1, Alone: true, NoBalancer: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	k := newKilling(f.Nodes()[0], time.Minute, func(time.Duration, string) {})
	cut := replay.Ended{Node: "node-0", Class: replay.Reset, Sent: 9 * time.Second, Err: errors.New("reset")}
	cut.End = 10 * time.Second
	if k.excuse(cut) {
		t.Error("excused before anything was killed")
	}
	k.killed, k.dead, k.restarted, k.ready = 10*time.Second, 10*time.Second, 12*time.Second, 13*time.Second
	if !k.excuse(cut) {
		t.Error("an answer that broke off with its router is not excused")
	}
	for what, change := range map[string]func(*replay.Ended){
		"another router":          func(e *replay.Ended) { e.Node = "node-1" },
		"no answer began":         func(e *replay.Ended) { e.Node = "" },
		"another failure":         func(e *replay.Ended) { e.Class = replay.InStream },
		"failed before the kill":  func(e *replay.Ended) { e.End = 9900 * time.Millisecond },
		"sent after the kill":     func(e *replay.Ended) { e.Sent = 10500 * time.Millisecond; e.End = 11 * time.Second },
		"failed after the return": func(e *replay.Ended) { e.End = 12500 * time.Millisecond },
	} {
		e := cut
		change(&e)
		if k.excuse(e) {
			t.Errorf("excused although: %s", what)
		}
	}
	for i := range 40 {
		e := replay.Ended{}
		e.At, e.PromptTokens = time.Duration(i)*time.Second, 100
		if e.At >= k.killed {
			e.CachedTokens = 100
		}
		e.Failed = i%4 == 3
		k.observe(e)
	}
	got := k.finish(4 * time.Second).HitRate
	if got.Before == nil || *got.Before != 0 || got.Down == nil || *got.Down != 1 || got.After == nil || *got.After != 1 {
		t.Errorf("%+v", got)
	}
	if k.hitRate(time.Hour, never) != nil {
		t.Error("a hit rate of nothing")
	}
}

func TestCancelledAndRefused(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := settings(t)
	cfg.Duration = time.Minute
	cfg.Progress = func(string, replay.Progress) { cancel() }
	begun := time.Now()
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if d := time.Since(begun); d > 50*time.Second {
		t.Errorf("ended %v after it began", d)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Engines = 0 }, func(c *Config) { c.Engines = MaxEngines + 1 }, func(c *Config) { c.Duration = 0 },
		func(c *Config) { c.Nodes = 1 }, func(c *Config) { c.Nodes = MaxNodes + 1 },
	} {
		bad := settings(t)
		change(&bad)
		if _, err := Run(context.Background(), bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	missing := settings(t)
	missing.Policy = "no-such-strategy"
	if _, err := Run(context.Background(), missing); err == nil {
		t.Error("an unknown strategy ran")
	}
}

func TestRestartFails(t *testing.T) {
	cfg := settings(t)
	cfg.Duration = 5 * time.Second
	dir := t.TempDir()
	program := filepath.Join(dir, "grapevine")
	// The program works as a router for the first two starts only.
	script := fmt.Sprintf("#!/bin/sh\nn=$(ls %s/run* 2>/dev/null | wc -l)\ntouch %s/run.$$\n[ $n -lt 2 ] || { echo out of order >&2; exit 3; }\nexec %s \"$@\"\n", dir, dir, binary(t))
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.Binary = program
	_, err := Run(context.Background(), cfg)
	if err == nil || !strings.Contains(err.Error(), "out of order") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
}

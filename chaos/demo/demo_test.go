package demo

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine/chaos/fleetsim"
	"grapevine/chaos/replay"
	"grapevine/chaos/workload"
)

// fasthttp keeps one goroutine for the Date header for as long as the process lives.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// TestEffectInVirtualTime: the settings show what they are meant to show, whatever the machine that runs the tests has to do, and
// for any seed. Load and first-token times are as the package says too: busy, not swamped.
func TestEffectInVirtualTime(t *testing.T) {
	for seed := range uint64(8) {
		w := Workload(4, 20*time.Second)
		runs, err := fleetsim.Run(context.Background(), fleetsim.Config{
			Workload: w, Options: workload.Options{Seed: seed}, Policies: []string{"prefix", Baseline},
			Backends: w.Backends, Engine: EngineConfig(), Warmup: w.Warmup, HideCapacity: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		a, b := runs[0], runs[1]
		if a.HitRate < 1.7*b.HitRate || a.TTFT.P50 > b.TTFT.P50 || a.TTFT.P99 > b.TTFT.P99 || a.LoadCov > 0.4 {
			t.Errorf("seed %d: hit rate %v against %v, first token %+v against %+v, load spread %v", seed, a.HitRate, b.HitRate, a.TTFT, b.TTFT, a.LoadCov)
		}
		if b.Utilization < 0.5 || b.Utilization > 0.9 {
			t.Errorf("seed %d: the baseline's engines compute %v of the time", seed, b.Utilization)
		}
	}
}

// TestRun plays a short demo over real sockets. How much affinity buys in so short a time is not its business.
func TestRun(t *testing.T) {
	seen := map[string]int{}
	out, err := Run(context.Background(), Config{Engines: 2, Duration: 3 * time.Second, Seed: 1, Policy: "prefix", Log: zerolog.Nop(),
		Progress: func(policy string, p replay.Progress) { seen[policy]++ }})
	if err != nil {
		t.Fatal(err)
	}
	a, b := out.Affinity, out.Baseline
	if a.Errors != 0 || b.Errors != 0 || a.Live.LostReplies != 0 || b.Live.LostReplies != 0 {
		t.Errorf("errors: %v %v, %v %v", a.Live.Errors, a.Live.Sample, b.Live.Errors, b.Live.Sample)
	}
	if a.Requests < 10 || b.Requests < 10 || a.PromptTokens == 0 || a.TTFT.P50 <= 0 || a.Policy != "prefix" || b.Policy != Baseline {
		t.Errorf("affinity %+v\nbaseline %+v", a.Report, b.Report)
	}
	if len(a.Backends) != 2 || len(b.Backends) != 2 || b.Rungs["rotate"] != b.Requests {
		t.Errorf("affinity on %+v, baseline on %+v by %v", a.Backends, b.Backends, b.Rungs)
	}
	if seen["prefix"] == 0 || seen[Baseline] == 0 {
		t.Errorf("progress %v", seen)
	}
	raw, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var shape map[string]map[string]any
	if err := json.Unmarshal(raw, &shape); err != nil || len(shape) != 2 || shape["affinity"]["hit_rate"] == nil || shape["baseline"]["load_cov"] == nil {
		t.Errorf("%v, %s", err, raw)
	}
}

func TestCancelledAndRefused(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := Config{Engines: 2, Duration: time.Minute, Policy: "prefix", Log: zerolog.Nop()}
	cfg.Progress = func(string, replay.Progress) { cancel() }
	begun := time.Now()
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("ended %v after it began", d)
	}
	for _, bad := range []Config{{Engines: 0, Duration: time.Second}, {Engines: MaxEngines + 1, Duration: time.Second}, {Engines: 1}} {
		if _, err := Run(context.Background(), bad); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

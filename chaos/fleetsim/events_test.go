package fleetsim

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
)

// Engines of which nodes follow all or a part, with caches that evict, say what they hold. One run of three nodes is wrong by .0003 to .006.
func TestEventsTellWhatEnginesHold(t *testing.T) {
	bubble.SkipInRace(t)
	const runs = 6
	cfg := chat(t, "prefix", "prefix+events")
	cfg.Engine.KVTokens, cfg.EventDelay, cfg.Options.Speed = 70_000, 10*time.Millisecond, 1
	cfg.Options.Duration, cfg.Nodes = 20*time.Second, []int{1, 3}
	wrong, found := make([]float64, 4), make([]float64, 4) // means of one and of three nodes, without events and with
	for range runs {
		for i, r := range run(t, cfg) {
			wrong[i] += r.Prediction.Share / runs
			found[i] += r.FollowupCached / runs
		}
		cfg.Options.Seed++
	}
	for i, nodes := range cfg.Nodes {
		plain, events := i, i+len(cfg.Nodes)
		if wrong[events] > 0.005 || wrong[events] > wrong[plain]/4 {
			t.Errorf("%d nodes: with events wrong by %.4f of the prompt tokens, without %.4f: want at most 0.005 and a quarter", nodes, wrong[events], wrong[plain])
		}
		if found[events] < found[plain]-0.01 {
			t.Errorf("%d nodes: %v of the follow-ups cached with events, %v without", nodes, found[events], found[plain])
		}
	}
}

// More engines hold the common beginning than a decision asks: those that hold more of the prompt are asked first.
func TestEventsOfManyHolders(t *testing.T) {
	bubble.SkipInRace(t)
	w, err := workload.Preset("medium")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Workload: w, Policies: []string{"prefix+events"}, Backends: 64, Warmup: 6 * time.Second,
		Options: workload.Options{Duration: 14 * time.Second, Seed: 1},
	}
	if r := run(t, cfg)[0]; r.Prediction.Share > 0.005 {
		t.Errorf("wrong by %.4f of the prompt tokens: want at most 0.005", r.Prediction.Share)
	}
}

// Following changes what is known, and not what engines do.
func TestPublishingEnginesAreNoOthers(t *testing.T) {
	play := func(publish bool) engine.Stats {
		cfg := traced(t, "round-robin")
		cfg, err := cfg.completed()
		if err != nil {
			t.Fatal(err)
		}
		c, err := newChainer(cfg.Workload.KeyTokens(), 1)
		if err != nil {
			t.Fatal(err)
		}
		f, err := newFleet(&cfg, point{policy: "round-robin", strategy: "round-robin", nodes: 1}, c, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		f.feed = feed{chainer: c}
		if f.feed.Source, err = cfg.Workload.Source(cfg.Options); err != nil {
			t.Fatal(err)
		}
		if publish {
			for _, m := range f.engines.models {
				m.Publish(engine.StyleVLLM, cfg.Workload.KeyTokens(), func([]engine.Change) {})
			}
		}
		if err := f.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return f.engines.models[0].Stats()
	}
	if with, without := play(true), play(false); with != without {
		t.Errorf("with events %+v, without %+v", with, without)
	}
}

func TestSameSeedSameEvents(t *testing.T) {
	print := func() string {
		cfg := traced(t, "prefix+events")
		cfg.Nodes, cfg.EventDelay = []int{3}, 50*time.Millisecond
		var b bytes.Buffer
		if err := report.WriteJSON(&b, run(t, cfg)...); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if first, again := print(), print(); first != again {
		t.Errorf("the same seed gave\n%s\nand\n%s", first, again)
	}
}

func TestEventSettings(t *testing.T) {
	for _, name := range []string{"session+events", "prefix+events+contents"} {
		if p, err := newPoint(name); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	cfg := Config{Workload: &workload.Sessions{}, Policies: []string{"prefix+events"}, EventDelay: -1}
	if _, err := cfg.completed(); !errors.Is(err, ErrConfig) {
		t.Errorf("events before they happen: %v", err)
	}
}

// Whatever befalls the streams, requests find about as much in the caches as without events.
func TestEventFaults(t *testing.T) {
	bubble.SkipInRace(t)
	cfg := chat(t, "prefix", "prefix+events")
	cfg.Engine.KVTokens, cfg.EventDelay, cfg.Options.Speed = 70_000, 10*time.Millisecond, 1
	cfg.Options.Duration, cfg.Nodes = 20*time.Second, []int{3}
	whole := run(t, cfg)[1]
	for _, c := range []struct {
		faults []string
		harms  bool // predictions
	}{
		{[]string{"loss=0.05"}, true}, {[]string{"loss=0.2"}, true}, {[]string{"cut=8s-14s"}, true}, {[]string{"cut=8s-14s", "replay"}, false},
		{[]string{"restart=8s"}, false}, {[]string{"forget=8s"}, true}, {[]string{"liars=4"}, false},
	} {
		var err error
		if cfg.EventFaults, err = ParseEventFaults(c.faults); err != nil {
			t.Fatal(err)
		}
		reps := run(t, cfg)
		alone, with := reps[0], reps[1]
		t.Logf("%v: %.4f of the prompt tokens cached, %.4f alone; error %.4f, %.4f alone, %.4f without faults", c.faults, with.HitRate, alone.HitRate,
			with.Prediction.Share, alone.Prediction.Share, whole.Prediction.Share)
		if with.HitRate < alone.HitRate-0.02 { // a point, and what 400 requests scatter
			t.Errorf("%v: %.4f of the prompt tokens cached with events, %.4f without", c.faults, with.HitRate, alone.HitRate)
		}
		if c.harms && with.Prediction.Share <= whole.Prediction.Share {
			t.Errorf("%v: an error of %.4f, without faults %.4f: the fault did not strike", c.faults, with.Prediction.Share, whole.Prediction.Share)
		}
	}
	for _, bad := range []string{"loss=2", "loss=x", "cut=5s-2s", "restart=-1s", "forget=soon", "liars=-1", "rain"} {
		if c, err := ParseEventFaults([]string{bad}); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %+v, %v", bad, c, err)
		}
	}
}

// Reports that are late are reports of the past, and what is not streamed shows no first token.
func TestLateTelemetry(t *testing.T) {
	play := func(change func(*Config)) string {
		cfg := chat(t, "prefix")
		cfg.Telemetry, cfg.Nodes, cfg.Options.Duration = SGLang, []int{4}, 10*time.Second
		change(&cfg)
		var b bytes.Buffer
		if err := report.WriteJSON(&b, run(t, cfg)...); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	none := func(*Config) {}
	late, whole := func(c *Config) { c.TelemetryDelay = 5 * time.Second }, func(c *Config) { c.Unstreamed = 1 }
	now := play(none)
	for name, change := range map[string]func(*Config){"late telemetry": late, "answers that are not streamed": whole} {
		if first, again := play(change), play(change); first != again || first == now {
			t.Errorf("%s change nothing, or not always the same", name)
		}
	}
	for _, change := range []func(*Config){func(c *Config) { c.TelemetryDelay = -1 }, func(c *Config) { c.Unstreamed = 1.5 }} {
		cfg := Config{Workload: &workload.Sessions{}, Policies: []string{"prefix"}}
		change(&cfg)
		if _, err := cfg.completed(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

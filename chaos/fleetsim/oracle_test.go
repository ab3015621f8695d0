package fleetsim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/workload"
	"grapevine.example/proxy/policy"
)

func TestOracleNames(t *testing.T) {
	p, err := newPoint("prefix+load+contents")
	if err != nil || p.strategy != "prefix" || p.oracle != (oracle{contents: true, load: true}) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err = newPoint("prefix@7+load"); err != nil || p.strategy != "prefix" || p.dice != 7 || !p.oracle.load {
		t.Errorf("%+v, %v", p, err)
	}
	for _, name := range []string{"prefix+", "prefix+luck", "session+load", "prefix@", "prefix@-1", "prefix@65536"} {
		if p, err := newPoint(name); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// Nodes that share nothing have the most to win.
func TestOraclesHelpTheUninformed(t *testing.T) {
	bubble.SkipInRace(t)
	type figures struct{ mean, hits, followups, wrong float64 }
	var plain, contents, load, all figures
	for seed := range uint64(4) { // one may be lucky without knowledge
		cfg := chat(t, "prefix", "prefix+contents", "prefix+load", "prefix+contents+load+outputs")
		cfg.Nodes, cfg.Share, cfg.Options.Speed, cfg.Options.Seed = []int{8}, []Share{ShareNone}, 5, 1+seed
		reps := run(t, cfg)
		for i, sum := range []*figures{&plain, &contents, &load, &all} {
			sum.mean += reps[i].TTFT.Mean / 4
			sum.hits += reps[i].HitRate / 4
			sum.followups += reps[i].FollowupCached / 4
			sum.wrong += reps[i].Prediction.Share / 4
		}
	}
	if contents.followups < plain.followups+0.01 || contents.wrong > plain.wrong/2 {
		t.Errorf("knowing the contents: %+v instead of %+v", contents, plain)
	}
	if load.mean > 0.8*plain.mean {
		t.Errorf("knowing the load: mean first token %v ms instead of %v", load.mean, plain.mean)
	}
	if all.mean > plain.mean || all.hits < plain.hits {
		t.Errorf("knowing all: %+v instead of %+v", all, plain)
	}
}

// scripted is a call every 100 ms, with answers of these lengths in turn.
func scripted(n int, models []string, outputs ...int) *workload.Script {
	s := &workload.Script{Label: "script", Length: time.Hour}
	for i := range n {
		c := workload.Call{After: -1, At: time.Duration(i) * 100 * time.Millisecond, Session: -1, Turn: 1}
		c.Model = models[i%len(models)]
		c.Prompt = workload.NewContent(uint64(i), 128)
		c.Prompt.Add(1, 500)
		c.Answered = c.Prompt
		c.Answered.Add(2, outputs[i%len(outputs)])
		s.Calls = append(s.Calls, c)
	}
	return s
}

type hints map[int]int

func (h hints) Choose(s *policy.Scene) (int, policy.Rung) {
	h[s.Request.OutputHint]++
	return 0, policy.Rotate
}

func TestOracleOfOutputs(t *testing.T) {
	h := hints{}
	run(t, Config{
		Workload: scripted(200, []string{""}, 3000, 10, 10, 10, 10), Policies: []string{"hints", "hints+outputs"}, Backends: 4, Parallel: 1, Tree: smallTree,
		Extra: func() map[string]policy.Strategy { return map[string]policy.Strategy{"hints": h} },
	})
	if h[0] != 200 || h[3000] != 40 || h[10] != 160 {
		t.Errorf("requests by the hint of their output tokens, without and with the oracle: %v", h)
	}
}

func TestEnginesDiffer(t *testing.T) {
	models := []string{"a", "b"}
	cfg := Config{
		Workload: scripted(600, models, 20), Policies: []string{"prefix", "round-robin"}, Nodes: []int{1, 3}, Tree: smallTree,
		Engines: []Engine{
			{Model: "a"}, {Model: "a", Joins: 30 * time.Second}, {Model: "b", SlowAt: 30 * time.Second, SlowBy: 50}, {Model: "b"},
		},
	}
	for _, r := range run(t, cfg) {
		b := r.Backends
		if r.Requests != 600 || r.Errors > 0 || b[0].Requests+b[1].Requests != 300 || b[2].Requests+b[3].Requests != 300 {
			t.Errorf("%s on %d: %+v", r.Policy, r.Nodes, b)
		}
		// It joins in the middle and has a tenth of a fair share first.
		if b[1].Requests < 10 || b[1].Requests > 75 {
			t.Errorf("%s on %d: %d requests at the engine that joined late", r.Policy, r.Nodes, b[1].Requests)
		}
		if r.Policy == "prefix" && b[2].Requests > 130 {
			t.Errorf("prefix on %d: %d of 300 requests at the engine that became slow", r.Nodes, b[2].Requests)
		}
	}
	cfg.Engines = cfg.Engines[:2]
	if _, err := Run(t.Context(), cfg); err == nil {
		t.Error("requests for a model without an engine are answered")
	}
}

func TestSameSeedSameBytesWithOracles(t *testing.T) {
	cfg := chat(t, "prefix+contents+load+outputs", "argmin+load")
	cfg.Nodes, cfg.Options.Requests = []int{3}, 100
	print := func(parallel int) string {
		cfg.Parallel = parallel
		var out []string
		for _, r := range run(t, cfg) {
			out = append(out, fmt.Sprint(r.TTFT, r.HitRate, r.Policy))
		}
		return fmt.Sprint(out)
	}
	if a, b := print(1), print(2); a != b {
		t.Errorf("%s, then %s", a, b)
	}
}

package fleetsim

import (
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
)

func hotFleet(share float64) Config {
	w := &workload.Sessions{
		Label: "hot", Rate: 40, Backends: 8, MaxTurns: 1, SharedTokens: 4096, Pool: 1, SharedShare: share, Suffix: 256, BlockTokens: 256,
		Prompt: workload.CDF{{V: 4352, P: 0}, {V: 8192, P: 1}}, Output: workload.CDF{{V: 16, P: 0}, {V: 400, P: 1}}, Duration: time.Minute,
	}
	return Config{
		Workload: w, Policies: []string{"prefix"}, Nodes: []int{4}, Options: workload.Options{Seed: 5},
		Tree: prefixtree.Config{Budget: 8 << 20, MaxBackends: 8},
	}
}

func TestHotPrefixGetsItsSet(t *testing.T) {
	for _, nodes := range []int{1, 4} {
		cfg := hotFleet(0.25)
		cfg.Nodes = []int{nodes}
		rep := run(t, cfg)[0]
		if rep.Hot == nil || len(rep.Hot.Changes) == 0 {
			t.Fatalf("%d nodes: nothing was agreed on", nodes)
		}
		last := rep.Hot.Changes[len(rep.Hot.Changes)-1]
		if last.Tokens != 4096 || last.Replicas < 2 || last.Replicas > 6 || last.AtS > 30 {
			t.Errorf("%d nodes: at last %+v", nodes, last)
		}
		if by := rep.Rungs["hot"]; by < rep.Requests/10 {
			t.Errorf("%d nodes: %d of %d requests by the set", nodes, by, rep.Requests)
		}
	}
}

func TestHotReplicasFixedAndOff(t *testing.T) {
	bubble.SkipInRace(t)
	cfg := hotFleet(0.25)
	cfg.HotReplicas = 2
	fixed := run(t, cfg)[0]
	for _, c := range fixed.Hot.Changes {
		if c.Replicas != 2 && c.Replicas != 0 {
			t.Errorf("change %+v", c)
		}
	}
	cfg.NoHot = true
	off := run(t, cfg)[0]
	if off.Hot != nil || off.Rungs["hot"] > 0 {
		t.Errorf("switched off, and %+v, rungs %v", off.Hot, off.Rungs)
	}
	if len(fixed.Hot.Changes) == 0 || fixed.Rungs["hot"] == 0 {
		t.Errorf("changes %+v, rungs %v", fixed.Hot.Changes, fixed.Rungs)
	}
	cfg.HotReplicas = -1
	if _, err := cfg.completed(); err == nil {
		t.Error("-1 replicas are fine")
	}
}

func TestNoDecisionWithoutNews(t *testing.T) {
	cfg := hotFleet(0.5)
	cfg.Options.Duration = 25 * time.Second
	cfg.Share = []Share{ShareNone}
	if rep := run(t, cfg)[0]; rep.Hot != nil {
		t.Errorf("agreed on %+v", rep.Hot)
	}
}

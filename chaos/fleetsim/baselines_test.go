package fleetsim

import (
	"fmt"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

type standing struct {
	held, queued float64
	active       int64
}

func choose(t *testing.T, rule policy.Strategy, backends []standing) (int, policy.Rung) {
	t.Helper()
	spy := &stage{rule: rule, backends: backends}
	tree, err := prefixtree.New(prefixtree.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := policy.NewRouter(policy.Config{Strategy: "spy", BlockBytes: 400, Extra: map[string]policy.Strategy{"spy": spy}}, tree)
	if err != nil {
		t.Fatal(err)
	}
	var fleet []policy.Backend
	for i := range backends {
		fleet = append(fleet, policy.Backend{ID: prefixtree.Backend(i), Name: fmt.Sprint("b", i)})
	}
	view, err := policy.NewView(fleet, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetView(view)
	chain := make([]prefixtree.Hash, 10)
	for i := range chain {
		chain[i] = prefixtree.Hash(0x9e3779b97f4a7c15 * uint64(i+1))
	}
	var a policy.Attempt
	if err := r.Pick(&policy.Request{Hashes: chain, PromptBytes: 4000}, 1, &a); err != nil {
		t.Fatal(err)
	}
	defer a.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, 1)
	return int(a.Decision().Backend), a.Decision().Rung
}

type stage struct {
	rule     policy.Strategy
	backends []standing
}

func (g *stage) Choose(s *policy.Scene) (int, policy.Rung) {
	for i, b := range g.backends {
		c := &s.Candidates[i]
		c.Held, c.HeldBlocks, c.Uncached = b.held, int32(b.held/s.TokensPerBlock), float64(s.PromptTokens)-b.held
		c.Queued, c.Active, c.OwnActive = b.queued, b.active, b.active
	}
	return g.rule.Choose(s)
}

func TestBaselines(t *testing.T) {
	for name, c := range map[string]struct {
		rule     string
		backends []standing
		want     int
		rung     policy.Rung
	}{
		"argmin: least queued plus uncached":           {"argmin", []standing{{0, 500, 0}, {800, 1200, 0}, {0, 450, 9}}, 1, policy.Cache},
		"argmin: the wait outweighs the cache":         {"argmin", []standing{{0, 100, 0}, {800, 1200, 0}, {0, 450, 0}}, 0, policy.Load},
		"lmetric: tokens times batch":                  {"lmetric", []standing{{800, 0, 9}, {0, 0, 0}, {500, 600, 0}}, 1, policy.Load},
		"lmetric: the cache wins among equal batches":  {"lmetric", []standing{{800, 0, 2}, {0, 0, 2}, {0, 0, 2}}, 0, policy.Cache},
		"sglang: match above 0.3":                      {"sglang", []standing{{0, 0, 0}, {400, 0, 60}, {300, 0, 0}}, 1, policy.Cache},
		"sglang: match at 0.3 is not enough":           {"sglang", []standing{{0, 0, 3}, {300, 0, 60}, {0, 0, 2}}, 2, policy.Load},
		"sglang: imbalanced over both thresholds":      {"sglang", []standing{{0, 0, 4}, {900, 0, 80}, {0, 0, 5}}, 0, policy.Load},
		"sglang: over the absolute one only":           {"sglang", []standing{{0, 0, 200}, {900, 0, 290}, {0, 0, 210}}, 1, policy.Cache},
		"two-choice: both backends, one may be slower": {"two-choice", []standing{{900, 0, 0}, {0, 90_000, 0}}, 0, policy.Cache},
		"two-choice: affinity within the target":       {"two-choice", []standing{{900, 30_000, 0}, {0, 0, 0}}, 0, policy.Cache},
		"two-choice: affinity would miss the target":   {"two-choice", []standing{{900, 80_000, 0}, {0, 0, 0}}, 1, policy.Load},
		"two-choice: no affinity, the sooner":          {"two-choice", []standing{{0, 3000, 0}, {0, 0, 0}}, 1, policy.Hash},
	} {
		t.Run(name, func(t *testing.T) {
			if got, rung := choose(t, Baselines()[c.rule], c.backends); got != c.want || rung != c.rung {
				t.Errorf("backend %d by %v, want %d by %v", got, rung, c.want, c.rung)
			}
		})
	}
}

func TestSGLangSpreadsFirstWork(t *testing.T) {
	rule := Baselines()["sglang"]
	for i := range 6 {
		if got, _ := choose(t, rule, make([]standing, 3)); got != i%3 {
			t.Errorf("request %d went to %d", i, got)
		}
	}
}

func TestRoutersDoNotShareBaselines(t *testing.T) {
	a, b := Baselines()["sglang"], Baselines()["sglang"]
	choose(t, a, make([]standing, 3))
	if got, _ := choose(t, b, make([]standing, 3)); got != 0 {
		t.Error("one router's counts show in another's")
	}
}

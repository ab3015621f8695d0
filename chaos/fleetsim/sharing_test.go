package fleetsim

import (
	"errors"
	"testing"
	"time"
)

func fleetOf(t testing.TB, nodes int, policies ...string) Config {
	cfg := traced(t, policies...)
	cfg.Nodes = []int{nodes}
	cfg.Staleness, cfg.Share = []time.Duration{0}, []Share{ShareBoth}
	return cfg
}

func TestSharingHelps(t *testing.T) {
	cfg := chat(t, "argmin")
	cfg.Nodes, cfg.Staleness = []int{1, 8}, []time.Duration{0}
	cfg.Share = []Share{ShareBoth, SharePrefix, ShareLoad, ShareNone}
	reps := run(t, cfg)
	one, both, prefix, load, none := reps[0], reps[4], reps[5], reps[6], reps[7]
	if both.Share != "both" || none.Share != "none" || *both.StalenessMS != 0 {
		t.Fatalf("order of reports: %q, %q", both.Share, none.Share)
	}
	if both.HitRate < 0.95*one.HitRate || both.TTFT.P99 > 1.3*one.TTFT.P99 {
		t.Errorf("one node hits %.3f, p99 %.0f ms; eight that share all %.3f, %.0f ms", one.HitRate, one.TTFT.P99, both.HitRate, both.TTFT.P99)
	}
	if load.HitRate > 0.8*both.HitRate || none.HitRate > 0.8*both.HitRate || prefix.HitRate < 0.9*both.HitRate {
		t.Errorf("hits: both %.3f, prefix %.3f, load %.3f, none %.3f", both.HitRate, prefix.HitRate, load.HitRate, none.HitRate)
	}
	if prefix.TTFT.P99 < 1.2*both.TTFT.P99 {
		t.Errorf("without the load of the others p99 is %.0f ms, with it %.0f ms", prefix.TTFT.P99, both.TTFT.P99)
	}
}

func TestRunsThatCannotDiffer(t *testing.T) {
	for _, name := range allPolicies {
		if !blind[name] && !loners[name] {
			continue
		}
		cfg, err := fleetOf(t, 4, name).completed()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Options.Requests = 300
		b := &batch{cfg: &cfg}
		if b.chainer, err = newChainer(cfg.Workload.KeyTokens(), 1); err != nil {
			t.Fatal(err)
		}
		if err := b.prepare(); err != nil {
			t.Fatal(err)
		}
		for _, share := range []Share{ShareBoth, SharePrefix, ShareLoad} {
			p := point{policy: name, strategy: name, nodes: 4, share: share, staleness: 300 * time.Millisecond}
			b.runs = []point{p, p.effective()}
			var ttft [2]float64
			for i := range b.runs {
				rep, err := b.one(t.Context(), i)
				if err != nil {
					t.Fatal(err)
				}
				ttft[i] = rep.TTFT.Mean
			}
			if ttft[0] != ttft[1] {
				t.Errorf("%s sharing %s: mean first token %v ms, but %v ms for %+v, which is said to be the same", name, share, ttft[0], ttft[1], p.effective())
			}
		}
	}
}

func TestParseStaleness(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "200ms": 200 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "none": Never} {
		if got, err := ParseStaleness(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "fast", "-1s", "2h", "5"} {
		if d, err := ParseStaleness(s); !errors.Is(err, ErrConfig) {
			t.Errorf("%q is taken for %v", s, d)
		}
	}
}

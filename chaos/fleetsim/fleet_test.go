package fleetsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
)

var allPolicies = []string{
	"prefix", "prefix-hash", "least-request", "session", "round-robin", "random", "weighted",
	"argmin", "lmetric", "two-choice", "sglang",
}

var smallTree = prefixtree.Config{Budget: 8 << 20, MaxBackends: 16}

func chat(t testing.TB, policies ...string) Config {
	t.Helper()
	w, err := workload.Preset("chat")
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Workload: w, Policies: policies, Backends: 8, Warmup: 2 * time.Second,
		Options: workload.Options{Duration: 8 * time.Second, Seed: 11, Speed: 2},
		Engine:  engine.Config{KVTokens: 100_000}, Tree: smallTree,
	}
}

func run(t testing.TB, cfg Config) []report.Report {
	t.Helper()
	reps, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return reps
}

func TestSameSeedSameBytes(t *testing.T) {
	apart := traced(t, "prefix", "least-request")
	apart.Share, apart.Staleness = []Share{ShareBoth, ShareLoad}, []time.Duration{700 * time.Millisecond}
	apart.Loss, apart.Partition = 0.1, Partition{time.Second, 3 * time.Second}
	for _, cfg := range []Config{chat(t, allPolicies...), traced(t, allPolicies...), apart} {
		cfg.Nodes = []int{1, 3}
		cfg.Options.Requests = 100
		print := func(seed uint64, parallel int) string {
			c := cfg
			c.Options.Seed, c.Parallel = seed, parallel
			var b bytes.Buffer
			if err := report.WriteJSON(&b, run(t, c)...); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		first := print(1, 1)
		if again := print(1, 4); again != first {
			t.Errorf("%s: the same seed gave another report", cfg.Workload.Name())
		}
		if other := print(2, 2); other == first {
			t.Errorf("%s: two seeds gave the same report", cfg.Workload.Name())
		}
	}
}

func traced(t testing.TB, policies ...string) Config {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	var b strings.Builder
	turns := make([]int, 40)
	for i := range 600 {
		s := rng.IntN(len(turns))
		turns[s]++
		own := 3 + turns[s]*2
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":%d,"session":%d,"turn":%d,"hash_runs":[0,4,%d,%d]}`+"\n",
			i*100, (4+own)*64+rng.IntN(64), 1+rng.IntN(100), s, turns[s], 1000*(s+1), own)
	}
	b.WriteString(`{"timestamp":60000,"input_length":70000,"output_length":10}` + "\n")
	w, err := workload.Read(strings.NewReader(b.String()), "small.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Workload: w, Policies: policies, Backends: 4, Engine: engine.Config{KVTokens: 30_000, MaxRunning: 8}, Tree: smallTree}
}

type counted struct {
	workload.Workload
	handed map[int]*workload.Request
	done   map[int]int
}

type countedSource struct {
	workload.Source
	book *counted
}

func (c *counted) Source(o workload.Options) (workload.Source, error) {
	s, err := c.Workload.Source(o)
	c.handed, c.done = make(map[int]*workload.Request), make(map[int]int)
	return countedSource{s, c}, err
}

func (s countedSource) Next() *workload.Request {
	r := s.Source.Next()
	s.book.handed[r.Index] = r
	return r
}

func (s countedSource) Done(r *workload.Request, at time.Duration) {
	s.book.done[r.Index]++
	if at < r.At {
		panic("ended before it began")
	}
	s.Source.Done(r, at)
}

func TestConservation(t *testing.T) {
	for _, name := range allPolicies {
		for _, cfg := range []Config{chat(t, name), traced(t, name)} {
			book := &counted{Workload: cfg.Workload}
			cfg.Workload, cfg.Warmup = book, -1
			if cfg.Engine.PrefillRate == 0 {
				cfg.Engine.PrefillRate = 40_000
			}
			rep := run(t, cfg)[0]
			if rep.Requests != len(book.handed) || len(book.done) != len(book.handed) {
				t.Errorf("%s: %d handed out, %d done, %d reported", name, len(book.handed), len(book.done), rep.Requests)
			}
			var prompt int64
			for i, r := range book.handed {
				if book.done[i] != 1 {
					t.Errorf("%s: request %d done %d times", name, i, book.done[i])
				}
				if r.PromptTokens < 65_000 {
					prompt += int64(r.PromptTokens)
				}
			}
			sum := report.Backend{}
			for _, b := range rep.Backends {
				if b.CachedTokens > b.PromptTokens || b.Utilization < 0 || b.Utilization > 1.01 {
					t.Errorf("%s: backend %+v", name, b)
				}
				sum.Requests += b.Requests
				sum.PromptTokens += b.PromptTokens
				sum.CachedTokens += b.CachedTokens
			}
			if sum.Requests != rep.Requests || sum.PromptTokens != rep.PromptTokens || sum.CachedTokens != rep.CachedTokens || rep.PromptTokens != prompt {
				t.Errorf("%s: backends add up to %+v, report has %d requests, %d prompt and %d cached tokens, sent were %d",
					name, sum, rep.Requests, rep.PromptTokens, rep.CachedTokens, prompt)
			}
			rungs := 0
			for _, n := range rep.Rungs {
				rungs += n
			}
			if rungs != rep.Requests {
				t.Errorf("%s: %d decisions for %d requests", name, rungs, rep.Requests)
			}
		}
	}
}

func TestRefusedRequestIsAnError(t *testing.T) {
	if rep := run(t, traced(t, "prefix"))[0]; rep.Errors != 1 || rep.Requests != 601 {
		t.Errorf("%d errors in %d requests, want the one prompt larger than the memory", rep.Errors, rep.Requests)
	}
}

func TestEachSampleIsPossible(t *testing.T) {
	cfg, err := traced(t, "prefix").completed()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChainer(cfg.Workload.KeyTokens(), 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFleet(&cfg, point{strategy: "prefix", nodes: 1}, c, 0)
	if err != nil {
		t.Fatal(err)
	}
	src, err := cfg.Workload.Source(cfg.Options)
	if err != nil {
		t.Fatal(err)
	}
	f.span, f.feed = src.Span(), feed{Source: src, chainer: c}
	if err := f.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i, fl := range f.free {
		j := &fl.job
		least := time.Duration(float64(j.PromptTokens-j.Cached) / f.cfg.Engine.PrefillRate * float64(time.Second))
		if j.Finished > 0 && (j.FirstToken-j.Submitted < least || j.Finished < j.FirstToken || j.Cached > j.PromptTokens) {
			t.Errorf("flight %d: %d of %d tokens cached, first token after %v", i, j.Cached, j.PromptTokens, j.FirstToken-j.Submitted)
		}
	}
	for b := range f.engines.models {
		if p, active := f.nodes[0].router.Load(prefixtree.Backend(b)); p != 0 || active != 0 {
			t.Errorf("the router still charges backend %d with %d tokens, %d requests", b, p, active)
		}
		if s := f.engines.models[b].Stats(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("engine %d still has %d running, %d waiting", b, s.Running, s.Waiting)
		}
	}
}

func TestAffinityBeatsRotation(t *testing.T) {
	cfg := chat(t, "prefix", "round-robin")
	cfg.Engine.KVTokens = 400_000
	reps := run(t, cfg)
	if p, r := reps[0], reps[1]; p.HitRate < 1.5*r.HitRate || p.FollowupCached < 2*r.FollowupCached {
		t.Errorf("prefix hits %.3f (follow-ups %.3f), round-robin %.3f (%.3f)", p.HitRate, p.FollowupCached, r.HitRate, r.FollowupCached)
	}
	if reps[0].Prediction.Requests == 0 || reps[1].Prediction.Requests != 0 {
		t.Error("only the policy that looks at the tree predicts")
	}
}

func TestNodesThatShareNothingLoseHits(t *testing.T) {
	cfg := chat(t, "argmin")
	cfg.Nodes, cfg.Share = []int{1, 8}, []Share{ShareNone}
	random := run(t, cfg)
	cfg.Ingress = Sticky
	sticky := run(t, cfg)
	if random[0].Nodes != 1 || random[1].Nodes != 8 {
		t.Fatalf("order of runs: %d, %d nodes", random[0].Nodes, random[1].Nodes)
	}
	if !(random[1].HitRate < 0.9*random[0].HitRate && sticky[1].HitRate > 1.1*random[1].HitRate) {
		t.Errorf("one node %.3f, eight at random %.3f, eight sticky %.3f", random[0].HitRate, random[1].HitRate, sticky[1].HitRate)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"no workload":      func(c *Config) { c.Workload = nil },
		"no policy":        func(c *Config) { c.Policies = nil },
		"twice":            func(c *Config) { c.Policies = []string{"prefix", "prefix"} },
		"no such strategy": func(c *Config) { c.Policies = []string{"prefix", "best"} },
		"0 nodes":          func(c *Config) { c.Nodes = []int{0} },
		"5000 backends":    func(c *Config) { c.Backends = 5000 },
		"ingress":          func(c *Config) { c.Ingress = "left" },
		"speed":            func(c *Config) { c.Options.Speed = -1 },
		"warm-up":          func(c *Config) { c.Warmup = time.Hour },
		"the last of 10":   func(*Config) {},
		"engine 1 joins":   func(c *Config) { c.Engines = []Engine{{}, {Joins: -1}} },
		"slows down by +I": func(c *Config) { c.Engines = []Engine{{SlowBy: math.Inf(1)}} },
		"prefill rate":     func(c *Config) { c.Engine.PrefillRate = -1 },
		"in parallel":      func(c *Config) { c.Parallel = -1 },
	} {
		cfg := chat(t, "prefix")
		cfg.Options.Requests = 10
		change(&cfg)
		if _, err := Run(context.Background(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestCancelEndsTheRuns(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := chat(t, allPolicies...)
	cfg.Options.Duration = time.Hour
	calls := 0
	cfg.Progress = func(p Progress) {
		if calls++; calls == 3 {
			cancel()
		}
		if p.Runs != len(allPolicies) || p.Span != time.Hour || p.Done {
			t.Errorf("progress %+v", p)
		}
	}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled, yet %v", err)
	}
}

func TestEarliestEngine(t *testing.T) {
	e, err := newEngines(make([]Engine, 9))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 2000 {
		b := rng.IntN(9)
		now := time.Duration(i) * 10 * time.Millisecond
		if rng.IntN(2) == 0 {
			e.models[b].Submit(&engine.Job{PromptTokens: 1 + rng.IntN(5000), OutputTokens: rng.IntN(50)}, now)
		} else {
			e.models[b].Advance(now, nil)
		}
		e.update(b)
		want, at := 0, never
		for id, m := range e.models {
			if due, ok := m.Next(); ok && due < at {
				want, at = id, due
			}
		}
		if id, due := e.earliest(); due != at || at != never && id != want {
			t.Fatalf("step %d: engine %d at %v, want %d at %v", i, id, due, want, at)
		}
	}
}

func TestBlocksOfTheTree(t *testing.T) {
	for _, c := range []struct{ keyTokens, keys, blockTokens int }{{16, 8, 128}, {64, 2, 128}, {96, 2, 192}, {128, 1, 128}, {512, 1, 512}} {
		ch, err := newChainer(c.keyTokens, 1)
		if err != nil {
			t.Fatal(err)
		}
		if ch.keys != c.keys || ch.hasher.BlockBytes() != c.blockTokens*4 {
			t.Errorf("keys of %d tokens: %d a block of %d bytes", c.keyTokens, ch.keys, ch.hasher.BlockBytes())
		}
		var scratch []uint64
		keys := make([]uint64, 5*c.keys+c.keys/2)
		for i := range keys {
			keys[i] = uint64(100 + i)
		}
		long := ch.hashes(nil, &scratch, &workload.Request{Keys: keys})
		short := ch.hashes(nil, &scratch, &workload.Request{Keys: keys[:3*c.keys]})
		if len(long) != 5 || len(short) != 3 || long[2] != short[2] {
			t.Errorf("keys of %d tokens: %d and %d blocks, or no common prefix", c.keyTokens, len(long), len(short))
		}
	}
}

func TestRealTrace(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", "mooncake_conversation.dev.jsonl.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no such trace beside the repository: %v", err)
	}
	w, err := workload.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Workload: w, Policies: []string{"prefix", "round-robin"}, Options: workload.Options{Speed: 4, Seed: 1, Requests: 3000}}
	reps := run(t, cfg)
	if p, r := reps[0], reps[1]; p.HitRate < 2*r.HitRate || p.TTFT.P99 > r.TTFT.P99/2 || p.Prediction.Share > 0.05 {
		t.Errorf("prefix hits %.3f, p99 %.0f ms, predictions off by %.3f; round-robin hits %.3f, p99 %.0f ms",
			p.HitRate, p.TTFT.P99, p.Prediction.Share, r.HitRate, r.TTFT.P99)
	}
}

func BenchmarkRun(b *testing.B) {
	for _, policy := range []string{"prefix", "round-robin"} {
		b.Run("policy="+policy, func(b *testing.B) {
			requests := 0
			for b.Loop() {
				cfg := chat(b, policy)
				cfg.Parallel = 1
				requests += run(b, cfg)[0].Requests
			}
			b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

package policy

import (
	"fmt"
	"math"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func TestPrefixFollowsTheCache(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(8))
	first := serve(t, r, ask(prompt(1, 1, 0, 40)), t0)
	if first.Rung == Cache || first.PredictedTokens != 0 {
		t.Fatalf("cold decision: %v", first)
	}
	home := first.Backend
	other := pick(t, r, by(r, RoundRobin, &Request{Hashes: prompt(2, 2, 0, 4), PromptBytes: 4 * testBlock, Exclude: except(8, home)}), t0+1)
	defer other.End(unknown(), t0+2)
	d := serve(t, r, ask(prompt(1, 1, 0, 48)), t0+1000)
	if d.Backend != home || d.Rung != Cache || d.MatchedBlocks != 40 || d.PredictedTokens != 40*128 {
		t.Fatalf("follow-up: %v", d)
	}
}

func except(n int, b prefixtree.Backend) (list []prefixtree.Backend) {
	for i := range n {
		if prefixtree.Backend(i) != b {
			list = append(list, prefixtree.Backend(i))
		}
	}
	return list
}

func TestPrefixLeavesABusyHolder(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	home := serve(t, r, ask(prompt(1, 1, 0, 8)), t0).Backend
	var open []*Attempt
	for i := range 20 { // 20 x 25.6k tokens at 10k/s
		q := ask(prompt(9, uint64(100+i), 0, 200))
		q.Exclude = except(4, home)
		a := pick(t, r, q, t0+1)
		a.Dispatched(t0 + 1)
		open = append(open, a)
	}
	if d := serve(t, r, ask(prompt(1, 1, 0, 10)), t0+2); d.Backend == home {
		t.Errorf("waits 51 s to save 0.1 s: %v", d)
	}
	for _, a := range open {
		a.End(unknown(), t0+3)
	}
}

func TestPrefixSeesMemory(t *testing.T) {
	backends := fleetOf(2)
	for i := range backends {
		backends[i].KVTokens = 100_000
	}
	r, _ := newRouter(t, Config{}, backends)
	for range 3 { // requests hold their memory 20 s after the first token
		a := pick(t, r, ask(prompt(5, 5, 0, 8)), t0)
		a.Dispatched(t0)
		a.FirstToken(t0)
		a.End(unknown(), t0+20_000)
	}
	full := ask(prompt(1, 1, 0, 700))
	home := serve(t, r, full, t0+21_000).Backend
	big := pick(t, r, full, t0+22_000)
	big.Dispatched(t0 + 22_000)
	big.FirstToken(t0 + 22_001)
	defer big.End(unknown(), t0+60_000)
	if big.Decision().Backend != home {
		t.Fatal("the follow-up left its cache")
	}
	if d := serve(t, r, ask(prompt(2, 2, 0, 200)), t0+23_000); d.Backend == home {
		t.Errorf("25,600 tokens sent where 10,400 are free: %v", d)
	}
}

func TestColdBackendGetsWork(t *testing.T) {
	for _, strategy := range []string{Prefix, PrefixHash, LeastRequest} {
		backends := fleetOf(4)
		backends[3].State = Down
		r, _ := newRouter(t, Config{Strategy: strategy}, backends)
		for i := range 200 {
			serve(t, r, ask(prompt(1, uint64(i), 4, 24)), t0+prefixtree.Time(i*100))
		}
		backends[3].State = Active
		setView(t, r, backends)
		got := 0
		for i := range 400 {
			if serve(t, r, ask(prompt(1, uint64(1000+i), 4, 24)), t0+prefixtree.Time(20_000+i*100)).Backend == 3 {
				got++
			}
		}
		if got < 40 {
			t.Errorf("%s: a new backend of 4 got %d of 400 new prompts with a common system prompt", strategy, got)
		}
	}
}

func TestSessionPins(t *testing.T) {
	backends := fleetOf(10)
	r, _ := newRouter(t, Config{Strategy: Session}, backends)
	pin := map[string]prefixtree.Backend{}
	for i := range 300 {
		key := fmt.Sprint("session-", i%100)
		d := serve(t, r, &Request{Session: []byte(key)}, t0)
		if was, ok := pin[key]; ok && was != d.Backend {
			t.Fatalf("%s moved from %d to %d", key, was, d.Backend)
		}
		if d.Rung != Hash {
			t.Fatalf("rung %v", d.Rung)
		}
		pin[key] = d.Backend
	}
	gone := pin["session-0"]
	setView(t, r, append(backends[:gone:gone], backends[gone+1:]...))
	for key, was := range pin {
		d := serve(t, r, &Request{Session: []byte(key)}, t0)
		if was == gone && d.Backend == gone || was != gone && d.Backend != was {
			t.Errorf("%s was on %d, %d left, now on %d", key, was, gone, d.Backend)
		}
	}
	seen := map[prefixtree.Backend]int{}
	for range 18 {
		d := serve(t, r, &Request{}, t0)
		if d.Rung != Rotate {
			t.Fatalf("no session: rung %v", d.Rung)
		}
		seen[d.Backend]++
	}
	if len(seen) != 9 || seen[0] != seen[(gone+1)%10] && gone != 0 {
		t.Errorf("18 requests without a session over 9 backends: %v", seen)
	}
}

func TestLeastRequestCountsActiveOnes(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: LeastRequest}, fleetOf(5))
	var open []*Attempt
	for i := range 15 {
		a := pick(t, r, &Request{}, t0)
		open = append(open, a)
		want := int64(i/5 + 1)
		if _, active := r.Load(a.Decision().Backend); active != want {
			t.Fatalf("request %d made %d active on backend %d, want %d", i, active, a.Decision().Backend, want)
		}
	}
	free := open[7].Decision().Backend
	open[7].End(unknown(), t0)
	if d := serve(t, r, &Request{}, t0); d.Backend != free || d.Rung != Load {
		t.Errorf("went to %d by %v, want %d", d.Backend, d.Rung, free)
	}
	for i, a := range open {
		if i != 7 {
			a.End(unknown(), t0)
		}
	}
}

func TestSharesFollowWeights(t *testing.T) {
	backends := fleetOf(4)
	for i := range backends {
		backends[i].Weight = float64(i + 1)
	}
	for _, strategy := range []string{RoundRobin, Random, Session, PrefixHash} {
		r, _ := newRouter(t, Config{Strategy: strategy, Seed: 1}, backends)
		got := make([]float64, 4)
		const n = 4000
		for i := range n {
			q := ask(prompt(uint64(i), 0, 1, 1))
			q.Session = fmt.Append(nil, i)
			if strategy == RoundRobin {
				q.Session = nil
			}
			got[serve(t, r, q, t0).Backend]++
		}
		for i, g := range got {
			if want := float64(i+1) / 10; math.Abs(g/n-want) > 0.03 {
				t.Errorf("%s: backend of weight %d got %.3f, want %.3f", strategy, i+1, g/n, want)
			}
		}
	}
}

func TestWeightedScorers(t *testing.T) {
	long, hot := prompt(1, 1, 0, 32), prompt(1, 1, 0, 40)
	t.Run("prefix against load", func(t *testing.T) {
		r, _ := newRouter(t, Config{Strategy: Weighted}, fleetOf(4))
		home := serve(t, r, ask(long), t0).Backend
		busy := pick(t, r, &Request{Exclude: except(4, home)}, t0)
		defer busy.End(unknown(), t0)
		if d := serve(t, r, ask(hot), t0+1); d.Backend != home || d.Rung != Cache { // 2 x 0.8 against 1 x 1
			t.Errorf("%v", d)
		}
		if d := serve(t, r, ask(prompt(1, 7, 8, 40)), t0+1); d.Backend == home { // 2 x 0.2 against 1 x 1
			t.Errorf("a match of a fifth outweighed the load: %v", d)
		}
	})
	t.Run("kv usage", func(t *testing.T) {
		r, _ := newRouter(t, Config{Strategy: Weighted, Weights: map[string]float64{"kv-usage": 1}}, fleetOf(3))
		r.SetTelemetry(0, books.Telemetry{KVUsage: 0.9})
		r.SetTelemetry(1, books.Telemetry{KVUsage: 0.2})
		r.SetTelemetry(2, books.Telemetry{KVUsage: 0.5})
		if d := serve(t, r, &Request{}, t0); d.Backend != 1 {
			t.Errorf("%v", d)
		}
	})
	t.Run("queue", func(t *testing.T) {
		r, _ := newRouter(t, Config{Strategy: Weighted, Weights: map[string]float64{"queue": 1}}, fleetOf(2))
		a := pick(t, r, ask(long), t0)
		defer a.End(unknown(), t0)
		if d := serve(t, r, &Request{}, t0); d.Backend == a.Decision().Backend {
			t.Errorf("%v", d)
		}
	})
	t.Run("session", func(t *testing.T) {
		r, _ := newRouter(t, Config{Strategy: Weighted, Weights: map[string]float64{"session": 1}}, fleetOf(8))
		want := serve(t, r, by(r, Session, &Request{Session: []byte("s")}), t0).Backend
		if d := serve(t, r, &Request{Session: []byte("s")}, t0); d.Backend != want || d.Rung != Hash {
			t.Errorf("%v, want %d", d, want)
		}
	})
	t.Run("lora", func(t *testing.T) {
		r, _ := newRouter(t, Config{Strategy: Weighted, Weights: map[string]float64{"lora": 1}}, fleetOf(8))
		want := serve(t, r, &Request{LoRA: []byte("poet")}, t0).Backend
		for range 16 {
			if d := serve(t, r, &Request{LoRA: []byte("poet")}, t0); d.Backend != want {
				t.Fatalf("%v, want %d", d, want)
			}
		}
	})
}

func TestLadder(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	known, fresh := ask(prompt(1, 1, 0, 16)), ask(prompt(2, 2, 0, 16))
	if d := serve(t, r, known, t0); d.Rung != Rotate {
		t.Errorf("idle fleet, nothing known: %v, want rotate", d.Rung)
	}
	if d := serve(t, r, known, t0+1); d.Rung != Cache {
		t.Errorf("known prompt: %v, want cache", d.Rung)
	}
	if d := serve(t, r, &Request{}, t0); d.Rung != Rotate {
		t.Errorf("unparsed, idle fleet: %v, want rotate", d.Rung)
	}
	var busy []*Attempt
	for i := range 3 {
		busy = append(busy, pick(t, r, ask(prompt(3, uint64(70+i), 0, 40+20*i)), t0+2))
	}
	if d := serve(t, r, fresh, t0+2); d.Rung != Load {
		t.Errorf("unequal load, nothing known: %v, want load", d.Rung)
	}
	if d := serve(t, r, &Request{PromptBytes: 4096}, t0+2); d.Rung != Load {
		t.Errorf("unparsed, unequal load: %v, want load", d.Rung)
	}
	for _, a := range busy {
		a.End(unknown(), t0+3)
	}
	st := r.Stats()
	if st.Rungs[Cache] != 1 || st.Picks != 8 {
		t.Errorf("counted %v of %d picks", st.Rungs, st.Picks)
	}
}

// A reload's strategy and its parameters hold for the next request, and what requests had before Follow is theirs.
func TestRetuneStrategy(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(8))
	q := ask(prompt(1, 0, 4, 4))
	r.Follow(q)
	retune := func(cfg Config) {
		t.Helper()
		cfg.BlockBytes = testBlock
		apply, err := r.Retune(cfg)
		if err != nil {
			t.Fatal(err)
		}
		apply()
	}
	homes := func() int { // of prompts that differ from the second block on
		found := make(map[prefixtree.Backend]bool)
		for i := range 40 {
			d := serve(t, r, ask(prompt(1, uint64(i), 1, 4)), t0)
			if found[d.Backend] = true; d.Strategy != PrefixHash {
				t.Fatalf("strategy %s", d.Strategy)
			}
		}
		return len(found)
	}
	retune(Config{Strategy: PrefixHash, HashBlocks: 1})
	if got := homes(); got != 1 {
		t.Errorf("prompts with one first block have %d homes", got)
	}
	retune(Config{Strategy: PrefixHash, HashBlocks: 2})
	if got := homes(); got < 2 {
		t.Error("hashed by two blocks they still have one home")
	}
	if d := serve(t, r, q, t0); d.Strategy != RoundRobin {
		t.Errorf("a request that followed its rule before is routed by %s", d.Strategy)
	}
	for _, bad := range []Config{{Strategy: "luck"}, {Weights: map[string]float64{"luck": 1}}} {
		if _, err := r.Retune(bad); err == nil {
			t.Errorf("%+v is not refused", bad)
		}
	}
}

package policy

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"

	"pgregory.net/rapid"
)

func TestEveryCountReturnsToZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 4
		backends := fleetOf(n)
		tree, err := prefixtree.New(prefixtree.Config{Budget: 16 << 20, MaxBackends: 64})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRouter(Config{Strategy: rapid.SampledFrom(builtin).Draw(t, "strategy"), BlockBytes: testBlock}, tree)
		if err != nil {
			t.Fatal(err)
		}
		set := func() {
			v, err := NewView(backends, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.SetView(v)
		}
		set()
		now := t0
		var open []*Attempt
		engines := map[*books.Engine]bool{}
		end := func(i int, o Outcome) {
			open[i].End(o, now)
			open = append(open[:i], open[i+1:]...)
		}
		which := func(what string) int { return rapid.IntRange(0, len(open)-1).Draw(t, what) }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { now += prefixtree.Time(rapid.IntRange(0, 3000).Draw(t, "ms")) },
			"pick": func(t *rapid.T) {
				q := ask(prompt(1, uint64(rapid.IntRange(0, 3).Draw(t, "own")), 4, rapid.IntRange(0, 40).Draw(t, "blocks")))
				if rapid.Bool().Draw(t, "retry") {
					q.Exclude = []prefixtree.Backend{prefixtree.Backend(rapid.IntRange(0, n-1).Draw(t, "not"))}
				}
				q.NonStreaming = rapid.Bool().Draw(t, "whole")
				a := new(Attempt)
				if err := r.Pick(q, now, a); err == nil {
					open = append(open, a)
					engines[a.engine] = true
				} else if !errors.Is(err, ErrNoBackend) {
					t.Fatal(err)
				}
			},
			"dispatch": func(t *rapid.T) {
				if len(open) > 0 {
					open[which("which")].Dispatched(now)
				}
			},
			"first": func(t *rapid.T) {
				if len(open) > 0 {
					open[which("which")].FirstToken(now)
				}
			},
			"answers": func(*rapid.T) {
				if len(open) > 0 {
					open[which("which")].Answers(now)
				}
			},
			"end": func(t *rapid.T) {
				if len(open) > 0 {
					prompt := rapid.IntRange(-1, 9000).Draw(t, "prompt")
					end(which("which"), Outcome{PromptTokens: prompt, CachedTokens: rapid.IntRange(-1, max(prompt, 0)).Draw(t, "cached"),
						OutputTokens: -1, Failed: books.Failure(rapid.IntRange(0, books.Failures-1).Draw(t, "failure"))})
				}
			},
			"view": func(t *rapid.T) {
				b := &backends[rapid.IntRange(0, n-1).Draw(t, "backend")]
				b.State = State(rapid.IntRange(0, 2).Draw(t, "state"))
				b.Generation += uint32(rapid.IntRange(0, 1).Draw(t, "restart"))
				set()
			},
		})
		for len(open) > 0 {
			end(0, unknown())
		}
		for e := range engines {
			if err := e.Left(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestPlacementIsRecordedAtDispatch(t *testing.T) {
	r, tree := newRouter(t, Config{}, fleetOf(2))
	chain := prompt(1, 1, 0, 8)
	held := func() int {
		var m prefixtree.Matches
		tree.Match(&m, chain, t0+10)
		return len(m.Holders())
	}
	a := pick(t, r, ask(chain), t0)
	if held() != 0 {
		t.Fatal("recorded at selection")
	}
	a.End(failed(books.Connect), t0+1)
	if held() != 0 {
		t.Fatal("a request that was never sent advertises a holder")
	}
	a = pick(t, r, ask(chain), t0+2)
	a.Dispatched(t0 + 2)
	if held() != 1 {
		t.Fatal("not recorded at dispatch")
	}
	a.End(failed(books.Reset), t0+3)
	if held() != 0 {
		t.Fatal("a request lost before its first token advertises a holder")
	}
}

func TestRatesAndBytesAreLearned(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(2))
	now := t0
	for i := range 200 {
		// Rates 20,000 and 5,000 tokens/s; 2.5 bytes a token.
		q := ask(prompt(uint64(i), 0, 64, 64))
		q.Exclude = except(2, prefixtree.Backend(i%2))
		a := pick(t, r, q, now)
		a.Dispatched(now)
		tokens := 64 * testBlock * 2 / 5
		now += prefixtree.Time(tokens * 1000 / []int{20_000, 5_000}[i%2])
		a.FirstToken(now)
		a.End(Outcome{PromptTokens: tokens, CachedTokens: 0, OutputTokens: 10}, now+5)
		now += 10
	}
	for b, want := range []float64{20_000, 5_000} {
		if got := r.Rate(prefixtree.Backend(b)); math.Abs(got/want-1) > 0.1 {
			t.Errorf("rate of backend %d: %.0f, want about %.0f", b, got, want)
		}
	}
	if got := r.table.Load().all.texts.bytesPerToken(); math.Abs(got-2.5) > 0.05 {
		t.Errorf("bytes per token %.2f, want 2.5", got)
	}
}

func TestLearningCorrectsTheTree(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(1))
	chain := prompt(1, 1, 0, 32)
	serve(t, r, ask(chain), t0)
	a := pick(t, r, ask(chain), t0+1000)
	if a.Decision().PredictedTokens != 32*128 {
		t.Fatalf("predicted %d", a.Decision().PredictedTokens)
	}
	a.Dispatched(t0 + 1000)
	a.FirstToken(t0 + 1100)
	a.End(Outcome{PromptTokens: 4096, CachedTokens: 1024, OutputTokens: 1}, t0+1200)
	b := pick(t, r, ask(chain), t0+2000)
	b.Dispatched(t0 + 2000)
	b.FirstToken(t0 + 2001)
	b.End(Outcome{PromptTokens: 4096, CachedTokens: -1, OutputTokens: 1}, t0+2002)
	if d := serve(t, r, ask(chain), t0+3000); d.PredictedTokens < 1024 {
		t.Errorf("predicted %d after an engine that does not report", d.PredictedTokens)
	}
}

func TestPromptsAgeFromTheirEnd(t *testing.T) {
	const stay = 5 * 60 * 1000
	for _, c := range []struct {
		name    string
		outcome Outcome
		answers bool
		want    int
	}{
		{"reported", Outcome{PromptTokens: 4096, CachedTokens: 0, OutputTokens: 9}, true, 32},
		{"not reported", unknown(), true, 32},
		{"left midway", failed(books.ClientGone), true, 32},
		{"left before the first token", failed(books.ClientGone), false, 0},
		{"answered at once as a whole", unknown(), false, 32},
	} {
		r, tree := newRouter(t, Config{}, fleetOf(1))
		chain := prompt(1, 1, 0, 32)
		a := pick(t, r, ask(chain), t0)
		a.Dispatched(t0)
		if c.answers {
			a.FirstToken(t0 + 100)
		}
		a.End(c.outcome, t0+stay)
		var m prefixtree.Matches
		// Later than a horizon after its start, not after its end.
		tree.Match(&m, chain, t0+prefixtree.Time(tree.Horizon(0)/time.Millisecond)+stay/2)
		got := 0
		for _, h := range m.Holders() {
			got = int(h.Expected)
		}
		if got != c.want {
			t.Errorf("%s: %d blocks believed cached, want %d", c.name, got, c.want)
		}
	}
}

func TestRequestsOutliveTheirGeneration(t *testing.T) {
	blamed := 0
	list := fleetOf(1)
	r, tree := newRouter(t, Config{Failed: func(prefixtree.Backend, books.Failure, prefixtree.Time) { blamed++ }}, list)
	var attempts [4]Attempt
	hashes := make([][]prefixtree.Hash, len(attempts))
	for i := range attempts {
		for block := range 40 {
			hashes[i] = append(hashes[i], prefixtree.Hash(1_000*(i+1)+block))
		}
		if err := r.Pick(&Request{Hashes: hashes[i], PromptBytes: 40 * testBlock}, t0, &attempts[i]); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			attempts[i].Dispatched(t0)
		}
	}
	list[0].Generation = 2
	tree.SetGeneration(0, 2, t0+1)
	setView(t, r, list)
	attempts[0].Dispatched(t0 + 2)
	attempts[0].End(Outcome{Failed: books.ClientGone}, t0+3)
	attempts[1].FirstToken(t0 + 2)
	attempts[1].End(Outcome{PromptTokens: 40 * 128, CachedTokens: 0, OutputTokens: 1}, t0+3)
	attempts[2].End(failed(books.Reset), t0+3)
	attempts[3].FirstToken(t0 + 2)
	attempts[3].End(Outcome{Failed: books.ClientGone}, t0+3)
	held := 0
	for i := range hashes {
		var m prefixtree.Matches
		tree.Match(&m, hashes[i], t0+4)
		held += len(m.Holders())
	}
	if held == 0 || blamed == 0 {
		t.Errorf("%d prompts are believed to be held, %d failures were reported", held, blamed)
	}
	if prefill, active := r.Load(0); prefill != 0 || active != 0 {
		t.Errorf("%d tokens, %d requests are left", prefill, active)
	}
}

func TestFirstGenerationKeepsTheLedger(t *testing.T) {
	list := fleetOf(1)
	list[0].Generation = 0
	r, _ := newRouter(t, Config{}, list)
	r.SetPeerLoad("peer", []books.PeerLoad{{Backend: 0, PrefillTokens: 500, Active: 2}}, t0)
	var a Attempt
	if err := r.Pick(ask(prompt(1, 1, 0, 8)), t0, &a); err != nil {
		t.Fatal(err)
	}
	for _, generation := range []uint32{3, 0} {
		list[0].Generation = generation
		setView(t, r, list)
		_, active := r.Load(0)
		if _, others := r.PeerLoad(0); active != 1 || others != 2 {
			t.Errorf("generation %d: %d requests, %d of others", generation, active, others)
		}
	}
	list[0].Generation = 4
	setView(t, r, list)
	_, active := r.Load(0)
	if _, others := r.PeerLoad(0); active != 0 || others != 0 {
		t.Errorf("the next generation: %d requests, %d of others", active, others)
	}
	a.End(unknown(), t0)
}

func TestReleaseWaitsForRequests(t *testing.T) {
	list := fleetOf(2)
	r, _ := newRouter(t, Config{}, list)
	r.SetPeerLoad("peer", []books.PeerLoad{{Backend: 0, PrefillTokens: 500, Active: 2}}, t0)
	setView(t, r, list[:1])
	var old, young Attempt
	for i, a := range []*Attempt{&old, &young} {
		list[0].Generation = uint32(i + 1)
		setView(t, r, list[:1])
		if err := r.Pick(ask(prompt(1, 1, 0, 8)), t0, a); err != nil {
			t.Fatal(err)
		}
	}
	setView(t, r, list[1:])
	for _, a := range []*Attempt{&young, &old} {
		if r.Release(0) {
			t.Fatal("released with requests running")
		}
		a.End(unknown(), t0)
	}
	if !r.Release(0) || !r.Release(7) {
		t.Fatal("not released")
	}
	list[0] = Backend{ID: 0, Generation: 1, Name: "another"}
	setView(t, r, list)
	if _, others := r.PeerLoad(0); others != 0 {
		t.Errorf("the next engine has %d requests of others", others)
	}
}

func TestMisuse(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(2))
	a := pick(t, r, &Request{}, t0)
	if err := r.Pick(&Request{}, t0, a); !errors.Is(err, ErrAttemptInUse) {
		t.Errorf("second Pick: %v", err)
	}
	a.End(unknown(), t0)
	a.End(unknown(), t0)
	if _, active := r.Load(a.Decision().Backend); active != 0 || r.Stats().DoubleEnds != 1 {
		t.Errorf("active %d, double ends %d", active, r.Stats().DoubleEnds)
	}
}

func TestConcurrentUse(t *testing.T) {
	backends := fleetOf(16)
	r, _ := newRouter(t, Config{}, backends)
	seed := virtual.Seed(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			var a Attempt
			for i := range 300 {
				now := t0 + prefixtree.Time(i*10)
				q := ask(prompt(1, rng.Uint64N(20), 4, 1+rng.IntN(60)))
				by(r, builtin[rng.IntN(len(builtin))], q)
				q.Session, q.LoRA = []byte{byte(i)}, []byte{byte(i % 3)}
				if err := r.Pick(q, now, &a); err != nil {
					t.Error(err)
					return
				}
				a.Dispatched(now)
				a.FirstToken(now + 3)
				a.End(Outcome{PromptTokens: 1000, CachedTokens: rng.IntN(1000), OutputTokens: 5, Failed: books.Failure(rng.IntN(7))}, now+5)
			}
		}()
	}
	for i := range 50 {
		backends[i%16].State = State(i % 3)
		v, err := NewView(backends, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetView(v)
		r.SetTelemetry(prefixtree.Backend(i%16), books.Telemetry{KVUsage: 0.5})
		var d Decision
		if err := r.Explain(ask(prompt(1, 1, 4, 8)), t0, &d); err != nil && !errors.Is(err, ErrNoBackend) {
			t.Error(err)
		}
		_ = d.String()
	}
	wg.Wait()
	for _, b := range backends {
		if tokens, active := r.Load(b.ID); tokens != 0 || active != 0 {
			t.Errorf("backend %d keeps %d tokens, %d active", b.ID, tokens, active)
		}
	}
}

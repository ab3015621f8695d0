package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/rules"
)

func play(t testing.TB, seed uint64, strategy string) (got []prefixtree.Backend) {
	r, _ := newRouter(t, Config{Strategy: strategy, Seed: seed}, fleetOf(8))
	rng := rand.New(rand.NewPCG(1, 2))
	var open []*Attempt
	for i := range 250 {
		now := t0 + prefixtree.Time(i*20)
		a := pick(t, r, ask(prompt(1, rng.Uint64N(30), 4, 4+rng.IntN(40))), now)
		got = append(got, a.Decision().Backend)
		a.Dispatched(now)
		if open = append(open, a); len(open) > 10 {
			open[0].FirstToken(now)
			open[0].End(unknown(), now)
			open = open[1:]
		}
	}
	for _, a := range open {
		a.End(unknown(), t0+8000)
	}
	return got
}

func TestSameSeedSameChoices(t *testing.T) {
	for _, strategy := range builtin {
		if a, b := play(t, 1, strategy), play(t, 1, strategy); !slices.Equal(a, b) {
			t.Errorf("%s: two runs with one seed differ", strategy)
		}
	}
	if slices.Equal(play(t, 1, Random), play(t, 2, Random)) {
		t.Error("two seeds give the same random choices")
	}
}

func TestNodesAgreeWithoutSharedKnowledge(t *testing.T) {
	routers := make([]*Router, 4)
	for i := range routers {
		routers[i], _ = newRouter(t, Config{Nodes: 4, Seed: uint64(i)}, fleetOf(16))
	}
	agree := 0
	const n = 300
	for i := range n {
		q := ask(prompt(uint64(i), 0, 24, 24))
		first := serve(t, routers[0], q, t0+prefixtree.Time(i*100)).Backend
		same := true
		for _, r := range routers[1:] {
			same = same && serve(t, r, q, t0+prefixtree.Time(i*100)).Backend == first
		}
		if same {
			agree++
		}
	}
	if agree < n*9/10 {
		t.Errorf("4 idle nodes agree on %d of %d first placements", agree, n)
	}
}

func TestExplainChangesNothing(t *testing.T) {
	r, tree := newRouter(t, Config{}, fleetOf(6), rules.Rule{Model: "rr", Strategy: RoundRobin}, rules.Rule{Model: "any", Strategy: Random})
	for i := range 30 {
		serve(t, r, ask(prompt(1, uint64(i), 4, 20)), t0+prefixtree.Time(i*10))
	}
	before, facts := r.Stats(), tree.Stats().Facts
	for _, model := range []string{"", "rr", "any"} {
		q := ask(prompt(1, 7, 4, 24))
		q.Model = []byte(model)
		var d, again Decision
		if err := r.Explain(q, t0+400, &d); err != nil {
			t.Fatal(err)
		}
		if err := r.Explain(q, t0+400, &again); err != nil {
			t.Fatal(err)
		}
		if d.String() != again.String() {
			t.Errorf("%q: two explanations differ:\n%v\n%v", model, &d, &again)
		}
		a := pick(t, r, q, t0+400)
		if got := a.Decision(); got.String() != d.String() {
			t.Errorf("%q: explained\n%v\ndecided\n%v", model, &d, got)
		}
		a.End(unknown(), t0+400)
	}
	if after := r.Stats(); after.Picks != before.Picks+3 || tree.Stats().Facts != facts {
		t.Errorf("explanations counted: %d picks before, %d after; %d facts, %d", before.Picks, after.Picks, facts, tree.Stats().Facts)
	}
}

func TestReceipt(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(20))
	home := serve(t, r, ask(prompt(1, 1, 0, 20)), t0).Backend
	a := pick(t, r, ask(prompt(1, 1, 0, 24)), t0+1500)
	defer a.End(unknown(), t0+1500)
	d := a.Decision()
	if len(d.Candidates) != MaxConsidered || d.Candidates[0].Backend != home || d.Eligible != 20 || d.Age.Seconds() != 1.5 {
		t.Fatalf("%+v", d)
	}
	if !slices.IsSortedFunc(d.Candidates[1:], func(a, b Considered) int {
		if a.Cost < b.Cost {
			return -1
		}
		return 1
	}) {
		t.Errorf("not by cost: %v", &d)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(raw, &back); err != nil || back["rung"] != "cache" || back["matched_blocks"] != 20.0 {
		t.Errorf("%s: %v", raw, err)
	}
	if s := d.String(); !strings.Contains(s, "prefix/cache") || !strings.Contains(s, "2560 of 3072") {
		t.Error(s)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools at random")
	}
	for _, strategy := range builtin {
		r, _ := newRouter(t, Config{Strategy: strategy}, fleetOf(64))
		a, q, now := new(Attempt), warm(t, r), t0+100_000
		q.Exclude = []prefixtree.Backend{3}
		step := func() {
			now++
			if err := r.Pick(q, now, a); err != nil {
				t.Fatal(err)
			}
			a.Dispatched(now)
			a.FirstToken(now)
			a.End(Outcome{PromptTokens: 4000, CachedTokens: 4000, OutputTokens: 5}, now)
		}
		for range 3000 { // until the prompt is common and every backend holds it
			step()
		}
		n := testing.AllocsPerRun(500, step)
		if n != 0 {
			t.Errorf("%s: %v allocations", strategy, n)
		}
	}
}

// warm returns a request of 256 blocks that 1 in 16 backends hold.
func warm(t testing.TB, r *Router) *Request {
	n := len(r.View().Backends)
	for i := range 4 * n {
		q := ask(prompt(1, uint64(i), 12, 24))
		serve(t, r, by(r, RoundRobin, q), t0+prefixtree.Time(i))
	}
	q := ask(prompt(7, 7, 256, 256))
	q.Session, q.Model = []byte("session"), []byte("model")
	for range max(n/16, 1) {
		d := *q
		serve(t, r, by(r, Random, &d), t0+90_000)
	}
	return q
}

func BenchmarkPick(b *testing.B) {
	for _, strategy := range []string{Prefix, PrefixHash, LeastRequest, RoundRobin, Weighted} {
		for _, n := range []int{8, 64, 256, 2000} {
			b.Run(fmt.Sprintf("%s/backends=%d", strategy, n), func(b *testing.B) {
				r, _ := newRouter(b, Config{Strategy: strategy}, fleetOf(n))
				q, a, now := warm(b, r), new(Attempt), t0+100_000
				b.ReportAllocs()
				for b.Loop() {
					now++
					if err := r.Pick(q, now, a); err != nil {
						b.Fatal(err)
					}
					a.End(unknown(), now)
				}
			})
		}
	}
}

func BenchmarkArgmin(b *testing.B) {
	for _, n := range []int{8, 64, 256, 2000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			r, _ := newRouter(b, Config{}, fleetOf(n))
			warm(b, r)
			engines := r.table.Load().engines
			for b.Loop() {
				best := 0
				for i, e := range engines {
					if e.Charged() < engines[best].Charged() {
						best = i
					}
				}
				_ = best
			}
		})
	}
}

func BenchmarkPickParallel(b *testing.B) {
	r, _ := newRouter(b, Config{}, fleetOf(64))
	q := warm(b, r)
	b.RunParallel(func(pb *testing.PB) {
		a, now, mine := new(Attempt), t0+100_000, *q
		for pb.Next() {
			now++
			if err := r.Pick(&mine, now, a); err != nil {
				b.Error(err)
				return
			}
			a.End(unknown(), now)
		}
	})
}

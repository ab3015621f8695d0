package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

func hotPrompt(own uint64) []prefixtree.Hash { return prompt(7, own, 16, 24) }

func theHotPrefix(replicas int) HotPrefix {
	return HotPrefix{Anchor: hotPrompt(0)[15], Tokens: 16 * testBlock / 4, Replicas: replicas}
}

// Prompts with a hot prefix go to its computed set, the same at all nodes.
func TestHotPromptsGoToTheSet(t *testing.T) {
	for _, nodes := range []int{1, 5} {
		routers := among(t, nodes, 200*time.Millisecond, fleetOf(16))
		used := map[string]bool{}
		set := routers[0].HotSet(poolAll, theHotPrefix(4))
		if len(set) != 4 {
			t.Fatalf("the set is %v", set)
		}
		for n, r := range routers {
			r.SetHotPrefixes([]HotPrefix{theHotPrefix(4)})
			if other := r.HotSet(poolAll, theHotPrefix(4)); !slices.Equal(other, set) {
				t.Fatalf("node %d has the set %v, node 0 %v", n, other, set)
			}
			for i := range 60 {
				d := serve(t, r, ask(hotPrompt(uint64(100*n+i))), t0+prefixtree.Time(1000*n+10*i))
				if !slices.Contains(set, d.Name) {
					t.Fatalf("of %d nodes, node %d: request %d went to %s, the set is %v", nodes, n, i, d.Name, set)
				}
				if d.Rung != Hot || d.Hot != theHotPrefix(4).Anchor || d.Replicas != 4 {
					t.Fatalf("receipt: rung %v, anchor %x on %d", d.Rung, d.Hot, d.Replicas)
				}
				used[d.Name] = true
			}
		}
		if len(used) != 4 {
			t.Errorf("of %d nodes: only %v were used", nodes, used)
		}
		r := routers[0]
		r.SetHotPrefixes(nil)
		if d := serve(t, r, ask(hotPrompt(9999)), t0+100_000); d.Rung == Hot || d.Replicas != 0 {
			t.Errorf("nothing is hot any more, and the receipt says rung %v, on %d", d.Rung, d.Replicas)
		}
	}
}

// A prefix that is measured is found again, wherever it ends.
func TestHotPrefixMayEndAnywhere(t *testing.T) {
	for _, ends := range []int{1, 9, 16, 21, 22, 23, 24, 400, demand.Depth} {
		r, _ := newRouter(t, Config{}, fleetOf(16))
		rated(r, 1000)
		next := func(i int) []prefixtree.Hash { return prompt(7, uint64(i), ends, ends+8) }
		for i := range 40 {
			serve(t, r, ask(next(i)), t0+prefixtree.Time(100*i))
		}
		works := r.OwnWork(1, t0+4000)
		if len(works) != 2 {
			t.Fatalf("prompts diverge behind block %d: measured %+v", ends, works)
		}
		r.SetHotPrefixes([]HotPrefix{{Anchor: works[1].Anchor, Tokens: int(works[1].Tokens), Replicas: 3}})
		if d := serve(t, r, ask(next(99)), t0+4000); d.Hot != next(0)[ends-1] || d.Replicas != 3 || d.Rung != Hot {
			t.Errorf("prompts diverge behind block %d: %v, anchor %x on %d", ends, d.Rung, d.Hot, d.Replicas)
		}
	}
}

func TestHotSetChangesByOne(t *testing.T) {
	backends := fleetOf(12)
	r, _ := newRouter(t, Config{}, backends)
	p := theHotPrefix(5)
	before := r.HotSet(poolAll, p)
	for i := range backends {
		changed := slices.Clone(backends)
		changed[i].State = Draining
		setView(t, r, changed)
		after := r.HotSet(poolAll, p)
		setView(t, r, backends)
		kept := slices.DeleteFunc(slices.Clone(before), func(n string) bool { return n == backends[i].Name })
		if !slices.Equal(after[:len(kept)], kept) || len(after) != 5 {
			t.Errorf("without %s the set is %v, before %v", backends[i].Name, after, before)
		}
	}
}

func TestHotSetSpillsOver(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(16))
	p := theHotPrefix(2)
	r.SetHotPrefixes([]HotPrefix{p})
	set := r.HotSet(poolAll, p)
	counts := map[string]int{}
	for i := range 40 { // none of them ends
		d := pick(t, r, ask(hotPrompt(uint64(i))), t0+prefixtree.Time(i)).Decision()
		if counts[d.Name]++; i < 2 && !slices.Contains(set, d.Name) {
			t.Errorf("request %d went to %s, and nobody waited at %v", i, d.Name, set)
		}
	}
	if inside := counts[set[0]] + counts[set[1]]; inside > 20 {
		t.Errorf("%d of 40 requests wait at %v, and 14 backends are idle", inside, set)
	}
	for name, n := range counts {
		if n > min(counts[set[0]], counts[set[1]])+1 {
			t.Errorf("%d requests are at %s, %d and %d at the set", n, name, counts[set[0]], counts[set[1]])
		}
	}
}

func TestConversationLeavesTheSet(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(16))
	for i := range 40 {
		serve(t, r, ask(hotPrompt(uint64(i))), t0+prefixtree.Time(i))
	}
	long := append(slices.Clone(hotPrompt(77)), prompt(78, 0, 40, 40)...)
	first := serve(t, r, ask(long), t0+1000)
	home := first.Name
	p := theHotPrefix(2)
	for i := 15; slices.Contains(r.HotSet(poolAll, p), home); i-- { // another anchor, another set
		p.Anchor = hotPrompt(0)[i-1]
	}
	r.SetHotPrefixes([]HotPrefix{p})
	next := append(slices.Clone(long), prompt(79, 0, 4, 4)...)
	if d := serve(t, r, ask(next), t0+2000); d.Name != home || d.Rung != Cache {
		t.Errorf("went to %s by rung %v, its conversation is at %s", d.Name, d.Rung, home)
	}
}

func TestOtherPromptsAreAsBefore(t *testing.T) {
	seed := virtual.Seed(t)
	for _, nodes := range []int{1, 8} {
		with, _ := newRouter(t, Config{Nodes: nodes, Seed: seed}, fleetOf(20))
		without, _ := newRouter(t, Config{Nodes: nodes, Seed: seed}, fleetOf(20))
		others := []HotPrefix{{Anchor: hotPrompt(0)[10], Tokens: 64, Replicas: 2}}
		for i := range 200 { // many, so that one block in twenty passes the filter
			others = append(others, HotPrefix{Anchor: prefixtree.Hash(mix(^uint64(i))), Tokens: 64, Replicas: 3})
		}
		with.SetHotPrefixes(others)
		rnd := rand.New(rand.NewPCG(seed, 5))
		var open [][2]*Attempt
		for i := range 600 {
			now := t0 + prefixtree.Time(20*i)
			q := prompt(20+rnd.Uint64N(6), rnd.Uint64N(300), 8, 12+rnd.IntN(20))
			a, b := pick(t, with, ask(q), now), pick(t, without, ask(q), now)
			x, y := a.Decision(), b.Decision()
			if x.Name != y.Name || x.Rung != y.Rung || x.Candidates[0] != y.Candidates[0] {
				t.Fatalf("request %d of %d nodes: %s by %v, without hot prefixes %s by %v", i, nodes, x.Name, x.Rung, y.Name, y.Rung)
			}
			a.Dispatched(now)
			b.Dispatched(now)
			if open = append(open, [2]*Attempt{a, b}); len(open) > 30 {
				at := rnd.IntN(len(open))
				for _, end := range open[at] {
					end.FirstToken(now)
					end.End(unknown(), now)
				}
				open = slices.Delete(open, at, at+1)
			}
		}
	}
}

func TestHotPickDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools at random")
	}
	r, _ := newRouter(t, Config{Nodes: 4}, fleetOf(64))
	r.SetHotPrefixes([]HotPrefix{theHotPrefix(9)})
	a, q := new(Attempt), ask(hotPrompt(3))
	step := func() {
		if err := r.Pick(q, t0, a); err != nil {
			t.Fatal(err)
		}
		if a.Decision().Rung != Hot {
			t.Fatalf("rung %v", a.Decision().Rung)
		}
		a.End(unknown(), t0)
	}
	step()
	if n := testing.AllocsPerRun(300, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

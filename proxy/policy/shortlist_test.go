package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func TestPoolsAreLargeFromABoundOn(t *testing.T) {
	for _, n := range []int{weighAll, weighAll + 1} {
		r, _ := newRouter(t, Config{}, fleetOf(n))
		s := new(Scene)
		r.open(s, ask(prompt(1, 1, 0, 8)), r.table.Load().all, t0)
		r.match(s)
		s.stage(true)
		if got, want := len(s.Candidates) < n, n > weighAll; got != want || s.size != n {
			t.Errorf("%d backends: %d candidates stand for %d", n, len(s.Candidates), s.size)
		}
	}
}

func TestLargePoolFollowsTheCache(t *testing.T) {
	const n = 600
	for _, nodes := range []int{1, 8} {
		r := among(t, nodes, 200*time.Millisecond, fleetOf(n))[0]
		for i := range 100 {
			now := t0 + prefixtree.Time(50*i)
			first := serve(t, r, ask(prompt(uint64(i), uint64(i)+1, 20, 20)), now)
			if first.Eligible != n {
				t.Fatalf("eligible %d of %d", first.Eligible, n)
			}
			home := first.Backend
			if d := serve(t, r, ask(prompt(uint64(i), uint64(i)+1, 20, 24)), now+20); d.Backend != home || d.Rung != Cache {
				t.Fatalf("%d nodes, prompt %d was on %d, went to %d by %v", nodes, i, home, d.Backend, d.Rung)
			}
		}
	}
}

func TestLargePoolFindsTheIdle(t *testing.T) {
	const n, free = 600, 40
	r, _ := newRouter(t, Config{}, fleetOf(n))
	rng := rand.New(rand.NewPCG(virtual.Seed(t), 0))
	idle := map[prefixtree.Backend]bool{}
	for _, i := range rng.Perm(n)[:free] {
		idle[prefixtree.Backend(i)] = true
	}
	var busy []prefixtree.Backend
	for i := range n {
		if b := prefixtree.Backend(i); !idle[b] {
			busy = append(busy, b)
		}
	}
	var loads []books.PeerLoad
	for _, b := range busy {
		loads = append(loads, books.PeerLoad{Backend: b, PrefillTokens: 50_000, Active: 4})
	}
	r.SetPeerLoad("other", loads, t0)
	taken, waits := map[prefixtree.Backend]int{}, 0
	for i := range 3 * free {
		a := pick(t, r, ask(prompt(uint64(i), 0, 8, 8)), t0+prefixtree.Time(i))
		defer a.End(unknown(), t0+1000)
		if b := a.Decision().Backend; idle[b] {
			taken[b]++
		} else {
			waits++
		}
	}
	// One sample in eighty holds none that is idle.
	if waits > 8 {
		t.Errorf("%d of %d prompts wait, and %d of %d backends without a queue have some", waits, 3*free, len(taken), free)
	}
	for b, n := range taken {
		if n > 6 {
			t.Errorf("%d of %d prompts are on %d", n, 3*free, b)
		}
	}
}

// Most places are worse than the best tenth, and one sample in 850 has none of these.
func TestLargePoolChoosesNearlyTheBest(t *testing.T) {
	const n, requests = 600, 400
	rng := rand.New(rand.NewPCG(virtual.Seed(t), 0))
	r, _ := newRouter(t, Config{}, fleetOf(n))
	var loads []books.PeerLoad
	queues := make([]int64, n)
	for i := range queues {
		queues[i] = 20_000 + int64(rng.ExpFloat64()*20_000)
		loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(i), PrefillTokens: queues[i], Active: 1})
	}
	r.SetPeerLoad("others", loads, t0)
	sorted := slices.Sorted(slices.Values(queues))
	sum, far := 0, 0
	for i := range requests {
		rank, _ := slices.BinarySearch(sorted, queues[serve(t, r, ask(prompt(uint64(i), 0, 8, 8)), t0).Backend])
		if sum += rank; rank >= n/10 {
			far++
		}
	}
	if mean := sum / requests; mean > n/40 || far > 6 {
		t.Errorf("the chosen is number %d of %d on average, and %d of %d are not of the best tenth", mean, n, far, requests)
	}
}

func TestLargePoolNodesAgree(t *testing.T) {
	routers := make([]*Router, 4)
	for i := range routers {
		routers[i], _ = newRouter(t, Config{Nodes: 4, Seed: uint64(i)}, fleetOf(300))
	}
	agree := 0
	const n = 60
	for i := range n {
		q := ask(prompt(uint64(i), 0, 24, 24))
		now := t0 + prefixtree.Time(i*100)
		first := serve(t, routers[0], q, now).Backend
		if !slices.ContainsFunc(routers[1:], func(r *Router) bool { return serve(t, r, q, now).Backend != first }) {
			agree++
		}
	}
	if agree < n*8/10 {
		t.Errorf("4 idle nodes agree on %d of %d first placements", agree, n)
	}
}

func TestLargePoolExplains(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(300))
	rng := rand.New(rand.NewPCG(virtual.Seed(t), 0))
	now := t0
	for i := range 256 {
		now += prefixtree.Time(rng.IntN(5))
		if i%50 == 49 {
			now += 200
		}
		q := ask(prompt(1, rng.Uint64N(60), 4, 4+rng.IntN(30)))
		var d, again Decision
		for _, d := range []*Decision{&d, &again} {
			if err := r.Explain(q, now, d); err != nil {
				t.Fatal(err)
			}
		}
		a := pick(t, r, q, now)
		if got := a.Decision(); got.String() != d.String() || again.String() != d.String() {
			t.Fatalf("request %d: explained\n%v\nand\n%v\ndecided\n%v", i, &d, &again, got)
		}
		a.Dispatched(now)
		if rng.IntN(3) > 0 {
			a.FirstToken(now)
			a.End(unknown(), now)
		} else {
			defer a.End(unknown(), now)
		}
	}
}

func TestLargePoolAvoids(t *testing.T) {
	const n = 400
	r, _ := newRouter(t, Config{}, fleetOf(n))
	well := []prefixtree.Backend{7, 123, 399}
	serve(t, r, ask(prompt(1, 1, 4, 4)), t0)
	for i := range n {
		if b := prefixtree.Backend(i); !slices.Contains(well, b) {
			r.SetReported(b, true, t0)
		}
	}
	for i := range 128 {
		d := serve(t, r, ask(prompt(uint64(i), 0, 4, 4)), t0+prefixtree.Time(i))
		if !slices.Contains(well, d.Backend) || d.LastResort {
			t.Fatalf("request %d went to %d, last resort %v", i, d.Backend, d.LastResort)
		}
	}
	q := ask(prompt(1, 1, 4, 4))
	q.Exclude = well[:2]
	if d := serve(t, r, q, t0+1000); d.Backend != well[2] {
		t.Errorf("with %v excluded it went to %d", q.Exclude, d.Backend)
	}
	q.Exclude = well
	if d := serve(t, r, q, t0+1001); slices.Contains(well, d.Backend) || !d.LastResort {
		t.Errorf("with %v excluded it went to %d, last resort %v", q.Exclude, d.Backend, d.LastResort)
	}
}

func TestLargePoolKeepsToTheHotSet(t *testing.T) {
	const n = 300
	for _, nodes := range []int{1, 5} {
		for _, replicas := range []int{12, 120} {
			r := among(t, nodes, 200*time.Millisecond, fleetOf(n))[0]
			p := theHotPrefix(replicas)
			r.SetHotPrefixes([]HotPrefix{p})
			set := r.HotSet(poolAll, p)
			used := map[string]bool{}
			for i := range 3 * replicas {
				d := serve(t, r, ask(hotPrompt(uint64(i))), t0+prefixtree.Time(10*i))
				if !slices.Contains(set, d.Name) || d.Rung != Hot {
					t.Fatalf("request %d went to %s by %v, which is not of the %d", i, d.Name, d.Rung, replicas)
				}
				used[d.Name] = true
			}
			if len(used) < replicas*8/10 {
				t.Errorf("%d nodes: %d of %d were used", nodes, len(used), replicas)
			}
		}
	}
}

func TestLargePoolEasesIn(t *testing.T) {
	bubble.SkipInRace(t)
	const n, perSecond, perEngine = 300, 1500, 5
	list := fleetOf(n)
	list[n-1].Since = t0
	r, _ := newRouter(t, Config{}, list)
	var open []*Attempt
	got := 0
	for i := range 10 * perSecond {
		now := t0 + 1 + prefixtree.Time(i*1000/perSecond)
		a := pick(t, r, ask(prompt(uint64(i), 0, 4, 4)), now)
		if a.Decision().Backend == n-1 {
			got++
		}
		a.Dispatched(now)
		a.FirstToken(now)
		if open = append(open, a); len(open) > perEngine*n {
			open[0].End(unknown(), now)
			open = open[1:]
		}
	}
	for _, a := range open {
		a.End(unknown(), t0+10_001)
	}
	// Its warmth is a quarter on average.
	if share := 10 * perSecond / n / 4; got < share/3 || got > 2*share {
		t.Errorf("%d requests in the first ten seconds, its share is %d", got, share)
	}
}

func TestLargePoolDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools at random")
	}
	for _, nodes := range []int{1, 20} {
		r := among(t, nodes, 200*time.Millisecond, fleetOf(300))[0]
		r.SetHotPrefixes([]HotPrefix{theHotPrefix(120)})
		a, now := new(Attempt), t0+100_000
		hot, plain := ask(hotPrompt(1)), warm(t, r)
		step := func() {
			for _, q := range []*Request{hot, plain} {
				now++
				if err := r.Pick(q, now, a); err != nil {
					t.Fatal(err)
				}
				a.Dispatched(now)
				a.FirstToken(now)
				a.End(unknown(), now)
			}
		}
		for range 2000 {
			step()
		}
		if n := testing.AllocsPerRun(500, step); n != 0 {
			t.Errorf("%d nodes: %v allocations", nodes, n)
		}
	}
}

func TestLargePoolConcurrently(t *testing.T) {
	const n, workers, each = 300, 4, 150
	r := among(t, 3, 200*time.Millisecond, fleetOf(n))[0]
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				now := t0 + prefixtree.Time(10*i)
				q := ask(hotPrompt(uint64(i)))
				if i%2 == w%2 {
					q = ask(prompt(uint64(i), uint64(w), 6, 12))
				}
				a := new(Attempt)
				if err := r.Pick(q, now, a); err != nil {
					t.Error(err)
					return
				}
				a.Dispatched(now)
				var d Decision
				if err := r.Explain(q, now, &d); err != nil {
					t.Error(err)
				}
				a.FirstToken(now + 1)
				a.End(unknown(), now+2)
			}
		})
	}
	wg.Go(func() {
		for i := range each / 5 {
			r.SetHotPrefixes([]HotPrefix{theHotPrefix(10 + i)})
			list := fleetOf(n)
			list[i].State = Draining
			setView(t, r, list)
			r.SetPeerLoad("peer", []books.PeerLoad{{Backend: prefixtree.Backend(i), PrefillTokens: 1000, Active: 1}}, t0)
		}
	})
	wg.Wait()
	for i := range n {
		if tokens, active := r.Load(prefixtree.Backend(i)); tokens != 0 || active != 0 {
			t.Fatal(fmt.Sprint("left on ", i, ": ", tokens, " tokens, ", active, " requests"))
		}
	}
}

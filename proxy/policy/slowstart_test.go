package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// returning plays 60 s of prompts on n backends, the last of which returns after 10 s, and counts
// prompts per second.
func returning(t *testing.T, cfg Config, n, perSecond int) (perBackend [][60]int) {
	t.Helper()
	list := fleetOf(n)
	list[n-1].State = Down
	r, _ := newRouter(t, cfg, list)
	perBackend = make([][60]int, n)
	type running struct {
		a   *Attempt
		end prefixtree.Time
	}
	var open []running
	back := t0 + 10_000
	for i := range 60 * perSecond {
		now := t0 + prefixtree.Time(i*1000/perSecond)
		for len(open) > 0 && open[0].end <= now {
			open[0].a.End(unknown(), open[0].end)
			open = open[1:]
		}
		if now >= back && list[n-1].State == Down {
			list[n-1].State, list[n-1].Generation, list[n-1].Since = Active, 2, now
			setView(t, r, list)
		}
		q := ask(prompt(uint64(i), 0, 4, 4))
		q.Session = fmt.Append(nil, "s", i)
		a := pick(t, r, q, now)
		a.Dispatched(now)
		a.FirstToken(now + 20)
		perBackend[a.Decision().Backend][i/perSecond]++
		open = append(open, running{a, now + 1000})
	}
	return perBackend
}

func sum(counts []int) (s int) {
	for _, c := range counts {
		s += c
	}
	return s
}

func TestSlowStart(t *testing.T) {
	const n, perSecond = 4, 40
	for _, strategy := range builtin {
		got := returning(t, Config{Strategy: strategy, Seed: 7}, n, perSecond)
		cold := got[n-1][:]
		for from := 10; from < 40; from += 5 {
			// Mean warmth over five seconds, and its share among the warm backends.
			w := coldShare + (1-coldShare)*(float64(from)-10+2.5)/30
			full := w / (n - 1 + w) * 5 * perSecond
			have := float64(sum(cold[from : from+5]))
			if have > 1.35*full+4 || have < 0.5*full-4 {
				t.Errorf("%s: %.0f requests in seconds %d to %d after its return, want about %.0f", strategy, have, from-10, from-5, full)
			}
		}
		if have, fair := sum(cold[45:]), 15*perSecond/n; have < fair/2 {
			t.Errorf("%s: %d of a fair %d requests once it is warm", strategy, have, fair)
		}
		if got := sum(cold[:10]); got != 0 {
			t.Errorf("%s: %d requests while it was down", strategy, got)
		}
	}
}

func TestColdEngineIsAMagnetWithout(t *testing.T) {
	bubble.SkipInRace(t)
	const n, perSecond = 4, 40
	for _, strategy := range []string{Prefix, LeastRequest} {
		const seeds = 4
		first := func(slow time.Duration) (got int) {
			for seed := range uint64(seeds) {
				got += returning(t, Config{Strategy: strategy, Seed: seed, SlowStart: slow}, n, perSecond)[n-1][10]
			}
			return got
		}
		without, with := first(-1), first(0)
		if fair := seeds * perSecond / n; without < fair || with > fair/4 {
			t.Errorf("%s: %d requests in the first seconds without a slow start and %d with one; fair would be %d", strategy, without, with, fair)
		}
	}
}

func TestColdBackendKeepsItsConversations(t *testing.T) {
	list := fleetOf(4)
	list[3].Since = t0
	r, tree := newRouter(t, Config{}, list)
	chain := prompt(1, 1, 0, 32)
	var tr prefixtree.TouchHistory
	tree.Record(3, chain, t0, &tr)
	for i := range 50 {
		if d := serve(t, r, ask(prompt(1, 1, 0, 32+2*i)), t0+prefixtree.Time(i)); d.Backend != 3 {
			t.Fatalf("turn %d went to %s, away from its cache", i, d.Name)
		}
	}
}

func TestAllColdIsNoneCold(t *testing.T) {
	list := fleetOf(4)
	for i := range list {
		list[i].Since = t0
	}
	for _, strategy := range builtin {
		r, _ := newRouter(t, Config{Strategy: strategy}, list)
		counts := make([]int, len(list))
		for i := range 400 {
			q := ask(prompt(uint64(i), 0, 4, 4))
			q.Session = fmt.Append(nil, i)
			counts[serve(t, r, q, t0+prefixtree.Time(i)).Backend]++
		}
		for b, c := range counts {
			if c < 40 {
				t.Errorf("%s: backend %d got %d of 400", strategy, b, c)
			}
		}
	}
}

// Load decides among engines that started within a second.
func TestFleetThatStartsSharesByLoad(t *testing.T) {
	for _, strategy := range []string{Prefix, LeastRequest, Weighted} {
		list := fleetOf(8)
		for i := range list {
			list[i].Since = t0 + prefixtree.Time(i)*100
		}
		r, _ := newRouter(t, Config{Strategy: strategy}, list)
		counts := make([]int, len(list))
		for i := range 400 { // none of them ends
			now := t0 + 1000 + prefixtree.Time(i)*50
			a := pick(t, r, ask(prompt(uint64(i), 0, 4, 4)), now)
			a.Dispatched(now)
			a.FirstToken(now)
			counts[a.Decision().Backend]++
		}
		if least, most := slices.Min(counts), slices.Max(counts); most-least > 2 {
			t.Errorf("%s: running requests %v", strategy, counts)
		}
	}
}

func TestSlowStartEndsWithoutTraces(t *testing.T) {
	play := func(since prefixtree.Time) (got []prefixtree.Backend) {
		list := fleetOf(5)
		list[2].Since = since
		r, _ := newRouter(t, Config{Seed: 3}, list)
		for i := range 100 {
			got = append(got, serve(t, r, ask(prompt(uint64(i), 0, 8, 8)), t0+prefixtree.Time(i)).Backend)
		}
		return got
	}
	a, b := play(0), play(t0-prefixtree.Time(DefaultSlowStart.Milliseconds()))
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("request %d: %d and %d", i, a[i], b[i])
		}
	}
}

// A backend that failed its trial returns cold; a single failure does not count.
func TestRecoveryBeginsSlowly(t *testing.T) {
	for failures, want := range map[int]bool{1: false, 2: true} {
		r, _ := newRouter(t, Config{}, fleetOf(4))
		now := t0
		for range failures {
			fail(t, r, 0, books.Connect, 4, now)
			now += 10_000
		}
		a := pick(t, r, &Request{Exclude: except(4, 0)}, now)
		a.Dispatched(now)
		a.FirstToken(now)
		a.End(unknown(), now)
		if got := r.warmth(r.table.Load().engine(0), now) < 1; got != want {
			t.Errorf("after %d failures in a row: cold is %v", failures, got)
		}
	}
}

func TestReportedIsAvoidedWithoutTrials(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(3))
	r.SetReported(1, true, t0)
	for i := range 600 { // a minute
		if d := serve(t, r, &Request{}, t0+prefixtree.Time(i*100)); d.Backend == 1 {
			t.Fatalf("request %d at risk on a backend that others report", i)
		}
	}
	if h := r.Health(1); !h.Reported || h.Failures != 0 {
		t.Errorf("%+v", h)
	}
	now := t0 + 60_000
	r.SetReported(1, false, now)
	if _, avoided := r.Avoided(1, now); avoided {
		t.Error("avoided although nobody reports it any more")
	}
	if r.warmth(r.table.Load().engine(1), now) == 1 {
		t.Error("warm at once after a minute of absence")
	}

	for b := range prefixtree.Backend(3) {
		r.SetReported(b, true, now)
	}
	if d := serve(t, r, &Request{}, now); !d.LastResort {
		t.Error("served as if nothing was reported")
	}
}

func TestFailedIsTold(t *testing.T) {
	type told struct {
		b prefixtree.Backend
		f books.Failure
	}
	var got []told
	r, _ := newRouter(t, Config{Failed: func(b prefixtree.Backend, f books.Failure, _ prefixtree.Time) { got = append(got, told{b, f}) }}, fleetOf(2))
	for f := books.None; int(f) < books.Failures; f++ {
		fail(t, r, 1, f, 2, t0+prefixtree.Time(f)*100_000)
	}
	want := []told{{1, books.Connect}, {1, books.Timeout}, {1, books.Reset}, {1, books.Status5xx}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

func TestColdPickDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools at random")
	}
	list := fleetOf(16)
	list[5].Since = t0
	for _, strategy := range builtin {
		r, _ := newRouter(t, Config{Strategy: strategy}, list)
		q := ask(prompt(1, 1, 8, 32))
		q.Session = []byte("s")
		var a Attempt
		n := testing.AllocsPerRun(200, func() {
			if err := r.Pick(q, t0+1, &a); err != nil {
				t.Fatal(err)
			}
			a.End(unknown(), t0+1)
		})
		if n > 0 {
			t.Errorf("%s: %v allocations", strategy, n)
		}
	}
}

func TestExplainTellsWhoIsLetIn(t *testing.T) {
	for _, n := range []int{4, weighAll + 4} {
		list := fleetOf(n)
		list[n-1].Since = t0
		r, _ := newRouter(t, Config{}, list)
		var loads []books.PeerLoad
		for i := range n - 1 {
			loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(i), PrefillTokens: 5000, Active: 2})
		}
		r.SetPeerLoad("others", loads, t0)
		let, requests := 0, max(10*n, 400)
		for i := range requests {
			q, now := ask(prompt(uint64(i), 0, 4, 4)), t0+20_000+prefixtree.Time(i)
			var d Decision
			if err := r.Explain(q, now, &d); err != nil {
				t.Fatal(err)
			}
			got := serve(t, r, q, now)
			if got.String() != d.String() {
				t.Fatalf("%d backends, request %d: explained\n%v\ndecided\n%v", n, i, &d, got)
			}
			if got.Backend == prefixtree.Backend(n-1) {
				let++
			}
		}
		if share := requests * 7 / 10 / n; let < share/3 || let > 2*share {
			t.Errorf("of %d requests the one of %d backends that begins got %d, its share is %d", requests, n, let, share)
		}
	}
}

func TestShareOfSeveralModels(t *testing.T) {
	bubble.SkipInRace(t)
	const n, requests = weighAll + 44, 9000
	list := fleetOf(n)
	list[n-1].Since = t0
	for i := range list {
		list[i].Models = []string{"a", "b"}
	}
	r, _ := newRouter(t, Config{}, list)
	var loads []books.PeerLoad
	for i := range n - 1 {
		loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(i), PrefillTokens: 5000, Active: 2})
	}
	r.SetPeerLoad("others", loads, t0)
	got := 0
	for i := range requests {
		q := ask(prompt(uint64(i), 0, 4, 4))
		if q.Model = []byte("a"); i%3 == 0 {
			q.Model = []byte("b")
		}
		if serve(t, r, q, t0+9_100+prefixtree.Time(i/5)).Backend == n-1 {
			got++
		}
	}
	// Mean warmth is 0.4.
	if share := requests * 4 / 10 / n; got < share/3 || got > 2*share {
		t.Errorf("%d requests, its share is about %d", got, share)
	}
}

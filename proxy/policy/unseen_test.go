package policy

import (
	"fmt"
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

const never = time.Hour

// among returns n routers of one fleet with the given staleness and idle peers.
func among(t testing.TB, n int, staleness time.Duration, backends []Backend) []*Router {
	t.Helper()
	routers := make([]*Router, n)
	for i := range routers {
		routers[i], _ = newRouter(t, Config{Seed: uint64(i)}, backends)
		routers[i].SetFleet(n, staleness)
		routers[i].SetPeerLoad("others", nil, t0)
	}
	return routers
}

func TestCommonMatchIsNotFollowed(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(8))
	for i := range 200 {
		q := ask(prompt(1, uint64(i), 24, 40))
		q.Exclude = except(8, 3)
		serve(t, r, q, t0+prefixtree.Time(i*10))
	}
	busy := &Request{Hashes: prompt(2, 2, 0, 8), PromptBytes: 8 * testBlock, Exclude: except(8, 3)}
	a := pick(t, r, busy, t0+3000)
	defer a.End(unknown(), t0+4000)
	if d := serve(t, r, ask(prompt(1, 900, 24, 40)), t0+3000); d.Backend == 3 {
		t.Errorf("a new prompt went where everybody's system prompt is: %v", d)
	}
	if d := serve(t, r, ask(prompt(1, 199, 24, 44)), t0+3001); d.Backend != 3 {
		t.Errorf("a conversation left its backend for a request of 0.1 s: %v", d)
	}
}

// An engine must compute what it lacks of a common prefix, unless this has an engine's fair share of the requests.
func TestCommonPrefixesCountAsHeldByTheirShare(t *testing.T) {
	const tokens, rate = testBlock / defaultBytesPerToken, 10_000.
	for _, c := range []struct{ every, counts int }{{20, 0}, {10, 0}, {4, 24}, {1, 24}} { // 0.4, 0.8, 2 and 8 fair shares
		r, _ := newRouter(t, Config{}, fleetOf(8))
		rated(r, rate)
		for i := range 400 {
			q := ask(prompt(2, uint64(i), 0, 40))
			if i%c.every == 0 {
				q = ask(prompt(1, uint64(i), 24, 40))
				q.Exclude = except(8, 3)
			}
			serve(t, r, q, t0+prefixtree.Time(i*10))
		}
		s := new(Scene)
		s.peek = true
		if _, err := r.decide(s, ask(prompt(1, 900, 24, 40)), t0+5000, new(Decision)); err != nil {
			t.Fatal(err)
		}
		if popular := c.every < 20; (s.CommonTokens == 24*tokens) != popular {
			t.Errorf("with one request in %d %v tokens are common", c.every, s.CommonTokens)
		}
		for b, lacks := range map[int]int{3: 16, 0: 40 - c.counts} {
			e := &s.Candidates[s.where[b]]
			want := float64(lacks) * tokens / e.Rate
			place := max(want, float64(40*tokens-s.CommonTokens)/e.Rate)
			if math.Abs(e.compute-want) > 1e-6 || math.Abs(e.place-e.start-place) > 1e-6 {
				t.Errorf("with one request in %d engine-%d computes %v s and new work %v s, want %v and %v", c.every, b, e.compute, e.place-e.start, want, place)
			}
		}
	}
}

func TestFirstTurnsSpreadWhileCalm(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(10))
	for b := range 10 { // learned rates differ by a few percent
		r.books.LearnRate(r.table.Load().engines[b], 10_000+100*float64(b), 1)
	}
	var open []*Attempt
	most := map[prefixtree.Backend]int{}
	for i := range 200 {
		now := t0 + prefixtree.Time(i*50)
		a := pick(t, r, ask(prompt(1, uint64(i), 4, 8)), now)
		a.Dispatched(now)
		a.FirstToken(now)
		open = append(open, a)
		most[a.Decision().Backend]++
	}
	for b := range prefixtree.Backend(10) {
		if most[b] < 14 || most[b] > 26 {
			t.Errorf("backend %d has %d of 200 running requests: %v", b, most[b], most)
		}
	}
	for _, a := range open {
		a.End(unknown(), t0+20_000)
	}
}

// Engines that a node alone finds idle share the prompts that none holds.
func TestIdleEnginesShareNewPrompts(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(8))
	got := map[prefixtree.Backend]int{}
	for i := range 400 {
		got[serve(t, r, ask(prompt(uint64(i+1), 0, 24, 24)), t0+prefixtree.Time(1000*i)).Backend]++
	}
	for b := range prefixtree.Backend(8) {
		if got[b] < 25 || got[b] > 75 {
			t.Errorf("backend %d has %d of 400 prompts: %v", b, got[b], got)
		}
	}
}

func TestNamelessPromptsSpread(t *testing.T) {
	for _, loads := range []time.Duration{time.Second, never} {
		r := among(t, 16, loads, fleetOf(16))[0]
		got := map[prefixtree.Backend]int{}
		for i := range 400 {
			got[serve(t, r, ask(prompt(1, 1, 8, 8)), t0+prefixtree.Time(i*20)).Backend]++
		}
		if len(got) < 12 {
			t.Errorf("loads %v late: %v", loads, got)
		}
	}
}

// Routers that share nothing agree on the backend of a session.
func TestSessionLeadsWhereNothingIsKnown(t *testing.T) {
	routers := among(t, 16, never, fleetOf(16))
	for i := range 50 {
		var home prefixtree.Backend
		for turn := range 4 {
			q := ask(prompt(uint64(100*i+turn), 0, 20, 20))
			q.Session = fmt.Append(nil, "session-", i)
			d := serve(t, routers[(i+5*turn)%16], q, t0+prefixtree.Time(1000*i+turn))
			if turn > 0 && d.Backend != home || d.Rung != Hash {
				t.Fatalf("session %d, turn %d: %v, before on %d", i, turn, d, home)
			}
			home = d.Backend
		}
	}
}

func TestStaleNodesDoNotHerdOnRates(t *testing.T) {
	for _, late := range []time.Duration{never, 5 * time.Second} {
		routers := among(t, 16, late, fleetOf(16))
		got := map[prefixtree.Backend]int{}
		for i, r := range routers {
			for b := range prefixtree.Backend(16) {
				r.SetPeerRate(b, 10_000+50*float64(b), 300)
			}
			got[pick(t, r, ask(prompt(uint64(i), 0, 80, 80)), t0).Decision().Backend]++
		}
		for b, n := range got {
			if n > 8 {
				t.Errorf("%v late: %d of 16 routers sent their first request to backend %d", late, n, b)
			}
		}
	}
}

// Routers that know placements but no load leave the holder of a hot prefix by their own queue.
func TestHotPrefixLeavesItsHolder(t *testing.T) {
	for _, loads := range []time.Duration{200 * time.Millisecond, 5 * time.Second, never} {
		routers := among(t, 4, loads, fleetOf(8))
		for _, r := range routers {
			for i := range 100 { // a measured load of 1.3
				serve(t, r, ask(prompt(3, uint64(i), 0, 100)), t0-60_000+prefixtree.Time(i*500))
			}
			q := ask(prompt(1, 1, 80, 100))
			q.Exclude = except(8, 2)
			serve(t, r, q, t0)
		}
		onHolder, open := 0, []*Attempt(nil)
		const n = 160
		for i := range n { // 2,560 tokens each beside the prefix: 41 s of work for one backend, 2 s of arrivals
			now := t0 + 1000 + prefixtree.Time(i*12)
			a := pick(t, routers[i%4], ask(prompt(1, uint64(100+i), 80, 100)), now)
			a.Dispatched(now)
			if a.Decision().Backend == 2 {
				onHolder++
			}
			open = append(open, a)
		}
		if onHolder > n/2 {
			t.Errorf("loads %v late: %d of %d requests waited on one backend", loads, onHolder, n)
		}
		for _, a := range open {
			a.End(unknown(), t0+60_000)
		}
	}
}

func TestOwnPrefillBehindPeersIsNotLate(t *testing.T) {
	r := among(t, 2, 0, fleetOf(1))[0]
	e := r.table.Load().engines[0]
	r.SetPeerLoad("others", []books.PeerLoad{{Backend: 0, PrefillTokens: 50_000, Active: 1}}, t0)
	a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0)
	a.Dispatched(t0)
	if _, overdue := e.Queued(t0+5500, 10_000); overdue != 0 {
		t.Errorf("%v s late while its turn has not come", overdue)
	}
	if tokens, _ := e.Queued(t0+4000, 10_000); tokens != 80*128 {
		t.Errorf("%v tokens left of an own prefill that has not begun", tokens)
	}
	if _, overdue := e.Queued(t0+10_000, 10_000); overdue < 3.9 || overdue > 4.1 {
		t.Errorf("4 s beyond its turn, yet %v s late", overdue)
	}
	a.FirstToken(t0 + 6000)
	a.End(Outcome{PromptTokens: 80 * 128, CachedTokens: 0, OutputTokens: 1}, t0+6000)
	if rate, weight := r.OwnRate(0); weight != 0 {
		t.Errorf("a wait for another node's prefill was taken for a rate of %v", rate)
	}
}

// Routers learn that the holder of a conversation has cached its generated answers.
func TestAnswersAreExpectedCached(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	charge := func(i, common int) (uncached int) {
		now := t0 + prefixtree.Time(i*1000)
		first := ask(prompt(7, uint64(i), common, 40))
		home := serve(t, r, first, now).Backend
		a := pick(t, r, ask(prompt(7, uint64(i), common, 60)), now+500)
		defer func() {
			a.Dispatched(now + 500)
			a.FirstToken(now + 510)
			a.End(Outcome{PromptTokens: 60 * 128, CachedTokens: 56 * 128, OutputTokens: 5}, now+520)
		}()
		if a.Decision().Backend != home {
			t.Fatalf("conversation %d moved", i)
		}
		return a.Decision().UncachedTokens
	}
	if before := charge(0, 0); before != 20*128 {
		t.Fatalf("at first %d tokens are charged", before)
	}
	for i := range 50 {
		charge(1+i, 0)
	}
	if after := charge(100, 0); after < 4*128 || after > 8*128 {
		t.Errorf("with experience %d tokens are charged, 512 are computed", after)
	}
}

// Routers that hear late of each other's choices do not all choose the same one of the engines that hold a prefix.
func TestHoldersTakeTurns(t *testing.T) {
	routers := among(t, 16, time.Second, fleetOf(8))
	got := map[prefixtree.Backend]int{}
	for i, r := range routers {
		for j := range 40 { // each takes the others to send as much
			serve(t, r, ask(prompt(uint64(1000+40*i+j), 0, 0, 40)), t0-20_000+prefixtree.Time(500*j))
		}
		for b := range prefixtree.Backend(3) {
			var trail prefixtree.TouchHistory
			r.tree.Record(b, prompt(1, uint64(b), 40, 50), t0, &trail)
		}
		d := pick(t, r, ask(prompt(1, 100, 40, 60)), t0+2000).Decision()
		if got[d.Backend]++; d.Backend > 2 || d.Rung != Cache {
			t.Errorf("router %d: %s to backend %d, which does not hold the prefix", i, d.Rung, d.Backend)
		}
	}
	for b, n := range got {
		if n > 10 {
			t.Errorf("%d of 16 requests went to backend %d of the 3 that hold their prefix: %v", n, b, got)
		}
	}
}

// An engine that slows down accumulates active requests before other routers learn how long its prefills take.
func TestNewWorkAvoidsAnExcessOfActiveRequests(t *testing.T) {
	engines := fleetOf(4)
	engines[3].Weight = 3
	r := among(t, 8, 200*time.Millisecond, engines)[0]
	stream := func(engine prefixtree.Backend, hashes []prefixtree.Hash) *Attempt { // of 10,240 tokens, at 10,000 a second
		t.Helper()
		q := ask(hashes)
		q.Exclude = except(4, engine)
		a := pick(t, r, q, t0)
		a.Dispatched(t0)
		a.FirstToken(t0 + 1024)
		return a
	}
	held := prompt(7, 7, 0, 80)
	stream(0, held).End(unknown(), t0+1024)
	// The others' requests need a second without caches, and a quarter of it with them.
	traffic := map[uint64]demand.Report{r.OwnTraffic(1, t0)[0].Pool: {Rate: 1000, Prefill: 250, Whole: 1000}}
	r.SetPeerTraffic(traffic)
	report := func(active ...int64) {
		var loads []books.PeerLoad
		for b, n := range active {
			loads = append(loads, books.PeerLoad{Backend: prefixtree.Backend(b), Active: n})
		}
		r.SetPeerLoad("others", loads, t0)
	}
	want := func(when string, prefills ...float64) {
		t.Helper()
		s := new(Scene)
		s.peek = true
		if _, err := r.decide(s, ask(prompt(1, 1, 0, 80)), t0, new(Decision)); err != nil {
			t.Fatal(err)
		}
		for b, n := range prefills {
			c := &s.Candidates[s.where[b]]
			if later := c.place - c.start - s.uncommon()/c.Rate; math.Abs(later-n/4) > 0.01*n+1e-9 {
				t.Errorf("%s: engine-%d begins %v s later, want the time of %v uncached prefills", when, b, later, n)
			}
		}
	}
	report(5, 5, 5, 15)
	want("each engine has as many as its weight says", 0, 0, 0, 0)
	report(12, 8, 8, 24)
	want("one engine has little more", 0, 0, 0, 0)
	report(7, 7, 7, 39)
	want("a heavy engine has 9 more, of which 6.2 may be chance", 0, 0, 0, 2.75)
	report(25, 7, 7, 21) // 10 per weight
	want("one engine has 15 more, of which 5 may be chance", 10, 0, 0, 0)
	for i := range 5 {
		a := pick(t, r, ask(prompt(1, uint64(100+i), 0, 80)), t0)
		if d := a.Decision(); d.Backend == 0 {
			t.Fatalf("new prompt %d goes to the engine with an excess:\n%v", i, d)
		}
		defer a.End(unknown(), t0)
	}
	a := pick(t, r, ask(append(held, prompt(7, 8, 0, 10)...)), t0)
	if d := a.Decision(); d.Backend != 0 {
		t.Errorf("a conversation leaves its cache for the excess:\n%v", d)
	}
	a.End(unknown(), t0)

	r.UpdatePeerLoad("others", []books.PeerLoad{{Backend: 0, PrefillTokens: 10_000, Active: 25}}, t0)
	want("a second of prefill waits there, and 5 new prompts went elsewhere", 25-65.0/6-5-4, 0, 0, 0)

	r = among(t, 8, 200*time.Millisecond, engines)[0]
	for i := range 18 {
		stream(0, prompt(1, uint64(200+i), 0, 80))
	}
	r.SetPeerTraffic(traffic)
	report(7, 7, 7, 21)
	want("18 of 25 requests are this node's", 25-60.0/6-5, 0, 0, 0)
	r.SetPeerRate(0, r.Rate(1)/2, 1e6)
	want("and it is known to be slow", 2*(25-60.0/6-5), 0, 0, 0)
	r.SetFleet(8, never)
	want("no reports", 0, 0, 0, 0)
	r.SetFleet(8, 200*time.Millisecond)
	for b, running := range []int{25, 7, 7, 21} {
		r.SetTelemetry(prefixtree.Backend(b), books.Telemetry{At: t0, Running: running})
	}
	want("the engines say that nothing waits", 0, 0, 0, 0)
	r.SetFleet(1, 0)
	want("all requests are this node's own", 0, 0, 0, 0)

	engines[0].Role = Decode
	r = among(t, 8, 200*time.Millisecond, engines)[0]
	report(25, 7, 7, 21)
	want("a decode engine has more by its nature", 0, 0, 0, 0)
}

// A router without reports does not take what others may have sent since their last ones for a backlog.
func TestBlindRoutersPriceTheBacklogThatTheySee(t *testing.T) {
	for name, staleness := range map[string]time.Duration{"reports of 5 s ago": 5 * time.Second, "no reports": never} {
		r := among(t, 8, staleness, fleetOf(4))[0]
		for i := range 100 {
			pick(t, r, ask(prompt(1, uint64(100+i), 0, 80)), t0).End(unknown(), t0)
		}
		s := new(Scene)
		s.peek = true
		if _, err := r.decide(s, ask(prompt(1, 1, 0, 80)), t0, new(Decision)); err != nil {
			t.Fatal(err)
		}
		if delays := s.later > eviction; delays != (staleness < never) {
			t.Errorf("%s, and all engines idle: a second of prefill costs other requests %v s, evictions alone %v", name, s.later, eviction)
		}
	}
}

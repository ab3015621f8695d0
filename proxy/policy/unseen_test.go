package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine/chaos/virtual"
	"grapevine/prefixtree"
)

const never = time.Hour

// among returns n routers of one fleet with the given staleness and idle peers.
func among(t testing.TB, n int, staleness time.Duration, backends []Backend) []*Router {
	t.Helper()
	routers := make([]*Router, n)
	for i := range routers {
		routers[i], _ = newRouter(t, Config{Seed: uint64(i)}, backends)
		routers[i].SetFleet(n, staleness)
		routers[i].SetPeerLoad("others", nil)
	}
	return routers
}

func TestLookFollowsWhatIsUnseen(t *testing.T) {
	for name, c := range map[string]struct {
		nodes      int
		staleness  time.Duration
		rate       float64
		all        bool
		kMin, kMax int
	}{
		"alone":                      {1, 0, 10, true, 0, 0},
		"nothing is unseen":          {3, 0, 4, true, 16, 16},
		"two requests unseen":        {3, 200 * time.Millisecond, 5, false, 5, 7},
		"as many unseen as backends": {16, time.Second, 1, false, 2, 2},
		"five times as many":         {16, 5 * time.Second, 1, false, 2, 2},
		"no reports":                 {16, maxStaleness * time.Millisecond, 1, false, 2, 2},
	} {
		s := &Scene{Nodes: c.nodes, Staleness: c.staleness.Milliseconds(), Candidates: make([]Candidate, 16)}
		o := s.look(&traffic{mean: 1, rate: c.rate, others: c.rate * float64(c.nodes-1)})
		if o.all != c.all || !c.all && (o.k < c.kMin || o.k > c.kMax) || o.flood < 0 {
			t.Errorf("%s: %+v", name, o)
		}
	}
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

func TestFirstTurnsSpreadWhileCalm(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(10))
	for b := range 10 { // learned rates differ by a few percent
		r.table.Load().slots[b].learnRate(r.rate, 10_000+100*float64(b), 1, 1, t0)
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
			for i := range 2 * loadSupport {
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

func TestUnseenWorkFillsFromTheLowest(t *testing.T) {
	scene := func(late time.Duration, peers ...float64) *Scene {
		s := &Scene{Nodes: 4, Staleness: late.Milliseconds(), FleetRate: 10_000, Candidates: make([]Candidate, len(peers))}
		for i, q := range peers {
			s.Candidates[i] = Candidate{entry: new(entry), Queued: q, Rate: 10_000}
		}
		return s
	}
	queues := func(s *Scene, flood float64) (q []float64) {
		o := unseenWork{flood: flood}
		o.weigh(s)
		for i := range s.Candidates {
			q = append(q, s.Candidates[i].queue)
		}
		return q
	}
	near := func(got []float64, want ...float64) {
		t.Helper()
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1 {
				t.Fatalf("queues %v, want %v", got, want)
			}
		}
	}
	near(queues(scene(0, 50_000, 1000, 3000), 0), 50_000, 1000, 3000)
	near(queues(scene(0, 50_000, 1000, 3000), 1000), 50_000, 2000, 3000)
	near(queues(scene(0, 50_000, 1000, 3000), 6000), 50_000, 5000, 5000)
	near(queues(scene(0, 50_000, 1000, 3000), 126_000), 60_000, 60_000, 60_000)
	near(queues(scene(2*time.Second, 50_000, 1000, 3000), 6000), 30_000, 3000, 3000)
	own := scene(0, 50_000, 1000, 3000)
	own.Candidates[1].OwnQueued = 700
	own.Candidates[1].Queued += 700
	near(queues(own, 6000), 50_000, 5700, 5000)
	seed := virtual.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 2))
	for range 200 {
		peers := make([]float64, 1+rnd.IntN(40))
		for i := range peers {
			peers[i] = rnd.ExpFloat64() * 20_000
		}
		s, flood := scene(0, peers...), rnd.ExpFloat64()*50_000
		sum := 0.0
		for i, q := range queues(s, flood) {
			sum += q - peers[i]
		}
		if math.Abs(sum-flood) > 1e-6*(flood+1) {
			t.Fatalf("%v tokens filled %v", flood, sum)
		}
	}
}

func TestOwnPrefillBehindPeersIsNotLate(t *testing.T) {
	r := among(t, 2, 0, fleetOf(1))[0]
	s := r.table.Load().slots[0]
	r.SetPeerLoad("others", []PeerLoad{{0, 50_000, 1}})
	a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0)
	a.Dispatched(t0)
	if _, overdue := s.queued(t0+5500, 10_000); overdue != 0 {
		t.Errorf("%v s late while its turn has not come", overdue)
	}
	if tokens, _ := s.queued(t0+4000, 10_000); tokens != 80*128 {
		t.Errorf("%v tokens left of an own prefill that has not begun", tokens)
	}
	if _, overdue := s.queued(t0+10_000, 10_000); overdue < 2.5 || overdue > 3.5 {
		t.Errorf("3 s beyond its turn and the grace, yet %v s late", overdue)
	}
	a.FirstToken(t0 + 6000)
	a.End(Outcome{PromptTokens: 80 * 128, CachedTokens: 0, OutputTokens: 1}, t0+6000)
	if rate, weight := r.OwnRate(0); weight != 0 {
		t.Errorf("a wait for another node's prefill was taken for a rate of %v", rate)
	}
}

// Without reports, waiting for other nodes' prefills looks like a slow engine.
func TestSlowSamplesAreDoubtedAmongNodes(t *testing.T) {
	learned := func(doubt float64) float64 {
		r, _ := newRouter(t, Config{}, fleetOf(1))
		for i := range 200 {
			seconds := 0.4
			if i%2 == 1 {
				seconds = 1.6
			}
			r.table.Load().slots[0].learnRate(r.rate, 4000, seconds, doubt, t0)
		}
		return r.Rate(0)
	}
	if alone, among := learned(1), learned(rateDoubt); alone > 5000 || among < 7000 {
		t.Errorf("half of the prefills waited three times as long as they took at 10,000 tokens/s: alone %v, among 16 %v", alone, among)
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

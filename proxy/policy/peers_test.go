package policy

import (
	"math"
	"testing"
	"time"

	"grapevine.example/prefixtree"
)

func TestPeerLoadsAreSummedPerOrigin(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	s := r.table.Load().slots[0]
	check := func(what string, tokens, active int64) {
		t.Helper()
		if s.peerTokens.Load() != tokens || s.peerActive.Load() != active {
			t.Errorf("%s: %d tokens, %d active, want %d, %d", what, s.peerTokens.Load(), s.peerActive.Load(), tokens, active)
		}
	}
	r.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}, {1, 5, 1}, {9, 7, 7}}, t0)
	r.SetPeerLoad("b", []PeerLoad{{0, 500, 1}}, t0)
	check("two origins", 1500, 3)
	r.SetPeerLoad("a", []PeerLoad{{0, 200, 1}}, t0)
	check("a reports again", 700, 2)
	r.SetPeerLoad("a", []PeerLoad{{1, 200, 1}}, t0)
	check("a no longer lists the backend", 500, 1)
	r.DropPeer("b")
	r.DropPeer("b")
	check("b died", 0, 0)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 300, 1}, {1, 30, 1}}, t0)
	r.UpdatePeerLoad("d", []PeerLoad{{1, 40, 2}, {9, 1, 1}}, t0)
	check("d tells of another backend", 300, 1)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 100, 1}, {0, 20, 1}}, t0)
	check("d lists the backend twice, and the last counts", 20, 1)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 0, 0}, {1, -5, 0}}, t0)
	check("d is idle there", 0, 0)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 70, 1}}, t0)
	r.SetPeerLoad("d", nil, t0)
	check("d is idle everywhere", 0, 0)
	r.SetPeerLoad("c", []PeerLoad{{0, 90_000, 30}}, t0)
	if d := serve(t, r, ask(prompt(1, 1, 0, 8)), t0); d.Backend == 0 {
		t.Error("sent where a peer has 9 s of work waiting")
	}
	if tokens, active := r.Load(prefixtree.Backend(0)); tokens != 0 || active != 0 {
		t.Error("a peer's load counts as own")
	}
}

func TestOwnLoadsAreWhatIsOutstanding(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	r.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}}, t0)
	a := pick(t, r, ask(prompt(1, 1, 0, 8)), t0)
	at := a.Decision().Backend
	if got := r.OwnLoads(nil, t0); len(got) != 1 || got[0] != (PeerLoad{at, 8 * 128, 1}) {
		t.Errorf("waiting for its first token: %v", got)
	}
	a.Dispatched(t0)
	a.FirstToken(t0 + 100)
	keep := []PeerLoad{{Backend: 77}}
	if got := r.OwnLoads(keep, t0+100); len(got) != 2 || got[0].Backend != 77 || got[1] != (PeerLoad{at, 0, 1}) {
		t.Errorf("answering: %v", got)
	}
	a.End(unknown(), t0+200)
	if got := r.OwnLoads(nil, t0+200); len(got) != 0 {
		t.Errorf("idle: %v", got)
	}
}

func TestLoadBeforeTheView(t *testing.T) {
	list := fleetOf(2)
	list[1].Generation = 5
	r, _ := newRouter(t, Config{}, list[:1])
	r.SetPeerLoad("a", []PeerLoad{{1, 100, 1}}, t0)
	r.UpdatePeerLoad("a", []PeerLoad{{1, 700, 1}}, t0)
	r.SetPeerLoad("b", []PeerLoad{{1, 30, 1}}, t0)
	r.SetPeerLoad("b", nil, t0)
	r.SetPeerRate(1, 5000, 20)
	setView(t, r, list)
	if tokens, active := r.PeerLoad(1); tokens != 700 || active != 1 {
		t.Errorf("%d tokens, %d requests", tokens, active)
	}
	if got := r.Rate(1); got > 9000 {
		t.Errorf("%v tokens/s, where others have measured 5,000", got)
	}
}

func TestBlindDecisionsAreCounted(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	check := func(what string, want uint64) {
		t.Helper()
		before := r.Stats().Blind
		serve(t, r, ask(prompt(1, 1, 0, 8)), t0)
		if got := r.Stats().Blind - before; got != want {
			t.Errorf("%s: %d blind decisions, want %d", what, got, want)
		}
	}
	check("alone", 0)
	r.SetFleet(3, 50*time.Millisecond)
	check("no report yet", 1)
	r.SetPeerLoad("a", nil, t0)
	check("a peer reports that it is idle", 0)
	r.SetFleet(3, time.Minute)
	check("silent for a minute", 1)
	r.SetFleet(3, 50*time.Millisecond)
	r.DropPeer("a")
	check("the only peer died", 1)
}

func TestRatesOfPeersCountByTheirWeight(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(2))
	if rate, weight := r.OwnRate(0); rate != 0 || weight != 0 {
		t.Fatalf("nothing measured, yet %v of weight %v", rate, weight)
	}
	own := r.table.Load().slots[0]
	for range 100 {
		own.learnRate(r.rate, 4000, 0.1) // 40k tokens/s over ten seconds
	}
	if rate, weight := r.OwnRate(0); math.Abs(rate-40_000) > 1 || math.Abs(weight-10) > 1e-9 {
		t.Fatalf("measured %v of weight %v", rate, weight)
	}
	before, fleet := r.Rate(0), r.Rate(1)
	r.SetPeerRate(0, 5000, 200)
	if got := r.Rate(0); got > 8500 || got < 5000 {
		t.Errorf("200 s of peers' measurements of 5,000 against ten own seconds of 40,000: %v", got)
	}
	if rate, weight := r.OwnRate(0); math.Abs(rate-40_000) > 1 || math.Abs(weight-10) > 1e-9 {
		t.Errorf("what peers measured is told as own: %v of weight %v", rate, weight)
	}
	if got := r.Rate(1); got != fleet || fleet < 30_000 {
		t.Errorf("an engine without measurements is taken for %v, before the peers' for %v, and 40,000 was measured here", got, fleet)
	}
	r.SetPeerRate(0, 0, 0)
	own.learnRate(r.rate, 4000, 0.1)
	if got := r.Rate(0); math.Abs(got-before)/before > 0.3 {
		t.Errorf("without the peers: %v, before them %v", got, before)
	}
	r.SetPeerRate(1, math.Inf(1), 1)
	r.SetPeerRate(1, math.NaN(), 1)
	r.SetPeerRate(1, 5000, -1)
	if got := r.Rate(1); got != r.rate.load() {
		t.Errorf("nonsense was taken for a rate: %v", got)
	}
}

func TestClaimsAreBounded(t *testing.T) {
	list := fleetOf(2)
	list[0].KVTokens = 100_000
	r, _ := newRouter(t, Config{}, list)
	const nonsense = 1<<32 - 1
	loads := []PeerLoad{{Backend: 0, PrefillTokens: nonsense, Active: nonsense}, {Backend: 1, PrefillTokens: nonsense, Active: nonsense}, {Backend: 0, PrefillTokens: nonsense, Active: nonsense}}
	for range 3 {
		r.SetPeerLoad("liar", loads, t0)
		r.UpdatePeerLoad("liar", loads, t0)
	}
	for b, most := range []int64{100_000, claimTokens} {
		if tokens, active := r.PeerLoad(prefixtree.Backend(b)); tokens != most || active != claimRequests {
			t.Errorf("backend %d: %d tokens and %d requests, want %d and %d", b, tokens, active, most, int64(claimRequests))
		}
	}
	r.DropPeer("liar")
	if tokens, active := r.PeerLoad(0); tokens != 0 || active != 0 {
		t.Errorf("%d tokens and %d requests are left of one that has gone", tokens, active)
	}
}

// Peers report a prefill in full until its first token. What the engine computes of it meanwhile leaves the queue, and no more than the
// largest one, because an engine that yields no first token may be slow.
func TestPeersPrefillsProgress(t *testing.T) {
	r := among(t, 4, 0, fleetOf(1))[0]
	s := r.table.Load().slots[0]
	want := func(when string, now prefixtree.Time, queued float64) {
		t.Helper()
		own, _ := s.queued(now, 10_000)
		if got := s.ahead(own, now, 10_000); math.Abs(got-queued) > 1 {
			t.Errorf("%s: %v tokens are ahead, want %v", when, got, queued)
		}
	}
	r.SetPeerLoad("a", []PeerLoad{{0, 50_000, 1}}, t0)
	want("at the report", t0, 50_000)
	want("after 2 s", t0+2000, 30_000)
	r.SetPeerLoad("b", []PeerLoad{{0, 20_000, 1}}, t0+2000)
	want("another waits behind it", t0+2000, 50_000)
	r.SetPeerLoad("b", []PeerLoad{{0, 20_000, 1}}, t0+3000)
	want("a report that changes nothing", t0+3000, 40_000)
	want("no first token for a minute", t0+60_000, 20_000)
	r.UpdatePeerLoad("a", []PeerLoad{{0, 0, 1}}, t0+5000)
	want("the first one's first token", t0+5000, 20_000)
	want("the second one after 1 s", t0+6000, 10_000)
	a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0+6000)
	a.Dispatched(t0 + 6000)
	want("an own request behind it", t0+6000, 20_240)
	r.SetPeerLoad("b", nil, t0+7000)
	want("its turn", t0+7000, 10_240)
	r.SetPeerLoad("c", []PeerLoad{{0, 5_000, 1}}, t0+7500)
	want("another node's behind the own one", t0+7500, 10_240)
	a.FirstToken(t0 + 8000)
	want("the own first token", t0+8000, 5_000)
	r.DropPeer("c")
	want("the last peer has gone", t0+8000, 0)
	a.End(unknown(), t0+9000)
}

// A prefill that began behind one that a peer had placed, and reported later, does not show how fast the engine is.
func TestOvertakenPrefillTeachesNoRate(t *testing.T) {
	const staleness = 200
	for _, c := range []struct {
		name    string
		after   prefixtree.Time // Pick, when a peer's report comes; 0: none does
		first   prefixtree.Time // after Pick
		learned bool
	}{
		{"no report", 0, 1024, true},
		{"a report that the pick was too early for", staleness, 2048, false},
		{"a report after the first token", 150, 100, false},
		{"a report of what was placed later", staleness + 1, 1024, true},
	} {
		r, _ := newRouter(t, Config{Nodes: 2, Staleness: staleness * time.Millisecond}, fleetOf(1))
		r.SetPeerLoad("peer", nil, t0)
		a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0)
		a.Dispatched(t0)
		report := func(due bool) {
			if due && c.after > 0 {
				r.UpdatePeerLoad("peer", []PeerLoad{{0, 10_240, 1}}, t0+c.after)
			}
		}
		report(c.after < c.first)
		a.FirstToken(t0 + c.first)
		report(c.after > c.first)
		a.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 1}, t0+5000)
		if rate, _ := r.OwnRate(0); (rate > 0) != c.learned {
			t.Errorf("%s: a rate of %.0f tokens/s was learned", c.name, rate)
		}
		if s := r.table.Load().slots[0]; len(s.late) > 0 {
			t.Errorf("%s: the backend keeps an attempt that has ended", c.name)
		}
	}
}

// The head of the line is not overdue while the engine computes what a peer had placed before it.
func TestOvertakenHeadIsNotOverdue(t *testing.T) {
	r, _ := newRouter(t, Config{Nodes: 2, Staleness: 200 * time.Millisecond}, fleetOf(1))
	r.SetPeerLoad("peer", nil, t0)
	a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0)
	a.Dispatched(t0)
	s, rate := r.table.Load().slots[0], r.Rate(0)
	r.UpdatePeerLoad("peer", []PeerLoad{{0, 20_000, 1}}, t0+100)
	for at, want := range map[prefixtree.Time]float64{2000: 0, 3000: 0, 4000: 4 - (20_000+10_240)/rate} {
		if _, overdue := s.queued(t0+at, rate); math.Abs(overdue-want) > 0.01 {
			t.Errorf("after %d ms the prefill is overdue by %.2f s, want %.2f", at, overdue, want)
		}
	}
}

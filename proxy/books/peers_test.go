package books

import (
	"math"
	"testing"

	"grapevine.example/prefixtree"
)

func TestPeerLoadsAreSummedPerOrigin(t *testing.T) {
	b, e := one()
	check := func(what string, tokens, active int64) {
		t.Helper()
		if e.PeerTokens() != tokens || e.PeerActive() != active {
			t.Errorf("%s: %d tokens, %d active, want %d, %d", what, e.PeerTokens(), e.PeerActive(), tokens, active)
		}
	}
	b.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}, {1, 5, 1}, {9, 7, 7}}, unknown, t0)
	b.SetPeerLoad("b", []PeerLoad{{0, 500, 1}}, unknown, t0)
	check("two origins", 1500, 3)
	b.SetPeerLoad("a", []PeerLoad{{0, 200, 1}}, unknown, t0)
	check("a reports again", 700, 2)
	b.SetPeerLoad("a", []PeerLoad{{1, 200, 1}}, unknown, t0)
	check("a no longer lists the backend", 500, 1)
	b.DropPeer("b")
	b.DropPeer("b")
	check("b died", 0, 0)
	b.UpdatePeerLoad("d", []PeerLoad{{0, 300, 1}, {1, 30, 1}}, unknown, t0)
	b.UpdatePeerLoad("d", []PeerLoad{{1, 40, 2}, {9, 1, 1}}, unknown, t0)
	check("d tells of another backend", 300, 1)
	b.UpdatePeerLoad("d", []PeerLoad{{0, 100, 1}, {0, 20, 1}}, unknown, t0)
	check("d lists the backend twice, and the last counts", 20, 1)
	b.UpdatePeerLoad("d", []PeerLoad{{0, 0, 0}, {1, -5, 0}}, unknown, t0)
	check("d is idle there", 0, 0)
	b.UpdatePeerLoad("d", []PeerLoad{{0, 70, 1}}, unknown, t0)
	b.SetPeerLoad("d", nil, unknown, t0)
	check("d is idle everywhere", 0, 0)
	b.SetPeerLoad("c", []PeerLoad{{0, 90_000, 30}}, unknown, t0)
	check("c has 9 s of work waiting", 90_000, 30)
	if tokens, active := e.Charged(), e.Active(); tokens != 0 || active != 0 {
		t.Error("a peer's load counts as own")
	}
}

func TestRatesOfPeersCountByTheirWeight(t *testing.T) {
	b, own := one()
	other := b.Engine(1, 1, 0)
	if rate, weight := own.OwnRate(); rate != 0 || weight != 0 {
		t.Fatalf("nothing measured, yet %v of weight %v", rate, weight)
	}
	for range 100 {
		b.LearnRate(own, 4000, 0.1) // 40k tokens/s over ten seconds
	}
	if rate, weight := own.OwnRate(); math.Abs(rate-40_000) > 1 || math.Abs(weight-10) > 1e-9 {
		t.Fatalf("measured %v of weight %v", rate, weight)
	}
	before, fleet := own.RateOr(b.FleetRate()), other.RateOr(b.FleetRate())
	b.SetPeerRate(0, 5000, 200)
	if got := own.RateOr(b.FleetRate()); got > 8500 || got < 5000 {
		t.Errorf("200 s of peers' measurements of 5,000 against ten own seconds of 40,000: %v", got)
	}
	if rate, weight := own.OwnRate(); math.Abs(rate-40_000) > 1 || math.Abs(weight-10) > 1e-9 {
		t.Errorf("what peers measured is told as own: %v of weight %v", rate, weight)
	}
	if got := other.RateOr(b.FleetRate()); got != fleet || fleet < 30_000 {
		t.Errorf("an engine without measurements is taken for %v, before the peers' for %v, and 40,000 was measured here", got, fleet)
	}
	b.SetPeerRate(0, 0, 0)
	b.LearnRate(own, 4000, 0.1)
	if got := own.RateOr(b.FleetRate()); math.Abs(got-before)/before > 0.3 {
		t.Errorf("without the peers: %v, before them %v", got, before)
	}
	b.SetPeerRate(1, math.Inf(1), 1)
	b.SetPeerRate(1, math.NaN(), 1)
	b.SetPeerRate(1, 5000, -1)
	if got := other.RateOr(b.FleetRate()); got != b.FleetRate() {
		t.Errorf("nonsense was taken for a rate: %v", got)
	}
}

func TestClaimsAreBounded(t *testing.T) {
	b, e := one()
	engines := []*Engine{e, b.Engine(1, 1, 0)}
	capacity := func(id prefixtree.Backend) int { return []int{100_000, 0}[id] }
	const nonsense = 1<<32 - 1
	loads := []PeerLoad{{Backend: 0, PrefillTokens: nonsense, Active: nonsense}, {Backend: 1, PrefillTokens: nonsense, Active: nonsense}, {Backend: 0, PrefillTokens: nonsense, Active: nonsense}}
	for range 3 {
		b.SetPeerLoad("liar", loads, capacity, t0)
		b.UpdatePeerLoad("liar", loads, capacity, t0)
	}
	for i, most := range []int64{100_000, claimTokens} {
		if tokens, active := engines[i].PeerTokens(), engines[i].PeerActive(); tokens != most || active != claimRequests {
			t.Errorf("backend %d: %d tokens and %d requests, want %d and %d", i, tokens, active, most, int64(claimRequests))
		}
	}
	b.DropPeer("liar")
	if tokens, active := e.PeerTokens(), e.PeerActive(); tokens != 0 || active != 0 {
		t.Errorf("%d tokens and %d requests are left of one that has gone", tokens, active)
	}
}

// Peers report a prefill in full until its first token. What the engine computes of it meanwhile leaves the queue, and no more than the
// largest one, because an engine that yields no first token may be slow.
func TestPeersPrefillsProgress(t *testing.T) {
	b, e := one()
	want := func(when string, now prefixtree.Time, queued float64) {
		t.Helper()
		own, _ := e.Queued(now, 10_000)
		if got := e.Ahead(own, now, 10_000); math.Abs(got-queued) > 1 {
			t.Errorf("%s: %v tokens are ahead, want %v", when, got, queued)
		}
	}
	b.SetPeerLoad("a", []PeerLoad{{0, 50_000, 1}}, unknown, t0)
	want("at the report", t0, 50_000)
	want("after 2 s", t0+2000, 30_000)
	b.SetPeerLoad("b", []PeerLoad{{0, 20_000, 1}}, unknown, t0+2000)
	want("another waits behind it", t0+2000, 50_000)
	b.SetPeerLoad("b", []PeerLoad{{0, 20_000, 1}}, unknown, t0+3000)
	want("a report that changes nothing", t0+3000, 40_000)
	want("no first token for a minute", t0+60_000, 20_000)
	b.UpdatePeerLoad("a", []PeerLoad{{0, 0, 1}}, unknown, t0+5000)
	want("the first one's first token", t0+5000, 20_000)
	want("the second one after 1 s", t0+6000, 10_000)
	a := send(e, t0+6000, Charge{Tokens: 10_240, Settled: t0 + 6000})
	want("an own request behind it", t0+6000, 20_240)
	b.SetPeerLoad("b", nil, unknown, t0+7000)
	want("its turn", t0+7000, 10_240)
	b.SetPeerLoad("c", []PeerLoad{{0, 5_000, 1}}, unknown, t0+7500)
	want("another node's behind the own one", t0+7500, 10_240)
	e.FirstToken(a, t0+8000)
	want("the own first token", t0+8000, 5_000)
	b.DropPeer("c")
	want("the last peer has gone", t0+8000, 0)
	end(e, a, t0+9000)
}

// The head of the line is not overdue while the engine computes what a peer had placed before it.
func TestOvertakenHeadIsNotOverdue(t *testing.T) {
	b, e := one()
	b.SetPeerLoad("peer", nil, unknown, t0)
	send(e, t0, Charge{Tokens: 10_240, Settled: t0 + 200})
	rate := e.RateOr(b.FleetRate())
	b.UpdatePeerLoad("peer", []PeerLoad{{0, 20_000, 1}}, unknown, t0+100)
	for at, want := range map[prefixtree.Time]float64{2000: 0, 3000: 0, 4000: 4 - (20_000+10_240)/rate} {
		if _, overdue := e.Queued(t0+at, rate); math.Abs(overdue-want) > 0.01 {
			t.Errorf("after %d ms the prefill is overdue by %.2f s, want %.2f", at, overdue, want)
		}
	}
}

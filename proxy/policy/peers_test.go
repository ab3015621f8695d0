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
	r.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}, {1, 5, 1}, {9, 7, 7}})
	r.SetPeerLoad("b", []PeerLoad{{0, 500, 1}})
	check("two origins", 1500, 3)
	r.SetPeerLoad("a", []PeerLoad{{0, 200, 1}})
	check("a reports again", 700, 2)
	r.SetPeerLoad("a", []PeerLoad{{1, 200, 1}})
	check("a no longer lists the backend", 500, 1)
	r.DropPeer("b")
	r.DropPeer("b")
	check("b died", 0, 0)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 300, 1}, {1, 30, 1}})
	r.UpdatePeerLoad("d", []PeerLoad{{1, 40, 2}, {9, 1, 1}})
	check("d tells of another backend", 300, 1)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 100, 1}, {0, 20, 1}})
	check("d lists the backend twice", 120, 2)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 0, 0}, {1, -5, 0}})
	check("d is idle there", 0, 0)
	r.UpdatePeerLoad("d", []PeerLoad{{0, 70, 1}})
	r.SetPeerLoad("d", nil)
	check("d is idle everywhere", 0, 0)
	r.SetPeerLoad("c", []PeerLoad{{0, 90_000, 30}})
	if d := serve(t, r, ask(prompt(1, 1, 0, 8)), t0); d.Backend == 0 {
		t.Error("sent where a peer has 9 s of work waiting")
	}
	if tokens, active := r.Load(prefixtree.Backend(0)); tokens != 0 || active != 0 {
		t.Error("a peer's load counts as own")
	}
}

func TestOwnLoadsAreWhatIsOutstanding(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	r.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}})
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
	r.SetPeerLoad("a", []PeerLoad{{1, 100, 1}})
	r.UpdatePeerLoad("a", []PeerLoad{{1, 700, 1}})
	r.SetPeerLoad("b", []PeerLoad{{1, 30, 1}})
	r.SetPeerLoad("b", nil)
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
	r.SetPeerLoad("a", nil)
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
	loads := []PeerLoad{{Backend: 0, PrefillTokens: nonsense, Active: nonsense}, {Backend: 1, PrefillTokens: nonsense, Active: nonsense}, {Backend: 0, PrefillTokens: nonsense}}
	for range 3 {
		r.SetPeerLoad("liar", loads)
		r.UpdatePeerLoad("liar", loads)
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

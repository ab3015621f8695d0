package policy

import (
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func TestPeersLoadDrivesRequestsAway(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	r.SetPeerLoad("c", []books.PeerLoad{{Backend: 0, PrefillTokens: 90_000, Active: 30}}, t0)
	if d := serve(t, r, ask(prompt(1, 1, 0, 8)), t0); d.Backend == 0 {
		t.Error("sent where a peer has 9 s of work waiting")
	}
	if tokens, active := r.Load(prefixtree.Backend(0)); tokens != 0 || active != 0 {
		t.Error("a peer's load counts as own")
	}
}

// A peer claims no more tokens of an engine than its KV cache, as the view says, holds.
func TestCapacitiesBoundClaims(t *testing.T) {
	list := fleetOf(2)
	list[0].KVTokens = 100_000
	r, _ := newRouter(t, Config{}, list)
	loads := []books.PeerLoad{{Backend: 0, PrefillTokens: 200_000, Active: 1}, {Backend: 1, PrefillTokens: 200_000, Active: 1}}
	for _, set := range []func(string, []books.PeerLoad, prefixtree.Time){r.SetPeerLoad, r.UpdatePeerLoad} {
		set("liar", loads, t0)
		for b, want := range []int64{100_000, 200_000} {
			if tokens, active := r.PeerLoad(prefixtree.Backend(b)); tokens != want || active != 1 {
				t.Errorf("backend %d: %d tokens and %d requests, want %d and 1", b, tokens, active, want)
			}
		}
	}
}

func TestOwnLoadsAreWhatIsOutstanding(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(4))
	r.SetPeerLoad("a", []books.PeerLoad{{Backend: 0, PrefillTokens: 1000, Active: 2}}, t0)
	a := pick(t, r, ask(prompt(1, 1, 0, 8)), t0)
	at := a.Decision().Backend
	if got := r.OwnLoads(nil, t0); len(got) != 1 || got[0] != (books.PeerLoad{Backend: at, PrefillTokens: 8 * 128, Active: 1}) {
		t.Errorf("waiting for its first token: %v", got)
	}
	a.Dispatched(t0)
	a.FirstToken(t0 + 100)
	keep := []books.PeerLoad{{Backend: 77}}
	if got := r.OwnLoads(keep, t0+100); len(got) != 2 || got[0].Backend != 77 || got[1] != (books.PeerLoad{Backend: at, PrefillTokens: 0, Active: 1}) {
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
	r.SetPeerLoad("a", []books.PeerLoad{{Backend: 1, PrefillTokens: 100, Active: 1}}, t0)
	r.UpdatePeerLoad("a", []books.PeerLoad{{Backend: 1, PrefillTokens: 700, Active: 1}}, t0)
	r.SetPeerLoad("b", []books.PeerLoad{{Backend: 1, PrefillTokens: 30, Active: 1}}, t0)
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
				r.UpdatePeerLoad("peer", []books.PeerLoad{{Backend: 0, PrefillTokens: 10_240, Active: 1}}, t0+c.after)
			}
		}
		report(c.after < c.first)
		a.FirstToken(t0 + c.first)
		report(c.after > c.first)
		a.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 1}, t0+5000)
		if rate, _ := r.OwnRate(0); (rate > 0) != c.learned {
			t.Errorf("%s: a rate of %.0f tokens/s was learned", c.name, rate)
		}
		r.DropPeer("peer")
		if err := r.books.Left(); err != nil {
			t.Errorf("%s: the backend keeps an attempt that has ended: %v", c.name, err)
		}
	}
}

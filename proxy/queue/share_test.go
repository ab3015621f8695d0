package queue

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
)

// fleet is routers that hear each other at once.
func fleet(t testing.TB, n int) []*Queue {
	list := make([]*Queue, n)
	for i := range list {
		list[i] = small(t, 5000)
	}
	return list
}

func exchange(list []*Queue) {
	for i, q := range list {
		claims := q.Claims(nil)
		for j, other := range list {
			if i != j {
				other.SetPeer(string(rune('a'+i)), claims)
			}
		}
	}
}

// The grants of all routers are together what the engines may hold, unless there is room for all that waits.
func TestGrantsAddUp(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		list := fleet(t, 2+rnd.IntN(7))
		waits := 0.0
		for range rnd.IntN(100) {
			w := request(string(rune('a'+rnd.IntN(6))), float64(1+rnd.IntN(5000)))
			w.Weight, w.Priority = float64(1+w.Client[0]%3), clients.Priority(rnd.IntN(bands))
			push(t, list[rnd.IntN(len(list))], w)
			waits += w.Prefill
		}
		exchange(list)
		room := policy.Room{May: float64(1 + rnd.IntN(200_000))}
		room.Free = room.May * rnd.Float64()
		got, limited, busy := 0.0, 0, 0
		for _, q := range list {
			if l := q.lanes[engines]; l != nil {
				busy++
				if q.Grant(engines, room, true, time.Minute); l.grant.limited {
					limited++
					got += l.grant.left
				}
			}
		}
		switch {
		case busy < 2 || waits <= room.Free:
			if limited > 0 {
				t.Fatalf("%d of %d routers are limited; %.0f wait and there is room for %.0f", limited, busy, waits, room.Free)
			}
		case limited != busy || math.Abs(got-room.May) > 1e-6*room.May:
			t.Fatalf("%d of %d routers have grants of %.0f together; engines may hold %.0f", limited, busy, got, room.May)
		}
	}
}

// Engines serve clients by weight wherever their requests entered, and what waits of one client evenly, as
// far as parts of a request allow: each router's last place is a whole one.
func TestClientsShareOverRouters(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const nodes, places = 8, 128
	list := fleet(t, nodes)
	enter := func(client string, weight float64, node int) {
		w := request(client, float64(50+rnd.IntN(100)))
		w.Weight = weight
		push(t, list[node], w)
	}
	for range 3000 {
		enter("everywhere", 1, rnd.IntN(nodes))
		enter("uneven", 1, min(rnd.IntN(nodes), rnd.IntN(nodes)))
	}
	for range 3000 {
		enter("one", 2, 3)
	}
	type job struct {
		node int
		w    *Waiter
	}
	var running []job
	var own [nodes]float64
	served := map[string]float64{}
	waited := map[string]int{} // of "everywhere", by router
	for round := range 1200 {
		exchange(list)
		for tries := 0; len(running) < places && tries < 1000; tries++ {
			node := rnd.IntN(nodes)
			q := list[node]
			if q.lanes[engines] == nil {
				continue
			}
			q.Grant(engines, policy.Room{May: places * 100, Own: own[node]}, true, time.Duration(round)*time.Second)
			if w := next(q, 0, time.Duration(round)*time.Second); w != nil {
				running = append(running, job{node, w})
				own[node] += w.Prefill
				served[w.Client] += w.cost()
				if w.Client == "everywhere" {
					waited[string(rune('0'+node))]++
				}
				exchange(list)
			}
		}
		for range 4 {
			i := rnd.IntN(len(running))
			own[running[i].node] -= running[i].w.Prefill
			running[i] = running[len(running)-1]
			running = running[:len(running)-1]
		}
	}
	sum := served["everywhere"] + served["uneven"] + served["one"]
	for client, part := range map[string]float64{"everywhere": 0.25, "uneven": 0.25, "one": 0.5} {
		if got := served[client] / sum; math.Abs(got-part) > 0.05 {
			t.Errorf("%s got %.3f of the work, want %.2f: %v", client, got, part, served)
		}
	}
	for node, n := range waited {
		if all := served["everywhere"] / 100; math.Abs(float64(n)-all/nodes) > 0.3*all/nodes {
			t.Errorf("router %s served %d requests of the client that entered everywhere, of %.0f: %v", node, n, all, waited)
		}
	}
}

// What waits elsewhere with a higher priority leaves this router a twentieth.
func TestPrioritiesOverRouters(t *testing.T) {
	list := fleet(t, 2)
	for range 100 {
		w := request("c", 100)
		w.Priority = clients.Interactive
		push(t, list[0], w)
		w = request("d", 100)
		w.Priority = clients.Batch
		push(t, list[1], w)
	}
	exchange(list)
	for i, want := range []float64{950, 50} {
		list[i].Grant(engines, policy.Room{May: 1000}, true, time.Second)
		if got := list[i].lanes[engines].grant.left; math.Abs(got-want) > 1e-9 {
			t.Errorf("router %d: %v, want %v", i, got, want)
		}
	}
}

// Requests that wait for other engines fill the small window of a router with little of what waits. Those of their priority behind them
// come before lower priorities.
func TestWindowOfAPriorityIsNotItsEnd(t *testing.T) {
	list := fleet(t, 2)
	q := list[0]
	low := request("low", 100)
	low.Priority = clients.Batch
	push(t, q, low)
	for i := range 10 {
		w := request("c", 100)
		w.Priority, w.User = clients.Interactive, i < 2*tries // insists on another engine
		push(t, q, w)
	}
	for range 200 {
		w := request("c", 100)
		w.Priority = clients.Interactive
		push(t, list[1], w)
	}
	exchange(list)
	q.Grant(engines, policy.Room{May: 20_000}, true, time.Second)
	if size, _ := q.lanes[engines].grant.window(); size != tries {
		t.Fatalf("the window has %d requests, want %d", size, tries)
	}
	var took []clients.Priority
	for offers := 0; offers < 20 && len(took) < 3; offers++ {
		q.Offer(engines, 0, false, time.Second, func(w *Waiter) (float64, bool) {
			if insists, _ := w.User.(bool); insists {
				w.Wants = 9
				return 0, false
			}
			took = append(took, w.Priority)
			return w.cost(), true
		})
	}
	if !slices.Equal(took, []clients.Priority{clients.Interactive, clients.Interactive, clients.Batch}) {
		t.Errorf("%v took the engine", took)
	}
}

// Without a grant left, only an engine that is dry is taken; and once no other router has requests, all are.
func TestGrantLimits(t *testing.T) {
	list := fleet(t, 2)
	for range 10 {
		push(t, list[0], request("c", 100))
		push(t, list[1], request("c", 100))
	}
	exchange(list)
	q := list[0]
	q.Grant(engines, policy.Room{May: 1000, Own: 400}, true, time.Second)
	if next(q, 0, time.Second) == nil || next(q, 0, time.Second) != nil {
		t.Error("a grant of 100 tokens is not one request")
	}
	if !q.Offer(engines, 0, true, time.Second, func(*Waiter) (float64, bool) { return 100, true }) {
		t.Error("a dry engine is not taken")
	}
	q.SetPeer("b", nil)
	q.Grant(engines, policy.Room{May: 1000, Own: 400}, true, 2*time.Second)
	if q.Contended() || next(q, 0, 2*time.Second) == nil {
		t.Error("the router is alone, and takes nothing")
	}
}

// A client for whose waiting requests the fleet's engines have room takes engines also where a router's grant is used up.
func TestClientsBelowTheirShareNeedNoGrant(t *testing.T) {
	list := fleet(t, 2)
	for range 50 {
		push(t, list[0], request("more", 100))
		push(t, list[1], request("more", 100))
	}
	for range 2 {
		push(t, list[0], request("less", 100))
	}
	exchange(list)
	q := list[0]
	q.Grant(engines, policy.Room{May: 1000, Own: 2000}, true, time.Second)
	for i, want := range []string{"less", "less", ""} {
		got := ""
		if w := next(q, 0, time.Second); w != nil {
			got = w.Client
		}
		if got != want {
			t.Fatalf("request %d that took an engine beyond the grant is of %q, want %q", i, got, want)
		}
	}
	// Of a client that waits for half of all, only half is granted.
	push(t, q, request("less", 100))
	for range 20 {
		push(t, list[1], request("less", 100))
	}
	exchange(list)
	q.Grant(engines, policy.Room{May: 1000, Own: 2000}, true, 2*time.Second)
	if w := next(q, 0, 2*time.Second); w != nil {
		t.Errorf("a request of %q, which is not below its share, took an engine beyond the grant", w.Client)
	}
}

// A client does not get so much beyond its router's grant that it must wait for all of it when it has more requests than are granted.
func TestEnginesBeyondTheGrantAreNoDebt(t *testing.T) {
	list := fleet(t, 2)
	for range 50 {
		push(t, list[0], request("more", 100))
		push(t, list[1], request("more", 100))
	}
	for range 3 {
		push(t, list[1], request("less", 100))
	}
	q := list[0]
	now := time.Second
	offered := func(own float64) (taker string) {
		now += time.Second
		exchange(list)
		q.Grant(engines, policy.Room{May: 1000, Own: own}, true, now)
		if w := next(q, 0, now); w != nil {
			taker = w.Client
		}
		return taker
	}
	beyond := 0
	for range 20 {
		push(t, q, request("less", 100))
		for offered(2000) == "less" {
			beyond++
		}
	}
	if most, _ := q.lanes[engines].grant.window(); beyond == 0 || beyond > most {
		t.Errorf("%d requests took an engine beyond the grant although no other got one meanwhile, want 1 to %d", beyond, most)
	}
	for range 40 {
		push(t, q, request("less", 100))
	}
	within := make(map[string]int)
	for range 40 {
		within[offered(0)]++
	}
	if within["less"] < 10 || within["more"] < 10 {
		t.Errorf("of 40 requests within the grant %v took an engine", within)
	}
}

// What a client has waiting is counted at all routers.
func TestBehindCountsAllRouters(t *testing.T) {
	list := fleet(t, 3)
	var w *Waiter
	for i, q := range list {
		w = request("c", float64(100*(i+1)))
		push(t, q, w)
		push(t, q, request("d", 1000))
	}
	exchange(list)
	if got, first := list[0].Behind(engines, clients.Default, "c"); got != 600 || first {
		t.Errorf("behind a new request are %v tokens, want 600; first %v", got, first)
	}
	if got, _ := list[2].BehindOf(w); got != 300 {
		t.Errorf("behind a waiting request are %v tokens, want 300", got)
	}
	if got, first := list[0].Behind(engines, clients.Default, "e"); got != 0 || !first {
		t.Errorf("behind the first request of a client are %v tokens; first %v", got, first)
	}
}

// Once no other router has requests, a client's work counts in full again, also if there was room for all.
func TestPartsEndWithClaims(t *testing.T) {
	list := fleet(t, 2)
	for _, q := range list {
		push(t, q, request("c", 100))
	}
	exchange(list)
	q, f := list[0], list[0].lanes[engines].bands[clients.Default].flows["c"]
	for i, want := range []float64{0.5, 1} {
		now := time.Duration(1+i) * time.Second
		if !q.GrantDue(engines, now) {
			t.Fatalf("round %d: no grant is due", i)
		}
		if q.Grant(engines, policy.Room{May: 1000, Free: 900}, true, now); q.lanes[engines].grant.limited || f.part != want {
			t.Fatalf("round %d: a part of %v, want %v; %+v", i, f.part, want, q.lanes[engines].grant)
		}
		q.SetPeer("b", nil)
	}
}

func TestPeersClaimsReturnToZero(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	q := small(t, 10)
	origin := func() string { return string(rune('a' + rnd.IntN(5))) }
	for range 2000 {
		var claims []Claim
		for range rnd.IntN(6) {
			claims = append(claims, Claim{
				Lane: uint64(rnd.IntN(3)), Client: rnd.Uint32N(4), Priority: clients.Priority(rnd.IntN(bands + 1)),
				Weight: float64(rnd.IntN(3)), Tokens: 1000 * rnd.Float64(), Requests: float64(rnd.IntN(9)),
			})
		}
		q.SetPeer(origin(), claims)
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		q.SetPeer(name, nil)
	}
	if q.Contended() || len(q.peers.byOrigin) != 0 {
		t.Errorf("%d claims are left, of %d routers", len(q.peers.sum), len(q.peers.byOrigin))
	}
	q.SetPeer("a", make([]Claim, 10*MaxClaims))
	if len(q.peers.byOrigin["a"]) > MaxClaims {
		t.Error("claims are not bounded")
	}
}

func TestClaimsTravel(t *testing.T) {
	claims := []Claim{
		{Lane: 1 << 60, Client: 5, Priority: clients.Interactive, Weight: 2.5, Tokens: 123_456, Requests: 7},
		{Lane: 3, Client: 1 << 31, Priority: clients.Batch, Weight: 1, Tokens: 1, Requests: 1},
	}
	b := AppendClaims(nil, claims)
	if got, err := ParseClaims(b); err != nil || !slices.Equal(got, claims) {
		t.Errorf("%+v, %v", got, err)
	}
	longer := []byte{claimSize + 2}
	for c := range slices.Chunk(b[1:], claimSize) {
		longer = append(append(longer, c...), 1, 2)
	}
	if got, err := ParseClaims(longer); err != nil || !slices.Equal(got, claims) {
		t.Errorf("of a newer router: %+v, %v", got, err)
	}
	if got, err := ParseClaims(AppendClaims(nil, nil)); err != nil || len(got) != 0 {
		t.Errorf("none: %+v, %v", got, err)
	}
	if got, err := ParseClaims(AppendClaims(nil, make([]Claim, 2*MaxClaims))); err != nil || len(got) != MaxClaims {
		t.Errorf("%d claims, %v", len(got), err)
	}
	for _, bad := range [][]byte{{0}, {claimSize - 1}, b[:len(b)-1], {claimSize, 1}} {
		if _, err := ParseClaims(bad); !errors.Is(err, ErrClaims) {
			t.Errorf("% x: %v", bad, err)
		}
	}
}

func FuzzClaims(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendClaims(nil, []Claim{{Lane: 7, Client: 5, Priority: clients.Default, Weight: 1, Tokens: 100, Requests: 2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		claims, err := ParseClaims(b)
		if err != nil {
			return
		}
		q := small(t, 10)
		push(t, q, request("c", 100))
		q.SetPeer("a", claims)
		q.Grant(engines, policy.Room{May: 1000, Own: 100}, true, time.Second)
		if g := q.lanes[engines].grant; math.IsNaN(g.left) || !(g.part >= 0 && g.part <= 1+1e-9) {
			t.Fatalf("%+v of %+v", g, claims)
		}
		q.SetPeer("a", nil)
		if q.Contended() {
			t.Fatalf("claims are left of %+v", claims)
		}
	})
}

// BenchmarkGrant divides among eight routers with 2,048 waiting requests each, of so many clients.
func BenchmarkGrant(b *testing.B) {
	for _, n := range []int{10, 200} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			list := fleet(b, 8)
			for i := range 8 * 2048 {
				push(b, list[i%8], request(fmt.Sprint(i/8%n), float64(1+i%5000)))
			}
			exchange(list)
			b.ReportAllocs()
			for b.Loop() {
				list[0].Grant(engines, policy.Room{May: 200_000}, true, time.Second)
			}
		})
	}
}

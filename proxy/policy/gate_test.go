package policy

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func waits(hashes []prefixtree.Hash) *Request {
	q := ask(hashes)
	q.MayWait = true
	return q
}

func lone(n int) []prefixtree.Hash { return prompt(uint64(1000+n), uint64(1000+n), 0, 20) }

// Each bound closes an engine, and what ends opens it again.
func TestGateCloses(t *testing.T) {
	for name, g := range map[string]Gate{
		"prefill":   {TTFT: 200 * time.Millisecond},
		"waiting":   {Waiting: 3},
		"in flight": {InFlight: 3},
	} {
		r, _ := newRouter(t, Config{Gate: g}, fleetOf(1))
		var open []*Attempt
		a := new(Attempt)
		err := r.Pick(waits(lone(0)), t0, a)
		for ; err == nil && len(open) < 100; err = r.Pick(waits(lone(len(open))), t0, a) {
			open = append(open, a)
			a = new(Attempt)
		}
		if !errors.Is(err, ErrFull) || r.Open(0, t0) {
			t.Fatalf("%s: %d requests, then %v; open %v", name, len(open), err, r.Open(0, t0))
		}
		if d := a.Decision(); d.Name != "engine-0" || d.PromptTokens == 0 {
			t.Errorf("%s: the decision does not say for which engine to wait: %v", name, d)
		}
		a.End(unknown(), t0)
		if r.doubleEnds.Load() != 0 {
			t.Errorf("%s: a request that waits holds a charge", name)
		}
		if err := r.Pick(ask(lone(99)), t0, a); err != nil {
			t.Errorf("%s: a request that may not wait: %v", name, err)
		}
		a.End(unknown(), t0)
		for _, a := range open {
			a.End(unknown(), t0)
		}
		if !r.Open(0, t0) {
			t.Errorf("%s: closed without requests", name)
		}
	}
}

// An engine's own report of waiting requests closes it, less what has left since, and not for ever.
func TestGateHearsEngines(t *testing.T) {
	r, _ := newRouter(t, Config{Gate: Gate{Waiting: 4}}, fleetOf(2))
	a := pick(t, r, waits(lone(1)), t0)
	busy := a.Decision().Backend
	r.SetTelemetry(busy, books.Telemetry{At: t0, Running: 1, Waiting: 4, KVUsage: -1, Queued: -1})
	if r.Open(busy, t0) || !r.Open(1-busy, t0) {
		t.Error("four requests wait in the engine, and it is open")
	}
	for i := range 8 {
		b := pick(t, r, waits(lone(2+i)), t0)
		b.Dispatched(t0)
		b.FirstToken(t0)
		defer b.End(unknown(), t0)
		if b.Decision().Backend == busy {
			t.Error("a request went to a full engine")
		}
	}
	// What came since the report and is answered does not wait.
	r.SetTelemetry(1-busy, books.Telemetry{At: t0, KVUsage: -1, Queued: -1})
	for i := range 20 {
		q := waits(lone(20 + i))
		q.Exclude = except(2, 1-busy)
		b := pick(t, r, q, t0+5)
		b.Dispatched(t0 + 5)
		b.FirstToken(t0 + 6)
		defer b.End(unknown(), t0+6)
	}
	if !r.Open(busy, t0+waitingLasts+1) {
		t.Error("an old report keeps the engine closed")
	}
	a.End(unknown(), t0)
	if !r.Open(busy, t0) {
		t.Error("a request has left, and the engine is still closed")
	}
}

// A holder that is full is waited for where that costs less than an open engine.
func TestWaitsForHolder(t *testing.T) {
	r, _ := newRouter(t, Config{Gate: Gate{InFlight: 1}}, fleetOf(2))
	long := prompt(1, 1, 0, 200)
	home := serve(t, r, waits(long), t0).Backend
	a := pick(t, r, waits(prompt(1, 1, 0, 204)), t0+1000)
	defer a.End(unknown(), t0+1000)
	a.Dispatched(t0 + 1000)
	a.FirstToken(t0 + 1000)
	if a.Decision().Backend != home {
		t.Fatal("a follow-up left its engine")
	}
	b := new(Attempt)
	if err := r.Pick(waits(prompt(1, 1, 0, 208)), t0+1001, b); !errors.Is(err, ErrFull) || b.Decision().Backend != home {
		t.Errorf("%v, want to wait for the engine that holds the prompt", err)
	}
	if c := pick(t, r, waits(lone(5)), t0+1001); c.Decision().Backend == home {
		t.Error("a new prompt waits, or went to the full engine")
	} else {
		c.End(unknown(), t0+1001)
	}
}

// Of strategies that look at load only, none sends a request to a full engine while one is open.
func TestGateOfOtherStrategies(t *testing.T) {
	for _, strategy := range []string{LeastRequest, RoundRobin, Random, Weighted} {
		r, _ := newRouter(t, Config{Strategy: strategy, Gate: Gate{InFlight: 2}}, fleetOf(4))
		for i := range 8 {
			a := pick(t, r, waits(lone(i)), t0)
			defer a.End(unknown(), t0)
		}
		if err := r.Pick(waits(lone(9)), t0, new(Attempt)); !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v with all engines full", strategy, err)
		}
	}
}

// Routers with late reports together place at most one request each beyond the limit.
func TestGateOverFleet(t *testing.T) {
	bubble.SkipInRace(t)
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		const limit, staleness = 10, 200
		nodes := 2 + rnd.IntN(10)
		routers := make([]*Router, nodes)
		held := make([][]*Attempt, nodes)
		for i := range routers {
			routers[i], _ = newRouter(t, Config{Gate: Gate{InFlight: limit}, Nodes: nodes, Staleness: staleness * time.Millisecond, Seed: seed}, fleetOf(1))
			for j := range nodes {
				routers[i].SetPeerLoad(string(rune('a'+j)), nil, t0)
			}
		}
		type report struct {
			at     prefixtree.Time
			active int64
		}
		sent := make([][]report, nodes)
		total, most := 0, 0
		for now := t0; now < t0+20_000; now += prefixtree.Time(5 + rnd.IntN(20)) {
			for j := range routers {
				for len(sent[j]) > 0 && sent[j][0].at+staleness <= now {
					for i := range routers {
						if i != j {
							routers[i].SetPeerLoad(string(rune('a'+j)), []books.PeerLoad{{Backend: 0, Active: sent[j][0].active}}, t0)
						}
					}
					sent[j] = sent[j][1:]
				}
			}
			i := rnd.IntN(nodes)
			if n := len(held[i]); n > 0 && rnd.IntN(3) == 0 {
				held[i][n-1].End(unknown(), now)
				held[i], total = held[i][:n-1], total-1
			}
			for range 1 + rnd.IntN(4) {
				q, a := waits(lone(rnd.IntN(1000))), new(Attempt)
				q.First = rnd.IntN(4) == 0
				if routers[i].Pick(q, now, a) != nil {
					continue
				}
				a.Dispatched(now)
				if rnd.IntN(2) == 0 {
					a.FirstToken(now)
				}
				held[i], total = append(held[i], a), total+1
			}
			most = max(most, total)
			sent[i] = append(sent[i], report{now, int64(len(held[i]))})
		}
		if most > limit+nodes {
			t.Errorf("seed %d: %d requests at an engine for %d, with %d routers", seed, most, limit, nodes)
		}
	}
}

// The last place of an engine is not dry, however few it has: a router that starts must find one.
func TestDry(t *testing.T) {
	for limit, most := range map[int]int64{0: 1000, 1: -1, 2: 0, 4: 2, 100: 89} {
		r, _ := newRouter(t, Config{Gate: Gate{InFlight: limit}, Nodes: 2, Staleness: time.Second}, fleetOf(1))
		for active := range int64(101) {
			r.SetPeerLoad("peer", []books.PeerLoad{{Backend: 0, Active: active}}, t0)
			if dry := r.Dry(0, t0); dry != (active <= most) {
				t.Errorf("dry is %v with %d requests of %d", dry, active, limit)
			}
		}
	}
}

// A gate that a reload brings counts at once, for grants as for the engines.
func TestRetuneGate(t *testing.T) {
	r, _ := newRouter(t, Config{Nodes: 2, Staleness: time.Second}, fleetOf(1))
	lane, _ := r.Lane(waits(lone(0)))
	if _, bounded := r.Room(lane); bounded {
		t.Error("room without a gate")
	}
	apply, err := r.Retune(Config{Gate: Gate{InFlight: 4}, BlockBytes: testBlock})
	if err != nil {
		t.Fatal(err)
	}
	apply()
	r.SetPeerLoad("peer", []books.PeerLoad{{Backend: 0, Active: 4}}, t0)
	if room, bounded := r.Room(lane); !bounded || room.May != 4 || room.Free != 0 || r.Dry(0, t0) {
		t.Errorf("after a reload: room %+v, bounded %v, dry %v", room, bounded, r.Dry(0, t0))
	}
}

func TestParkedReturnsToZero(t *testing.T) {
	r, _ := newRouter(t, Config{Gate: Gate{InFlight: 1}}, fleetOf(2))
	defer pick(t, r, waits(lone(1)), t0).End(unknown(), t0)
	defer pick(t, r, waits(lone(2)), t0).End(unknown(), t0)
	var p books.Parked
	a := new(Attempt)
	for i := range 4 {
		if err := r.Pick(waits(lone(3+i)), t0, a); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		r.Park(&p, a.Decision())
	}
	sum := func() (n int64) {
		for _, s := range r.table.Load().engines {
			n += s.Parked()
		}
		return n
	}
	if got, want := sum(), int64(a.Decision().UncachedTokens); got != want {
		t.Errorf("%d tokens parked, want those of the last decision, %d", got, want)
	}
	p.Leave()
	p.Leave()
	if sum() != 0 {
		t.Errorf("%d tokens are left", sum())
	}
}

func TestPickOfWaitingDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector empties pools at random")
	}
	r, _ := newRouter(t, Config{Gate: Gate{TTFT: time.Second, Waiting: 4, InFlight: 2}, Nodes: 8, Staleness: 200 * time.Millisecond}, fleetOf(8))
	q, a, b := waits(lone(1)), new(Attempt), new(Attempt)
	now := t0
	if n := testing.AllocsPerRun(200, func() {
		now += 10
		if r.Pick(q, now, a) == nil {
			a.End(unknown(), now)
		}
		_ = r.Pick(q, now, b)
		b.End(unknown(), now)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkGate is what the queue adds to a request while nothing waits.
func BenchmarkGate(b *testing.B) {
	for _, gated := range []bool{false, true} {
		b.Run(map[bool]string{false: "off", true: "on"}[gated], func(b *testing.B) {
			r, _ := newRouter(b, Config{Gate: Gate{TTFT: time.Second, Waiting: 4}, Nodes: 8, Staleness: 200 * time.Millisecond}, fleetOf(64))
			q, a, now := warm(b, r), new(Attempt), t0+100_000
			q.MayWait, q.First = gated, true
			b.ReportAllocs()
			for b.Loop() {
				now++
				if err := r.Pick(q, now, a); err != nil {
					b.Fatal(err)
				}
				a.End(unknown(), now)
			}
		})
	}
}

package books

import (
	"math"
	"strings"
	"testing"
	"unsafe"

	"grapevine.example/prefixtree"
)

const t0 = prefixtree.Time(1_700_000_000_000)

// one returns the books of a router, and those on an engine that computes 10,000 tokens/s.
func one() (*Fleet, *Engine) {
	b := New(10_000)
	return b, b.Engine(0, 1, 0)
}

func unknown(prefixtree.Backend) int { return 0 }

func send(e *Engine, now prefixtree.Time, c Charge) *Charge {
	e.Charge(&c, now)
	e.Dispatched(&c, now)
	return &c
}

func end(e *Engine, c *Charge, now prefixtree.Time) {
	e.Prefilled(c, now)
	e.Release(c)
}

func TestEngineLayout(t *testing.T) {
	var e Engine
	if size := unsafe.Sizeof(e); size%64 != 0 {
		t.Errorf("the books on an engine have %d bytes, not a multiple of 64", size)
	}
	if unsafe.Offsetof(e.peerActive) >= 64 {
		t.Error("what a decision reads of every candidate takes more than a cache line")
	}
}

func TestPrefillProgressCounts(t *testing.T) {
	_, e := one()
	a := send(e, t0, Charge{Tokens: 102_400})
	b := send(e, t0+1, Charge{Tokens: 1024})
	queued := func(now prefixtree.Time) float64 { q, _ := e.Queued(now, 10_000); return q }
	for _, c := range []struct {
		now           prefixtree.Time
		want, overdue float64
	}{{t0, 103_424, 0}, {t0 + 5_000, 53_424, 0}, {t0 + 10_240, 1_024, 0}, {t0 + 11_000, 1_024, 0.76}, {t0 + 60_000, 1_024, 60 - 10.24}} {
		got, overdue := e.Queued(c.now, 10_000)
		if got != c.want || math.Abs(overdue-c.overdue) > 1e-9 {
			t.Errorf("after %d ms: %v tokens queued, %v s overdue, want %v, %v", c.now-t0, got, overdue, c.want, c.overdue)
		}
	}
	e.FirstToken(a, t0+10_240)
	if got := queued(t0 + 10_240 + 50); got != 524 {
		t.Errorf("the second prefill began with the first token of the first: %v", got)
	}
	end(e, a, t0+11_000)
	end(e, b, t0+11_000)
	if got := queued(t0 + 11_000); got != 0 {
		t.Errorf("%v left", got)
	}
}

func TestWholePrefillsLeaveTheLine(t *testing.T) {
	const rate = 10_000
	books, engine := one()
	whole := func(tokens int64, at prefixtree.Time) *Charge {
		return send(engine, at, Charge{Tokens: tokens, NonStreaming: true})
	}
	own := func(now prefixtree.Time) []PeerLoad { return books.OwnLoads(nil, []*Engine{engine}, now) }
	a := whole(10_240, t0)
	b := whole(1024, t0)
	c := send(engine, t0+1, Charge{Tokens: 1024})
	for _, k := range []struct {
		ms              prefixtree.Time
		queued, overdue float64
	}{
		{1, 12_278, 0}, {1_000, 2_288, 0}, {1_024, 2_048, 0}, {1_100, 1_288, 0},
		{1_127, 1_024, 0}, {1_177, 524, 0}, {5_000, 0, 5 - 1.127 - .1024},
	} {
		queued, overdue := engine.Queued(t0+k.ms, rate)
		if math.Abs(queued-k.queued) > 1 || math.Abs(overdue-k.overdue) > 1e-9 {
			t.Errorf("after %d ms: %v tokens queued, %v s overdue, want %v and %v", k.ms, queued, overdue, k.queued, k.overdue)
		}
	}
	engine.FirstToken(c, t0+6_000)
	d := whole(102_400, t0+6_000)
	e := send(engine, t0+6_000, Charge{Tokens: 1024})
	if got := own(t0 + 6_001); len(got) != 1 || got[0].PrefillTokens != 103_424 || got[0].Active != 5 {
		t.Errorf("waiting: %v", got)
	}
	engine.FirstToken(e, t0+6_500) // prefills are in order, so the one in front is done
	if got, overdue := engine.Queued(t0+6_500, rate); got != 0 || overdue != 0 {
		t.Errorf("%v tokens queued behind whose first token has come, %v s overdue", got, overdue)
	}
	f := whole(102_400, t0+7_000)
	if got := own(t0 + 7_000); len(got) != 1 || got[0].PrefillTokens != 102_400 {
		t.Errorf("waiting: %v", got)
	}
	if got := own(t0 + 20_000); len(got) != 1 || got[0].PrefillTokens != 0 || got[0].Active != 6 {
		t.Errorf("being generated: %v", got)
	}
	for _, x := range []*Charge{a, b, c, d, e, f} {
		engine.Prefilled(x, t0+20_001)
		end(engine, x, t0+20_002)
	}
	if got := own(t0 + 20_002); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestLeft(t *testing.T) {
	b, e := one()
	c := send(e, t0, Charge{Tokens: 100, Resident: 200, NonStreaming: true, Settled: t0 + 1000})
	b.SetPeerLoad("a", []PeerLoad{{0, 5, 1}}, unknown, t0)
	e.BeginTrial()
	var p Parked
	p.Park(e, 7)
	next := b.Engine(0, 2, 0)
	for _, what := range []string{
		"active 1", "charged 100", "resident 200", "head 100", "in line 1", "late 1", "not streamed 100", "parked 7", "others' tokens 5", "others' requests 1", "trial",
	} {
		if err := b.Left(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s is not told: %v", what, err)
		}
	}
	if err := next.Left(); err != nil {
		t.Errorf("the next generation: %v", err)
	}
	end(e, c, t0+1)
	b.DropPeer("a")
	e.EndTrial()
	p.Leave()
	if err := b.Left(); err != nil {
		t.Error(err)
	}
}

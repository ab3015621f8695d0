package policy

import (
	"math"
	"math/rand/v2"
	"testing"

	"grapevine/chaos/virtual"
	"grapevine/prefixtree"
)

func TestBranchSkipsCommonProperty(t *testing.T) {
	s := newHeavyHitters()
	const share = 1.0 / 32
	var common int
	for i := range 500 {
		_, common, _ = s.branch(prompt(1, uint64(i), 12, 40), share, t0+prefixtree.Time(i*100), false)
	}
	if common != 12 {
		t.Errorf("%d blocks are common, want 12", common)
	}
	a, _, _ := s.branch(prompt(1, 9001, 12, 40), share, t0+50_000, true)
	b, _, _ := s.branch(prompt(1, 9002, 12, 40), share, t0+50_000, true)
	if a == b || a != prompt(1, 9001, 12, 40)[12] {
		t.Errorf("branch keys %x and %x", a, b)
	}
	if h, _, _ := s.branch(prompt(1, 0, 12, 12), share, t0+50_000, true); h != prompt(1, 0, 12, 12)[11] {
		t.Errorf("all common: %x", h)
	}
	for i := range 1000 {
		s.branch(prompt(2, uint64(i), 12, 40), share, t0+50_000+prefixtree.Time(i*300), false)
	}
	if _, common, _ := s.branch(prompt(1, 1, 12, 40), share, t0+351_000, true); common != 0 {
		t.Errorf("%d blocks of the old prompt are still common", common)
	}
}

func TestFewRequestsMakeNothingCommon(t *testing.T) {
	s := newHeavyHitters()
	for i := range heavySupport {
		if h, common, _ := s.branch(prompt(1, 1, 0, 16), 1.0/32, t0+prefixtree.Time(i), false); common != 0 || h != prompt(1, 1, 0, 16)[0] {
			t.Fatalf("request %d of a session: %d blocks common", i, common)
		}
	}
}

func TestSketchFindsHeavyHitters(t *testing.T) {
	seed := virtual.Seed(t)
	zipf := rand.NewZipf(rand.New(rand.NewPCG(seed, 1)), 1.2, 1, 1<<20)
	s := newHeavyHitters()
	exact := map[prefixtree.Hash]float64{}
	const n = 200_000
	for range n {
		h := prefixtree.Hash(mix(zipf.Uint64() + 1))
		s.count(h, 1)
		exact[h]++
	}
	if len(s.heap) > s.limit || len(s.index) != len(s.heap) {
		t.Fatalf("%d counters, %d indexed, limit %d", len(s.heap), len(s.index), s.limit)
	}
	for h, c := range exact {
		got := s.estimate(h)
		if c > n/float64(s.limit) && got == 0 {
			t.Errorf("an anchor seen %v times of %d is missing", c, n)
		}
		if got > 0 && (got < c-1e-6 || got > c+n/float64(s.limit)) {
			t.Errorf("count %v, exact %v, error bound %v", got, c, n/s.limit)
		}
	}
}

func TestSketchRescales(t *testing.T) {
	s := newHeavyHitters()
	for i := range 40 {
		s.branch(prompt(1, uint64(i), 2, 4), 1.0/8, t0+prefixtree.Time(i*heavyHalfLife), false)
	}
	if s.total > 4<<20 || s.total <= 0 {
		t.Errorf("total %v", s.total)
	}
}

func TestPaceMarksTheTail(t *testing.T) {
	var p workload
	for i := range 1000 {
		whole := 0.2
		if i%20 == 0 {
			whole = 8
		}
		p.count(whole, whole, t0)
	}
	o := p.now(1, 1, t0)
	if o.mean < 0.2 || o.mean > 2 || o.slow < 0.8*slowShare*8 || o.slow > 1.2*slowShare*8 {
		t.Errorf("mean %v, slow mark %v", o.mean, o.slow)
	}
}

// 4 prompts of half a second per second are a demand of 2.
func TestTrafficMeasuresDemand(t *testing.T) {
	var p workload
	now := t0
	demand := func() float64 { return p.now(0, 1, now).demand }
	for i := range 4 * 600 {
		p.count(0.5, 1, now)
		now += 250
		if i >= 4*30 && math.Abs(demand()-2) > 0.4 {
			t.Fatalf("demand %v after %d prompts", demand(), i+1)
		}
	}
	now += 5 * demandWindow * 1000
	if d := demand(); d > 0.05 {
		t.Errorf("demand %v long after the last prompt", d)
	}
	now = t0
	if d := demand(); math.IsNaN(d) || d > 3 {
		t.Errorf("demand %v when the clock goes back", d)
	}
}

func TestSketchOfAQuietNodeRemembers(t *testing.T) {
	s := newHeavyHitters()
	var common int
	var judged bool
	for i := range 160 {
		_, common, judged = s.branch(prompt(1, uint64(i), 4, 20), 1.0/32, t0+prefixtree.Time(i*10_000), false)
		if judged != (i >= 128) && i < 120 {
			t.Fatalf("request %d: judged %v", i, judged)
		}
	}
	if common != 4 {
		t.Errorf("%d of 4 common blocks found", common)
	}
}

package policy

import (
	"testing"

	"grapevine/prefixtree"
)

func fail(t *testing.T, r *Router, b prefixtree.Backend, f Failure, n int, now prefixtree.Time) {
	t.Helper()
	a := pick(t, r, &Request{Exclude: except(n, b)}, now)
	a.Dispatched(now)
	a.End(failed(f), now)
}

func TestOnlyTheBackendsOwnFailuresCount(t *testing.T) {
	for f := None; int(f) < len(failureNames); f++ {
		r, _ := newRouter(t, Config{}, fleetOf(2))
		fail(t, r, 0, f, 2, t0)
		want := f == Connect || f == Timeout || f == Reset || f == Status5xx
		if _, got := r.Avoided(0, t0+1); got != want {
			t.Errorf("%v: avoided %v, want %v", f, got, want)
		}
	}
}

func TestFastFailureDoesNotLookIdle(t *testing.T) {
	const requests = 1000
	for _, strategy := range builtin {
		r, _ := newRouter(t, Config{Strategy: strategy}, fleetOf(3))
		bad, to1 := 0, 0
		for i := range requests { // 30 s
			now := t0 + prefixtree.Time(i*30_000/requests)
			a := pick(t, r, ask(prompt(uint64(i), 0, 2, 2)), now)
			a.Dispatched(now)
			if a.Decision().Backend == 1 {
				a.End(failed(Status5xx), now+1)
				bad++
				continue
			}
			to1++
			a.FirstToken(now + 5)
			a.End(unknown(), now+5)
		}
		if bad > 6 { // at 0, 1, 3, 7, 15 s
			t.Errorf("%s: %d of %d requests went to a backend that fails at once", strategy, bad, requests)
		}
		if bad == 0 {
			t.Errorf("%s: never tried", strategy)
		}
	}
}

func TestHalfOpen(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(2))
	fail(t, r, 0, Connect, 2, t0)
	to := func(now prefixtree.Time) *Attempt { return pick(t, r, &Request{}, now) }
	for i := range 4 {
		if a := to(t0 + prefixtree.Time(i)); a.Decision().Backend != 1 {
			t.Fatal("avoided backend used")
		} else {
			a.End(unknown(), t0)
		}
	}
	var trial *Attempt
	for range 4 {
		if a := to(t0 + 1000); a.Decision().Backend == 0 {
			if trial != nil {
				t.Fatal("two trials at once")
			}
			if !a.Decision().Trial {
				t.Fatal("the receipt does not say that it is a trial")
			}
			trial = a
		} else {
			a.End(unknown(), t0+1000)
		}
	}
	if trial == nil {
		t.Fatal("no trial after the back-off")
	}
	trial.End(failed(Reset), t0+1500)
	if until, avoided := r.Avoided(0, t0+3499); !avoided || until != t0+3500 {
		t.Errorf("second back-off until %d ms, want 3500", until-t0)
	}
	for range 4 {
		a := to(t0 + 3500)
		a.Dispatched(t0 + 3500)
		a.FirstToken(t0 + 3501)
		a.End(unknown(), t0+3502)
	}
	if _, avoided := r.Avoided(0, t0+3503); avoided {
		t.Error("avoided after a successful trial")
	}
}

func TestOneCrashIsOneFailure(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(2))
	var open []*Attempt
	for range 20 {
		open = append(open, pick(t, r, &Request{Exclude: except(2, 0)}, t0))
	}
	for i, a := range open {
		a.End(failed(Reset), t0+prefixtree.Time(i))
	}
	if until, _ := r.Avoided(0, t0+20); until != t0+1000 {
		t.Errorf("20 requests lost in one crash: back-off until %d ms, want 1000", until-t0)
	}
}

func TestAllFailing(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	for i := range 3 {
		for n := range i + 1 {
			fail(t, r, prefixtree.Backend(i), Timeout, 3, t0+prefixtree.Time(i*10_000+n*60_000))
		}
	}
	now := t0 + 140_001
	for i := range 3 {
		fail(t, r, prefixtree.Backend(2-i), Timeout, 3, now)
	}
	a := pick(t, r, &Request{}, now+1)
	defer a.End(unknown(), now+1)
	if d := a.Decision(); d.Backend != 0 || !d.LastResort {
		t.Errorf("all failing: %v, want the one with the fewest failures", d)
	}
}

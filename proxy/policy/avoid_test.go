package policy

import (
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

func fail(t *testing.T, r *Router, b prefixtree.Backend, f books.Failure, n int, now prefixtree.Time) {
	t.Helper()
	a := pick(t, r, &Request{Exclude: except(n, b)}, now)
	a.Dispatched(now)
	a.End(failed(f), now)
}

func TestOnlyTheBackendsOwnFailuresCount(t *testing.T) {
	for f := books.None; int(f) < books.Failures; f++ {
		r, _ := newRouter(t, Config{}, fleetOf(2))
		fail(t, r, 0, f, 2, t0)
		if _, got := r.Avoided(0, t0+1); got != (f == books.Connect || f == books.Busy) {
			t.Errorf("%v: avoided %v after one", f, got)
		}
		fail(t, r, 0, f, 2, t0+2)
		want := f == books.Connect || f == books.Timeout || f == books.Reset || f == books.Status5xx || f == books.Busy
		if _, got := r.Avoided(0, t0+3); got != want {
			t.Errorf("%v: avoided %v after two, want %v", f, got, want)
		}
	}
}

// bad makes a request fail at a backend of n.
func bad(t *testing.T, r *Router, b prefixtree.Backend, n int, request uint64, now prefixtree.Time, before ...prefixtree.Backend) {
	t.Helper()
	a := pick(t, r, &Request{Exclude: except(n, b)}, now)
	a.Dispatched(now)
	a.End(Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1, Failed: books.Reset, Request: request, FailedBefore: before}, now)
}

func ejected(r *Router, n int, now prefixtree.Time) (count int) {
	for b := range n {
		if _, avoided := r.Avoided(prefixtree.Backend(b), now); avoided {
			count++
		}
	}
	return count
}

func TestBadRequestsEjectNobody(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(8))
	for i := range 200 {
		now := t0 + prefixtree.Time(i*100)
		first, second := prefixtree.Backend(i%8), prefixtree.Backend((i+3)%8)
		bad(t, r, first, 8, uint64(i+1), now)
		bad(t, r, second, 8, uint64(i+1), now+1, first)
		if n := ejected(r, 8, now+2); n > 0 {
			t.Fatalf("request %d: %d of 8 backends are left alone", i, n)
		}
	}
	for i := range 5 {
		bad(t, r, 0, 8, 7, t0+60_000+prefixtree.Time(i))
	}
	if n := ejected(r, 8, t0+60_010); n > 0 {
		t.Errorf("%d backends are left alone for one request that was sent again and again", n)
	}
	// A second request failed there: ejected, until the first fails elsewhere as well.
	bad(t, r, 0, 8, 8, t0+60_020)
	if n := ejected(r, 8, t0+60_021); n != 1 {
		t.Fatalf("%d are left alone after the failures of two requests", n)
	}
	bad(t, r, 1, 8, 7, t0+60_030, 0)
	if n := ejected(r, 8, t0+60_031); n > 0 {
		t.Errorf("%d are left alone although one of the two requests fails elsewhere, too", n)
	}
}

// A request that failed at an engine goes to none that failed another one and has not answered since, though it is not ejected, unless
// there is no other. Other requests still try that one.
func TestFailedRequestsAvoidEnginesThatFail(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(4))
	for i := range uint64(4) {
		bad(t, r, prefixtree.Backend(i%2), 4, 1+i, t0+prefixtree.Time(i))
	}
	if n := ejected(r, 4, t0+4); n != 1 {
		t.Fatalf("%d engines are ejected, want 1 of the two that fail", n)
	}
	now := t0 + 10
	count := func(q *Request) (at [4]int) {
		for range 12 {
			a := pick(t, r, q, now)
			at[a.Decision().Backend]++
			a.End(failed(books.ClientGone), now)
		}
		return at
	}
	if at := count(&Request{}); at[0] != 0 || at[1] != 4 {
		t.Errorf("first attempts by engine: %v", at)
	}
	if at := count(&Request{Exclude: []prefixtree.Backend{0}}); at != [4]int{0, 0, 6, 6} {
		t.Errorf("second attempts by engine: %v", at)
	}
	if at := count(&Request{Exclude: []prefixtree.Backend{2, 3}}); at != [4]int{0, 12, 0, 0} {
		t.Errorf("attempts without another engine: %v", at)
	}
	a := pick(t, r, &Request{Exclude: except(4, 1)}, now)
	a.Dispatched(now)
	a.End(failed(books.None), now)
	if at := count(&Request{Exclude: []prefixtree.Backend{0}}); at != [4]int{0, 4, 4, 4} {
		t.Errorf("second attempts after an answer: %v", at)
	}
}

// Failed requests eject a fifth of a pool, one of a small pool; refused connections eject all.
func TestFailedRequestsEjectAFifth(t *testing.T) {
	for size, want := range map[int]int{2: 1, 5: 1, 8: 1, 10: 2, 25: 5} {
		r, _ := newRouter(t, Config{}, fleetOf(size))
		for i := range 10 * size {
			fail(t, r, prefixtree.Backend(i%size), books.Reset, size, t0+prefixtree.Time(i/size))
		}
		if got := ejected(r, size, t0+11); got != want {
			t.Errorf("%d of %d are left alone, want %d", got, size, want)
		}
		for i := range size {
			fail(t, r, prefixtree.Backend(i), books.Connect, size, t0+12)
		}
		if got := ejected(r, size, t0+13); got != size {
			t.Errorf("%d of %d that refuse connections are left alone", got, size)
		}
	}
}

func TestBusy(t *testing.T) {
	refuse := func(r *Router, b prefixtree.Backend, wait int64) {
		a := pick(t, r, &Request{Exclude: except(2, b)}, t0)
		a.Dispatched(t0)
		o := unknown()
		o.Failed, o.RetryAfter = books.Busy, wait
		a.End(o, t0)
	}
	for wait, want := range map[int64]prefixtree.Time{0: 1_000, 1: 1_000, 3_000: 3_000, 3_600_000: 10_000} {
		r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(2))
		refuse(r, 0, wait)
		if until, avoided := r.Avoided(0, t0+1); !avoided || until != t0+want {
			t.Errorf("asked for %d ms: left alone until %d", wait, until-t0)
		}
		for range 4 {
			if d := serve(t, r, &Request{}, t0+want-1); d.Backend != 1 || d.LastResort {
				t.Errorf("asked for %d ms: %v", wait, d)
			}
		}
		taken := 0
		for range 4 {
			if d := serve(t, r, &Request{}, t0+want); d.Backend == 0 && !d.Trial {
				taken++
			}
		}
		if taken != 2 {
			t.Errorf("asked for %d ms: then it gets %d of 4 requests", wait, taken)
		}
		refuse(r, 0, wait)
		refuse(r, 1, wait)
		if d := serve(t, r, &Request{}, t0+1); !d.LastResort {
			t.Errorf("all are busy: %v", d)
		}
	}
}

func TestFastFailureDoesNotLookIdle(t *testing.T) {
	const requests = 1000
	for _, strategy := range builtin {
		r, _ := newRouter(t, Config{Strategy: strategy}, fleetOf(3))
		bad, to1 := 0, 0
		for i := range requests {
			now := t0 + prefixtree.Time(i*30_000/requests)
			a := pick(t, r, ask(prompt(uint64(i), 0, 2, 2)), now)
			a.Dispatched(now)
			if a.Decision().Backend == 1 {
				a.End(failed(books.Status5xx), now+1)
				bad++
				continue
			}
			to1++
			a.FirstToken(now + 5)
			a.End(unknown(), now+5)
		}
		if bad > 6 { // two at 0, then at 1, 3, 7, 15 s
			t.Errorf("%s: %d of %d requests went to a backend that fails at once", strategy, bad, requests)
		}
		if bad == 0 {
			t.Errorf("%s: never tried", strategy)
		}
	}
}

func TestHalfOpen(t *testing.T) {
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, fleetOf(2))
	fail(t, r, 0, books.Connect, 2, t0)
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
	trial.End(failed(books.Reset), t0+1500)
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

func TestAllFailing(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	for i := range 3 {
		for n := range i + 1 {
			fail(t, r, prefixtree.Backend(i), books.Connect, 3, t0+prefixtree.Time(i*10_000+n*60_000))
		}
	}
	now := t0 + 140_001
	for i := range 3 {
		fail(t, r, prefixtree.Backend(2-i), books.Connect, 3, now)
	}
	a := pick(t, r, &Request{}, now+1)
	defer a.End(unknown(), now+1)
	if d := a.Decision(); d.Backend != 0 || !d.LastResort {
		t.Errorf("all failing: %v, want the one with the fewest failures", d)
	}
}

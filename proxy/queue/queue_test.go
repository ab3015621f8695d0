package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/proxy/clients"
)

const engines = 7 // the lane of most tests

func small(t testing.TB, requests int) *Queue {
	t.Helper()
	q, err := New(Limits{Requests: requests, Bytes: 1 << 20, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func request(client string, prefill float64) *Waiter {
	return &Waiter{Lane: engines, Client: client, Weight: 1, Priority: clients.Default, Bytes: 100, Prefill: prefill, Wants: -1}
}

func push(t testing.TB, q *Queue, w *Waiter) {
	t.Helper()
	if gone, err := q.Push(w, 0); err != nil || len(gone) > 0 {
		t.Fatalf("push: %v, %d gave way", err, len(gone))
	}
}

// next returns the request that takes an engine, nil if none does.
func next(q *Queue, engine int32, now time.Duration) (taker *Waiter) {
	q.Offer(engines, engine, false, now, func(w *Waiter) (float64, bool) {
		taker = w
		return w.cost(), true
	})
	return taker
}

func TestClientsShareByWeight(t *testing.T) {
	q := small(t, 1000)
	for i := range 300 {
		heavy, light := request("heavy", 100), request("light", float64(50+i%3*50)) // 100 on average
		heavy.Weight = 3
		push(t, q, heavy)
		push(t, q, light)
	}
	work := map[string]float64{}
	for range 300 {
		w := next(q, 0, 0)
		work[w.Client] += w.cost()
	}
	if r := work["heavy"] / work["light"]; r < 2.9 || r > 3.1 {
		t.Errorf("work in the ratio of %.2f, want that of the weights, 3: %v", r, work)
	}
}

// A client that comes late is next at once, and is not paid for its absence.
func TestReturningClient(t *testing.T) {
	q := small(t, 1000)
	for range 100 {
		push(t, q, request("busy", 100))
	}
	for range 50 {
		next(q, 0, 0)
	}
	for range 20 {
		push(t, q, request("late", 100))
	}
	var order string
	for range 8 {
		order += next(q, 0, 0).Client[:1]
	}
	if order != "blblblbl" {
		t.Errorf("served %s, want the clients in turn", order)
	}
}

// A cheap request costs its client less than a dear one.
func TestCachedPromptsCostLess(t *testing.T) {
	q := small(t, 1000)
	for range 200 {
		push(t, q, request("hits", 100))
		push(t, q, request("misses", 400))
	}
	n := map[string]int{}
	for range 200 {
		n[next(q, 0, 0).Client]++
	}
	if r := float64(n["hits"]) / float64(n["misses"]); r < 3.8 || r > 4.2 {
		t.Errorf("%v requests served, want 4 with hits for each without", n)
	}
}

func TestPriorities(t *testing.T) {
	q := small(t, 2000)
	for range 500 {
		for _, p := range []clients.Priority{clients.Batch, clients.Default, clients.Interactive} {
			w := request("c", 100)
			w.Priority = p
			push(t, q, w)
		}
	}
	n := map[clients.Priority]int{}
	for range 400 {
		n[next(q, 0, 0).Priority]++
	}
	if n[clients.Interactive] < 355 || n[clients.Default] < 18 || n[clients.Batch] < 18 {
		t.Errorf("%v of 400 served, want interactive first, and a twentieth each of the others", n)
	}
}

func TestBestMatchPassesAtMost(t *testing.T) {
	q := small(t, 100)
	first := request("a", 100)
	push(t, q, first)
	for range 20 {
		w := request("a", 100)
		w.Holders[0] = Holder{Engine: 3, Tokens: 50}
		push(t, q, w)
	}
	for i := range MaxPassed {
		if w := next(q, 3, 0); w == first || w.Holders[0].Tokens != 50 {
			t.Fatalf("offer %d went to %+v, want a request that the engine holds", i, w)
		}
	}
	if w := next(q, 3, 0); w != first {
		t.Errorf("after %d others the first request is still passed over", MaxPassed)
	}
	far := small(t, 100)
	for range Window {
		push(t, far, request("a", 100))
	}
	match := request("a", 100)
	match.Holders[0] = Holder{Engine: 3, Tokens: 50}
	push(t, far, match)
	if next(far, 3, 0) == match {
		t.Errorf("a request behind the first %d was taken", Window)
	}
}

// A request that waits for its engine is not asked again at once, and not passed over meanwhile.
func TestDecliningWaits(t *testing.T) {
	q := small(t, 100)
	picky, other := request("a", 100), request("b", 100)
	push(t, q, picky)
	push(t, q, other)
	var asked []*Waiter
	offer := func(engine int32, now time.Duration) bool {
		asked = nil
		return q.Offer(engines, engine, false, now, func(w *Waiter) (float64, bool) {
			asked = append(asked, w)
			w.Wants = 5
			return 100, w != picky || engine == 5
		})
	}
	if !offer(1, 0) || len(asked) != 2 || asked[1] != other {
		t.Fatalf("asked %d requests, want the first, which declines, and the second", len(asked))
	}
	if offer(1, again/2) || len(asked) != 0 {
		t.Error("a request that declined was asked at once again")
	}
	if !offer(5, again/2) || asked[0] != picky || picky.passed != 0 {
		t.Errorf("the request did not get the engine that it waited for; passed over %d times", picky.passed)
	}
}

func TestFullQueueKeepsSmallClients(t *testing.T) {
	q := small(t, 100)
	for i := 0; ; i++ {
		if _, err := q.Push(request("crowd", 100), 0); errors.Is(err, ErrFull) {
			if i < 90 || i > 100 {
				t.Fatalf("full after %d", i)
			}
			break
		}
	}
	for i := range 40 {
		gone, err := q.Push(request("small", 100), 0)
		if err != nil || len(gone) != 1 || gone[0].Client != "crowd" {
			t.Fatalf("request %d of the small client: %v, %d gave way", i, err, len(gone))
		}
	}
	for range 60 {
		q.Push(request("small", 100), 0)
	}
	l := q.lanes[engines]
	if a, b := l.bands[1].flows["crowd"].requests, l.bands[1].flows["small"].requests; a-b > 1 || b-a > 1 {
		t.Errorf("%d and %d places, want equal ones", a, b)
	}
	// Lower priorities keep a twentieth each, and higher ones displace the rest.
	batch := request("b", 100)
	batch.Priority = clients.Batch
	if _, err := q.Push(batch, 0); err != nil {
		t.Errorf("batch has no place: %v", err)
	}
	for range 100 {
		w := request("i", 100)
		w.Priority = clients.Interactive
		q.Push(w, 0)
	}
	if n, _ := q.Usage(clients.Batch); n != 1 {
		t.Errorf("%d batch requests, want the one within its share kept", n)
	}
	if n, _ := q.Usage(clients.Default); n != 5 {
		t.Errorf("%d default requests, want a twentieth", n)
	}
}

// Requests whose engine failed come before their client's others, in the order in which they return, and cost it nothing
// until an engine takes them again: clients get equal work although one of them lost three engines meanwhile.
func TestReturningRequest(t *testing.T) {
	q := small(t, 1000)
	for range 100 {
		push(t, q, request("unlucky", 100))
		push(t, q, request("other", 100))
	}
	var back []*Waiter
	for len(back) < 3 {
		if w := next(q, 0, 0); w.Client == "unlucky" {
			w.Returns = true
			back = append(back, w)
		}
	}
	for _, w := range back {
		if w.Paid != 100 {
			t.Fatalf("paid %v", w.Paid)
		}
		push(t, q, w)
	}
	work := map[string]float64{"other": 200}
	for range 100 {
		w := next(q, 0, 0)
		work[w.Client] += w.cost()
		if w.Client == "unlucky" && len(back) > 0 {
			if w != back[0] {
				t.Errorf("another request came before one that returned, with %d still waiting", len(back))
			}
			back = back[1:]
		}
	}
	if d := work["unlucky"] - work["other"]; d < -100 || d > 100 {
		t.Errorf("work %v", work)
	}
}

// An engine that failed a request is offered to others only, so that the request goes to the next engine that opens, in its turn.
func TestReturningRequestSkipsWhatFailedIt(t *testing.T) {
	q := small(t, 10)
	w := request("", 1)
	w.Returns, w.Failed = true, []int32{3}
	push(t, q, w)
	later := request("", 1)
	push(t, q, later)
	asked := 0
	q.Offer(engines, 3, false, 0, func(*Waiter) (float64, bool) { asked++; return 0, false })
	if asked != 1 {
		t.Errorf("%d requests were asked, want the other one", asked)
	}
	if got := next(q, 4, 0); got != w {
		t.Errorf("another engine opens, and the first request does not get it")
	}
}

// The tags of a queue that has emptied are forgotten, so what a request paid before is not given back.
func TestReturningRequestGetsBackNoForgivenDebt(t *testing.T) {
	q := small(t, 1000)
	var back []*Waiter
	for range 20 {
		push(t, q, request("crashed", 1000))
		w := next(q, 0, 0)
		w.Returns = true
		back = append(back, w)
	}
	for range 100 {
		push(t, q, request("other", 1000))
	}
	for _, w := range back {
		push(t, q, w)
	}
	work := map[string]int{}
	for range 20 {
		work[next(q, 0, 0).Client]++
	}
	if work["other"] < 9 {
		t.Errorf("of 20 engines the others got %d, want 10", work["other"])
	}
}

// A request that returns to a full queue keeps what it has waited, and the newest one of the client with most gives way, also if
// that is its own.
func TestReturningToAFullQueue(t *testing.T) {
	q := small(t, 3)
	first, second, newest := request("", 1), request("", 1), request("", 1)
	for _, w := range []*Waiter{first, second, newest} {
		push(t, q, w)
	}
	if w := next(q, 0, 0); w != first {
		t.Fatal("not the first one")
	}
	push(t, q, request("", 1))
	first.Returns, first.Waited = true, 20*time.Second
	if gone, err := q.Push(first, time.Second); err != nil || len(gone) != 1 || gone[0] == second || gone[0] == newest {
		t.Errorf("%v, and %d gave way", err, len(gone))
	}
	if w := q.Expired(40 * time.Second); w != nil {
		t.Errorf("a wait of 39 s after one of 20 s ended")
	}
	if w := q.Expired(41 * time.Second); w != first {
		t.Error("a wait of 40 s after one of 20 s did not end after a minute")
	}
}

func TestBytesAreBounded(t *testing.T) {
	q := small(t, 1000)
	large := func(client string) *Waiter {
		w := request(client, 100)
		w.Bytes = 300 << 10
		return w
	}
	for range 3 {
		push(t, q, large("a"))
	}
	if _, err := q.Push(large("a"), 0); !errors.Is(err, ErrFull) {
		t.Errorf("more bytes than fit: %v", err)
	}
	if gone, err := q.Push(large("b"), 0); err != nil || len(gone) != 1 {
		t.Errorf("another client: %v, %d gave way", err, len(gone))
	}
	if q.all.bytes > q.limits.Bytes {
		t.Errorf("%d bytes of %d", q.all.bytes, q.limits.Bytes)
	}
}

func TestTimeIsBounded(t *testing.T) {
	q := small(t, 100)
	early, late := request("a", 100), request("a", 100)
	early.Deadline = 10 * time.Second
	push(t, q, late)
	push(t, q, early)
	if w := q.Expired(9 * time.Second); w != nil {
		t.Error("expired too early")
	}
	if at, _ := q.Due(); at != early.Deadline {
		t.Errorf("due at %v", at)
	}
	if q.Expired(10*time.Second) != early || q.Expired(10*time.Second) != nil || q.Expired(time.Minute) != late {
		t.Error("not expired by deadline, then by Limits.Wait")
	}
	// 100 tokens/s are drained, and 1,000 wait.
	for range 20 {
		push(t, q, request("a", 100))
	}
	for i := range 10 {
		next(q, 0, time.Duration(i+1)*time.Second)
	}
	w := request("a", 100)
	if d := q.Expect(w, 10*time.Second); d < 10*time.Second || d > 12*time.Second {
		t.Errorf("expects to wait %v, want 11 s", d)
	}
	if d := q.Backlog(10 * time.Second); d < 9*time.Second || d > 11*time.Second {
		t.Errorf("backlog %v, want 10 s", d)
	}
	w.Deadline = 15 * time.Second
	if _, err := q.Push(w, 10*time.Second); !errors.Is(err, ErrLate) {
		t.Errorf("a request that cannot be in time: %v", err)
	}
	// Another client's requests do not wait for all of these.
	w = request("b", 100)
	w.Deadline = 15 * time.Second
	if _, err := q.Push(w, 10*time.Second); err != nil {
		t.Errorf("a request that will be in time: %v", err)
	}
}

func TestLimitsAreChecked(t *testing.T) {
	if _, err := New(Limits{Requests: 1, Bytes: 1}); !errors.Is(err, ErrLimits) {
		t.Errorf("no time to wait: %v", err)
	}
}

// Whatever happens to the requests, each leaves once, none is passed over too often, all are served, and
// the counts return to zero.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		q := small(t, 1+rnd.IntN(60))
		waits := map[*Waiter]bool{}
		now := time.Duration(0)
		gone := func(w *Waiter, how string) {
			if !waits[w] {
				t.Fatalf("seed %d: a request left twice, now %s", seed, how)
			}
			delete(waits, w)
		}
		for step := range 4000 {
			now += time.Duration(rnd.IntN(50)) * time.Millisecond
			switch rnd.IntN(6) {
			case 0, 1, 2:
				w := request(fmt.Sprint(rnd.IntN(5)), float64(1+rnd.IntN(1000)))
				w.Lane, w.Priority, w.Weight = uint64(rnd.IntN(2)), clients.Priority(rnd.IntN(3)), float64(1+rnd.IntN(3))
				w.Bytes = int64(rnd.IntN(100_000))
				for i := range rnd.IntN(3) {
					w.Holders[i] = Holder{int32(rnd.IntN(4)), float64(rnd.IntN(500))}
				}
				if rnd.IntN(4) == 0 {
					w.Deadline = now + time.Duration(1+rnd.IntN(5000))*time.Millisecond
				}
				evicted, err := q.Push(w, now)
				for _, v := range evicted {
					gone(v, "evicted")
				}
				if err == nil {
					waits[w] = true
				}
			case 3:
				for w := range waits {
					if q.Remove(w) {
						gone(w, "removed")
					}
					break
				}
			case 4:
				for w := q.Expired(now); w != nil; w = q.Expired(now) {
					gone(w, "expired")
				}
			case 5:
				var taker *Waiter
				if q.Offer(uint64(rnd.IntN(2)), int32(rnd.IntN(4)), rnd.IntN(2) == 0, now, func(w *Waiter) (float64, bool) {
					taker, w.Wants = w, int32(rnd.IntN(4))
					return float64(1 + rnd.IntN(1000)), rnd.IntN(4) > 0
				}) {
					gone(taker, "served")
				}
			}
			if q.Len() != len(waits) || q.Len() > q.limits.Requests || q.all.bytes > q.limits.Bytes {
				t.Fatalf("seed %d, step %d: %d wait, the queue has %d and %d bytes", seed, step, len(waits), q.Len(), q.all.bytes)
			}
			for w := range waits {
				if w.passed > MaxPassed+Window {
					t.Fatalf("seed %d: a request was passed over %d times", seed, w.passed)
				}
			}
		}
		for w := range waits {
			if !q.Remove(w) || q.Remove(w) {
				t.Fatalf("seed %d: a request does not leave, or leaves twice", seed)
			}
		}
		if q.all != (usage{}) || q.held != [bands]usage{} || len(q.lanes) > 0 || len(q.due) > 0 {
			t.Fatalf("seed %d: left: %+v %+v, %d lanes, %d deadlines", seed, q.all, q.held, len(q.lanes), len(q.due))
		}
	}
}

// With any mix of others coming, each request is served after a bounded number of offers.
func TestNobodyStarves(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		q := small(t, 2000)
		var watched *Waiter
		for i := range 50 {
			w := request(fmt.Sprint("client ", i%7), 100)
			w.Priority = clients.Priority(i % 3)
			push(t, q, w)
			if watched == nil && w.Priority == clients.Batch {
				watched = w
			}
		}
		served := 0
		for ; watched.flow != nil; served++ {
			if served > 60*MaxPassed {
				t.Fatalf("seed %d: a batch request is not among the first %d", seed, served)
			}
			w := request(fmt.Sprint("client ", rnd.IntN(7)), 100)
			w.Priority = clients.Interactive
			w.Holders[0] = Holder{1, 50}
			push(t, q, w)
			if next(q, 1, 0) == nil {
				t.Fatal("nothing to serve")
			}
		}
	}
}

func TestClientsAreForgotten(t *testing.T) {
	q := small(t, 100)
	push(t, q, request("stays", 1))
	for i := range 20 * keptFlows {
		w := request(fmt.Sprint(i), 1)
		push(t, q, w)
		q.Remove(w)
	}
	if n := len(q.lanes[engines].bands[1].flows); n > keptFlows+10 {
		t.Errorf("%d clients are remembered", n)
	}
}

func TestOutputsAreLearned(t *testing.T) {
	q := small(t, 10)
	if q.Output("a", 0) != unknownOutput || q.Output("a", 16) != 16 {
		t.Error("without knowledge, want the usual output, at most the limit")
	}
	for range 500 {
		q.Learn("a", 1000)
		q.Learn("b", 10)
	}
	if a, b := q.Output("a", 0), q.Output("b", 0); a < 990 || b > 11 {
		t.Errorf("%v and %v tokens, want 1000 and 10", a, b)
	}
	if c := q.Output("c", 0); c < 100 || c > 900 {
		t.Errorf("%v tokens for an unknown client, want the mean", c)
	}
}

func full(b *testing.B, flows int) (*Queue, []*Waiter) {
	const n = 2048
	q, _ := New(Limits{Requests: n, Bytes: 1 << 40, Wait: time.Hour})
	rnd := rand.New(rand.NewPCG(1, 1))
	var all []*Waiter
	for i := range n {
		w := request(fmt.Sprint(i%flows), float64(1+rnd.IntN(20_000)))
		w.Priority = clients.Interactive - clients.Priority(i/flows%3)
		for k := range w.Holders {
			w.Holders[k] = Holder{int32(rnd.IntN(64)), float64(rnd.IntN(4000))}
		}
		if _, err := q.Push(w, 0); err == nil {
			all = append(all, w)
		}
	}
	return q, all
}

// A decision: an engine is offered, a request takes it, and another one comes.
func BenchmarkDecision(b *testing.B) {
	for _, flows := range []int{1, 16, 600, 2048} {
		b.Run(fmt.Sprintf("waiting=2048/clients=%d", flows), func(b *testing.B) {
			q, _ := full(b, flows)
			var taker *Waiter
			take := func(w *Waiter) (float64, bool) { taker = w; return w.cost(), true }
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				now := time.Duration(i) * time.Microsecond
				q.Offer(engines, int32(i%64), false, now, take)
				if _, err := q.Push(taker, now); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// A request of a small client displaces one of a large client's.
func BenchmarkPushToFull(b *testing.B) {
	for _, flows := range []int{2, 16, 600} {
		b.Run(fmt.Sprintf("waiting=2048/clients=%d", flows), func(b *testing.B) {
			q, _ := full(b, flows)
			spare := request("spare", 100)
			spare.Priority = clients.Interactive
			b.ReportAllocs()
			for b.Loop() {
				gone, err := q.Push(spare, 0)
				if err != nil {
					b.Fatal(err)
				}
				q.Remove(spare)
				for _, w := range gone {
					q.Push(w, 0)
				}
			}
		})
	}
}

func TestMove(t *testing.T) {
	q, err := New(Limits{Requests: 10, Bytes: 1000, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	list := make([]*Waiter, 6)
	for i := range list {
		list[i] = &Waiter{Lane: 1, Client: string(rune('a' + i%2)), Weight: 1, Bytes: 1, Prefill: 1}
		if _, err := q.Push(list[i], time.Duration(i)); err != nil {
			t.Fatal(err)
		}
	}
	var order []*Waiter
	left := q.Move(1, func(w *Waiter) (uint64, bool) {
		order = append(order, w)
		return 2, w != list[3]
	})
	for i, w := range order {
		if w != list[i] {
			t.Errorf("request %d was not moved in order of arrival", i)
		}
	}
	if len(left) != 1 || left[0] != list[3] || q.Remove(list[3]) {
		t.Errorf("%d requests have no lane, want the fourth one, out of the queue", len(left))
	}
	if q.Waiting(1) || !q.Waiting(2) || q.Len() != 5 {
		t.Errorf("%d requests wait, in lane 1: %v, in lane 2: %v", q.Len(), q.Waiting(1), q.Waiting(2))
	}
	if due, _ := q.Due(); due != time.Minute {
		t.Errorf("the first deadline moved to %v", due)
	}
	for _, w := range order {
		q.Remove(w)
	}
	if requests, bytes := q.Usage(clients.Batch); requests != 0 || bytes != 0 || len(q.lanes) != 0 {
		t.Errorf("%d requests, %d bytes and %d lanes are left", requests, bytes, len(q.lanes))
	}
}

// Requests that wait stay under smaller limits, and the client with the greatest share by these gives way.
func TestLimitsAreReplaced(t *testing.T) {
	q := small(t, 1000)
	for range 5 {
		push(t, q, request("places", 100))
	}
	for range 3 {
		w := request("bytes", 100)
		w.Bytes = 100 << 10
		push(t, q, w)
	}
	q.SetLimits(Limits{Requests: 9, Bytes: q.all.bytes + 1<<20, Wait: time.Minute})
	if q.Len() != 8 {
		t.Fatalf("%d requests wait, want 8", q.Len())
	}
	push(t, q, request("third", 100))
	if gone, err := q.Push(request("fourth", 100), 0); err != nil || len(gone) != 1 || gone[0].Client != "places" {
		t.Errorf("%v, gave way: %v", err, gone)
	}
	q.SetLimits(Limits{Requests: 1000, Bytes: q.all.bytes + 1, Wait: time.Minute})
	w := request("fifth", 100)
	w.Bytes = 10
	if gone, err := q.Push(w, 0); err != nil || len(gone) != 1 || gone[0].Client != "bytes" {
		t.Errorf("%v, gave way: %v", err, gone)
	}
}

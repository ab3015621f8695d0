package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
)

func whole(hashes []prefixtree.Hash) *Request {
	q := ask(hashes)
	q.NonStreaming = true
	return q
}

// A long answer that is not streamed does not drive away its engine's conversations.
func TestWholeAnswersKeepTheirEngineInUse(t *testing.T) {
	for _, nodes := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) { wholeAnswers(t, nodes) })
	}
}

func wholeAnswers(t *testing.T, nodes int) {
	const (
		engines, sessions = 4, 40
		every             = 25
		long              = 3_000
	)
	r, _ := newRouter(t, Config{}, fleetOf(engines))
	rated(r, 640_000) // as the answers show it
	if nodes > 1 {
		r.SetFleet(nodes, 5*time.Millisecond)
		r.SetPeerLoad("north", nil, t0)
	}
	rng := rand.New(rand.NewPCG(1, uint64(nodes)))
	blocks, home := [sessions]int{}, [sessions]prefixtree.Backend{}
	var running *Attempt
	var until prefixtree.Time
	beside := 0
	now := t0
	for i := range 2_000 {
		now += every
		if running != nil && now >= until {
			running.End(Outcome{PromptTokens: running.Decision().PromptTokens, CachedTokens: 0, OutputTokens: 600}, now)
			running = nil
		}
		if i > 400 && running == nil && i%50 == 0 {
			running = pick(t, r, whole(prompt(uint64(1_000+i), 0, 99, 20)), now)
			running.Dispatched(now)
			until = now + long
			continue
		}
		s := rng.IntN(sessions)
		first := blocks[s] == 0
		if blocks[s] += 2; first {
			blocks[s] = 10
		}
		a := pick(t, r, ask(prompt(uint64(s), 0, blocks[s], blocks[s])), now)
		d := a.Decision()
		if !first && d.Backend != home[s] {
			t.Fatalf("%d ms: a turn leaves engine-%d, which holds its conversation (a whole request is there: %v):\n%v",
				now-t0, home[s], running != nil && running.Decision().Backend == home[s], d)
		}
		if running != nil && running.Decision().Backend == d.Backend && now > until-long+1_500 {
			beside++
		}
		home[s] = d.Backend
		a.Dispatched(now)
		a.FirstToken(now + 2)
		a.End(Outcome{PromptTokens: d.PromptTokens, CachedTokens: d.PredictedTokens, OutputTokens: 9}, now+10)
	}
	if beside < 50 {
		t.Errorf("only %d turns went to an engine with a whole request of more than 1.5 s: it says nothing", beside)
	}
}

func TestAnswersEndThePrefill(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(1))
	a := pick(t, r, ask(prompt(1, 1, 0, 80)), t0)
	a.Answers(t0)
	if prefill, _ := r.Load(0); prefill != 10_240 {
		t.Errorf("%d tokens are outstanding of a request that has not been sent", prefill)
	}
	a.Dispatched(t0)
	a.Answers(t0 + 50)
	if prefill, active := r.Load(0); prefill != 0 || active != 1 {
		t.Errorf("%d tokens, %d requests after the beginning of the answer", prefill, active)
	}
	a.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 1}, t0+60)
	if got := r.Rate(0); got != defaultPrefillRate {
		t.Errorf("an answer whose first token nobody saw changed the rate to %.0f", got)
	}
}

// playWhole plays a fleet that answers one request after another, each as a whole: half of a second of prefill and
// up to 500 tokens of 10 ms, times the engine's slowness. It returns the last requests of each engine.
func playWhole(t *testing.T, r *Router, rnd *rand.Rand, slowness []float64) (got []int) {
	t.Helper()
	const prompts, last = 600, 400
	now := t0
	got = make([]int, len(slowness))
	for i := range uint64(prompts) {
		a := pick(t, r, whole(prompt(i+1, 0, 99, 40)), now)
		a.Dispatched(now)
		at, outputs := a.Decision().Backend, 1+rnd.IntN(500)
		if i >= prompts-last {
			got[at]++
		}
		now += prefixtree.Time((500 + 10*float64(outputs)) * slowness[at] * (0.8 + 0.4*rnd.Float64()))
		a.End(Outcome{PromptTokens: 40 * 128, CachedTokens: 0, OutputTokens: outputs}, now)
	}
	return got
}

func TestSlowWholeAnswersCostTheirEngine(t *testing.T) {
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 1))
	r, _ := newRouter(t, Config{}, fleetOf(4))
	if got := playWhole(t, r, rnd, []float64{1, 1, 1, 5}); got[3] > 25 || min(got[0], got[1], got[2]) < 90 {
		t.Errorf("answers of the last engine take five times as long, and the requests are %v", got)
	}
}

// Draws alone scatter an engine's requests by sqrt(400 x 1/4 x 3/4) = 8.7 around 100; rates learned from answers
// of random length add to that: 10.3 in a thousand plays, in which the worst rate is 6 % off.
func TestEqualWholeAnswersKeepRatesEqual(t *testing.T) {
	bubble.SkipInRace(t)
	const plays, fair = 20, 100.0
	squares := 0.0
	for seed := range uint64(plays) {
		r, _ := newRouter(t, Config{Seed: seed + 1}, fleetOf(4))
		got := playWhole(t, r, virtual.Rand(seed+1, 1), []float64{1, 1, 1, 1})
		for b, n := range got {
			squares += (float64(n) - fair) * (float64(n) - fair)
			if rate := r.Rate(prefixtree.Backend(b)); math.Abs(rate/defaultPrefillRate-1) > 0.1 {
				t.Errorf("seed %d: backend %d of four equal ones has %.0f tokens/s, the fleet %.0f", seed+1, b, rate, r.books.FleetRate())
			}
		}
		t.Logf("seed %d: %v", seed+1, got)
	}
	scatter := math.Sqrt(squares / (4 * plays))
	t.Logf("scatter %.1f", scatter)
	if scatter > 13 {
		t.Errorf("four equal backends have 100 of 400 requests each, +- %.1f: want +- 13 at most", scatter)
	}
}

// Where nothing is streamed, durations of answers to prompts of different lengths show the rate. A play's estimate scatters by 16 %
// where prefill takes half a second of five, so eight are judged by their mean, which scatters by 6 %.
func TestWholeAnswersShowTheFleetsRate(t *testing.T) {
	bubble.SkipInRace(t)
	const plays = 8
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 2))
	for _, rate := range []float64{2_000, 50_000} {
		for _, outputs := range []int{1, 400} { // the most
			sum := 0.0
			for range plays {
				r, _ := newRouter(t, Config{}, fleetOf(2))
				now := t0
				for i := range uint64(600) {
					blocks := 4 + rnd.IntN(400)
					a := pick(t, r, whole(prompt(i+1, 0, 99, blocks)), now)
					a.Dispatched(now)
					n := 1 + rnd.IntN(outputs)
					took := float64(blocks*128)/rate + 0.02*float64(n)*(0.7+0.6*rnd.Float64()) + 2*rnd.Float64() // it waits for up to 2 s
					now += prefixtree.Time(1000 * took)
					a.End(Outcome{PromptTokens: blocks * 128, CachedTokens: 0, OutputTokens: n}, now)
				}
				sum += math.Log(r.books.FleetRate())
			}
			if got := math.Exp(sum / plays); math.Abs(got/rate-1) > 0.25 {
				t.Errorf("up to %d output tokens: the fleet computes %.0f tokens/s, and is taken for %.0f", outputs, rate, got)
			}
		}
	}
}

// Durations of answers to equal prompts tell the engines' speed relative to each other only.
func TestWholeAnswersDoNotChangeTheFleetsRate(t *testing.T) {
	now, next := t0, uint64(0)
	r, _ := newRouter(t, Config{}, fleetOf(1))
	send := func(wholly bool, took prefixtree.Time) {
		next++
		q := ask(prompt(next, 0, 99, 80))
		q.NonStreaming = wholly
		a := pick(t, r, q, now)
		a.Dispatched(now)
		now += took
		if !wholly {
			a.FirstToken(now)
		}
		a.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 100}, now)
	}
	for range 50 {
		send(false, 512) // 20,000/s
	}
	engine, fleet := r.Rate(0), r.books.FleetRate()
	for range 50 {
		send(true, 30_000)
	}
	if got := r.Rate(0); math.Abs(got/engine-1) > 0.01 || math.Abs(got/20_000-1) > 0.1 || r.books.FleetRate() != fleet {
		t.Errorf("long whole answers changed the rate from %.0f to %.0f, the fleet's from %.0f to %.0f", engine, got, fleet, r.books.FleetRate())
	}
}

// A first token behind whole requests tells nothing of its own prefill.
func TestBehindWholeRequests(t *testing.T) {
	for _, engine := range []float64{10_000, 4_000, 40_000} {
		r, _ := newRouter(t, Config{}, fleetOf(1))
		now := t0
		for i := range uint64(80) {
			q := whole(prompt(2*i, 0, 99, 80))
			a := pick(t, r, q, now)
			a.Dispatched(now)
			b := pick(t, r, ask(prompt(2*i+1, 0, 99, 80)), now)
			b.Dispatched(now)
			now += prefixtree.Time(20_480 / engine * 1000)
			b.FirstToken(now)
			b.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 1}, now)
			now += 60_000
			a.End(Outcome{PromptTokens: 10_240, CachedTokens: 0, OutputTokens: 1}, now)
		}
		if got := r.Rate(0); math.Abs(got/defaultPrefillRate-1) > 0.01 {
			t.Errorf("an engine of %.0f tokens/s is taken for %.0f", engine, got)
		}
	}
}

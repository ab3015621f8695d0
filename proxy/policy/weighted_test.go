package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/virtual"
	"grapevine.example/proxy/books"
)

// measured is what the scorers of strategy weighted see of an engine. Values are few, so that many are equal.
type measured struct {
	weight               float64 // of the engine
	held                 float64 // tokens
	queued, active, used float64 // used: share of the KV memory, -1: not reported
	adapter              bool
}

// weighing is a decision of strategy weighted among engines.
type weighing struct {
	r       *Router
	request *Request
	engines []measured
}

func newWeighing(t *testing.T, rnd *rand.Rand) *weighing {
	w := &weighing{request: ask(prompt(1+rnd.Uint64N(1000), 0, 20, 20))}
	if rnd.IntN(2) == 0 {
		w.request.Session = []byte{byte(rnd.IntN(100))}
	}
	if rnd.IntN(2) == 0 {
		w.request.LoRA = []byte("poet")
	}
	backends := fleetOf(1 + rnd.IntN(8))
	for i := range backends {
		backends[i].Weight = float64(1 + rnd.IntN(2))
		w.engines = append(w.engines, measured{
			backends[i].Weight, float64(1280 * rnd.IntN(3)), float64(10_000 * rnd.IntN(3)), float64(rnd.IntN(4)), float64(rnd.IntN(4)-1) / 2, rnd.IntN(2) == 0,
		})
	}
	w.r, _ = newRouter(t, Config{}, backends)
	return w
}

// choose returns the chosen engine, all engines' costs, and their order for the prompt. It stages them in
// the opposite order if reversed.
func (w *weighing) choose(weights [scorers]float64, reversed bool) (chosen int, costs, order []float64) {
	s := &Scene{peek: true}
	w.r.open(s, w.request, w.r.table.Load().pool(nil), t0)
	s.Branch = w.request.Hashes[0]
	s.stage(false)
	if reversed {
		for i, j := 0, len(s.Candidates)-1; i < j; i, j = i+1, j-1 {
			s.swap(i, j)
		}
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		e := w.engines[c.Backend]
		c.Held, c.Queued, c.Active = e.held, e.queued, int64(e.active)
		anew := *c.entry
		c.entry, anew.engine = &anew, new(books.Engine)
		w.r.books.SetTelemetry(anew.engine, books.Telemetry{KVUsage: e.used})
		if e.adapter {
			anew.engine.BeginAdapter(xxh3.Hash([]byte("poet")), t0)
		}
	}
	at, _ := (&weighted{weights}).Choose(s)
	costs, order = make([]float64, len(w.engines)), make([]float64, len(w.engines))
	for i := range s.Candidates {
		b := s.Candidates[i].Backend
		costs[b], order[b] = s.Candidates[i].Cost, s.Rendezvous(uint64(s.Branch), i)
	}
	return int(s.Candidates[at].Backend), costs, order
}

func only(k scorer) (weights [scorers]float64) {
	weights[k] = 1
	return weights
}

// A score grows with what is good about an engine, lies between 0 and 1, and counts by its weight. The choice
// has the highest sum, is the same in any order of the engines, and only gains by what improves it.
func TestWeightedIsASumOfScores(t *testing.T) {
	bubble.SkipInRace(t)
	const tiny = 1e-9
	virtual.Seeds(t, 300, 1, func(t *testing.T, seed uint64) {
		rnd := virtual.Rand(seed, 1)
		w := newWeighing(t, rnd)
		var weights [scorers]float64
		sums := make([]float64, len(w.engines))
		for k := range scorers {
			weights[k] = float64(rnd.IntN(3))
			_, costs, _ := w.choose(only(k), false)
			for i, c := range costs {
				if !(c >= -1 && c <= 0) {
					t.Errorf("%s: scores %v", scorerNames[k], costs)
				}
				sums[i] += weights[k] * c
			}
		}
		chosen, costs, order := w.choose(weights, false)
		again, others, _ := w.choose(weights, true)
		if again != chosen || !slices.Equal(costs, others) {
			t.Errorf("engine %d of costs %v, in the opposite order engine %d of %v", chosen, costs, again, others)
		}
		for i, c := range costs {
			if math.Abs(c-sums[i]) > tiny {
				t.Errorf("weights %v: engine %d costs %v, its scores add up to %v", weights, i, c, sums[i])
			}
			if c < costs[chosen] || c == costs[chosen] && order[i] > order[chosen] {
				t.Errorf("engine %d is chosen of costs %v in the order %v", chosen, costs, order)
			}
		}
		before := w.engines[chosen]
		for name, better := range map[string]func(*measured){
			"match": func(e *measured) { e.held = min(e.held+640, 2560) }, "queue": func(e *measured) { e.queued /= 2 },
			"requests": func(e *measured) { e.active = max(e.active-1, 0) }, "memory": func(e *measured) { e.used = min(e.used, e.used/2) },
			"adapter": func(e *measured) { e.adapter = true },
		} {
			better(&w.engines[chosen])
			if _, now, _ := w.choose(weights, false); now[chosen] > costs[chosen]+tiny || now[chosen] > slices.Min(now)+tiny {
				t.Errorf("weights %v: a better %s of engine %d, which was chosen, changes costs from %v to %v", weights, name, chosen, costs, now)
			}
			w.engines[chosen] = before
		}
	})
}

// What each scorer says of engines of which some values are unknown or all are equal.
func TestScores(t *testing.T) {
	w := &weighing{request: ask(prompt(1, 0, 20, 20)), engines: []measured{
		{1, 2560, 0, 1, 0.2, false}, {2, 640, 30_000, 4, 0.6, true}, {1, 0, 60_000, 5, -1, false},
	}}
	backends := fleetOf(3)
	backends[1].Weight = 2
	w.r, _ = newRouter(t, Config{}, backends)
	check := func(k scorer, want ...float64) {
		t.Helper()
		_, costs, _ := w.choose(only(k), false)
		for i, c := range costs {
			if math.Abs(-c-want[i]) > 1e-9 {
				t.Errorf("%s: costs %v, want scores %v", scorerNames[k], costs, want)
				return
			}
		}
	}
	check(scorePrefix, 1, 0.25, 0)
	check(scoreLoad, 1, 0.75, 0)
	check(scoreQueue, 1, 0.75, 0)
	check(scoreKV, 0.8, 0.4, 0.6) // unknown: the mean
	check(scoreSession, 0, 0, 0)
	check(scoreLoRA, 0, 0, 0)
	w.request.LoRA = []byte("poet")
	check(scoreLoRA, 0, 1, 0)
	w.request.Session = []byte("session")
	var want [3]float64
	d := serve(t, w.r, by(w.r, Session, &Request{Session: w.request.Session}), t0)
	want[d.Backend] = 1
	check(scoreSession, want[:]...)
	for i := range w.engines {
		w.engines[i] = measured{1, 0, 10_000 * float64(1+i&1), 1 + float64(i&1), math.NaN(), false}
	}
	check(scoreKV, 1, 1, 1) // all unknown
	check(scoreLoRA, 0, 0, 0)
	check(scoreQueue, 1, 1, 1)
	check(scoreLoad, 1, 1, 1)
}

// Without a report the requests of this node show the use of a known capacity.
func TestKVUsage(t *testing.T) {
	backends := fleetOf(2)
	backends[0].KVTokens = 10_000
	r, _ := newRouter(t, Config{}, backends)
	q := ask(prompt(1, 1, 0, 20))
	q.Exclude = except(2, 0)
	a := pick(t, r, q, t0)
	defer a.End(unknown(), t0)
	for _, c := range []struct{ reported, first, second float64 }{{-1, 0.256, -1}, {math.NaN(), 0.256, -1}, {0, 0, 0}, {0.5, 0.5, 0.5}, {7, 1, 1}} {
		for i, want := range []float64{c.first, c.second} {
			e := entry{engine: r.table.Load().engines[i], kv: backends[i].KVTokens}
			r.SetTelemetry(backends[i].ID, books.Telemetry{KVUsage: c.reported})
			if got := (&Candidate{entry: &e}).KVUsage(); math.Abs(got-want) > 1e-9 {
				t.Errorf("%v is reported, and engine %d uses %v, want %v", c.reported, i, got, want)
			}
		}
	}
}

package policy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

// places returns a scene for a request of one second, before which other nodes placed so many unseen.
func places(unseen float64, seconds ...float64) *Scene {
	s := &Scene{pool: new(pool), unseen: unseen, traffic: demand.Rates{Uncached: 1}, size: len(seconds)}
	for i, place := range seconds {
		s.Candidates = append(s.Candidates, Candidate{entry: entryOf(i), place: place})
	}
	return s
}

// waterLevel finds the level by bisection.
func waterLevel(s *Scene) float64 {
	low, high := 0.0, 1e6
	for range 100 {
		mid, room := (low+high)/2, 0.0
		for i := range s.Candidates {
			if c := &s.Candidates[i]; !c.outside {
				room += max(mid-c.place, 0)
			}
		}
		if room < (damping*s.unseen+1)*s.traffic.Uncached {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// Places get requests in proportion to the water in them: evenly in turn, or as the keys of conversations fall.
func TestPour(t *testing.T) {
	const requests = 5_000
	seed := virtual.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 7))
	for range 20 {
		seconds := make([]float64, 2+rnd.IntN(12))
		for i := range seconds {
			seconds[i] = rnd.ExpFloat64() * 3
		}
		s := places(rnd.ExpFloat64()*10+0.1, seconds...)
		for i := range s.Candidates {
			c := &s.Candidates[i]
			c.weight, c.outside = float64(1+rnd.IntN(2)), i > 0 && rnd.IntN(6) == 0
			c.engine.FillBucket(rnd.Int64N(books.FullBucket))
		}
		level, all := waterLevel(s), 0.0
		want := make([]float64, len(seconds))
		for i := range s.Candidates {
			if c := &s.Candidates[i]; !c.outside {
				want[i] = max(level-c.place, 0) * c.weight
				all += want[i]
			}
		}
		check := func(way string, got []float64, n int, slack func(mean float64) float64) {
			for i := range got {
				mean := float64(n) * want[i] / all
				if math.Abs(got[i]-mean) > slack(mean) {
					t.Fatalf("%s: place %d of %v got %v of %d requests, want about %.1f: level %v", way, i, seconds, got[i], n, mean, level)
				}
			}
		}
		got := make([]float64, len(seconds))
		for n := range requests {
			at, _ := s.pour(0)
			s.takeTurn(at)
			got[at]++
			// All buckets together are never further from n requests than one for each.
			check("in turn", got, n+1, func(mean float64) float64 { return 1.01 + float64(len(seconds))*mean/float64(n+1) })
		}
		got = make([]float64, len(seconds))
		for range requests {
			at, _ := s.pour(rnd.Uint64())
			got[at]++
		}
		check("by key", got, requests, func(mean float64) float64 { return 6*math.Sqrt(mean) + 1 })
	}
}

// Whatever the places are from one request to the next, a bucket holds at most one request.
func TestBucketsHoldARequest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 9))
	s := places(0, make([]float64, 9)...)
	for i := range s.Candidates {
		s.Candidates[i].engine.FillBucket(rnd.Int64N(books.FullBucket))
	}
	for range 50_000 {
		s.unseen = rnd.ExpFloat64() * 10
		for i := range s.Candidates {
			s.Candidates[i].place = rnd.ExpFloat64() * 3
		}
		at, _ := s.pour(0)
		s.takeTurn(at)
		for i := range s.Candidates {
			if held := s.Candidates[i].engine.Bucket(); held < -1 || held > books.FullBucket {
				t.Fatalf("bucket %d holds %v of a request", i, float64(held)/books.FullBucket)
			}
		}
	}
}

// Without unseen requests only places get one that this request alone fills.
func TestPourWithoutUnseenIsNearlyTheBest(t *testing.T) {
	s := places(0, 3, 1, 2, 1, 0.5)
	s.Candidates[4].outside = true
	got := map[int]int{}
	for range 1000 {
		at, tied := s.pour(0)
		s.takeTurn(at)
		if got[at]++; !tied {
			t.Fatal("a tie of two is not reported")
		}
	}
	if len(got) != 2 || got[1] != 500 || got[3] != 500 {
		t.Errorf("the places 3, 1, 2, 1 got these of 1,000 requests: %v", got)
	}
	if at, tied := places(0, 3, 1, 2.1).pour(0); at != 1 || tied {
		t.Errorf("of the places 3, 1, 2.1 number %d, tied %v", at, tied)
	}
}

// A turn is taken by a request that goes to the poured place, not by one that goes to its cache or is only explained.
func TestWhoTakesATurn(t *testing.T) {
	r, _ := newRouter(t, Config{Seed: 5}, fleetOf(4))
	buckets := func() (sum int64) {
		for _, s := range r.table.Load().engines {
			sum += s.Bucket()
		}
		return sum
	}
	q := ask(prompt(1, 0, 80, 80))
	before := buckets()
	var d Decision
	if err := r.Explain(q, t0, &d); err != nil || buckets() != before {
		t.Fatalf("explained: %v; buckets %d, before %d", err, buckets(), before)
	}
	att := pick(t, r, q, t0)
	if att.Decision().Backend != d.Backend || buckets() == before {
		t.Errorf("explained backend %d, picked %d; buckets %d, before %d", d.Backend, att.Decision().Backend, buckets(), before)
	}
	att.Dispatched(t0)
	att.FirstToken(t0 + 100)
	att.End(Outcome{}, t0+200)
	before = buckets()
	again := pick(t, r, q, t0+1000)
	if again.Decision().Backend != d.Backend || again.Decision().Rung != Cache || buckets() != before {
		t.Errorf("%v at backend %d; buckets %d, before %d", again.Decision().Rung, again.Decision().Backend, buckets(), before)
	}
}

// 32 nodes that see the same reports, and have the rate of the others' requests from them.
func TestNodesWithTheSameReportsSpread(t *testing.T) {
	const n = 32
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 8))
	var loads []books.PeerLoad
	for b := range prefixtree.Backend(n) {
		loads = append(loads, books.PeerLoad{Backend: b, PrefillTokens: 1 + int64(rnd.ExpFloat64()*5000), Active: 1})
	}
	used := func(staleness time.Duration) (engines, most int, longest int64) {
		got := map[prefixtree.Backend]int{}
		for i, r := range among(t, n, staleness, fleetOf(n)) {
			r.SetPeerLoad("others", loads, t0)
			r.SetPeerTraffic(map[uint64]demand.Report{poolAll: {Pool: poolAll, Rate: n - 1, Whole: n - 1}})
			b := pick(t, r, ask(prompt(uint64(i), 0, 80, 80)), t0).Decision().Backend
			got[b]++
			most, longest = max(most, got[b]), max(longest, loads[b].PrefillTokens)
		}
		return len(got), most, longest
	}
	if engines, most, _ := used(time.Second); engines < 12 || most > 8 {
		t.Errorf("%d nodes took %d engines, one of them %d times", n, engines, most)
	}
	shortest := slices.MinFunc(loads, func(a, b books.PeerLoad) int { return cmp.Compare(a.PrefillTokens, b.PrefillTokens) }).PrefillTokens
	if _, _, longest := used(0); longest > shortest+80*128 {
		t.Errorf("with reports that hide nothing one waits behind %d tokens, and another engine has %d", longest, shortest)
	}
}

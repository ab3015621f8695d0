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
)

// places returns a scene for a request of one second, before which other nodes placed so many unseen.
func places(unseen float64, seconds ...float64) *Scene {
	s := &Scene{pool: new(pool), unseen: unseen, traffic: traffic{uncached: 1}, size: len(seconds)}
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
		if room < (s.unseen+1)*s.traffic.uncached {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// Places are drawn in proportion to what this request and those that other nodes placed unseen fill of them, whether the draw is
// random or follows the keys of conversations.
func TestPour(t *testing.T) {
	const draws = 20_000
	seed := virtual.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 7))
	for range 20 {
		seconds := make([]float64, 2+rnd.IntN(12))
		for i := range seconds {
			seconds[i] = rnd.ExpFloat64() * 3
		}
		s := places(rnd.ExpFloat64()*10+0.1, seconds...)
		s.rand = rnd.Uint64()
		for i := range s.Candidates {
			c := &s.Candidates[i]
			c.weight, c.outside = float64(1+rnd.IntN(2)), i > 0 && rnd.IntN(6) == 0
		}
		level, all := waterLevel(s), 0.0
		want := make([]float64, len(seconds))
		for i := range s.Candidates {
			if c := &s.Candidates[i]; !c.outside {
				want[i] = max(level-c.place, 0) * c.weight
				all += want[i]
			}
		}
		for _, keyed := range []bool{false, true} {
			got := make([]float64, len(seconds))
			for range draws {
				key := uint64(0)
				if keyed {
					key = rnd.Uint64()
				}
				at, _ := s.pour(key)
				got[at]++
			}
			for i := range got {
				mean := draws * want[i] / all
				if math.Abs(got[i]-mean) > 6*math.Sqrt(mean)+1 {
					t.Fatalf("keyed %v: place %d of %v was drawn %v times, want about %.0f: level %v", keyed, i, seconds, got[i], mean, level)
				}
			}
		}
	}
}

// Without unseen requests only places are drawn that this request alone fills.
func TestPourWithoutUnseenIsNearlyTheBest(t *testing.T) {
	s := places(0, 3, 1, 2, 1, 0.5)
	s.Candidates[4].outside = true
	got := map[int]int{}
	for range 1000 {
		at, tied := s.pour(0)
		if got[at]++; !tied {
			t.Fatal("a tie of two is not reported")
		}
	}
	if len(got) != 2 || got[1] < 400 || got[3] < 400 {
		t.Errorf("of the places 3, 1, 2, 1 these were drawn: %v", got)
	}
	if at, tied := places(0, 3, 1, 2.1).pour(0); at != 1 || tied {
		t.Errorf("of the places 3, 1, 2.1 number %d, tied %v", at, tied)
	}
}

// 32 nodes that see the same reports, and have the rate of the others' requests from them.
func TestNodesWithTheSameReportsSpread(t *testing.T) {
	const n = 32
	rnd := rand.New(rand.NewPCG(virtual.Seed(t), 8))
	var loads []PeerLoad
	for b := range prefixtree.Backend(n) {
		loads = append(loads, PeerLoad{b, 1 + int64(rnd.ExpFloat64()*5000), 1})
	}
	used := func(staleness time.Duration) (engines, most int, longest int64) {
		got := map[prefixtree.Backend]int{}
		for i, r := range among(t, n, staleness, fleetOf(n)) {
			r.SetPeerLoad("others", loads, t0)
			r.SetPeerTraffic(map[uint64]PoolTraffic{poolAll: {Pool: poolAll, Rate: n - 1, Requests: 1000, Work: 1000}})
			b := pick(t, r, ask(prompt(uint64(i), 0, 80, 80)), t0).Decision().Backend
			got[b]++
			most, longest = max(most, got[b]), max(longest, loads[b].PrefillTokens)
		}
		return len(got), most, longest
	}
	if engines, most, _ := used(time.Second); engines < 12 || most > 8 {
		t.Errorf("%d nodes took %d engines, one of them %d times", n, engines, most)
	}
	shortest := slices.MinFunc(loads, func(a, b PeerLoad) int { return cmp.Compare(a.PrefillTokens, b.PrefillTokens) }).PrefillTokens
	if _, _, longest := used(0); longest > shortest+80*128 {
		t.Errorf("with reports that hide nothing one waits behind %d tokens, and another engine has %d", longest, shortest)
	}
}

package policy

import (
	"math"
	"slices"
	"testing"
	"time"

	"grapevine/prefixtree"
)

// TestLargePoolOfFew: nodes among others find those that are left, however few of a large pool are.
func TestLargePoolOfFew(t *testing.T) {
	const n = 400
	for _, shared := range []time.Duration{200 * time.Millisecond, Never} {
		r := among(t, 8, shared, shared, fleetOf(n))[0]
		well := []prefixtree.Backend{7, 123, 399}
		for i := range n {
			if b := prefixtree.Backend(i); !slices.Contains(well, b) {
				r.SetReported(b, true, t0)
			}
		}
		used := map[prefixtree.Backend]int{}
		for i := range 10 * surveyPicks {
			d := serve(t, r, ask(prompt(uint64(i), 0, 4, 4)), t0+prefixtree.Time(i))
			if used[d.Backend]++; !slices.Contains(well, d.Backend) || d.LastResort {
				t.Fatalf("request %d went to %d, last resort %v", i, d.Backend, d.LastResort)
			}
		}
		for _, b := range well {
			if used[b] < surveyPicks {
				t.Errorf("%d has %d of %d requests", b, used[b], 10*surveyPicks)
			}
		}
	}
}

// TestPaceBoundsWhatItCounts: a first token that is as good as never is the slowest there is.
func TestPaceBoundsWhatItCounts(t *testing.T) {
	for _, soonest := range []float64{math.Inf(1), 1e300, 0} {
		var p pace
		p.count(1, soonest, t0)
		want := 0
		if soonest > 0 {
			want = paceBuckets - 1
		}
		if p.counts[want] != 1 {
			t.Errorf("%v seconds: %v", soonest, p.counts)
		}
	}
}

package policy

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
)

const (
	// surveyPicks is after how many decisions, and surveyAge after how many milliseconds, a large pool is looked over again. In that time a
	// node adds a request to one backend in four of the smallest such pool, and what others report is older than that.
	surveyPicks, surveyAge = 64, 100
	// surveyLows bounds the backends that a survey notes as the least loaded: each decision takes one away, and the last one before the
	// next survey still has as many to choose from.
	surveyLows = 2 * surveyPicks
	// coldLast puts those that begin anew behind all others: idle as they are, they would fill the list, and hardly anybody of it may be had.
	coldLast = 1e6
)

// survey is what decisions in a large pool need to know of all its backends: sums that one decision in a while takes, and the
// backends with the least work. Readers may see fields of two surveys for a moment, which does no harm.
type survey struct {
	picks  atomic.Uint64 // decisions in the pool
	due    atomic.Uint64 // at how many picks the next survey is; 0 before the first
	until  atomic.Int64  // and when, ms
	taking atomic.Bool

	eligible     atomic.Int64
	crowd, queue atomic.Uint64 // the levels of outsight.weigh, float64 bits
	mean         atomic.Uint64 // of the queues, likewise
	known        atomic.Int64  // how many of lows are in use
	lows         [surveyLows]atomic.Int32
}

// overview is what a survey says at one decision.
type overview struct {
	eligible int     // backends that are not avoided
	crowd    float64 // see outsight
	queue    float64 // likewise
	mean     float64 // queue to expect, prefill tokens
}

// look brings what is known of the pool into the scene, and reports whether there is anybody who is not avoided. Once in a while
// the decision looks for itself, and tells the others.
func (v *survey) look(r *Router, s *Scene) bool {
	turn := v.picks.Load() + 1
	if !s.peek {
		turn = v.picks.Add(1)
	}
	s.turn = turn
	due := v.due.Load()
	stale := turn >= due || int64(s.Now) >= v.until.Load()
	claimed := stale && !s.peek && v.taking.CompareAndSwap(false, true)
	// Before the first survey everybody looks, and an explanation does when the decision would.
	if !claimed && due > 0 && !(stale && s.peek) {
		v.recall(s, int64(turn)-int64(due)+surveyPicks)
		return s.overview.eligible > 0
	}
	r.overlook(s, turn)
	if claimed {
		v.note(s)
		v.until.Store(int64(s.Now) + surveyAge)
		v.due.Store(turn + surveyPicks)
		v.taking.Store(false)
	}
	s.lows = s.lows[:min(len(s.lows), selectLows)]
	return s.overview.eligible > 0
}

// note keeps what the scene has found.
func (v *survey) note(s *Scene) {
	v.eligible.Store(int64(s.overview.eligible))
	v.crowd.Store(math.Float64bits(s.overview.crowd))
	v.queue.Store(math.Float64bits(s.overview.queue))
	v.mean.Store(math.Float64bits(s.overview.mean))
	for i, at := range s.lows {
		v.lows[i].Store(at)
	}
	v.known.Store(int64(len(s.lows)))
}

// recall is note the other way round, so many decisions later: they have taken the least loaded ones.
func (v *survey) recall(s *Scene, since int64) {
	s.overview = overview{
		eligible: int(v.eligible.Load()), crowd: math.Float64frombits(v.crowd.Load()),
		queue: math.Float64frombits(v.queue.Load()), mean: math.Float64frombits(v.mean.Load()),
	}
	known := v.known.Load()
	s.lows = s.lows[:0]
	// Where few are idle, the first stay the best even with a request more; where many are, the next ones are.
	const half = selectLows / 2
	next := min(max(since, 0), surveyLows-selectLows)
	for i := range min(known, next+selectLows) {
		if i < half || i >= next+half {
			s.lows = append(s.lows, v.lows[i].Load())
		}
	}
}

// overlook weighs every backend. It leaves none of them as a candidate.
func (r *Router) overlook(s *Scene, turn uint64) {
	s.stageAll()
	n := len(s.Candidates)
	s.overview, s.lows = overview{eligible: n}, s.lows[:0]
	if n == 0 {
		return
	}
	r.infer(s)
	s.foresee()
	o := &s.outsight
	o.weigh(s)
	sum := 0.0
	cold := int64(s.Now) < r.coldUntil.Load()
	s.ranks = s.ranks[:0]
	for i := range s.Candidates {
		c := &s.Candidates[i]
		sum += c.queue
		c.Cost = c.queue/o.rateSeen(s, c) + c.Overdue + s.memoryWait(c) + crowding*s.outlook.mean*c.crowd/c.Weight
		if cold && r.warmth(c.slot, s.Now) < 1 {
			c.Cost += coldLast
		}
		s.ranks = append(s.ranks, -c.Cost)
	}
	s.overview.crowd, s.overview.queue, s.overview.mean = o.crowd, o.queue, sum/float64(n)
	least := min(n, surveyLows)
	s.findLows(-nthLargest(s.ranks, least-1), least, int(turn%uint64(n)))
	s.Candidates = s.Candidates[:0]
}

// findLows lists so many candidates whose cost is at most bound, the cheapest first. Of those that cost exactly as much it takes the first
// behind a place that changes: in an idle fleet all do.
func (s *Scene) findLows(bound float64, least, from int) {
	for i := range s.Candidates {
		if s.Candidates[i].Cost < bound {
			s.lows = append(s.lows, int32(i))
		}
	}
	for i := 0; i < len(s.Candidates) && len(s.lows) < least; i++ {
		if at := (from + i) % len(s.Candidates); s.Candidates[at].Cost == bound {
			s.lows = append(s.lows, int32(at))
		}
	}
	slices.SortStableFunc(s.lows, func(a, b int32) int { return cmp.Compare(s.Candidates[a].Cost, s.Candidates[b].Cost) })
	for i, at := range s.lows {
		s.lows[i] = s.Candidates[at].at
	}
}

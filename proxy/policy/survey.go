package policy

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
)

const (
	// A survey is due after surveyPicks decisions or surveyAge ms. Until then a node adds at most
	// one request to a quarter of the smallest large pool.
	surveyPicks, surveyAge = 64, 100
	// surveyLows: each decision uses up one, and the last before the next survey still needs
	// selectLows.
	surveyLows = 2 * surveyPicks
	// coldLast ranks backends in slow start last, which look idle but turn most requests away.
	coldLast = 1e6
)

// survey caches figures over a large pool. Readers may briefly mix two surveys, which is harmless.
type survey struct {
	picks  atomic.Uint64
	due    atomic.Uint64 // value of picks at the next survey; 0 before the first
	until  atomic.Int64  // ms; time of the next survey
	taking atomic.Bool

	eligible     atomic.Int64
	crowd, queue atomic.Uint64 // levels of outsight.weigh, float64 bits
	mean         atomic.Uint64 // mean queue, float64 bits
	known        atomic.Int64
	lows         [surveyLows]atomic.Int32
}

type overview struct {
	eligible int // backends that are not avoided
	crowd    float64
	queue    float64
	mean     float64 // mean expected queue, prefill tokens
}

// look loads the survey and reports whether any backend is eligible. When due, one decision renews
// it.
func (v *survey) look(r *Router, s *Scene) bool {
	turn := v.picks.Load() + 1
	if !s.peek {
		turn = v.picks.Add(1)
	}
	s.turn = turn
	due := v.due.Load()
	stale := turn >= due || int64(s.Now) >= v.until.Load()
	claimed := stale && !s.peek && v.taking.CompareAndSwap(false, true)
	// Before the first survey every decision makes its own; Explain does when Pick would.
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

// recall loads the survey; the since later decisions have used up its least loaded backends.
func (v *survey) recall(s *Scene, since int64) {
	s.overview = overview{
		eligible: int(v.eligible.Load()), crowd: math.Float64frombits(v.crowd.Load()),
		queue: math.Float64frombits(v.queue.Load()), mean: math.Float64frombits(v.mean.Load()),
	}
	known := v.known.Load()
	s.lows = s.lows[:0]
	// The first stay best if few are idle, the next ones if many are: half of each.
	const half = selectLows / 2
	next := min(max(since, 0), surveyLows-selectLows)
	for i := range min(known, next+selectLows) {
		if i < half || i >= next+half {
			s.lows = append(s.lows, v.lows[i].Load())
		}
	}
}

// overlook surveys every backend and leaves no candidates.
func (r *Router) overlook(s *Scene, turn uint64) {
	s.stageAll()
	n := len(s.Candidates)
	s.overview, s.lows = overview{eligible: n}, s.lows[:0]
	if n == 0 {
		return
	}
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

// findLows lists the cheapest candidates up to bound. Ties start at a changing position, because an
// idle fleet ties.
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

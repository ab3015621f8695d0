package policy

import (
	"cmp"
	"slices"
	"sync/atomic"

	"grapevine/prefixtree"
)

const (
	// Until stats are due, after statsPicks decisions or statsAge ms, a node adds at most one
	// request to a quarter of the smallest large pool.
	statsPicks, statsAge = 64, 100
	statsLows            = 2 * statsPicks // each decision uses up one, and the last needs selectLows
	coldLast             = 1e6            // backends in slow start look idle but turn most requests away
)

// statsOf keeps the latest stats. Safe for concurrent use.
type statsOf struct {
	picks  atomic.Uint64
	latest atomic.Pointer[poolStats]
	taking atomic.Bool
}

// poolStats are figures over a large pool at one decision; immutable.
type poolStats struct {
	turn         uint64 // number of that decision
	at           prefixtree.Time
	eligible     int     // backends that are not avoided
	crowd, queue float64 // water levels; see staleness.weigh
	mean         float64 // mean expected queue, prefill tokens
	lows         []int32 // entries of the least loaded backends, in order
}

// look returns the stats for a decision, which renews them when due. Explain keeps nothing.
func (o *statsOf) look(r *Router, s *Scene) *poolStats {
	s.turn = o.picks.Load() + 1
	if !s.peek {
		s.turn = o.picks.Add(1)
	}
	st := o.latest.Load()
	due := st == nil || s.turn >= st.turn+statsPicks || s.Now >= st.at+statsAge
	claimed := due && !s.peek && o.taking.CompareAndSwap(false, true)
	if !claimed && st != nil && !(due && s.peek) {
		return st
	}
	st = r.survey(s)
	if claimed {
		o.latest.Store(st)
		o.taking.Store(false)
	}
	return st
}

func (r *Router) survey(s *Scene) *poolStats {
	s.stageAll()
	st := &poolStats{turn: s.turn, at: s.Now, eligible: len(s.Candidates)}
	if st.eligible == 0 {
		return st
	}
	s.foresee()
	o := &s.unseen
	o.weigh(s)
	cold := int64(s.Now) < r.coldUntil.Load()
	s.ranks = s.ranks[:0]
	for i := range s.Candidates {
		c := &s.Candidates[i]
		st.mean += c.queue / float64(st.eligible)
		c.Cost = c.queue/o.rateSeen(s, c) + c.Overdue + s.memoryWait(c) + crowding*s.traffic.mean*c.crowd/c.weight
		if cold && r.warmth(c.slot, s.Now) < 1 {
			c.Cost += coldLast
		}
		s.ranks = append(s.ranks, -c.Cost)
	}
	st.crowd, st.queue = o.crowd, o.queue
	least := min(st.eligible, statsLows)
	st.lows = s.cheapest(-nthLargest(s.ranks, least-1), least)
	s.Candidates = s.Candidates[:0]
	return st
}

// cheapest returns the cheapest entries up to bound, in order. Ties start at a changing position:
// an idle fleet ties.
func (s *Scene) cheapest(bound float64, least int) []int32 {
	list := make([]int32, 0, least)
	for i := range s.Candidates {
		if s.Candidates[i].Cost < bound {
			list = append(list, int32(i))
		}
	}
	from := int(s.turn % uint64(len(s.Candidates)))
	for i := 0; i < len(s.Candidates) && len(list) < least; i++ {
		if at := (from + i) % len(s.Candidates); s.Candidates[at].Cost == bound {
			list = append(list, int32(at))
		}
	}
	slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(s.Candidates[a].Cost, s.Candidates[b].Cost) })
	for i, at := range list {
		list[i] = s.Candidates[at].at
	}
	return list
}

// left returns entries of little load: those that were best, which stay so if few are idle, and the
// next that earlier decisions have not used up.
func (st *poolStats) left(turn uint64) (best, next []int32) {
	const half = selectLows / 2
	best = st.lows[:min(half, len(st.lows))]
	used := half + int(min(max(turn, st.turn)-st.turn, statsLows-selectLows))
	return best, st.lows[min(used, len(st.lows)):min(used+half, len(st.lows))]
}

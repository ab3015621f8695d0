package policy

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"grapevine.example/prefixtree"
)

// ErrFull: the request may wait, and no open engine is worth more than to wait. Decision tells for which
// engine it would wait, and what engines hold of its prompt.
var ErrFull = errors.New("the engines are full")

// Gate says how much an engine may hold before requests that may wait do so at the router. The zero value
// of a field sets no such bound.
type Gate struct {
	// TTFT is the time that the prefill work outstanding at an engine may take.
	TTFT time.Duration
	// Waiting is how many requests may wait at an engine for their first token; by the engine's own
	// report, if it is not older than waitingLasts, how many wait for their prefill.
	Waiting int
	// InFlight is how many requests of the whole fleet an engine may hold.
	InFlight int
}

// A router with less than belowShare of the mean router's requests in flight is not given its share of the
// engines by the others, who refill what they have freed before it knows.
const belowShare = 0.75

// waitingLasts is how long an engine's report of waiting requests counts. Nodes read vLLM's every 5 s or less often, and most of what
// waited is computed before the next report: one that kept engines closed until then would leave them without work.
const waitingLasts = 1000 // ms

func (g *Gate) check() error {
	if g.TTFT < 0 || g.Waiting < 0 || g.InFlight < 0 {
		return fmt.Errorf("gate: TTFT %v, waiting %d, in flight %d: none may be negative", g.TTFT, g.Waiting, g.InFlight)
	}
	return nil
}

// growth is this node's load at an engine at the last two moments that are a staleness apart, and the most
// active requests that the other nodes had there since each. Other nodes know this node's load at the earlier
// moment, or a later one.
type growth struct {
	since   atomic.Int64 // ms
	active  [2]atomic.Int64
	charged [2]atomic.Int64
	peak    [2]atomic.Int64
}

// of returns by how much the load has grown since the other nodes last heard of it, at least 0, and the most
// requests that they had meanwhile: a node refills what it has freed before the others use it. Writers race
// for moments only; each stores what it has read.
func (g *growth) of(active, charged, others, staleness int64, now prefixtree.Time) (requests, tokens, peak int64) {
	if since := g.since.Load(); int64(now)-since >= staleness && g.since.CompareAndSwap(since, int64(now)) {
		g.active[0].Store(g.active[1].Load())
		g.charged[0].Store(g.charged[1].Load())
		g.peak[0].Store(g.peak[1].Load())
		if int64(now)-since >= 2*staleness {
			g.active[0].Store(active)
			g.charged[0].Store(charged)
			g.peak[0].Store(others)
		}
		g.active[1].Store(active)
		g.charged[1].Store(charged)
		g.peak[1].Store(others)
	}
	if others > g.peak[1].Load() {
		g.peak[1].Store(others)
	}
	return max(active-g.active[0].Load(), 0), max(charged-g.charged[0].Load(), 0), max(g.peak[0].Load(), g.peak[1].Load())
}

// load is what is known of an engine's load.
type load struct {
	queued, overdue, rate float64
	active                int64
}

// full reports whether an engine is closed to requests that may wait: by its queue and its active requests,
// as far as reports show, and by what other nodes have placed there since. Each of them is assumed to have
// placed as much as this one, and to have refilled what it freed, so that N nodes place at most N requests
// beyond the bound of those in flight. An extra request passes the bounds of prefill, not that one, if no
// other one of this node waits there for its first token.
func (r *Router) full(s *slot, l load, f *fleetState, extra bool, now prefixtree.Time) bool {
	g, active, pending := &r.tuning.Load().cfg.Gate, l.active, s.pending.Load()
	grown, most := int64(0), active
	if f.nodes > 1 && f.staleness > 0 {
		own := s.active.Load()
		requests, tokens, peak := s.growth.of(own, s.charged.Load(), s.peerActive.Load(), min(f.staleness, maxStaleness), now)
		requests *= int64(f.nodes - 1)
		active += requests
		most = max(active, own+peak+requests)
		grown = tokens * int64(f.nodes-1)
	}
	if g.InFlight > 0 && most >= int64(g.InFlight) {
		return true
	}
	if extra && pending == 0 {
		return false
	}
	if g.TTFT > 0 && (l.queued+float64(grown))/l.rate+l.overdue >= g.TTFT.Seconds() {
		return true
	}
	if g.Waiting == 0 {
		return false
	}
	if pending > 0 { // those of other nodes are taken to be as long
		pending += s.peerTokens.Load() * pending / max(s.charged.Load(), 1)
	}
	if t := s.telemetry.Load(); t != nil && int64(now-t.At) <= waitingLasts {
		pending = max(pending, int64(t.Waiting)-max(t.all-active, 0)) // some may have left; requests that came since count in pending
	}
	return pending >= int64(g.Waiting)
}

// Open reports whether a backend takes requests that may wait, at least those that are First.
func (r *Router) Open(b prefixtree.Backend, now prefixtree.Time) bool {
	s := r.table.Load().slot(b)
	if s == nil {
		return false
	}
	l := load{rate: s.rateOr(r.rate.load()), active: s.active.Load() + s.peerActive.Load()}
	l.queued, l.overdue = s.queued(now, l.rate)
	l.queued += float64(s.peerTokens.Load())
	return !r.full(s, l, r.fleet.Load(), true, now)
}

// Room is what the engines of a lane may hold of all routers, what they hold less, and what they hold of this one.
type Room struct {
	May, Free, Own float64
	Requests       bool // counted in requests in flight, else in prefill tokens before the first token
}

// Room returns the room of a lane by the bound that is nearest, TTFT or InFlight; false without both. What
// engines hold beyond a bound counts as room.
func (r *Router) Room(lane uint64) (room Room, bounded bool) {
	p, g := r.table.Load().poolOf(lane), &r.tuning.Load().cfg.Gate
	if p == nil || g.TTFT == 0 && g.InFlight == 0 {
		return Room{}, false
	}
	prior, ttft := r.rate.load(), g.TTFT.Seconds()
	var may, held, own, places, active, ownActive float64
	for i := range p.entries {
		s := p.entries[i].slot
		t, a := float64(s.charged.Load()), float64(s.active.Load())
		all, allActive := t+float64(s.peerTokens.Load()), a+float64(s.peerActive.Load())
		own, held, may = own+t, held+all, may+max(ttft*s.rateOr(prior), all)
		ownActive, active, places = ownActive+a, active+allActive, places+max(float64(g.InFlight), allActive)
	}
	if g.TTFT == 0 || g.InFlight > 0 && active*may > held*places {
		return Room{May: places, Free: places - active, Own: ownActive, Requests: true}, true
	}
	return Room{May: may, Free: may - held, Own: own}, true
}

// nearlyFull is the part of InFlight up to which an engine takes requests because it is dry. The last place is
// left to grants: otherwise routers that hold all places refill them at once, and one that starts finds none.
const nearlyFull = 0.9

// Dry reports whether a backend will have computed all prefill that is known of before this router hears
// what the others send it.
func (r *Router) Dry(b prefixtree.Backend, now prefixtree.Time) bool {
	s, g := r.table.Load().slot(b), &r.tuning.Load().cfg.Gate
	if s == nil || g.InFlight > 0 && float64(s.active.Load()+s.peerActive.Load()+1) > nearlyFull*float64(g.InFlight) {
		return false
	}
	rate := s.rateOr(r.rate.load())
	queued, _ := s.queued(now, rate)
	return (queued+float64(s.peerTokens.Load()))*1000 <= rate*float64(r.fleet.Load().staleness)
}

// close marks the candidates that are full. With a strategy that neither follows a key nor prices the
// wait, they leave, unless all are.
func (r *Router) close(s *Scene, strategy *named) {
	prices := false
	if _, prices = strategy.Strategy.(prefix); prices {
		s.hear()
	}
	f, open := r.fleet.Load(), 0
	extra := s.Request.First
	if f.nodes > 1 {
		var own, all int64
		for i := range s.Candidates {
			own += s.Candidates[i].OwnActive
			all += s.Candidates[i].Active
		}
		extra = extra || float64(own*int64(f.nodes)) < belowShare*float64(all)
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.full = r.full(c.slot, load{c.Queued, c.Overdue, c.Rate, c.Active}, f, extra, s.Now)
		if !c.full {
			open++
		}
	}
	s.open = open
	if _, follows := strategy.Strategy.(sticky); prices || follows || open == 0 {
		return
	}
	for i := len(s.Candidates) - 1; i >= 0; i-- {
		if s.Candidates[i].full {
			last := len(s.Candidates) - 1
			s.swap(i, last)
			s.Candidates = s.Candidates[:last]
		}
	}
}

// Parked is what a waiting request adds to the work that waits for a backend. The zero value: nothing.
type Parked struct {
	slot   *slot
	tokens int64
}

// Park counts a request as waiting for the backend of a decision, and no longer for that of an earlier one.
func (r *Router) Park(p *Parked, d *Decision) {
	p.Leave()
	if s := r.table.Load().slot(d.Backend); s != nil {
		p.slot, p.tokens = s, int64(d.UncachedTokens)
		s.parked.Add(p.tokens)
	}
}

// Leave takes the request out again.
func (p *Parked) Leave() {
	if p.slot != nil {
		p.slot.parked.Add(-p.tokens)
		p.slot = nil
	}
}

// aheadAtRouters returns the seconds of work that waits for a candidate before this request does. One that
// waits already is not behind those that wait for the same engine: the queue offers engines in its order.
func (s *Scene) aheadAtRouters(c *Candidate) float64 {
	if s.gated && !s.Request.Waited {
		return min(c.parked, s.behind())
	}
	return 0
}

// behind returns the seconds of the client's work that waits at the routers.
func (s *Scene) behind() float64 {
	if !s.gated {
		return 0
	}
	return float64(s.Request.Behind) / s.FleetRate
}

// shut keeps what no cache holds from engines that are full: those of the hot prefix's set, or, if none of
// them is open, others.
func (s *Scene) shut() {
	if s.open == 0 {
		return
	}
	inside := false
	for i := range s.Candidates {
		c := &s.Candidates[i]
		inside = inside || !c.full && !c.outside
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.outside = c.full || inside && c.outside
	}
}

// Lane returns a number of the engines that can serve the request: those of its model and of the pool of
// its rule, or of the fallback if the pool has none. False: there are none. Requests of one lane wait for
// the same engines.
func (r *Router) Lane(q *Request) (uint64, bool) {
	t := r.table.Load()
	route := t.routeOf(q)
	p, err := t.partFor(route.Pool, q)
	if err != nil && route.Fallback != "" {
		p, err = t.partFor(route.Fallback, q)
	}
	if err != nil {
		return 0, false
	}
	return p.lane, true
}

// Serves reports whether a backend is one of a lane.
func (r *Router) Serves(b prefixtree.Backend, lane uint64) bool {
	p := r.table.Load().poolOf(lane)
	return p != nil && p.entryOf(b) >= 0
}

// poolOf returns a pool with the engines of a lane; nil if there is none any more.
func (t *table) poolOf(lane uint64) *pool {
	for _, p := range t.pools {
		if p.lane == lane {
			return p
		}
		if p.parts != nil {
			for _, part := range p.parts.of {
				if part.lane == lane {
					return part
				}
			}
		}
	}
	return nil
}

// Backends appends the backends of a lane; none if the pool with these backends is gone.
func (r *Router) Backends(dst []prefixtree.Backend, lane uint64) []prefixtree.Backend {
	if p := r.table.Load().poolOf(lane); p != nil {
		for i := range p.entries {
			dst = append(dst, p.entries[i].id)
		}
	}
	return dst
}

// laneOf is a hash of the pool's engines.
func laneOf(entries []entry) uint64 {
	h := uint64(math.MaxUint64)
	for i := range entries {
		h = mix(h ^ entries[i].key)
	}
	return h
}

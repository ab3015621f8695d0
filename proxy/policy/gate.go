package policy

import (
	"errors"
	"fmt"
	"math"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
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
func (r *Router) full(e *books.Engine, l load, f *fleetState, extra bool, now prefixtree.Time) bool {
	g, active, pending := &r.tuning.Load().cfg.Gate, l.active, e.Pending()
	grown, most := int64(0), active
	if f.nodes > 1 && f.staleness > 0 {
		requests, tokens, peak := e.Grown(min(f.staleness, maxStaleness), now)
		requests *= int64(f.nodes - 1)
		active += requests
		most = max(active, e.Active()+peak+requests)
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
		pending += e.PeerTokens() * pending / max(e.Charged(), 1)
	}
	if t := e.Report(); t != nil && int64(now-t.At) <= waitingLasts {
		pending = max(pending, int64(t.Waiting)-max(t.All-active, 0)) // some may have left; requests that came since count in pending
	}
	return pending >= int64(g.Waiting)
}

// Open reports whether a backend takes requests that may wait, at least those that are First.
func (r *Router) Open(b prefixtree.Backend, now prefixtree.Time) bool {
	e := r.table.Load().engine(b)
	if e == nil {
		return false
	}
	l := load{rate: e.RateOr(r.books.FleetRate()), active: e.Active() + e.PeerActive()}
	l.queued, l.overdue = e.Queued(now, l.rate)
	l.queued += float64(e.PeerTokens())
	return !r.full(e, l, r.fleet.Load(), true, now)
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
	prior, ttft := r.books.FleetRate(), g.TTFT.Seconds()
	var may, held, own, places, active, ownActive float64
	for i := range p.entries {
		e := p.entries[i].engine
		t, a := float64(e.Charged()), float64(e.Active())
		all, allActive := t+float64(e.PeerTokens()), a+float64(e.PeerActive())
		own, held, may = own+t, held+all, may+max(ttft*e.RateOr(prior), all)
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
	e, g := r.table.Load().engine(b), &r.tuning.Load().cfg.Gate
	if e == nil || g.InFlight > 0 && float64(e.Active()+e.PeerActive()+1) > nearlyFull*float64(g.InFlight) {
		return false
	}
	rate := e.RateOr(r.books.FleetRate())
	queued, _ := e.Queued(now, rate)
	return (queued+float64(e.PeerTokens()))*1000 <= rate*float64(r.fleet.Load().staleness)
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
		c.full = r.full(c.engine, load{c.Queued, c.Overdue, c.Rate, c.Active}, f, extra, s.Now)
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

// Park counts a request as waiting for the backend of a decision, and no longer for that of an earlier one.
func (r *Router) Park(p *books.Parked, d *Decision) {
	p.Leave()
	if e := r.table.Load().engine(d.Backend); e != nil {
		p.Park(e, int64(d.UncachedTokens))
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

package queue

import (
	"cmp"
	"math"
	"slices"
	"time"

	"grapevine/proxy/clients"
	"grapevine/proxy/policy"
)

// Claim is what waits at one router of one client's requests with one priority, in one lane.
type Claim struct {
	Lane     uint64
	Client   uint32 // hash of the name
	Priority clients.Priority
	Weight   float64 // of the client
	Tokens   float64 // that engines are expected to compute of the prompts
	Requests float64
}

// MaxClaims bounds the claims of one router that count: its first clients in fair order.
const MaxClaims = 256

// A grant lasts until it is computed anew, at most this often; what is taken meanwhile is subtracted.
const grantEvery = 10 * time.Millisecond

// Claims appends what waits, in any order of lanes, at most MaxClaims.
func (q *Queue) Claims(dst []Claim) []Claim {
	most := len(dst) + MaxClaims
	for _, l := range q.lanes {
		for p := bands - 1; p >= 0; p-- {
			for _, f := range l.bands[p].order {
				if len(dst) == most {
					return dst
				}
				dst = append(dst, Claim{l.key, f.hash, clients.Priority(p), f.weight, f.prefill, float64(f.requests)})
			}
		}
	}
	return dst
}

type claimKey struct {
	lane     uint64
	client   uint32
	priority clients.Priority
}

// peers holds the claims of the other routers, and their sums.
type peers struct {
	byOrigin map[string][]Claim
	sum      map[claimKey]*peerSum
}

type peerSum struct {
	Claim
	round int // of the last grant in which this router has a claim, too
}

// SetPeer replaces another router's claims; none: nothing waits there, or it is gone.
func (q *Queue) SetPeer(origin string, claims []Claim) {
	p := &q.peers
	if p.byOrigin == nil {
		p.byOrigin, p.sum = make(map[string][]Claim), make(map[claimKey]*peerSum)
	}
	held := p.byOrigin[origin]
	for i := range held {
		p.add(&held[i], -1)
	}
	if held = held[:0]; len(claims) == 0 {
		delete(p.byOrigin, origin)
		return
	}
	for _, c := range claims[:min(len(claims), MaxClaims)] {
		if c.Tokens > 0 && c.Requests >= 1 && c.Weight > 0 && int(c.Priority) < bands {
			p.add(&c, 1)
			held = append(held, c)
		}
	}
	p.byOrigin[origin] = held
}

func (p *peers) add(c *Claim, sign float64) {
	k := claimKey{c.Lane, c.Client, c.Priority}
	s := p.sum[k]
	if s == nil {
		s = &peerSum{Claim: Claim{Lane: c.Lane, Client: c.Client, Priority: c.Priority}}
		p.sum[k] = s
	}
	s.Weight = c.Weight
	s.Tokens += sign * c.Tokens
	if s.Requests += sign * c.Requests; s.Requests < 1 {
		delete(p.sum, k)
	}
}

// Contended reports whether requests wait at other routers.
func (q *Queue) Contended() bool { return len(q.peers.sum) > 0 }

// grant is how much of a lane's engines this router may take.
type grant struct {
	limited  bool // requests wait at other routers
	requests bool // left counts requests, else prefill tokens
	left     float64
	part     float64 // of the fleet's: this router's
	until    time.Duration
}

// demand is what waits of one client in the fleet, and here.
type demand struct {
	all, here, weight float64
}

// Grant divides what the engines of a lane may hold among the routers at which requests wait, by what waits
// where; see DESIGN.md. bounded is false if the engines have no bound that can be divided.
func (q *Queue) Grant(lane uint64, room policy.Room, bounded bool, now time.Duration) {
	l := q.lanes[lane]
	if l == nil || now < l.grant.until {
		return
	}
	g := &l.grant
	*g = grant{limited: bounded && q.Contended(), requests: room.Requests, until: now + grantEvery}
	if !g.limited {
		for p := range l.bands {
			for _, f := range l.bands[p].order {
				f.part = 1
			}
		}
		return
	}
	q.gather(l, room.Requests)
	rest, mine := room.May, 0.0
	for p := bands - 1; p >= 0; p-- {
		kept := 0.0
		for lower := range p {
			kept += min(leastShare*room.May, q.wants[lower])
		}
		got := min(q.wants[p], max(rest-kept, 0))
		rest -= got
		mine += received(q.demands[p], got)
	}
	g.left, g.part = mine-room.Own, min(mine/room.May, 1)
}

// gather sets the demands of all clients that wait in a lane, by priority, and their sums.
func (q *Queue) gather(l *lane, requests bool) {
	measure := func(tokens, n float64) float64 {
		if requests {
			return n
		}
		return tokens
	}
	q.round++
	for p := range l.bands {
		q.demands[p], q.wants[p] = q.demands[p][:0], 0
		for _, f := range l.bands[p].order {
			here := measure(f.prefill, float64(f.requests))
			d := demand{here, here, f.weight}
			if s := q.peers.sum[claimKey{l.key, f.hash, clients.Priority(p)}]; s != nil {
				s.round = q.round
				d.all += measure(s.Tokens, s.Requests)
			}
			f.part = d.here / d.all
			q.demands[p], q.wants[p] = append(q.demands[p], d), q.wants[p]+d.all
		}
	}
	for k, s := range q.peers.sum {
		if k.lane == l.key && s.round != q.round {
			d := demand{measure(s.Tokens, s.Requests), 0, s.Weight}
			q.demands[k.priority], q.wants[k.priority] = append(q.demands[k.priority], d), q.wants[k.priority]+d.all
		}
	}
}

// received returns what this router gets of an amount that fills the clients by weight, none beyond its
// demand, and within a client by where its requests wait. It sorts the demands.
func received(demands []demand, amount float64) (here float64) {
	slices.SortFunc(demands, func(a, b demand) int {
		return cmp.Or(cmp.Compare(a.all/a.weight, b.all/b.weight), cmp.Compare(a.here, b.here), cmp.Compare(a.weight, b.weight))
	})
	weight := 0.0
	for i := range demands {
		weight += demands[i].weight
	}
	for i := range demands {
		d := &demands[i]
		got := min(d.all, amount*d.weight/weight)
		here += got * d.here / d.all
		amount, weight = max(amount-got, 0), weight-d.weight
	}
	return here
}

// may reports whether the router may take a place at an engine.
func (g *grant) may(dry bool) bool { return !g.limited || g.left > 0 || dry }

func (g *grant) took(w *Waiter) {
	if g.requests {
		g.left--
	} else {
		g.left -= w.Prefill
	}
}

// window returns among how many requests the best match is taken, and how often one is passed over. All
// routers together take it among as many as one router does.
func (g *grant) window() (requests, passed int) {
	if !g.limited {
		return Window, MaxPassed
	}
	return max(int(math.Ceil(Window*g.part)), tries), max(int(math.Round(MaxPassed*g.part)), 1)
}

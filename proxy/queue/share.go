package queue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
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

// A grant is computed anew so often, and what is taken meanwhile is subtracted: at once when a client begins
// to wait among few others, and more rarely among many, so that it takes less than a fiftieth of a processor.
const (
	grantEvery     = 10 * time.Millisecond
	grantPerClient = 40 * time.Microsecond
	fewClients     = 64
)

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

// claimSize is the bytes of a claim between routers: lane u64, client u32, priority u8, weight f32, tokens u32,
// requests u32, little-endian. A byte with the size precedes the claims; later versions may append fields.
const claimSize = 25

// ErrClaims: the bytes are no claims.
var ErrClaims = errors.New("malformed claims")

// AppendClaims appends the bytes of claims; nothing for none.
func AppendClaims(dst []byte, claims []Claim) []byte {
	if len(claims) == 0 {
		return dst
	}
	dst = append(dst, claimSize)
	for i := range claims {
		c := &claims[i]
		dst = binary.LittleEndian.AppendUint64(dst, c.Lane)
		dst = binary.LittleEndian.AppendUint32(dst, c.Client)
		dst = append(dst, byte(c.Priority))
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(c.Weight)))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(min(c.Tokens, math.MaxUint32)))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(min(c.Requests, math.MaxUint32)))
	}
	return dst
}

// ParseClaims reads at most MaxClaims claims. Errors wrap ErrClaims.
func ParseClaims(b []byte) (claims []Claim, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	size := int(b[0])
	if b = b[1:]; size < claimSize || len(b)%size != 0 {
		return nil, fmt.Errorf("%w: %d bytes in claims of %d", ErrClaims, len(b), size)
	}
	for ; len(b) > 0 && len(claims) < MaxClaims; b = b[size:] {
		claims = append(claims, Claim{
			Lane: binary.LittleEndian.Uint64(b), Client: binary.LittleEndian.Uint32(b[8:]), Priority: clients.Priority(b[12]),
			Weight:   float64(math.Float32frombits(binary.LittleEndian.Uint32(b[13:]))),
			Tokens:   float64(binary.LittleEndian.Uint32(b[17:])),
			Requests: float64(binary.LittleEndian.Uint32(b[21:])),
		})
	}
	return claims, nil
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
		if c.valid() {
			p.add(&c, 1)
			held = append(held, c)
		}
	}
	p.byOrigin[origin] = held
}

func (c *Claim) valid() bool {
	return c.Tokens > 0 && c.Requests >= 1 && c.Weight > 0 && c.Weight <= clients.MaxWeight && int(c.Priority) < bands
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

// waiting returns the prefill tokens of a client's requests that wait at the other routers.
func (p *peers) waiting(lane uint64, priority clients.Priority, client uint32) float64 {
	if s := p.sum[claimKey{lane, client, priority}]; s != nil {
		return s.Tokens
	}
	return 0
}

// Contended reports whether requests wait at other routers.
func (q *Queue) Contended() bool { return len(q.peers.sum) > 0 }

// grant is how much of a lane's engines this router may take.
type grant struct {
	shared   bool // requests wait at other routers
	limited  bool // so they do, and there is no room for all
	clients  int  // that wait in the fleet
	requests bool // left counts requests, else prefill tokens
	left     float64
	part     float64 // of the fleet's: this router's
	until    time.Duration
}

// demand is what waits of one client in the fleet, and here.
type demand struct {
	all, here, weight float64
	flow              *flow // nil: nothing waits here
}

// GrantDue reports whether a lane's grant is to be computed anew.
func (q *Queue) GrantDue(lane uint64, now time.Duration) bool {
	l := q.lanes[lane]
	return l != nil && now >= l.grant.until && (l.grant.shared || q.Contended())
}

// Grant divides what the engines of a lane may hold among the routers at which requests wait, by what waits
// where; see DESIGN.md. bounded is false if the engines have no bound that can be divided.
func (q *Queue) Grant(lane uint64, room policy.Room, bounded bool, now time.Duration) {
	l := q.lanes[lane]
	if l == nil {
		return
	}
	elsewhere := q.gather(l, room.Requests)
	wants, clients := 0.0, 0
	for p := range bands {
		wants, clients = wants+q.wants[p], clients+len(q.demands[p])
	}
	g := &l.grant
	*g = grant{
		shared: elsewhere, limited: bounded && elsewhere && wants > room.Free, clients: clients, requests: room.Requests,
		until: now + max(grantEvery, time.Duration(clients)*grantPerClient),
	}
	if !g.limited {
		return
	}
	// All that waits may be less than the engines hold; then the parts of what waits are those of what they hold.
	amount := min(room.May, wants)
	rest, mine := amount, 0.0
	for p := bands - 1; p >= 0; p-- {
		kept := 0.0
		for lower := range p {
			kept += min(leastShare*amount, q.wants[lower])
		}
		got := min(q.wants[p], max(rest-kept, 0))
		rest -= got
		mine += received(q.demands[p], got)
	}
	g.part = mine / amount
	g.left = room.May*g.part - room.Own
}

// gather sets the demands of all clients that wait in a lane, by priority, and their sums, and reports
// whether requests of the lane wait at other routers.
func (q *Queue) gather(l *lane, requests bool) (elsewhere bool) {
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
			d := demand{here, here, f.weight, f}
			if s := q.peers.sum[claimKey{l.key, f.hash, clients.Priority(p)}]; s != nil {
				s.round, elsewhere = q.round, true
				d.all += measure(s.Tokens, s.Requests)
			}
			f.part = d.here / d.all
			q.demands[p], q.wants[p] = append(q.demands[p], d), q.wants[p]+d.all
		}
	}
	for k, s := range q.peers.sum {
		if k.lane == l.key && s.round != q.round {
			elsewhere = true
			d := demand{measure(s.Tokens, s.Requests), 0, s.Weight, nil}
			q.demands[k.priority], q.wants[k.priority] = append(q.demands[k.priority], d), q.wants[k.priority]+d.all
		}
	}
	return elsewhere
}

// received returns what this router gets of an amount that fills the clients by weight, none beyond its
// demand, and within a client by where its requests wait. It sorts the demands, and notes which clients get all.
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
		if d.flow != nil {
			d.flow.whole = got == d.all
		}
		amount, weight = max(amount-got, 0), weight-d.weight
	}
	return here
}

// may reports whether the router may take a place at an engine for any client.
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

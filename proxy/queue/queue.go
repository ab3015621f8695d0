// Package queue orders requests that wait at a router until an engine is open: by priority, fairly
// among clients, and by what the engine's cache holds of them. It starts no goroutine and reads no
// clock. It does not know which engines are open: its caller offers them. See DESIGN.md.
package queue

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
)

// Limits bound a queue. All must be above 0.
type Limits struct {
	Requests int
	Bytes    int64         // of the bodies that the requests hold
	Wait     time.Duration // of one request
}

const (
	// Window is the number of requests, first in the fair order, among which the best match is taken.
	Window = 32
	// MaxPassed is how often a request is passed over for a better match.
	MaxPassed = 8
	// tries bounds the requests that one offer asks.
	tries = 4
	// again is how long a request that declined an engine is offered only the one that it waits for.
	again = 100 * time.Millisecond
	// leastShare is what a priority gets of the work and of the places while higher ones take all.
	leastShare = 0.05
	// maxEvicted bounds the requests that give way to one.
	maxEvicted = 16
)

var (
	// ErrFull: the bounds are reached, and no client has a larger share of the places.
	ErrFull = errors.New("the queue is full")
	// ErrLate: the request cannot be served within its deadline.
	ErrLate = errors.New("the request cannot be served before its deadline")
	// ErrLimits is wrapped by every error of New.
	ErrLimits = errors.New("invalid limits of the queue")
)

// Holder is an engine that holds a part of a waiting request's prompt.
type Holder struct {
	Engine int32
	Tokens float64
}

// MaxHolders bounds the holders of a request that count.
const MaxHolders = 8

// Waiter is one waiting request. The caller fills the exported fields and leaves them alone from Push
// until the waiter leaves the queue, except from within an offer.
type Waiter struct {
	Lane     uint64 // requests of one lane can use the same engines
	Client   string
	Weight   float64 // of the client; above 0
	Priority clients.Priority
	Bytes    int64
	Prefill  float64       // tokens that an engine is expected to compute of the prompt; above 0
	Output   float64       // tokens expected of the answer
	Deadline time.Duration // latest time to leave the queue; 0: Limits.Wait from Push
	Holders  [MaxHolders]Holder
	Wants    int32 // the engine that it waits for, although others may be open; -1: any
	User     any   // the caller's
	// Returns: it had its turn, and its engine failed. Failed are the engines that failed it, which it is not offered.
	Returns bool
	Failed  []int32
	Waited  time.Duration // before
	Paid    float64       // what took charged its client for it, in tokens per weight; Push gives it back

	flow       *flow
	prev, next *Waiter // of the same flow
	since      time.Duration
	until      time.Duration
	quiet      time.Duration // until then, only Wants is offered
	passed     int
	place      int // in the heap of deadlines
}

// Hold takes over what engines hold of the prompt, and for which one the request would wait.
func (w *Waiter) Hold(d *policy.Decision) {
	w.Wants = int32(d.Backend)
	w.Holders = [MaxHolders]Holder{}
	for i := range d.Candidates[:min(len(d.Candidates), MaxHolders)] {
		c := &d.Candidates[i]
		w.Holders[i] = Holder{int32(c.Backend), c.HeldTokens}
	}
}

func (w *Waiter) cost() float64 { return w.Prefill + w.Output }

// Since returns when the request began to wait.
func (w *Waiter) Since() time.Duration { return w.since }

// Queue holds the waiting requests of one router. Not safe for concurrent use.
type Queue struct {
	limits  Limits
	lanes   map[uint64]*lane
	held    [bands]usage
	crowds  [bands]crowd
	all     usage
	due     deadlines
	drain   drain
	outputs outputs
	evicted []*Waiter
	window  []*Waiter
	peers   peers
	round   int             // of grants
	demands [bands][]demand // of the last grant
	wants   [bands]float64  // their sums
}

const bands = int(clients.Interactive) + 1

type usage struct {
	requests int
	bytes    int64
	work     float64 // cost, in tokens
	prefill  float64
}

func (u *usage) add(w *Waiter, sign int) {
	u.requests += sign
	u.bytes += int64(sign) * w.Bytes
	u.work += float64(sign) * w.cost()
	if u.prefill += float64(sign) * w.Prefill; u.requests == 0 {
		u.work, u.prefill = 0, 0 // no rounding errors are left
	}
}

// lane is the queue for one set of engines.
type lane struct {
	key   uint64
	bands [bands]band
	count int
	grant grant
}

// Check returns what is wrong with the limits.
func (l Limits) Check() error {
	if l.Requests < 1 || l.Bytes < 1 || l.Wait <= 0 {
		return fmt.Errorf("%w: %d requests, %d bytes and %v: each must be above 0", ErrLimits, l.Requests, l.Bytes, l.Wait)
	}
	return nil
}

// New returns an empty queue.
func New(l Limits) (*Queue, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	return &Queue{limits: l, lanes: make(map[uint64]*lane), window: make([]*Waiter, 0, Window)}, nil
}

// SetLimits replaces the limits. l must be above 0; requests that wait stay, and keep their deadlines.
func (q *Queue) SetLimits(l Limits) {
	q.limits = l
	for p := range q.crowds {
		for _, f := range q.crowds[p] {
			f.share = q.share(f.requests, f.bytes, f.weight)
		}
		heap.Init(&q.crowds[p])
	}
}

// Len returns the number of waiting requests.
func (q *Queue) Len() int { return q.all.requests }

// Waiting reports whether requests wait in a lane.
func (q *Queue) Waiting(lane uint64) bool { return q.lanes[lane] != nil }

// Lanes appends the lanes in which requests wait, in any order.
func (q *Queue) Lanes(dst []uint64) []uint64 {
	for key := range q.lanes {
		dst = append(dst, key)
	}
	return dst
}

// Behind returns the prefill tokens of a client's requests that wait in a lane, at all routers, and whether none
// does at this one, nor one of a higher priority.
func (q *Queue) Behind(lane uint64, p clients.Priority, client string) (prefill float64, first bool) {
	l := q.lanes[lane]
	prefill = q.peers.waiting(lane, p, clients.NameKey(client))
	if l == nil {
		return prefill, true
	}
	if f := l.bands[p].flows[client]; f != nil && f.first != nil {
		return prefill + f.prefill, false
	}
	return prefill, l.highest(p)
}

// BehindOf returns the prefill tokens of the other waiting requests of w's client, at all routers, and whether no
// higher priority waits and those here are less, per weight, than half of the mean of the clients that wait with its
// priority or lower ones. w must wait.
func (q *Queue) BehindOf(w *Waiter) (prefill float64, first bool) {
	l, f := q.lanes[w.Lane], w.flow
	prefill = f.prefill - w.Prefill + q.peers.waiting(w.Lane, w.Priority, f.hash)
	if !l.highest(w.Priority) {
		return prefill, false
	}
	work, weight := 0.0, 0.0
	for p := range int(w.Priority) + 1 {
		work, weight = work+l.bands[p].prefill, weight+l.bands[p].weight
	}
	return prefill, f.requests == 1 || f.prefill/f.weight <= work/weight/2
}

func (l *lane) highest(p clients.Priority) bool {
	for p++; int(p) < bands; p++ {
		if len(l.bands[p].order) > 0 {
			return false
		}
	}
	return true
}

// Usage returns the requests, and the bytes of their bodies, that wait with a priority.
func (q *Queue) Usage(p clients.Priority) (requests int, bytes int64) {
	return q.held[p].requests, q.held[p].bytes
}

// Push adds a request. Those that must give way to it, since their clients hold more of the places, have
// left the queue; the slice is valid until the next Push. Errors: ErrFull and ErrLate, after which
// requests may have given way as well. A request that returns becomes the first of its client, which has paid
// for no engine; what gives way may then be a later one of the same client.
func (q *Queue) Push(w *Waiter, now time.Duration) (evicted []*Waiter, err error) {
	w.since, w.quiet, w.passed, w.prev, w.next = now, 0, 0, nil, nil
	if w.until = now + q.limits.Wait - w.Waited; w.Deadline > 0 {
		w.until = min(w.until, w.Deadline)
		if now+q.Expect(w, now) > w.Deadline {
			return nil, ErrLate
		}
	}
	q.evicted = q.evicted[:0]
	for !q.fits(w) {
		v := q.givesWay(w)
		if v == nil || len(q.evicted) == maxEvicted {
			return q.evicted, ErrFull
		}
		q.Remove(v)
		q.evicted = append(q.evicted, v)
	}
	q.place(w)
	q.drain.busy(now)
	return q.evicted, nil
}

func (q *Queue) place(w *Waiter) {
	l := q.lanes[w.Lane]
	if l == nil {
		l = &lane{key: w.Lane}
		q.lanes[w.Lane] = l
	}
	l.count++
	l.bands[w.Priority].push(w)
	if w.flow.requests == 1 && l.grant.clients <= fewClients {
		l.grant.until = 0 // another client, another share
	}
	q.crowded(w.Priority, w.flow, w.flow.requests-1)
	q.count(w, 1)
	heap.Push(&q.due, w)
}

// Move takes all requests out of a lane whose engines have changed, and puts each, in order of arrival,
// into the lane that to returns, where it keeps its deadline. It returns those without a lane, which have
// left the queue.
func (q *Queue) Move(lane uint64, to func(*Waiter) (lane uint64, ok bool)) (left []*Waiter) {
	l := q.lanes[lane]
	if l == nil {
		return nil
	}
	var all []*Waiter
	for p := range l.bands {
		for _, f := range l.bands[p].order {
			for w := f.first; w != nil; w = w.next {
				all = append(all, w)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *Waiter) int { return cmp.Compare(a.since, b.since) })
	for _, w := range all {
		q.Remove(w)
		next, ok := to(w)
		if !ok {
			left = append(left, w)
			continue
		}
		w.Lane, w.quiet = next, 0
		q.place(w)
	}
	return left
}

func (q *Queue) count(w *Waiter, sign int) {
	q.all.add(w, sign)
	q.held[w.Priority].add(w, sign)
}

// fits reports whether a place is left that is not reserved for lower priorities.
func (q *Queue) fits(w *Waiter) bool {
	requests, bytes := q.all.requests+1, q.all.bytes+w.Bytes
	for p := range w.Priority {
		requests += max(int(leastShare*float64(q.limits.Requests))-q.held[p].requests, 0)
		bytes += max(int64(leastShare*float64(q.limits.Bytes))-q.held[p].bytes, 0)
	}
	return requests <= q.limits.Requests && bytes <= q.limits.Bytes
}

// givesWay returns the newest request of the client with the greatest share of the places: of the lowest
// priority below w's that has more than is reserved for it, else of w's own if that share is greater than
// its client's would be. Nil if there is none.
func (q *Queue) givesWay(w *Waiter) *Waiter {
	for p := range w.Priority {
		h := &q.held[p]
		if float64(h.requests) > leastShare*float64(q.limits.Requests) || float64(h.bytes) > leastShare*float64(q.limits.Bytes) {
			return q.crowds[p][0].last
		}
	}
	requests, bytes := 1, w.Bytes
	if l := q.lanes[w.Lane]; l != nil {
		if f := l.bands[w.Priority].flows[w.Client]; f != nil {
			requests, bytes = requests+f.requests, bytes+f.bytes
		}
	}
	if len(q.crowds[w.Priority]) == 0 {
		return nil
	}
	f := q.crowds[w.Priority][0]
	if w.Returns {
		return f.last
	}
	if f.client == w.Client || f.share <= q.share(requests, bytes, w.Weight) {
		return nil
	}
	return f.last
}

// share is the larger one of a client's shares of places and of bytes (dominant resource fairness), per
// weight.
func (q *Queue) share(requests int, bytes int64, weight float64) float64 {
	return max(float64(requests)/float64(q.limits.Requests), float64(bytes)/float64(q.limits.Bytes)) / weight
}

// crowded puts a flow where its share belongs, after its requests changed.
func (q *Queue) crowded(p clients.Priority, f *flow, was int) {
	f.share = q.share(f.requests, f.bytes, f.weight)
	switch c := &q.crowds[p]; {
	case was == 0:
		heap.Push(c, f)
	case f.requests == 0:
		heap.Remove(c, f.rank)
	default:
		heap.Fix(c, f.rank)
	}
}

// Remove takes a request out whose client left, or whose time is up. False: it does not wait.
func (q *Queue) Remove(w *Waiter) bool {
	if w.flow == nil {
		return false
	}
	l, f := q.lanes[w.Lane], w.flow
	l.bands[w.Priority].remove(w)
	q.crowded(w.Priority, f, f.requests+1)
	heap.Remove(&q.due, w.place)
	q.count(w, -1)
	if l.count--; l.count == 0 {
		delete(q.lanes, l.key)
	}
	return true
}

// Expired removes and returns a request whose time is up; nil if there is none.
func (q *Queue) Expired(now time.Duration) *Waiter {
	if len(q.due) == 0 || q.due[0].until > now {
		return nil
	}
	w := q.due[0]
	q.Remove(w)
	return w
}

// Due returns when the next request's time is up.
func (q *Queue) Due() (at time.Duration, ok bool) {
	if len(q.due) == 0 {
		return 0, false
	}
	return q.due[0].until, true
}

// Offer gives an open engine to a request of the lane, and reports whether one took it. If requests wait at
// other routers, too, it does so within the lane's last Grant, or if the engine is dry, or to a client that is
// granted all that waits of it, with a request among the first in fair order. take decides where the request
// goes, and returns the tokens that it costs there; if it returns false, the request prefers to wait, and take
// has set Wants. A request that took an engine has left the queue. take must not change the queue.
func (q *Queue) Offer(lane uint64, engine int32, dry bool, now time.Duration, take func(*Waiter) (cost float64, ok bool)) bool {
	l := q.lanes[lane]
	if l == nil {
		return false
	}
	all := l.grant.may(dry)
	asked := 0
	first, passed := l.grant.window()
	order := l.byPriority()
	for k, p := range order {
		if p < 0 {
			break
		}
		b, most := &l.bands[p], first
		if k+1 < len(order) && order[k+1] >= 0 && order[k+1] < p {
			most = Window // requests that wait for other engines must not make room for lower priorities
		}
		q.window = b.window(q.window[:0], most, all)
		for ; asked < tries; asked++ {
			i := best(q.window[:min(first, len(q.window))], engine, passed, now)
			for at := first; i < 0 && at < len(q.window); at++ {
				if q.window[at].asks(engine, now) {
					i = at
				}
			}
			if i < 0 {
				break
			}
			w := q.window[i]
			cost, ok := take(w)
			if !ok {
				w.quiet = now + again
				q.window[i] = nil
				continue
			}
			for _, before := range q.window[:i] {
				if before.asks(engine, now) {
					before.passed++
				}
			}
			q.took(l, w, cost, now)
			return true
		}
	}
	return false
}

// best returns the first request that was passed over often enough, else the one of which the engine
// holds most, the earlier one of equals; -1 if none may be asked.
func best(window []*Waiter, engine int32, passed int, now time.Duration) int {
	at, most := -1, -1.0
	for i, w := range window {
		if !w.asks(engine, now) {
			continue
		}
		if w.passed >= passed {
			return i
		}
		if held := w.holds(engine); held > most {
			at, most = i, held
		}
	}
	return at
}

// asks reports whether the engine may be offered to w, which is nil if it just declined.
func (w *Waiter) asks(engine int32, now time.Duration) bool {
	return w != nil && (w.quiet <= now || w.Wants == engine) && !slices.Contains(w.Failed, engine)
}

func (w *Waiter) holds(engine int32) float64 {
	for i := range w.Holders {
		if h := &w.Holders[i]; h.Engine == engine && h.Tokens > 0 {
			return h.Tokens
		}
	}
	return 0
}

// byPriority returns the bands with requests in the order of service, -1 behind the last: those that
// are owed work, then by priority.
func (l *lane) byPriority() (order [bands]int) {
	n := 0
	for _, owed := range [...]bool{true, false} {
		for p := bands - 1; p >= 0; p-- {
			if b := &l.bands[p]; len(b.order) > 0 && b.isOwed() == owed {
				order[n] = p
				n++
			}
		}
	}
	for ; n < bands; n++ {
		order[n] = -1
	}
	return order
}

func (q *Queue) took(l *lane, w *Waiter, cost float64, now time.Duration) {
	own := &l.bands[w.Priority]
	own.owed = max(own.owed-cost, 0)
	for p := range w.Priority {
		if b := &l.bands[p]; len(b.order) > 0 {
			b.owed = min(b.owed+leastShare*cost, 2*b.order[0].first.cost())
		}
	}
	f := w.flow
	w.Paid = f.tags(cost)
	own.charge(f, w.Paid)
	l.grant.took(w)
	q.drain.took(w.cost(), now)
	q.Remove(w)
	if q.all.requests == 0 {
		q.drain.idle(now)
	}
}

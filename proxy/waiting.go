package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/queue"
)

// Queue lets requests wait until an engine is open.
type Queue struct {
	// Limits; zero: requests go to engines at once, until Retune gives limits.
	Limits queue.Limits
	// Router is the policy behind Picker, built with a policy.Gate. nil: no queue.
	Router *policy.Router
}

// patrolEvery is how often, while requests wait, the waiting room looks for what no request of this node
// brings about: engines that opened by other nodes' reports, changed backends, and time that is up.
const patrolEvery = 10 * time.Millisecond

// waitingRoom holds the requests of a proxy that wait for an engine. A request waits on its connection's
// goroutine; who offers an engine that opened also picks for the request that takes it.
type waitingRoom struct {
	proxy  *Proxy
	router *policy.Router
	count  atomic.Int64  // that wait; read without the lock
	others atomic.Bool   // requests wait at other routers
	begun  chan struct{} // capacity 1: the first one waits

	mu     sync.Mutex // guards the fields below, and the seats of the exchanges that wait
	queue  *queue.Queue
	peeked policy.Decision
	engine []prefixtree.Backend
	lanes  []uint64
	lost   []*exchange // whose pick failed during an offer
	// refused counts requests by clients.Priority.
	refused [clients.Interactive + 1]QueueRefusals
}

// QueueRefusals are requests that the queue answered 429 since the start, by why; see RefusedFull and the others.
type QueueRefusals struct{ Full, Timeout, Late uint64 }

func (r *QueueRefusals) add(o QueueRefusals) {
	r.Full, r.Timeout, r.Late = r.Full+o.Full, r.Timeout+o.Timeout, r.Late+o.Late
}

// QueueStanding is what waits for engines at this proxy now.
type QueueStanding struct {
	queue.Standing
	Refused [clients.Interactive + 1]QueueRefusals // by clients.Priority
}

// QueueStanding returns what waits, with so many of its lines at most, the longest first; ok is false without a queue, once
// nothing waits any more of one that a reload ended.
func (p *Proxy) QueueStanding(lines int) (s QueueStanding, ok bool) {
	w := p.waiting
	if w == nil {
		return s, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.tuned.Load().queues() && w.queue.Len() == 0 {
		return s, false
	}
	return QueueStanding{w.queue.Standing(lines, w.clock()), w.refused}, true
}

// seat is an exchange's place in the waiting room.
type seat struct {
	waiter queue.Waiter
	failed []int32 // engines; reused
	parked books.Parked
	// Written before called is sent to.
	target Target
	err    error

	called chan struct{} // capacity 1: the seat has a result
	stir   chan struct{} // capacity 1: the connection was interrupted
}

var (
	errWaitedOut = errors.New("no engine opened in time")
	errGaveWay   = errors.New("gave way to another client's request")
)

func newWaitingRoom(p *Proxy, c Queue) (*waitingRoom, error) {
	if c.Router == nil {
		return nil, nil
	}
	q, err := queue.New(cmp.Or(c.Limits, closedQueue))
	if err != nil {
		return nil, err
	}
	return &waitingRoom{proxy: p, router: c.Router, queue: q, begun: make(chan struct{}, 1)}, nil
}

// closedQueue is for a queue without limits, which no request enters.
var closedQueue = queue.Limits{Requests: 1, Bytes: 1, Wait: 1}

// queues reports whether requests may begin to wait.
func (c *Config) queues() bool { return c.Queue.Router != nil && c.Queue.Limits != queue.Limits{} }

// retune applies new limits, if any. Without, requests that wait stay until they have their turn.
func (w *waitingRoom) retune(l queue.Limits) {
	if w == nil || l == (queue.Limits{}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.SetLimits(l)
}

// clock is the queue's time.
func (w *waitingRoom) clock() time.Duration { return time.Since(w.proxy.epoch) }

// Queued returns how many requests wait with a priority, and the bytes of their bodies.
func (p *Proxy) Queued(priority clients.Priority) (requests int, bytes int64) {
	if p.waiting == nil {
		return 0, 0
	}
	p.waiting.mu.Lock()
	defer p.waiting.mu.Unlock()
	return p.waiting.queue.Usage(priority)
}

// Claims appends what waits here, for the other routers.
func (p *Proxy) Claims(dst []queue.Claim) []queue.Claim {
	w := p.waiting
	if w == nil || w.count.Load() == 0 {
		return dst
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.Claims(dst)
}

// PeerClaims replaces what waits at another router; none if it is gone. It keeps no claims.
func (p *Proxy) PeerClaims(origin string, claims []queue.Claim) {
	w := p.waiting
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.SetPeer(origin, claims)
	w.others.Store(w.queue.Contended())
}

// mayWait: inference that an engine computes. One whose engine failed waits again, so that no engine holds more than it may.
func (e *exchange) mayWait() bool {
	if !e.tuned.queues() {
		return false
	}
	switch e.rec.Kind {
	case prompt.Other, prompt.CountTokens, prompt.Tokenize, prompt.Detokenize:
		return false
	}
	return true
}

// maxRaces bounds how often others take the engine that a request saw open before it gets one that is full.
const maxRaces = 4

const headerPriority = "X-Grapevine-Priority"

// headerTTFT is llm-d's name for the milliseconds in which a client wants its first token.
const headerTTFT = "X-Llm-D-Slo-Ttft-Ms"

// maxTTFT bounds, in milliseconds, what a client may write: a day.
const maxTTFT = 24 * 60 * 60 * 1000

// readWishes reads the priority and the deadline that the client asks for.
func (e *exchange) readWishes() (fault, bool) {
	if !e.tuned.queues() {
		return fault{}, false
	}
	defer func() { e.rec.Priority = e.priority }()
	e.priority = clients.Interactive
	if e.client != nil {
		e.priority = e.client.Priority
	}
	if asked := bytes.TrimSpace(e.header(headerPriority)); len(asked) > 0 {
		p, err := clients.ParsePriority(string(asked))
		if err != nil {
			return fault{fasthttp.StatusBadRequest, "bad_request", "the header " + headerPriority + " must be interactive, default or batch"}, true
		}
		e.priority = min(p, e.priority)
	}
	if asked := bytes.TrimSpace(e.header(headerTTFT)); len(asked) > 0 {
		ms, err := strconv.Atoi(string(asked))
		if err != nil || ms < 1 || ms > maxTTFT {
			return fault{fasthttp.StatusBadRequest, "bad_request", "the header " + headerTTFT + " must be a whole number of milliseconds, from 1 to " + strconv.Itoa(maxTTFT)}, true
		}
		e.answerBy = e.rec.Start.Add(time.Duration(ms) * time.Millisecond).Sub(e.proxy.epoch)
	}
	return fault{}, false
}

// pickInTurn picks a backend, or waits until one is open. settled: the request needs no backend any more,
// and has its answer if its client is there. Errors are those of Picker.Pick, and those that refuseWait
// answers.
func (e *exchange) pickInTurn() (t Target, settled bool, err error) {
	if !e.mayWait() {
		t, err = e.pick()
		return t, false, err
	}
	w := e.proxy.waiting
	e.query.MayWait, e.query.Behind, e.query.First = true, 0, true
	defer func() { e.query.MayWait = false }()
	if e.answerBy > 0 && e.last.failed == books.None && w.cannotAnswer(e) { // one whose engine failed is late, not refused
		return t, false, queue.ErrLate
	}
	parked := false
	for tries := 0; !parked; tries++ {
		if tries > 0 || w.count.Load() == 0 && !w.others.Load() { // no other request waits
			e.query.MayWait = tries < maxRaces
			if t, err = e.pick(); !errors.Is(err, policy.ErrFull) {
				return t, false, err
			}
		}
		if parked, err = w.enter(e); err != nil {
			return t, false, err
		}
	}
	began := time.Now()
	e.rec.Queue = 0 // no engine has it
	why := e.await()
	e.rec.Waited += time.Since(began)
	if why != undisturbed {
		if e.seat.err == nil && e.seat.target.Name != "" { // an engine was booked meanwhile
			e.booked(e.seat.target)
		}
		e.last.refused = true // observed although no engine was tried
		e.cutShort(why)
		if why == departed {
			e.rec.Failed = books.ClientGone
		}
		return t, true, nil
	}
	if e.seat.err != nil {
		return t, false, e.seat.err
	}
	e.booked(e.seat.target)
	return e.seat.target, false, nil
}

// laneOf returns the lane of the request. A model that no list has may be served by any engine.
func (w *waitingRoom) laneOf(q *policy.Request) (uint64, bool) {
	lane, ok := w.router.Lane(q)
	if !ok {
		lane, ok = w.router.Lane(&policy.Request{})
	}
	return lane, ok
}

// enter gives the request a place. Without one and an error, the request need not wait.
func (w *waitingRoom) enter(e *exchange) (parked bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lane, ok := w.laneOf(&e.query)
	if !ok {
		return false, nil
	}
	s, now := &e.seat, w.clock()
	s.failed = s.failed[:0]
	for _, b := range e.query.Exclude {
		s.failed = append(s.failed, int32(b))
	}
	s.waiter = queue.Waiter{
		Lane: lane, Weight: 1, Priority: e.priority, Bytes: int64(len(e.body)), User: e,
		Returns: e.last.failed != books.None, Failed: s.failed, Waited: e.rec.Waited, Paid: s.waiter.Paid,
	}
	if e.client != nil {
		s.waiter.Client, s.waiter.Weight = e.client.Name, e.client.Weight
	}
	behind, first := w.queue.Behind(lane, e.priority, s.waiter.Client)
	e.query.Behind, e.query.First = int64(behind), first
	d := &w.peeked
	full := w.router.Explain(&e.query, w.proxy.cfg.Picker.Now(), d)
	switch {
	case full != nil && !errors.Is(full, policy.ErrFull):
		return false, nil // Pick says why
	case full == nil && !w.queue.Waiting(lane) && !w.queue.Contended():
		return false, nil // one opened meanwhile
	case e.query.Stored && !w.router.Serves(d.Backend, lane):
		return false, nil // it drains or is down, and will not be offered
	}
	s.waiter.Prefill, s.waiter.Output = float64(d.UncachedTokens), w.queue.Output(s.waiter.Client, e.query.OutputHint)
	s.waiter.Hold(d)
	if e.answerBy > 0 && !s.waiter.Returns {
		// The prompt has then still to be computed. A deadline before now is one at the beginning.
		s.waiter.Deadline = max(1, e.answerBy-prefillTime(d))
	}
	if s.called == nil {
		s.called, s.stir = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	s.target, s.err = Target{}, nil
	e.query.Waited = true
	w.router.Park(&s.parked, d)
	backend := d.Backend
	gone, err := w.queue.Push(&s.waiter, now)
	for _, v := range gone {
		w.call(v.User.(*exchange), errGaveWay)
	}
	w.counted()
	if err != nil {
		s.parked.Leave()
		e.query.Waited = false
		return false, err
	}
	if full == nil { // those that wait may have a better claim to the engine
		w.offer(lane, backend)
	}
	select {
	case w.begun <- struct{}{}:
	default:
	}
	return true, nil
}

func (w *waitingRoom) cannotAnswer(e *exchange) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tooLate(e)
}

// tooLate reports whether none of the engines that the request would consider now, open or full, has its first token by the client's
// deadline: by what is queued there and what its cache lacks of the prompt. w.mu is held.
func (w *waitingRoom) tooLate(e *exchange) bool {
	d := &w.peeked
	if err := w.router.Explain(&e.query, w.proxy.cfg.Picker.Now(), d); err != nil && !errors.Is(err, policy.ErrFull) {
		return false // Pick says why
	}
	left := (e.answerBy - w.clock()).Seconds()
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if lacks := max(float64(d.PromptTokens)-c.HeldTokens, 1); c.QueuedTokens+lacks <= left*c.Rate {
			return false
		}
	}
	return true
}

// prefillTime is how long the engine that the request would take computes its prompt.
func prefillTime(d *policy.Decision) time.Duration {
	if c := &d.Candidates[0]; c.Rate > 0 {
		return time.Duration(float64(d.UncachedTokens) / c.Rate * float64(time.Second))
	}
	return 0
}

func (w *waitingRoom) counted() { w.count.Store(int64(w.queue.Len())) }

// call ends a request's wait; w.mu is held, and the request has left the queue.
func (w *waitingRoom) call(e *exchange, err error) {
	e.seat.parked.Leave()
	e.seat.err = err
	e.seat.called <- struct{}{}
}

// await returns when the request has its turn, or why it must stop; then it has left the queue.
func (e *exchange) await() reason {
	s, w := &e.seat, e.proxy.waiting
	why := e.conn.awaitTurn(s.stir)
	for why == undisturbed {
		select {
		case <-s.called:
			why = e.conn.endTurn()
			clearSignal(s.stir)
			return why
		case <-s.stir:
			why = e.conn.cause()
		}
	}
	e.conn.endTurn()
	w.mu.Lock()
	if w.queue.Remove(&s.waiter) {
		s.parked.Leave()
		w.counted()
		s.err = errWaitedOut
	}
	w.mu.Unlock()
	clearSignal(s.called)
	clearSignal(s.stir)
	return why
}

func clearSignal(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// awaitTurn lets an interruption of the request stir its wait.
func (c *clientConn) awaitTurn(stir chan struct{}) reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == expired {
		c.why = undisturbed
	}
	c.stir = stir
	return c.why
}

func (c *clientConn) endTurn() reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stir = nil
	return c.why
}

// offer gives a backend, while it is open, to requests that wait in a lane; w.mu is held.
func (w *waitingRoom) offer(lane uint64, b prefixtree.Backend) {
	picker := w.proxy.cfg.Picker
	var taker *exchange
	take := func(v *queue.Waiter) (float64, bool) {
		e := v.User.(*exchange)
		behind, first := w.queue.BehindOf(v)
		e.query.Behind, e.query.First = int64(behind), first
		if e.answerBy > 0 && !v.Returns && w.tooLate(e) {
			e.seat.err = queue.ErrLate
			w.lost = append(w.lost, e)
			return 0, false
		}
		t, err := picker.Pick(&e.query, &e.guard.attempt)
		d := e.guard.attempt.Decision()
		switch {
		case err == nil:
			taker, e.seat.target = e, t
			return float64(d.UncachedTokens) + v.Output, true
		case errors.Is(err, policy.ErrFull):
			v.Hold(d)
			w.router.Park(&e.seat.parked, d)
		default:
			e.seat.err = err
			w.lost = append(w.lost, e)
		}
		return 0, false
	}
	if now := w.clock(); w.queue.GrantDue(lane, now) {
		room, bounded := w.router.Room(lane)
		w.queue.Grant(lane, room, bounded, now)
	}
	for w.router.Open(b, picker.Now()) && w.queue.Offer(lane, int32(b), w.router.Dry(b, picker.Now()), w.clock(), take) {
		w.call(taker, nil)
	}
	for _, e := range w.lost {
		if w.queue.Remove(&e.seat.waiter) {
			w.call(e, e.seat.err)
		}
	}
	clear(w.lost)
	w.lost = w.lost[:0]
	w.counted()
}

// opened offers a backend at which a request of this node has begun to answer, or has ended.
func (p *Proxy) opened(b prefixtree.Backend) {
	w := p.waiting
	if w == nil || w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes = w.queue.Lanes(w.lanes[:0])
	for _, lane := range w.lanes {
		if w.router.Serves(b, lane) {
			w.offer(lane, b)
		}
	}
}

// attend patrols while requests wait, until stop is closed.
func (w *waitingRoom) attend(stop <-chan struct{}) {
	ticker := time.NewTicker(patrolEvery)
	defer ticker.Stop()
	for {
		ticker.Stop()
		select {
		case <-stop:
			return
		case <-w.begun:
		}
		ticker.Reset(patrolEvery)
		for w.count.Load() > 0 {
			select {
			case <-stop:
				return
			case <-ticker.C:
				w.patrol()
			}
		}
	}
}

// patrol ends waits whose time is up, moves requests whose engines have changed, and offers all engines.
// It leaves the lock between two engines.
func (w *waitingRoom) patrol() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock()
	for v := w.queue.Expired(now); v != nil; v = w.queue.Expired(now) {
		w.call(v.User.(*exchange), errWaitedOut)
	}
	lanes := w.queue.Lanes(nil)
	for _, lane := range lanes {
		w.engine = w.router.Backends(w.engine[:0], lane)
		if len(w.engine) > 0 {
			continue
		}
		for _, v := range w.queue.Move(lane, func(v *queue.Waiter) (uint64, bool) {
			to, ok := w.laneOf(&v.User.(*exchange).query)
			return to, ok && to != lane
		}) {
			w.send(v.User.(*exchange))
		}
	}
	for _, lane := range w.queue.Lanes(lanes[:0]) {
		w.engine = w.router.Backends(w.engine[:0], lane)
		engines := len(w.engine)
		for i := range engines {
			// A different one comes first each time.
			w.offer(lane, w.engine[(i+int(now/patrolEvery))%engines])
			if i%8 == 7 {
				w.mu.Unlock()
				w.mu.Lock()
			}
		}
	}
	w.counted()
}

// send picks for a request whose model no engine serves any more: it gets the error, or any engine.
func (w *waitingRoom) send(e *exchange) {
	e.query.MayWait = false
	t, err := w.proxy.cfg.Picker.Pick(&e.query, &e.guard.attempt)
	e.seat.target = t
	w.call(e, err)
}

// learnOutput lets the queue know how long a client's answers are.
func (e *exchange) learnOutput() {
	w := e.proxy.waiting
	if !e.tuned.queues() || e.usage.OutputTokens < 0 {
		return
	}
	name := ""
	if e.client != nil {
		name = e.client.Name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.Learn(name, e.usage.OutputTokens)
}

// Why a queue refused a request, as Record.Refused has it.
const (
	RefusedFull    = "full"     // no place, or its client had the greatest share of the places
	RefusedTimeout = "timeout"  // no engine opened in Limits.Wait, or by the client's deadline
	RefusedLate    = "deadline" // its turn, or its first token, would come after the client's deadline
)

// refuseWait answers a request that got no place in the queue, or waited too long.
func (e *exchange) refuseWait(err error) bool {
	message := ""
	var one QueueRefusals
	switch {
	case errors.Is(err, queue.ErrFull), errors.Is(err, errGaveWay):
		one.Full = 1
		e.rec.Refused, message = RefusedFull, "all engines are busy, and too many requests wait for them"
	case errors.Is(err, queue.ErrLate):
		one.Late = 1
		e.rec.Refused, message = RefusedLate, "the first token cannot come within the time that the header "+headerTTFT+" names"
	case errors.Is(err, errWaitedOut):
		one.Timeout = 1
		e.rec.Refused, message = RefusedTimeout, "all engines are busy, and none was free in time"
	default:
		return false
	}
	w := e.proxy.waiting
	w.mu.Lock()
	backlog := w.queue.Backlog(w.clock())
	w.refused[e.priority].add(one)
	w.mu.Unlock()
	seconds := max(1, int((backlog+time.Second-1)/time.Second))
	e.deny(fault{fasthttp.StatusTooManyRequests, "overloaded", message + ": try again in " + strconv.Itoa(seconds) + " s"})
	e.retryAfter(seconds)
	if e.last.failed == books.Timeout { // that engine is still occupied
		e.ctx.Response.Header.Set(headerRetry, "false")
	}
	return true
}

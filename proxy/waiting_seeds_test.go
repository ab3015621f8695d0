package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/virtual"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/queue"
)

// TestSeedsQueue plays a few routers whose requests wait, in virtual time: the real waiting rooms, queues, policies and
// meters, without sockets. Routers are killed and partitioned, engines come, go and fail, clients leave, limits are reloaded.
// Every request leaves the queue once and in time, and all counts return to zero.
func TestSeedsQueue(t *testing.T) {
	var all queueOutcomes
	virtual.Seeds(t, 8, 1, func(t *testing.T, seed uint64) {
		bubble.Test(t, func(t *testing.T) { newQueueWorld(t, seed).play(&all) })
	})
	t.Logf("%+v", all)
	if all.requests < 1000 {
		return // a seed alone
	}
	if all.answered == 0 || all.waited == 0 || all.refused == 0 || all.departed == 0 || all.limited == 0 || all.failed == 0 {
		t.Error("some outcome never came: the test proves little")
	}
}

// queueOutcomes counts requests. Those that waited are also counted by how they ended.
type queueOutcomes struct{ requests, answered, waited, refused, limited, departed, failed, withoutEngine int }

func (o *queueOutcomes) add(p queueOutcomes) {
	o.requests, o.answered, o.waited, o.refused = o.requests+p.requests, o.answered+p.answered, o.waited+p.waited, o.refused+p.refused
	o.limited, o.departed, o.failed, o.withoutEngine = o.limited+p.limited, o.departed+p.departed, o.failed+p.failed, o.withoutEngine+p.withoutEngine
}

func (o *queueOutcomes) ended() int {
	return o.answered + o.refused + o.limited + o.departed + o.failed + o.withoutEngine
}

const queueSeedRequests = 200

type queueWorld struct {
	t       *testing.T
	r       *rand.Rand
	hasher  *prefixtree.Hasher
	gate    policy.Gate
	limits  []queue.Limits // of which each reload takes one
	longest time.Duration  // any of them lets a request wait
	book    *clients.Book
	engines []policy.Backend
	nodes   int
	routers []*queueRouter
	former  []*queueRouter // that were killed
	cut     []bool         // this router hears no other, and none hears it
	process uint64

	mu    sync.Mutex
	count queueOutcomes
}

// queueRouter is one process of a router.
type queueRouter struct {
	name    string
	process uint64
	router  *policy.Router
	proxy   *Proxy
	stop    chan struct{}
	work    sync.WaitGroup // patrol and requests

	mu    sync.Mutex
	conns map[*clientConn]bool
}

func newQueueWorld(t *testing.T, seed uint64) *queueWorld {
	r := virtual.Rand(seed, 1)
	hasher, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	must(t, err)
	w := &queueWorld{t: t, r: r, hasher: hasher, nodes: 1 + r.IntN(4)}
	w.gate = []policy.Gate{{InFlight: 1 + r.IntN(4)}, {TTFT: 200 * time.Millisecond}, {Waiting: 1 + r.IntN(3)}, {TTFT: time.Second, Waiting: 4, InFlight: 8}}[r.IntN(4)]
	for range 2 {
		l := queue.Limits{Requests: 4 << r.IntN(5), Bytes: 1 << (10 + r.IntN(10)), Wait: time.Duration(50<<r.IntN(6)) * time.Millisecond}
		w.limits, w.longest = append(w.limits, l), max(w.longest, l.Wait)
	}
	var list []*clients.Client
	for i := range 4 {
		list = append(list, &clients.Client{Name: fmt.Sprint("client-", i), Weight: 1 + float64(r.IntN(3)), Priority: clients.Priority(r.IntN(3))})
	}
	list[0].InFlight, list[1].TokensPerMinute = 1+r.IntN(20), 20_000+r.Int64N(1_000_000)
	w.book = newBook(t, "", list...)
	for i := range 1 + r.IntN(5) {
		w.engines = append(w.engines, policy.Backend{ID: prefixtree.Backend(i), Generation: 1, Name: fmt.Sprint("b", i), State: policy.Active})
	}
	w.cut = make([]bool, w.nodes)
	for i := range w.nodes {
		w.routers = append(w.routers, w.start(fmt.Sprint("node-", i)))
	}
	return w
}

func (w *queueWorld) start(name string) *queueRouter {
	w.process++
	tree, err := prefixtree.New(prefixtree.Config{Budget: 1 << 20})
	must(w.t, err)
	n := &queueRouter{name: name, process: w.process, stop: make(chan struct{}), conns: make(map[*clientConn]bool)}
	n.router, err = policy.NewRouter(policy.Config{
		Strategy: "prefix", BlockBytes: w.hasher.BlockBytes(), Gate: w.gate, Nodes: w.nodes, Staleness: 100 * time.Millisecond,
	}, tree)
	must(w.t, err)
	picker := &routed{router: n.router, targets: make(map[prefixtree.Backend]Target)}
	for _, b := range w.engines {
		picker.targets[b.ID] = Target{ID: b.ID, Name: b.Name}
	}
	n.proxy, err = New(Config{
		Picker: picker, Hasher: w.hasher, Clients: w.book, Log: zerolog.Nop(), NodeName: name, Roles: n.router.Roles,
		Queue: Queue{Limits: w.limits[0], Router: n.router}, PromptTokens: func(q *policy.Request) int { return q.PromptBytes / 4 },
	})
	must(w.t, err)
	n.proxy.meter.SetFleet(clients.Fleet{Heard: w.nodes, Nodes: w.nodes, Staleness: 100 * time.Millisecond})
	w.show(n)
	n.work.Go(func() { n.proxy.waiting.attend(n.stop) })
	return n
}

func (w *queueWorld) show(n *queueRouter) {
	view, err := policy.NewView(w.engines, nil)
	must(w.t, err)
	n.router.SetView(view)
}

// The kinds of events.
const (
	eventRequests = iota
	eventBurst
	eventReport
	eventKill
	eventCut
	eventEngine
	eventReload
	eventPause
	queueEvents
)

func (w *queueWorld) play(all *queueOutcomes) {
	swarm := virtual.NewSwarm(w.r, queueEvents, eventRequests, eventReport)
	gap := time.Duration(1+w.r.IntN(20)) * time.Millisecond
	for sent := 0; sent < queueSeedRequests; {
		time.Sleep(time.Duration(w.r.ExpFloat64() * float64(gap)))
		at := w.r.IntN(w.nodes)
		switch n := w.routers[at]; swarm.Next(w.r) {
		case eventRequests:
			w.send(n)
			sent++
		case eventBurst:
			for range min(1+w.r.IntN(30), queueSeedRequests-sent) {
				w.send(n)
				sent++
			}
		case eventReport:
			w.report(at)
		case eventKill:
			n.kill()
			w.former = append(w.former, n)
			w.routers[at] = w.start(n.name)
			for _, other := range w.routers {
				if other != w.routers[at] {
					other.forget(n)
				}
			}
		case eventCut:
			if w.cut[at] = !w.cut[at]; w.cut[at] && w.r.IntN(2) == 0 { // else reports grow old
				for _, other := range w.routers {
					n.forget(other)
					other.forget(n)
				}
			}
		case eventEngine:
			b := &w.engines[w.r.IntN(len(w.engines))]
			b.State = []policy.State{policy.Active, policy.Active, policy.Draining, policy.Down}[w.r.IntN(4)]
			for _, n := range w.routers {
				w.show(n)
			}
		case eventReload:
			cfg := *n.proxy.Tuned()
			cfg.Queue.Limits = w.limits[w.r.IntN(2)]
			apply, err := n.proxy.Retune(cfg)
			must(w.t, err)
			apply()
		case eventPause:
			time.Sleep(time.Duration(w.r.IntN(500)) * time.Millisecond)
		}
	}
	time.Sleep(time.Duration(w.r.Int64N(2 * int64(w.longest)))) // some still wait
	w.end()
	all.add(w.count)
}

// end waits for all requests, lets every router hear the others, and checks that nothing is left.
func (w *queueWorld) end() {
	for _, n := range w.routers {
		n.kill() // also ends what still waits
	}
	for _, n := range append(w.former, w.routers...) {
		n.work.Wait()
		p, room := n.proxy, n.proxy.waiting
		if waits, lanes, count := room.queue.Len(), len(room.queue.Lanes(nil)), room.count.Load(); waits != 0 || lanes != 0 || count != 0 {
			w.t.Errorf("%s: %d requests in %d lanes of the queue, and %d counted", n.name, waits, lanes, count)
		}
		for _, priority := range clients.Priorities() {
			if requests, bytes := p.Queued(priority); requests != 0 || bytes != 0 {
				w.t.Errorf("%s: %d requests and %d bytes of %v wait", n.name, requests, bytes, priority)
			}
		}
		if len(p.Claims(nil)) != 0 || p.InFlight() != 0 {
			w.t.Errorf("%s: claims %v, %d requests in flight", n.name, p.Claims(nil), p.InFlight())
		}
		if loads := n.router.OwnLoads(nil, p.cfg.Picker.Now()); len(loads) != 0 {
			w.t.Errorf("%s: engines are charged %+v", n.name, loads)
		}
		if twice := n.router.Stats().DoubleEnds; twice != 0 {
			w.t.Errorf("%s: %d attempts ended twice", n.name, twice)
		}
		for _, c := range w.book.Clients {
			if s := p.meter.Standing(c, 0, clients.Admitted, p.meter.Now()); s.Own != 0 {
				w.t.Errorf("%s: %d requests of %s are reserved", n.name, s.Own, c.Name)
			}
		}
	}
	if w.count.requests != w.count.ended() {
		w.t.Errorf("%d of %d requests ended: %+v", w.count.ended(), w.count.requests, w.count)
	}
}

// report tells the routers that hear this one its loads, its claims and its clients' use.
func (w *queueWorld) report(from int) {
	n := w.routers[from]
	loads, claims := n.router.OwnLoads(nil, n.proxy.cfg.Picker.Now()), n.proxy.Claims(nil)
	uses := n.proxy.meter.Own(nil, n.proxy.meter.Now())
	if w.cut[from] {
		return
	}
	for at, other := range w.routers {
		if at != from && !w.cut[at] {
			other.router.SetPeerLoad(n.name, loads, other.proxy.cfg.Picker.Now())
			other.proxy.PeerClaims(n.name, claims)
			other.proxy.meter.Peer(n.name, n.process, uses, true, other.proxy.meter.Now())
		}
	}
}

func (n *queueRouter) forget(other *queueRouter) {
	n.router.DropPeer(other.name)
	n.proxy.PeerClaims(other.name, nil)
	n.proxy.meter.DropPeer(other.name, false, n.proxy.meter.Now())
}

// kill ends the process: its connections break, and nothing looks after its queue any more.
func (n *queueRouter) kill() {
	close(n.stop)
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.interrupt(departed)
	}
}

func (n *queueRouter) waits(e *exchange) bool {
	room := n.proxy.waiting
	room.mu.Lock()
	defer room.mu.Unlock()
	return room.queue.Remove(&e.seat.waiter)
}

// queueRequest is what a request does; drawn before it begins.
type queueRequest struct {
	client      *clients.Client
	priority    clients.Priority
	size        int
	hashes      []prefixtree.Hash
	output      int
	leaves, ttl time.Duration // 0: it stays; no deadline
	first, rest time.Duration // at the engine
	failed      books.Failure
	failures    int    // engines that fail it
	holder      uint32 // of the stored response that it goes on from; 0: none
}

func (w *queueWorld) send(n *queueRouter) {
	r := w.r
	d := queueRequest{client: w.book.Clients[r.IntN(len(w.book.Clients))], size: 100 << r.IntN(6), output: r.IntN(300)}
	d.priority = min(clients.Priority(r.IntN(3)), d.client.Priority)
	family, blocks := uint64(r.IntN(8)), 1+r.IntN(20)
	for i := range blocks {
		if i == blocks/2 {
			family = r.Uint64() // own text follows the common one
		}
		d.hashes = append(d.hashes, prefixtree.Hash(family*1e6+uint64(i)+1))
	}
	if r.IntN(6) == 0 {
		d.leaves = 1 + time.Duration(r.IntN(500))*time.Millisecond
	}
	if r.IntN(6) == 0 {
		d.ttl = 1 + time.Duration(r.IntN(1000))*time.Millisecond
	}
	d.first, d.rest = time.Duration(r.IntN(100))*time.Millisecond, time.Duration(r.IntN(300))*time.Millisecond
	if r.IntN(8) == 0 {
		d.failed = []books.Failure{books.Connect, books.Reset, books.Status5xx, books.Busy, books.Timeout}[r.IntN(5)]
		d.failures = 1 + r.IntN(3)
	}
	if r.IntN(8) == 0 {
		d.holder = prefixtree.BackendKey(w.engines[r.IntN(len(w.engines))].Name)
	}
	conn := &clientConn{proxy: n.proxy, arrived: time.Now()}
	n.mu.Lock()
	n.conns[conn] = true
	n.mu.Unlock()
	n.work.Go(func() {
		o := w.serve(n, conn, &d)
		o.requests = 1
		n.mu.Lock()
		delete(n.conns, conn)
		n.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count.add(o)
	})
}

// serve does what exchange.serve and exchange.forward do, but for the connections.
func (w *queueWorld) serve(n *queueRouter, conn *clientConn, d *queueRequest) (o queueOutcomes) {
	var ctx fasthttp.RequestCtx
	e := n.proxy.acquire(&ctx, conn)
	defer e.finish()
	e.startRecord()
	e.rec.Kind = prompt.Chat
	e.client, e.priority, e.body = d.client, d.priority, []byte(strings.Repeat("x", d.size))
	e.query.Hashes, e.query.PromptBytes, e.query.OutputHint = d.hashes, len(d.hashes)*w.hasher.BlockBytes(), d.output
	e.query.Holder, e.query.Stored = d.holder, d.holder != 0
	if d.ttl > 0 {
		e.answerBy = e.rec.Start.Add(d.ttl).Sub(n.proxy.epoch)
	}
	if !e.reserve() {
		o.limited = 1
		return o
	}
	if d.leaves > 0 {
		leaving := time.AfterFunc(d.leaves, func() { conn.interrupt(departed) })
		defer leaving.Stop()
	}
	for w.turn(n, e, conn, d, &o) {
	}
	if e.rec.Waited > 0 {
		o.waited = 1
	}
	return o
}

// turn is one round of exchange.forward; again: the engine failed, and the request tries another.
func (w *queueWorld) turn(n *queueRouter, e *exchange, conn *clientConn, d *queueRequest, o *queueOutcomes) (again bool) {
	began, before := time.Now(), e.rec.Waited
	t, settled, err := e.pickInTurn()
	if waited := time.Since(began); waited != e.rec.Waited-before || e.rec.Waited > w.longest+time.Duration(e.rec.Attempts+1)*patrolEvery {
		w.t.Errorf("%s: a request waited %v, %v by its record, %v before; queues let it wait %v", n.name, waited, e.rec.Waited, before, w.longest)
	}
	if len(e.seat.called) != 0 || n.waits(e) {
		w.t.Errorf("%s: a request that has left the queue (%v, %v) is in it, or is called again", n.name, settled, err)
	}
	switch {
	case settled:
		o.departed = 1
	case err != nil:
		e.refusePick(err)
		if e.rec.Refused == "" && !errors.Is(err, policy.ErrNoBackend) && !errors.Is(err, policy.ErrUnknownModel) {
			w.t.Errorf("%s: %v", n.name, err)
		}
		if e.rec.Refused != "" {
			o.refused = 1
		} else {
			o.withoutEngine = 1
		}
	case !e.guard.open || t.Name == "":
		w.t.Errorf("%s: a request has its turn without an engine", n.name)
	default:
		return w.compute(e, conn, d, o)
	}
	return false
}

// stays reports whether a client is still there after a time, and returns at once when it leaves.
func stays(conn *clientConn, d time.Duration) bool {
	stir := make(chan struct{}, 1)
	if conn.awaitTurn(stir) == undisturbed {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-stir:
		}
	}
	return conn.endTurn() == undisturbed
}

// compute is what happens at the engine. A request that fails does so at some engines.
func (w *queueWorld) compute(e *exchange, conn *clientConn, d *queueRequest, o *queueOutcomes) (again bool) {
	now := e.proxy.cfg.Picker.Now
	e.guard.attempt.Dispatched(now())
	e.rec.Queue = time.Since(e.rec.Start)
	for _, part := range []time.Duration{d.first, d.rest} {
		if !stays(conn, part) {
			e.end(books.ClientGone)
			o.departed = 1
			return false
		}
		if d.failed != books.None && d.failures > 0 {
			d.failures--
			if d.failed == books.Busy {
				e.busy(false)
			} else {
				e.failed(d.failed)
			}
			if !e.mayMove() {
				o.failed = 1
				return false
			}
			e.query.Exclude = append(e.query.Exclude, e.rec.Decision.Backend)
			return true
		}
		e.guard.attempt.FirstToken(now())
		e.proxy.opened(e.guard.attempt.Decision().Backend)
	}
	e.usage.PromptTokens, e.usage.CachedTokens, e.usage.OutputTokens = e.query.PromptBytes/4, 0, d.output
	e.rec.Status = fasthttp.StatusOK
	e.end(books.None)
	o.answered = 1
	return false
}

package fleetsim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// Client is one application or team that sends a share of the sessions.
type Client struct {
	Name     string
	Share    float64 // in proportion to the other clients'; above 0
	Weight   float64 // in the queue; 0: 1
	Priority clients.Priority
}

// Queueing is what a run with clients plays.
type Queueing string

const (
	QueueOff   Queueing = "off"   // all clients; requests wait in engines
	QueueOn    Queueing = "on"    // all clients; requests wait at the routers
	QueueAlone Queueing = "alone" // one run for each client's requests alone, without a queue
)

// Queueings are all kinds.
var Queueings = []Queueing{QueueAlone, QueueOff, QueueOn}

// The queue of a node, if Config leaves them out. The defaults of serve.
var (
	DefaultQueue = queue.Limits{Requests: 2048, Bytes: 256 << 20, Wait: 30 * time.Second}
	DefaultGate  = policy.Gate{TTFT: time.Second, Waiting: 4}
)

// tickEvery is how often a node looks for engines that opened without an event of its own.
const tickEvery = 10 * time.Millisecond

func (c *Config) fillClients() error {
	if len(c.Clients) == 0 {
		c.Clients = []Client{{Share: 1}}
		if c.Queueing == nil {
			c.Queueing = []Queueing{QueueOff}
		}
	}
	if c.Queueing == nil {
		c.Queueing = Queueings
	}
	for i := range c.Clients {
		w := &c.Clients[i]
		if w.Weight = cmp.Or(w.Weight, 1); !(w.Share > 0) || !(w.Weight > 0) {
			return fmt.Errorf("%w: client %s has share %v and weight %v: want numbers above 0", ErrConfig, w.Name, w.Share, w.Weight)
		}
		if slices.ContainsFunc(c.Clients[:i], func(o Client) bool { return o.Name == w.Name }) {
			return fmt.Errorf("%w: client %q is named twice", ErrConfig, w.Name)
		}
	}
	for i, k := range c.Queueing {
		if !slices.Contains(Queueings, k) || slices.Contains(c.Queueing[:i], k) {
			return fmt.Errorf("%w: queueing is %q: want each of %q at most once", ErrConfig, k, Queueings)
		}
	}
	if c.Queue == (queue.Limits{}) {
		c.Queue = DefaultQueue
	}
	if c.Policy.Gate == (policy.Gate{}) {
		c.Policy.Gate = DefaultGate
	}
	if _, err := queue.New(c.Queue); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// mode is what one run plays of the clients.
type mode struct {
	queue bool
	alone int // number of the only client, from 1; 0: all
}

func (c *Config) modes() (list []mode) {
	for _, q := range c.Queueing {
		switch q {
		case QueueOff:
			list = append(list, mode{})
		case QueueOn:
			list = append(list, mode{queue: true})
		case QueueAlone:
			for i := range c.Clients {
				list = append(list, mode{alone: i + 1})
			}
		}
	}
	return list
}

func (f *fleet) modeName() string {
	switch m := f.point.mode; {
	case m.alone > 0:
		return "alone: " + f.cfg.Clients[m.alone-1].Name
	case m.queue:
		return string(QueueOn)
	case len(f.cfg.Clients) > 1:
		return string(QueueOff)
	}
	return ""
}

// clientOf draws the client of a session, or of a request without one. It is the same in all runs.
func (f *fleet) clientOf(session, index int) int {
	if len(f.cfg.Clients) == 1 {
		return 0
	}
	key := uint64(session)<<1 | 1
	if session < 0 {
		key = uint64(index) << 1
	}
	total := 0.0
	for i := range f.cfg.Clients {
		total += f.cfg.Clients[i].Share
	}
	at := rand.New(rand.NewPCG(f.cfg.Options.Seed^0xc11e, key)).Float64() * total
	for i := range f.cfg.Clients {
		if at -= f.cfg.Clients[i].Share; at < 0 {
			return i
		}
	}
	return len(f.cfg.Clients) - 1
}

// waiting is a node's queue. nil: requests go to engines at once.
type waiting struct {
	*queue.Queue
	lanes []uint64
}

func newWaiting(cfg *Config) (*waiting, error) {
	q, err := queue.New(cfg.Queue)
	return &waiting{Queue: q}, err
}

// sorted returns the lanes in which requests wait, in an order that does not depend on a map.
func (w *waiting) sorted() []uint64 {
	w.lanes = w.Lanes(w.lanes[:0])
	slices.Sort(w.lanes)
	return w.lanes
}

// claims returns what waits, in an order that does not depend on a map.
func (w *waiting) claims() []queue.Claim {
	all := w.Claims(nil)
	slices.SortFunc(all, func(a, b queue.Claim) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Client, b.Client))
	})
	return all
}

// route sends a new request to an engine, or lets it wait.
func (f *fleet) route(fl *flight) {
	n := &f.nodes[fl.node]
	if n.queue == nil {
		f.pick(fl)
		return
	}
	fl.query.MayWait = true
	lane, known := n.router.Lane(&fl.query)
	c := &f.cfg.Clients[fl.client]
	behind, first := n.queue.Behind(lane, c.Priority, c.Name)
	fl.query.Behind, fl.query.First = int64(behind), first
	if !known || !n.queue.Waiting(lane) && !n.queue.Contended() {
		err := n.router.Pick(&fl.query, clock(f.now), &fl.attempt)
		switch {
		case err == nil:
			f.dispatch(fl)
		case errors.Is(err, policy.ErrFull):
			f.park(fl, lane, fl.attempt.Decision())
		default:
			f.err = fmt.Errorf("fleetsim: request %d: %w", fl.request.Index, err)
		}
		return
	}
	// Those that wait may have a better claim to the engine that it would take.
	err := n.router.Explain(&fl.query, clock(f.now), &f.peeked)
	switch {
	case err == nil:
		b := f.peeked.Backend
		f.park(fl, lane, &f.peeked)
		f.offer(fl.node, lane, b)
	case errors.Is(err, policy.ErrFull):
		f.park(fl, lane, &f.peeked)
	default:
		f.err = fmt.Errorf("fleetsim: request %d: %w", fl.request.Index, err)
	}
}

func (f *fleet) park(fl *flight, lane uint64, d *policy.Decision) {
	n, c := &f.nodes[fl.node], &f.cfg.Clients[fl.client]
	fl.waiter = queue.Waiter{
		Lane: lane, Client: c.Name, Weight: c.Weight, Priority: c.Priority, Bytes: int64(fl.query.PromptBytes), User: fl,
		Prefill: float64(d.UncachedTokens), Output: n.queue.Output(c.Name, fl.query.OutputHint),
	}
	fl.waiter.Hold(d)
	fl.query.Waited = true
	n.router.Park(&fl.held, d)
	gone, err := n.queue.Push(&fl.waiter, f.now)
	for _, w := range gone {
		f.refuse(w.User.(*flight))
	}
	if err != nil {
		f.refuse(fl)
		return
	}
	f.acted(fl.node, f.now)
	if f.tick == never {
		f.tick = f.now/tickEvery*tickEvery + tickEvery
	}
}

// offer gives a backend, while it is open, to requests that wait in a lane.
func (f *fleet) offer(node int, lane uint64, b prefixtree.Backend) {
	n := &f.nodes[node]
	var taker *flight
	take := func(w *queue.Waiter) (float64, bool) {
		fl := w.User.(*flight)
		f.reveal(fl, n.router)
		behind, first := n.queue.BehindOf(w)
		fl.query.Behind, fl.query.First = int64(behind), first
		err := n.router.Pick(&fl.query, clock(f.now), &fl.attempt)
		d := fl.attempt.Decision()
		switch {
		case err == nil:
			taker = fl
			return float64(d.UncachedTokens) + w.Output, true
		case errors.Is(err, policy.ErrFull):
			w.Hold(d)
			n.router.Park(&fl.held, d)
		default:
			f.err = fmt.Errorf("fleetsim: request %d: %w", fl.request.Index, err)
		}
		return 0, false
	}
	if n.queue.GrantDue(lane, f.now) {
		room, bounded := n.router.Room(lane)
		n.queue.Grant(lane, room, bounded, f.now)
	}
	for n.router.Open(b, clock(f.now)) && n.queue.Offer(lane, int32(b), n.router.Dry(b, clock(f.now)), f.now, take) {
		f.dispatch(taker)
	}
}

// opened offers a backend that just did work to what waits at a node.
func (f *fleet) opened(node int, b prefixtree.Backend) {
	n := &f.nodes[node]
	if n.queue == nil || n.queue.Len() == 0 {
		return
	}
	for _, lane := range n.queue.sorted() {
		if n.router.Serves(b, lane) {
			f.offer(node, lane, b)
		}
	}
}

// patrol refuses what has waited too long, and offers all backends to what waits.
func (f *fleet) patrol() {
	f.tick = never
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.queue == nil || n.queue.Len() == 0 {
			continue
		}
		f.deliver(i, f.now)
		for w := n.queue.Expired(f.now); w != nil; w = n.queue.Expired(f.now) {
			f.refuse(w.User.(*flight))
		}
		for k := range f.backends {
			// A different one comes first each time.
			f.opened(i, f.backends[(k+int(f.now/tickEvery))%len(f.backends)].ID)
		}
		if n.queue.Len() > 0 {
			f.tick = f.now/tickEvery*tickEvery + tickEvery
		}
	}
}

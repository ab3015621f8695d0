package fleetsim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
	"grapevine.example/node/share"
	"grapevine.example/node/streams"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// epoch is the routers' clock at the start, in ms, so that an unset time is long ago.
const epoch = prefixtree.Time(1_700_000_000_000)

func clock(at time.Duration) prefixtree.Time { return epoch + prefixtree.Time(at.Milliseconds()) }

type node struct {
	router *policy.Router
	tree   *prefixtree.Tree // empty if the policy ignores cache contents
	shared *share.Knowledge
	queue  *waiting // nil: none
}

type blank struct{}

func (blank) Match(*prefixtree.Matches, []prefixtree.Hash, prefixtree.Time) {}

func (blank) Record(prefixtree.Backend, []prefixtree.Hash, prefixtree.Time, *prefixtree.TouchHistory) {
}

func (blank) Learn(prefixtree.Backend, []prefixtree.Hash, *prefixtree.TouchHistory, int, prefixtree.Time) prefixtree.Lesson {
	return prefixtree.Lesson{}
}

func (blank) Revert(prefixtree.Backend, []prefixtree.Hash, *prefixtree.TouchHistory) int { return 0 }

type flight struct {
	job       engine.Job
	attempt   policy.Attempt
	query     policy.Request
	request   *workload.Request
	hashes    []prefixtree.Hash
	session   []byte
	predicted int
	stamp     uint64
	waiting   int // tokens to compute, until the engine admits it
	rung      policy.Rung
	backend   int
	node      int

	client int
	waiter queue.Waiter
	held   books.Parked
}

type fleet struct {
	cfg       *Config
	point     point
	nodes     []node
	*exchange // nil if nodes share nothing
	hot       *hotBoard
	readings  readings
	stream    *streaming // nil: engines publish no cache events
	restarted int        // engines
	engines   *engines
	backends  []policy.Backend // that have joined
	changes   []change         // of engines, to come
	truth     *truth           // nil without an oracle of contents
	feed      feed
	ingress   *rand.Rand
	rec       report.Recorder
	free      []*flight
	open      int
	started   int
	ended     int
	now       time.Duration
	err       error
	tick      time.Duration // when nodes with waiting requests look for open engines; never: none has any
	peeked    policy.Decision

	span       time.Duration
	atWarm     []time.Duration
	atSpan     []time.Duration
	warmedAt   time.Duration
	onProgress func(ended int, at time.Duration)
}

func newFleet(cfg *Config, pt point, c *chainer, span time.Duration) (*fleet, error) {
	f := &fleet{cfg: cfg, point: pt, span: span, tick: never}
	f.ingress = rand.New(rand.NewPCG(cfg.Options.Seed, 0x16e55))
	var err error
	if f.engines, err = newEngines(cfg.Engines); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	f.readings = newReadings(cfg, pt.nodes)
	f.hot = newHotBoard(cfg, pt)
	if pt.oracle.contents {
		f.truth = &truth{engines: f.engines, blockTokens: c.hasher.BlockBytes() / workload.BytesPerToken}
	}
	if pt.events {
		f.stream = newStreaming(cfg, cfg.Workload.KeyTokens())
	}
	for i := range pt.nodes {
		n, err := f.newNode(i, c)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		n.router.SetFleet(pt.fleet())
		f.nodes = append(f.nodes, n)
	}
	var present []int
	for i := range cfg.Engines {
		if cfg.Engines[i].Joins == 0 {
			present = append(present, i)
		}
	}
	f.changes = changesOf(cfg.Engines)
	if err := f.join(0, c.hasher.BlockBytes(), present...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if pt.shares() {
		f.exchange = newExchange(cfg, pt, f.nodes, span)
	}
	if pt.events {
		f.listen(cfg.Workload.KeyTokens())
	}
	return f, nil
}

// All trees share the machine's memory. The least budget holds about 600,000 facts, several times
// the traces' live facts; the most is the live default.
const (
	treesBudget = 4 << 30
	leastBudget = 16 << 20
	mostBudget  = 256 << 20
	emptyBudget = 1 << 20 // of a tree that stays empty
)

func (f *fleet) newNode(number int, c *chainer) (n node, err error) {
	treeCfg := f.cfg.Tree
	treeCfg.MaxBackends = max(treeCfg.MaxBackends, f.cfg.Backends)
	switch {
	case blind[f.point.strategy] || f.truth != nil:
		treeCfg.Budget = emptyBudget
	case treeCfg.Budget == 0:
		treeCfg.Budget = min(max(treesBudget/int64(f.point.nodes), leastBudget), mostBudget)
	}
	outbox := prefixtree.NewOutbox(0)
	if f.point.shares() && f.point.share.prefixes() {
		treeCfg.Changed = outbox.Add
	}
	var caches *streams.Caches
	if f.stream != nil {
		treeCfg.Placed = func(b prefixtree.Backend, anchor prefixtree.Hash, span int, at prefixtree.Time) {
			caches.Placed(b, anchor, span, at)
		}
	}
	if n.tree, err = prefixtree.New(treeCfg); err != nil {
		return n, err
	}
	var index policy.Index = n.tree
	switch {
	case f.truth != nil:
		index = f.truth
	case blind[f.point.strategy]:
		index = blank{}
	}
	p := f.cfg.Policy
	if f.stream != nil {
		caches = f.stream.caches(number, n.tree, f.cfg.Options.Seed, c.hasher.BlockBytes())
		p.Truth = caches
	}
	p.Strategy, p.BlockBytes, p.Extra = f.point.strategy, c.hasher.BlockBytes(), f.cfg.Extra()
	p.Seed = f.cfg.Options.Seed*uint64(MaxNodes) + uint64(number) + f.point.dice<<48
	p.Nodes, p.Staleness = f.point.nodes, 0
	if n.router, err = policy.NewRouter(p, index); err != nil {
		return n, err
	}
	if f.point.mode.queue {
		if n.queue, err = newWaiting(f.cfg); err != nil {
			return n, err
		}
	}
	n.shared = share.New(n.tree, outbox, n.router, engineKeys(f.cfg.Backends))
	return n, nil
}

// run plays the feed to the end. Simultaneous events have a fixed order: changes of engines, the
// engines' own events by id, arrivals.
func (f *fleet) run(ctx context.Context) error {
	emit := f.event
	for turn := 0; ; turn++ {
		if turn&0xfff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		arrival, more := f.feed.Peek()
		id, due := f.engines.earliest()
		switch {
		case f.tick < due && (!more || f.tick < arrival) && (len(f.changes) == 0 || f.tick < f.changes[0].at):
			f.pass(f.tick)
			f.patrol()
		case len(f.changes) > 0 && (due != never || more) && f.changes[0].before(due, arrival, more):
			if err := f.change(); err != nil {
				return err
			}
		case due != never && (!more || due <= arrival):
			f.pass(due)
			f.engines.models[id].Advance(due, emit)
			f.engines.update(id)
		case more:
			f.pass(arrival)
			f.arrive()
		default:
			f.pass(max(f.now, f.span))
			if f.err == nil && f.open != 0 {
				f.err = fmt.Errorf("fleetsim: %d of %d requests never ended", f.open, f.started)
			}
			return f.err
		}
		if f.err != nil {
			return f.err
		}
	}
}

// pass advances the clock and samples the engines' busy time.
func (f *fleet) pass(now time.Duration) {
	f.readings.pass(now, f.nodes, f.engines)
	f.restarts(now)
	f.passEvents(now)
	f.exchange.pass(now)
	f.hot.pass(now, f.nodes, f.exchange)
	if f.atWarm == nil && now >= f.cfg.Warmup {
		f.atWarm, f.warmedAt = f.busy(), now
	}
	if f.atSpan == nil && now > f.span {
		f.atSpan = f.busy()
	}
	f.now = now
}

func (f *fleet) busy() []time.Duration {
	out := make([]time.Duration, len(f.engines.models))
	for i, m := range f.engines.models {
		out[i] = m.Stats().PrefillBusy
	}
	return out
}

func (f *fleet) arrive() {
	fl := new(flight)
	if n := len(f.free); n > 0 {
		fl, f.free = f.free[n-1], f.free[:n-1]
	}
	var r *workload.Request
	r, fl.hashes = f.feed.next(fl.hashes)
	fl.client = f.clientOf(r.Session, r.Index)
	if alone := f.point.mode.alone; alone > 0 && alone-1 != fl.client {
		f.feed.Done(r, r.At)
		f.free = append(f.free, fl)
		return
	}
	f.started++
	f.open++
	if f.started == f.cfg.Options.Requests {
		f.span = min(f.span, r.At)
		if w := f.cfg.Warmup; w > 0 && f.span <= w {
			f.err = fmt.Errorf("%w: the last of %d requests arrives after %v, within the warm-up of %v", ErrConfig, f.started, f.span, w)
			return
		}
	}
	fl.node = f.enter(r)
	n := &f.nodes[fl.node]
	fl.request = r
	fl.query = policy.Request{Hashes: fl.hashes, PromptBytes: r.PromptTokens * workload.BytesPerToken,
		Model: []byte(r.Model), NonStreaming: r.NonStreaming || f.whole(r)}
	if f.exchange != nil && fl.query.NonStreaming {
		f.exchange.hidden = true
	}
	if r.Session >= 0 {
		fl.session = strconv.AppendInt(fl.session[:0], int64(r.Session), 10)
		fl.query.Session = fl.session
	}
	fl.job = engine.Job{
		Keys: r.Keys, OutKeys: r.OutKeys, KeyTokens: r.KeyTokens,
		PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, User: fl,
	}
	if f.cfg.Adapters > 0 {
		f.adapt(fl)
	}
	if f.stream != nil {
		f.mark(fl)
	}
	f.deliver(fl.node, f.now)
	f.reveal(fl, n.router)
	f.route(fl)
}

// whole reports whether a request is one of those that are not streamed.
func (f *fleet) whole(r *workload.Request) bool {
	return f.cfg.Unstreamed > 0 && float64(scramble(f.cfg.Options.Seed<<32+uint64(r.Index)))*0x1p-64 < f.cfg.Unstreamed
}

func (f *fleet) pick(fl *flight) {
	if err := f.nodes[fl.node].router.Pick(&fl.query, clock(f.now), &fl.attempt); err != nil {
		f.err = fmt.Errorf("fleetsim: request %d: %w", fl.request.Index, err)
		return
	}
	f.dispatch(fl)
}

// dispatch sends a request to the engine that its attempt chose.
func (f *fleet) dispatch(fl *flight) {
	fl.held.Leave()
	now := clock(f.now)
	d := fl.attempt.Decision()
	fl.predicted, fl.rung, fl.backend = d.PredictedTokens, d.Rung, int(d.Backend)
	if blind[f.point.strategy] {
		fl.predicted = -1
	}
	f.stamp(fl)
	fl.attempt.Dispatched(now)
	if f.point.oracle.load {
		fl.attempt.Answers(now) // the engines' queues, which reveal gives, include it
	}
	f.acted(fl.node, f.now)
	if f.cfg.sent != nil {
		f.cfg.sent(f, fl)
	}
	f.engines.submit(fl, f.now)
}

func (f *fleet) enter(r *workload.Request) int {
	if len(f.nodes) == 1 {
		return 0
	}
	if f.cfg.Ingress == Sticky && r.Session >= 0 {
		return rand.New(rand.NewPCG(f.cfg.Options.Seed, uint64(r.Session))).IntN(len(f.nodes))
	}
	return f.ingress.IntN(len(f.nodes))
}

func (f *fleet) event(e engine.Event) {
	fl := e.Job.User.(*flight)
	switch e.Kind {
	case engine.Admitted:
		f.engines.admitted(fl)
	case engine.FirstToken:
		if !fl.query.NonStreaming {
			fl.attempt.FirstToken(clock(e.At))
			f.acted(fl.node, f.now)
			f.opened(fl.node, prefixtree.Backend(fl.backend))
		}
	case engine.Finished:
		f.end(fl, e.At, books.None)
	case engine.Refused:
		f.end(fl, e.At, books.Client4xx)
	}
}

func (f *fleet) end(fl *flight, at time.Duration, failed books.Failure) {
	f.deliver(fl.node, f.now)
	r, j := fl.request, &fl.job
	f.engines.admitted(fl) // a refused one never was
	s := report.Sample{
		At: r.At, End: at, Session: r.Session, Turn: r.Turn, Backend: fl.backend,
		PromptTokens: r.PromptTokens, CachedTokens: j.Cached, OutputTokens: r.OutputTokens, Predicted: fl.predicted,
		TTFT: j.FirstToken - r.At, Queue: j.Admitted - r.At, Overhead: -1, Rung: fl.rung.String(), Failed: failed != books.None,
		Client: f.cfg.Clients[fl.client].Name,
	}
	o := policy.Outcome{PromptTokens: r.PromptTokens, CachedTokens: j.Cached, OutputTokens: r.OutputTokens, Failed: failed}
	if s.Failed {
		s.PromptTokens, s.CachedTokens, s.OutputTokens, s.TTFT = -1, -1, -1, -1
		o.PromptTokens, o.CachedTokens, o.OutputTokens = -1, -1, -1
	}
	f.rec.Add(s)
	if !s.Failed {
		f.tellUsage(fl)
	}
	if f.cfg.answered != nil {
		f.cfg.answered(f, fl)
	}
	fl.attempt.End(o, clock(at))
	f.acted(fl.node, f.now)
	if n := &f.nodes[fl.node]; n.queue != nil && !s.Failed {
		n.queue.Learn(s.Client, r.OutputTokens)
	}
	f.opened(fl.node, prefixtree.Backend(fl.backend))
	f.leave(fl, at)
}

// refuse ends a request for which the queue has no place or no time.
func (f *fleet) refuse(fl *flight) {
	r := fl.request
	f.rec.Add(report.Sample{
		At: r.At, End: f.now, Session: r.Session, Turn: r.Turn, Backend: -1, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1,
		Predicted: -1, TTFT: -1, Overhead: -1, Failed: true, Refused: true, Client: f.cfg.Clients[fl.client].Name,
	})
	f.leave(fl, f.now)
}

func (f *fleet) leave(fl *flight, at time.Duration) {
	f.feed.Done(fl.request, at)
	f.open--
	f.ended++
	if f.onProgress != nil && f.ended&0xff == 0 {
		f.onProgress(f.ended, at)
	}
	fl.held.Leave()
	fl.request = nil
	f.free = append(f.free, fl)
}

package books

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"grapevine.example/prefixtree"
)

// Engine holds this node's load on one backend generation, its rate and its failure state. The zero value is one of which nothing is
// known. Safe for concurrent use; do not copy.
//
// A decision reads the first cache line of every candidate, so its fields come first and the size is a multiple of
// 64 bytes. mu guards the non-atomic fields; the atomics may differ by moments.
//
// Lock order: peerLoads.mu, then Fleet.mu or Engine.mu; Engine.mu, then fleetRate.mu. All other locks are leaves. Callers take locks of
// their own before these; nothing here calls them back but SetPeerLoad and UpdatePeerLoad, for capacities.
type Engine struct {
	charged    atomic.Int64 // prefill tokens of own requests before their first token
	active     atomic.Int64
	headTokens atomic.Int64  // charge of the prefill that runs; 0: none
	headSince  atomic.Int64  // ms; estimated start of that prefill
	measured   atomic.Uint64 // rates and peerRates: tokens and seconds as float32
	retryAt    atomic.Int64  // ms; 0: healthy, else avoided until then; see Standing
	peerTokens atomic.Int64  // outstanding prefill tokens that peers report
	peerActive atomic.Int64  // active requests that peers report

	bucket    atomic.Int64 // see FullBucket
	headAhead atomic.Int64 // peers' tokens in front of the head of the line
	turned    atomic.Int64 // ms; when the engine began the prefill that runs, of whichever node; see Ahead
	peerMost  atomic.Int64 // the most prefill tokens that one peer reports
	trial     atomic.Bool
	ejected   atomic.Bool // own requests failed: half-open after retryAt
	// byRequests: ejected by other failures than refused connections.
	byRequests       atomic.Bool
	struck           atomic.Bool
	headNonStreaming atomic.Bool // the head's first token is not observable
	report           atomic.Pointer[Report]
	placed           atomic.Int64 // prefill tokens charged so far
	pending          atomic.Int64 // own requests before their first token
	parked           atomic.Int64 // prefill tokens of requests that wait at this router for the backend
	id               prefixtree.Backend
	generation       atomic.Uint32
	began            atomic.Int64 // ms; start of slow start; 0: none
	answerAt         atomic.Int64

	mu           sync.Mutex
	line         []*Charge // own requests before their first token, in order of admission
	late         []*Charge // own requests that peers' reports may still overtake
	nonStreaming int64     // charges of non-streamed requests in the line
	lastFirst    prefixtree.Time
	rates        rateSums
	peerRates    rateSums // measured by other nodes
	reported     rateSums // by the engine
	strikes      strikes
	reportedAt   prefixtree.Time // since when other nodes report failures; 0: none
	busyAt       prefixtree.Time // last answer of 429
	busyUntil    int64           // ms; 0: none
	adapters     adapters
	growth       growth
	resident     atomic.Int64 // prompt and output tokens of own active requests, which pin KV memory
	_            [8]byte      // pads to a cache line
}

// Charge is the work of one request at an engine, from Engine.Charge to Engine.Release. Not safe for concurrent use; do not copy or
// change it meanwhile.
type Charge struct {
	Tokens       int64           // to prefill
	Resident     int64           // prompt and output tokens, which pin KV memory
	NonStreaming bool            // its first token is not observable
	Settled      prefixtree.Time // until when peers' reports may show more that they placed before it; 0: none are awaited

	ahead int64           // peers' prefill tokens that the backend computes first, as far as they have reported them
	front int64           // charges of non-streamed requests in front when it was charged
	since prefixtree.Time // dispatch, before it when it was charged
}

// Behind reports whether prefills of other nodes' requests or of non-streamed ones were in front of it, which may have taken a part of the
// time until its first token. Call it after Release.
func (c *Charge) Behind() bool { return c.ahead != 0 || c.front != 0 }

// ID returns the backend's number.
func (e *Engine) ID() prefixtree.Backend { return e.id }

// Generation returns the backend's generation; 0: unknown.
func (e *Engine) Generation() uint32 { return e.generation.Load() }

// Charged returns the prefill tokens of this router's requests before their first token.
func (e *Engine) Charged() int64 { return e.charged.Load() }

// Active returns this router's requests that have not ended.
func (e *Engine) Active() int64 { return e.active.Load() }

// Pending returns this router's requests before their first token.
func (e *Engine) Pending() int64 { return e.pending.Load() }

// Placed returns the prefill tokens charged so far. It only grows; see Report.
func (e *Engine) Placed() int64 { return e.placed.Load() }

// Parked returns the prefill tokens of requests that wait at this router for the engine.
func (e *Engine) Parked() int64 { return e.parked.Load() }

// PeerTokens returns the outstanding prefill tokens that other routers report. It may be below 0 for a moment.
func (e *Engine) PeerTokens() int64 { return e.peerTokens.Load() }

// PeerActive returns the active requests that other routers report. It may be below 0 for a moment.
func (e *Engine) PeerActive() int64 { return e.peerActive.Load() }

// Begins notes that slow start begins, unless it has begun later.
func (e *Engine) Begins(at prefixtree.Time) { raise(&e.began, int64(at)) }

// Began returns the start of slow start; 0: there was none.
func (e *Engine) Began() prefixtree.Time { return prefixtree.Time(e.began.Load()) }

// BeginTrial takes the one place of a half-open engine for a request that tries it; false: another request has it.
func (e *Engine) BeginTrial() bool { return e.trial.CompareAndSwap(false, true) }

// EndTrial frees that place.
func (e *Engine) EndTrial() { e.trial.Store(false) }

// FullBucket is what a bucket holds that is full. An engine has a bucket for one request. All fill in proportion to what the engines
// should get; the first that is full gets the request and is emptied. So a router's own requests are even, as draws are not. Buckets begin
// filled at random, so that routers differ.
const FullBucket = 1 << 32

// Bucket returns what the bucket holds.
func (e *Engine) Bucket() int64 { return e.bucket.Load() }

// FillBucket adds to the bucket, or takes out what is below 0.
func (e *Engine) FillBucket(share int64) { e.bucket.Add(share) }

// UntilTurn returns how long a bucket takes to be full that so much flows into per unit of time.
func (e *Engine) UntilTurn(water float64) float64 {
	return max(FullBucket-float64(e.bucket.Load()), 0) / water
}

// Queued returns the own prefill tokens in front of a new request, less the progress of the running
// prefill, which is overdue by so many seconds. A non-streamed one never is: it leaves the line
// when it must be computed. rate is in tokens/s.
func (e *Engine) Queued(now prefixtree.Time, rate float64) (tokens, overdue float64) {
	tokens = float64(e.charged.Load())
	head := float64(e.headTokens.Load())
	if head <= 0 {
		return max(tokens, 0), 0
	}
	ran, hidden := e.ran(now, rate), e.headNonStreaming.Load()
	if hidden && ran*rate >= head {
		e.settle(now, rate)
		tokens, head = float64(e.charged.Load()), float64(e.headTokens.Load())
		ran, hidden = e.ran(now, rate), e.headNonStreaming.Load()
	}
	if head > 0 {
		tokens -= min(head, ran*rate)
	}
	if head > 0 && !hidden {
		overdue = max(ran-head/rate, 0)
	}
	return max(tokens, 0), overdue
}

// Ahead returns all nodes' prefill tokens in front of a new request, of which so many are own. Peers
// report a charge in full until its first token. The engine computes in order of arrival, so since the
// latest first token of any node's request it has computed a part of the next one, which is no larger
// than the largest charge. rate is in tokens/s.
func (e *Engine) Ahead(own float64, now prefixtree.Time, rate float64) float64 {
	peers := float64(e.peerTokens.Load())
	if peers <= 0 {
		return own
	}
	largest := float64(max(e.peerMost.Load(), e.headTokens.Load()))
	computed := min(rate*seconds(prefixtree.Time(e.turned.Load()), now), largest)
	return max(own, float64(e.charged.Load())+peers-computed)
}

// turn notes that the engine begins another prefill. Needs mu.
func (e *Engine) turn(now prefixtree.Time) { e.turned.Store(max(e.turned.Load(), int64(now))) }

func (e *Engine) ran(now prefixtree.Time, rate float64) float64 {
	return max(seconds(prefixtree.Time(e.headSince.Load()), now)-float64(e.headAhead.Load())/rate, 0)
}

// Charge takes a request into the books.
func (e *Engine) Charge(c *Charge, now prefixtree.Time) {
	e.active.Add(1)
	e.charged.Add(c.Tokens)
	e.placed.Add(c.Tokens)
	e.resident.Add(c.Resident)
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.ahead = e.peerTokens.Load(); c.ahead <= 0 && len(e.line) == 0 {
		e.turn(now)
	}
	if e.forgetSettled(now); c.Settled > now {
		e.late = append(e.late, c)
	}
	c.since, c.front = now, e.nonStreaming
	if c.NonStreaming {
		e.nonStreaming += c.Tokens
	}
	if e.line = append(e.line, c); len(e.line) == 1 {
		e.headed(c, c.ahead, now)
	}
	e.pending.Store(int64(len(e.line)))
}

// overtaken takes a report that a peer has so many more prefill tokens on the backend. The peer placed them before the own requests
// that were picked within the reports' staleness: the engine computes them first.
func (e *Engine) overtaken(tokens int64, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetSettled(now)
	for _, c := range e.late {
		c.ahead += tokens
		if len(e.line) > 0 && e.line[0] == c {
			e.headAhead.Add(tokens)
		}
	}
}

// forgetSettled needs mu.
func (e *Engine) forgetSettled(now prefixtree.Time) {
	e.late = slices.DeleteFunc(e.late, func(c *Charge) bool { return c.Settled < now })
}

// headed sets the head of the line. Needs mu.
func (e *Engine) headed(c *Charge, ahead int64, since prefixtree.Time) {
	e.headNonStreaming.Store(c.NonStreaming)
	e.headAhead.Store(ahead)
	e.headSince.Store(int64(since))
	e.headTokens.Store(c.Tokens)
}

// Dispatched notes that the request was sent to the engine.
func (e *Engine) Dispatched(c *Charge, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.since = now
	if len(e.line) > 0 && e.line[0] == c {
		e.headSince.Store(int64(now))
	}
}

// FirstToken releases a dispatched request's prefill tokens. It returns the seconds since the engine's latest first token, or since the
// dispatch if that was later: engines prefill in order of arrival.
func (e *Engine) FirstToken(c *Charge, now prefixtree.Time) (took float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prefilled(c, now, true)
	since := max(c.since, e.lastFirst)
	e.lastFirst = max(e.lastFirst, now)
	return float64(now-since) / 1000
}

// Prefilled releases a request's prefill tokens, once, though no first token was seen.
func (e *Engine) Prefilled(c *Charge, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prefilled(c, now, false)
}

// prefilled releases the charge, once. A first token proves that non-streamed requests in front are
// prefilled too. Needs mu.
func (e *Engine) prefilled(c *Charge, now prefixtree.Time, token bool) {
	if !slices.Contains(e.line, c) {
		return
	}
	at := 0
	for e.line[at] != c {
		if token && e.line[at].NonStreaming {
			e.leave(at, now, now)
		} else {
			at++
		}
	}
	e.leave(at, now, now)
}

// leave takes a request, done at that time, out of the line. Needs mu.
func (e *Engine) leave(at int, done, now prefixtree.Time) {
	c := e.line[at]
	if c.NonStreaming {
		e.nonStreaming -= c.Tokens
	}
	e.charged.Add(-c.Tokens)
	e.line = slices.Delete(e.line, at, at+1)
	e.pending.Store(int64(len(e.line)))
	if at > 0 {
		return
	}
	e.turn(done)
	if len(e.line) == 0 {
		e.headTokens.Store(0)
	} else {
		next := e.line[0]
		e.headed(next, max(next.ahead-c.ahead, 0), min(max(done, next.since), now))
	}
}

// settle removes non-streamed requests from the head of the line once their prefill must be done:
// they end long after it, and counted until then, their engine would look stuck.
func (e *Engine) settle(now prefixtree.Time, rate float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.line) > 0 && e.line[0].NonStreaming {
		took := float64(e.headAhead.Load()+e.line[0].Tokens) / rate
		done := e.headSince.Load() + int64(math.Ceil(min(took*1000, math.MaxInt32)))
		if done > int64(now) {
			return
		}
		e.leave(0, prefixtree.Time(done), now)
	}
}

// Release takes a request that has ended, after Prefilled or FirstToken, out of the books.
func (e *Engine) Release(c *Charge) {
	if c.Settled > 0 { // not of a router that is alone
		e.mu.Lock()
		if i := slices.Index(e.late, c); i >= 0 {
			e.late = slices.Delete(e.late, i, i+1)
		}
		e.mu.Unlock()
	}
	e.active.Add(-1)
	e.resident.Add(-c.Resident)
}

// RateOr returns the learned rate in tokens/s, or the prior without measurements. With little evidence only a
// slower one counts: else the first measured backend of an idle fleet would attract all requests.
func (e *Engine) RateOr(prior float64) float64 {
	bits := e.measured.Load()
	if bits == 0 {
		return prior
	}
	sums := rateSums{tokens: float64(math.Float32frombits(uint32(bits >> 32))), seconds: float64(math.Float32frombits(uint32(bits)))}
	if sums.seconds < ratePrior && sums.tokens > prior*sums.seconds {
		return prior
	}
	return sums.estimate(prior, ratePrior)
}

// Left is Fleet.Left for one engine.
func (e *Engine) Left() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	counts := [...]struct {
		what string
		n    int64
	}{
		{"active", e.active.Load()}, {"charged", e.charged.Load()}, {"resident", e.resident.Load()}, {"head", e.headTokens.Load()},
		{"in line", int64(len(e.line))}, {"late", int64(len(e.late))}, {"not streamed", e.nonStreaming}, {"parked", e.parked.Load()},
		{"others' tokens", e.peerTokens.Load()}, {"others' requests", e.peerActive.Load()},
	}
	var left []error
	for _, c := range counts {
		if c.n != 0 {
			left = append(left, fmt.Errorf("%s %d", c.what, c.n))
		}
	}
	if e.trial.Load() {
		left = append(left, errors.New("a trial"))
	}
	if left == nil {
		return nil
	}
	return fmt.Errorf("left on backend %d, generation %d: %w", e.id, e.Generation(), errors.Join(left...))
}

func seconds(from, to prefixtree.Time) float64 { return float64(max(to-from, 0)) / 1000 }

func raise(value *atomic.Int64, v int64) {
	for {
		was := value.Load()
		if was >= v || value.CompareAndSwap(was, v) {
			return
		}
	}
}

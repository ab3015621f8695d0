package proxy

import (
	"slices"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/queue"
)

// Bounds of the scratch that a pooled exchange keeps.
const (
	retainScratch = 64 << 10
	retainHashes  = 8 << 10 // a prompt of 4 MiB
)

// finish returns an exchange to the pool, exactly once.
type exchange struct {
	proxy *Proxy
	inquiry
	relayed
	scratch
	head    requestHead
	query   policy.Request
	guard   guard
	prefill guard // of another backend that computes the prompt
	split   split
	pair    pair
	learner engine.Stream
	relay   relay
	renamer renamer
	follow  func(*prompt.Request) []byte // followBody
	seat    seat                         // in the queue
}

type inquiry struct {
	ctx    *fasthttp.RequestCtx
	conn   *clientConn
	tuned  *Config         // in force when the request began
	client *clients.Client // nil without a list of clients
	held   clients.Reservation
	rec    Record
	last   failure
	wait   int    // seconds, of the last 429
	name   uint64 // see requestName
	path   []byte
	target []byte
	ownKey bool   // send Target.Header: an inference path
	body   []byte // as received
	named  []byte // where in pieces the id of the response goes; nil: nowhere
	strip  bool   // remove the usage that only the router asked for
	usage  engine.Usage

	members  []string         // of bodies that name sessions by rules
	priority clients.Priority // in the queue
	answerBy time.Duration    // when the client wants its first token, since Proxy.epoch; 0: it does not say

	sessionAt int  // see prompt.Request.SessionAt
	adapters  bool // the body names more than one
	stampHead bool // the request that is sent next has a stamp in its head
}

type relayed struct {
	up       *upstreamConn
	keep     bool // up can be reused
	response bodyReader
	learn    bool   // count tokens
	sse      bool   // an event stream
	renaming bool   // the model in it
	ended    bool   // the stream's own end was delivered
	first    []byte // body bytes read before relaying
	relaying bool
}

// failure describes the last failed attempt.
type failure struct {
	failed     books.Failure
	status     int    // 502, 503 or 504 of the backend, or 0
	retryAfter []byte // scratch
	refused    bool
	busy       int  // attempts answered with 429
	wait       int  // shortest Retry-After of the 429 answers, in seconds
	held       bool // the response holds the last 429 answer
}

// scratch outlives a request. Names and hashes are copies, because a stream outlives the body.
type scratch struct {
	suspects []prefixtree.Backend // received the request and did not answer
	pieces   [][]byte             // the body to send: views of body and inserted
	inserted []byte               // texts of the edits
	tenant   []byte
	block    idBlock
	id       []byte
	route    []byte
	names    []byte
	hashes   []prefixtree.Hash
	marks    []prefixtree.Mark
	stamp    []byte
	sent     [][]byte // pieces with the stamp in them
	partial  []byte   // an incomplete event
	tail     []byte   // of a long response
}

// guard is an attempt that exchange.end ends exactly once.
type guard struct {
	attempt policy.Attempt
	open    bool
	stamped stamped
}

func newExchange(p *Proxy) *exchange {
	e := &exchange{proxy: p}
	e.relay.e = e
	e.query.Header, e.follow = e.header, e.followBody
	return e
}

func (e *exchange) header(name string) []byte { return e.ctx.Request.Header.Peek(name) }

func (p *Proxy) acquire(ctx *fasthttp.RequestCtx, conn *clientConn) *exchange {
	e := p.exchanges.Get().(*exchange)
	e.ctx, e.conn, e.tuned = ctx, conn, p.tuned.Load()
	p.active.Add(1)
	return e
}

func (e *exchange) patience() time.Duration {
	if e.rec.Stream {
		return e.tuned.Timeouts.StreamFirstByte
	}
	return e.tuned.Timeouts.FirstByte
}

func (e *exchange) startRecord() {
	e.usage = engine.Unknown
	e.rec = Record{
		Start:        e.conn.arrived,
		ID:           e.head.id,
		Method:       e.ctx.Method(),
		Path:         e.path,
		Peer:         e.conn.forwarded,
		RequestBytes: len(e.body),
	}
	if len(e.head.trace) > 0 {
		e.rec.Trace = parseTrace(e.head.trace)
	}
	if e.tuned.Tracing {
		e.rec.Trace.begin(e.tuned.TraceShare)
	}
}

func (e *exchange) pick() (Target, error) {
	t, err := e.proxy.cfg.Picker.Pick(&e.query, &e.guard.attempt)
	if err != nil {
		return t, err
	}
	e.booked(t)
	return t, nil
}

// booked notes that the policy has booked the request at t.
func (e *exchange) booked(t Target) {
	e.guard.open = true
	e.rec.Attempts++
	e.rec.Decision = e.guard.attempt.Decision()
	e.rec.Backend = t.Name
	if e.rec.Trace.Recorded() {
		e.rec.Picked = time.Since(e.rec.Start)
	}
	if e.named != nil {
		e.proxy.responses.name(e.named, t.Name, e.tenant, &e.block)
	}
}

func (e *exchange) end(f books.Failure) {
	if e.guard.open {
		e.rec.Failed = f
		e.close(&e.guard, f, e.usage)
	}
}

func (e *exchange) close(g *guard, f books.Failure, u engine.Usage) {
	g.open = false
	o := policy.Outcome{PromptTokens: u.PromptTokens, CachedTokens: u.CachedTokens, OutputTokens: u.OutputTokens, Failed: f}
	switch f {
	case books.Timeout, books.Reset, books.Status5xx:
		// Others may fail for reasons that only the client knows.
		if e.rec.Kind != prompt.Other {
			o.Request, o.FailedBefore = e.requestName(), e.suspects
		}
	case books.Busy:
		o.RetryAfter = int64(e.wait) * 1000
	}
	g.attempt.End(o, e.proxy.cfg.Picker.Now())
	e.endStamped(g, u)
	e.proxy.opened(g.attempt.Decision().Backend)
}

func outcome(status int) books.Failure {
	switch {
	case status >= 500:
		return books.Status5xx
	case status >= 400:
		return books.Client4xx
	}
	return books.None
}

// requestName identifies a request by its body or, once that is released, by its prompt or id.
func (e *exchange) requestName() uint64 {
	if e.name != 0 {
		return e.name
	}
	switch n := len(e.hashes); {
	case e.body != nil:
		e.name = xxh3.HashSeed(e.conn.body, e.proxy.broken.seed) | 1
	case n > 0:
		e.name = uint64(e.hashes[n-1]) ^ uint64(e.rec.PromptBytes) | 1
	default:
		e.name = xxh3.Hash(e.head.id) | 1
	}
	return e.name
}

// release returns why the watch interrupted the connection.
func (e *exchange) release(up *upstreamConn, reusable bool) reason {
	why := e.conn.detach()
	if reusable && why == undisturbed && up.br.Buffered() == 0 {
		e.proxy.upstreams.put(up)
	} else {
		up.raw.Close()
	}
	return why
}

func (e *exchange) finish() {
	if e.up != nil { // not read to its end
		e.release(e.up, false)
		e.up = nil
	}
	e.end(books.ClientGone)
	e.endPair(e.rec.Failed != books.None)
	if e.prefill.open { // after a panic
		e.close(&e.prefill, books.ClientGone, engine.Unknown)
	}
	e.settle()
	e.learnOutput()
	if e.rec.Attempts > 0 || e.last.refused {
		e.observe()
	}
	e.recycle()
}

func (e *exchange) observe() {
	r := &e.rec
	if r.Total == 0 {
		r.Total = time.Since(r.Start)
	}
	r.PromptTokens, r.CachedTokens, r.OutputTokens = e.usage.PromptTokens, e.usage.CachedTokens, e.usage.OutputTokens
	if e.split.transfers() {
		r.CachedTokens = e.split.usage.CachedTokens // the decode backend counts what it fetched
	}
	if r.Decision != nil {
		r.MatchedTokens = e.matchedTokens(r.Decision)
	}
	if ev := e.proxy.cfg.Log.Debug(); ev.Enabled() {
		ev.Bytes("id", r.ID).Stringer("kind", r.Kind).Int("status", r.Status).Str("backend", r.Backend).
			Int("attempt", r.Attempts).Stringer("failed", r.Failed).Dur("dur_ms", r.Total).Msg("request")
	}
	if e.proxy.cfg.Observer == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil { // the request must still be counted as finished
			e.proxy.logPanic(p)
		}
	}()
	e.proxy.cfg.Observer(r)
}

func (e *exchange) recycle() {
	p := e.proxy
	e.conn.releaseBody(retainBody)
	e.forgetPieces()
	clear(e.tenant) // a credential
	e.inquiry, e.relayed = inquiry{}, relayed{}
	e.seat.waiter, e.seat.target = queue.Waiter{}, Target{}
	e.head = requestHead{block: reuse(e.head.block), forwarded: reuse(e.head.forwarded), talk: reuse(e.head.talk), traceState: reuse(e.head.traceState)}
	e.split.reset()
	e.query = policy.Request{Header: e.query.Header, Exclude: e.query.Exclude[:0]}
	e.suspects, e.partial, e.tail = e.suspects[:0], reuse(e.partial), reuse(e.tail)
	if cap(e.hashes) > retainHashes {
		e.hashes = nil
	}
	p.active.Add(-1)
	p.exchanges.Put(e)
}

func reuse(b []byte) []byte {
	if cap(b) > retainScratch {
		return nil
	}
	return b[:0]
}

func (e *exchange) dropBody() {
	e.body = nil
	e.forgetPieces()
	e.conn.releaseBody(smallBody)
}

func (e *exchange) forgetPieces() {
	e.split.forgetBodies()
	clear(e.pieces)
	clear(e.sent)
	e.pieces, e.sent, e.inserted = e.pieces[:0], e.sent[:0], reuse(e.inserted)
}

func (e *exchange) decorate() {
	h := &e.ctx.Response.Header
	h.SetBytesV(headerRequestID, e.head.id)
	e.showLimits()
	show := e.tuned.ResponseHeaders
	if e.client != nil && !e.client.Trusted {
		show = NoHeaders
	}
	if show >= AllHeaders && e.proxy.cfg.NodeName != "" {
		h.Set(headerNode, e.proxy.cfg.NodeName)
	}
	if show >= AllHeaders && e.rec.Attempts > 0 {
		h.Set(headerBackend, e.rec.Backend)
	}
	if show >= AllHeaders && e.split.transfers() {
		h.Set(headerPrefill, e.rec.Prefill.Backend)
	}
	if show >= RouteHeader && e.rec.Attempts > 0 {
		d := e.rec.Decision
		e.route = append(e.route[:0], d.Rung.String()...)
		e.route = append(e.route, ";matched="...)
		e.route = fasthttp.AppendUint(e.route, e.matchedTokens(d))
		e.route = append(e.route, ";predicted="...)
		e.route = fasthttp.AppendUint(e.route, max(d.PredictedTokens, 0))
		h.SetBytesV(headerRoute, e.route)
	}
	if e.proxy.draining.Load() || !e.ctx.Request.Header.IsHTTP11() {
		e.ctx.SetConnectionClose()
	}
}

func (e *exchange) prepare(status int) {
	e.rec.Status = status
	e.decorate()
	if status == fasthttp.StatusTooManyRequests && len(e.ctx.Response.Header.Peek("Retry-After")) == 0 {
		e.retryAfter(1)
	}
}

func (e *exchange) matchedTokens(d *policy.Decision) int {
	if d.MatchedBlocks == 0 || e.rec.PromptBytes == 0 {
		return 0
	}
	matched := min(d.MatchedBlocks*e.proxy.cfg.Hasher.BlockBytes(), e.rec.PromptBytes)
	return int(int64(d.PromptTokens) * int64(matched) / int64(e.rec.PromptBytes))
}

// splice appends the pieces of the body after the edits, whose texts it copies, since the parser
// reuses them.
func (e *exchange) splice(pieces [][]byte, edits []prompt.Edit) [][]byte {
	texts := 0
	for _, d := range edits {
		texts += len(d.Text)
	}
	e.inserted = slices.Grow(e.inserted, texts) // pieces stay views of inserted
	at := 0
	for _, d := range edits {
		pieces = addPiece(pieces, e.body[at:d.From])
		from := len(e.inserted)
		e.inserted = append(e.inserted, d.Text...)
		pieces = addPiece(pieces, e.inserted[from:])
		at = d.To
	}
	return addPiece(pieces, e.body[at:])
}

func addPiece(pieces [][]byte, p []byte) [][]byte {
	if len(p) > 0 {
		pieces = append(pieces, p)
	}
	return pieces
}

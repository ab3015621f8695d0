package proxy

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine/prefixtree"
	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// Bounds of the scratch that a pooled exchange keeps.
const (
	retainScratch = 64 << 10
	retainHashes  = 8 << 10 // a prompt of 4 MiB
)

// exchange is one request, from a pool. finish returns it exactly once: at the end of the handler
// or, if streamed, when fasthttp closes the body.
type exchange struct {
	proxy *Proxy
	ctx   *fasthttp.RequestCtx
	conn  *clientConn
	head  requestHead
	query policy.Request
	guard guard
	rec   Record
	last  failure
	// Backends that received the request and did not answer.
	suspects []prefixtree.Backend
	wait     int    // seconds, of the last 429
	name     uint64 // see requestName

	path     []byte
	target   []byte
	access   access
	body     []byte   // as received
	pieces   [][]byte // the body to send: views of body and inserted
	inserted []byte   // scratch: texts of the edits
	tenant   []byte   // scratch
	strip    bool     // remove the usage that only the router asked for
	id       []byte   // scratch
	route    []byte   // scratch

	// Scratch for copies from the prompt: a stream outlives the body and the parser.
	names  []byte
	hashes []prefixtree.Hash

	up       *upstreamConn // of a relayed response
	keep     bool          // up can be reused
	response bodyReader
	learner  engine.Stream
	learn    bool // count tokens
	sse      bool
	told     bool   // the stream's own end was delivered
	holding  bool   // the head is held back
	first    []byte // body bytes read before relaying
	partial  []byte // an incomplete event
	tail     []byte // of a long response
	relay    relay
	relaying bool
	usage    engine.Usage
}

// guard owns an attempt and ends it exactly once.
type guard struct {
	attempt policy.Attempt
	open    bool
}

func newExchange(p *Proxy) *exchange {
	e := &exchange{proxy: p}
	e.relay.e = e
	e.query.Header = e.header
	return e
}

func (e *exchange) header(name string) []byte { return e.ctx.Request.Header.Peek(name) }

func (p *Proxy) acquire(ctx *fasthttp.RequestCtx, conn *clientConn) *exchange {
	e := p.exchanges.Get().(*exchange)
	e.ctx, e.conn = ctx, conn
	p.active.Add(1)
	return e
}

// unknown is the usage of an engine that reported none.
var unknown = engine.Usage{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}

func (e *exchange) startRecord() {
	e.usage = unknown
	e.rec = Record{
		Start:        e.conn.arrived,
		ID:           e.head.id,
		Method:       e.ctx.Method(),
		Path:         e.path,
		RequestBytes: len(e.body),
	}
}

func (e *exchange) pick() (Target, error) {
	t, err := e.proxy.cfg.Picker.Pick(&e.query, &e.guard.attempt)
	if err != nil {
		return t, err
	}
	e.guard.open = true
	e.rec.Attempts++
	e.rec.Decision = e.guard.attempt.Decision()
	e.rec.Backend = t.Name
	return t, nil
}

func (e *exchange) end(f policy.Failure) {
	if !e.guard.open {
		return
	}
	e.guard.open = false
	e.rec.Failed = f
	o := policy.Outcome{
		PromptTokens: e.usage.PromptTokens,
		CachedTokens: e.usage.CachedTokens,
		OutputTokens: e.usage.OutputTokens,
		Failed:       f,
	}
	switch f {
	case policy.Timeout, policy.Reset, policy.Status5xx:
		// Requests of unknown kind may fail for reasons that only the client knows.
		if e.rec.Kind != prompt.Other {
			o.Request, o.FailedBefore = e.requestName(), e.suspects
		}
	case policy.Busy:
		o.RetryAfter = int64(e.wait) * 1000
	}
	e.guard.attempt.End(o, e.proxy.cfg.Picker.Now())
}

// release pools or closes the backend connection and returns why the watch interrupted it, if it
// did.
func (e *exchange) release(up *upstreamConn, reusable bool) reason {
	why := e.conn.detach()
	if reusable && why == undisturbed && up.br.Buffered() == 0 {
		e.proxy.upstreams.put(up)
	} else {
		up.raw.Close()
	}
	return why
}

// finish ends the attempt if still open, reports the record and recycles the exchange.
func (e *exchange) finish() {
	if e.up != nil { // not read to its end
		e.release(e.up, false)
		e.up = nil
	}
	e.end(policy.ClientGone)
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
	if e.proxy.cfg.Observer != nil {
		r.Body = e.pieces
		e.tell(r)
		r.Body = nil
	}
	if ev := e.proxy.cfg.Log.Debug(); ev.Enabled() {
		ev.Bytes("id", r.ID).Stringer("kind", r.Kind).Int("status", r.Status).Str("backend", r.Backend).
			Int("attempt", r.Attempts).Stringer("failed", r.Failed).Dur("dur_ms", r.Total).Msg("request")
	}
}

// tell calls the Observer. Its panic must not keep the request from being counted as finished.
func (e *exchange) tell(r *Record) {
	defer func() {
		if p := recover(); p != nil {
			e.proxy.logPanic(p)
		}
	}()
	e.proxy.cfg.Observer(r)
}

func (e *exchange) recycle() {
	p := e.proxy
	e.conn.releaseBody(retainBody)
	e.ctx, e.conn = nil, nil
	e.path, e.target, e.body, e.first = nil, nil, nil, nil
	e.head = requestHead{block: reuse(e.head.block), forwarded: reuse(e.head.forwarded)}
	e.query = policy.Request{Header: e.query.Header, Exclude: e.query.Exclude[:0]}
	if cap(e.hashes) > retainHashes {
		e.hashes = nil
	}
	e.partial, e.tail = reuse(e.partial), reuse(e.tail)
	e.forgetPieces()
	clear(e.tenant) // a credential
	e.rec = Record{}
	e.last, e.suspects, e.name = failure{}, e.suspects[:0], 0
	e.response = bodyReader{}
	e.strip, e.keep, e.learn, e.sse, e.told, e.holding, e.relaying = false, false, false, false, false, false, false
	p.active.Add(-1)
	p.exchanges.Put(e)
}

func reuse(b []byte) []byte {
	if cap(b) > retainScratch {
		return nil
	}
	return b[:0]
}

// dropBody releases the body once it cannot be sent again: a stream may last minutes.
func (e *exchange) dropBody() {
	e.body = nil
	e.forgetPieces()
	e.conn.releaseBody(smallBody)
}

func (e *exchange) forgetPieces() {
	clear(e.pieces)
	e.pieces, e.inserted = e.pieces[:0], reuse(e.inserted)
}

func (e *exchange) decorate() {
	h := &e.ctx.Response.Header
	h.SetBytesV(headerRequestID, e.head.id)
	show := e.proxy.cfg.ResponseHeaders
	if show >= AllHeaders && e.proxy.cfg.NodeName != "" {
		h.Set(headerNode, e.proxy.cfg.NodeName)
	}
	if show >= AllHeaders && e.rec.Attempts > 0 {
		h.Set(headerBackend, e.rec.Backend)
	}
	if show >= RouteHeader && e.rec.Attempts > 0 {
		d := e.rec.Decision
		e.route = append(e.route[:0], d.Rung.String()...)
		e.route = append(e.route, ";matched="...)
		e.route = fasthttp.AppendUint(e.route, e.matchedTokens(d))
		h.SetBytesV(headerRoute, e.route)
	}
	if e.proxy.draining.Load() || !e.ctx.Request.Header.IsHTTP11() {
		e.ctx.SetConnectionClose()
	}
}

func (e *exchange) matchedTokens(d *policy.Decision) int {
	if d.MatchedBlocks == 0 || e.rec.PromptBytes == 0 {
		return 0
	}
	matched := min(d.MatchedBlocks*e.proxy.cfg.Hasher.BlockBytes(), e.rec.PromptBytes)
	return int(int64(d.PromptTokens) * int64(matched) / int64(e.rec.PromptBytes))
}

func isEventStream(contentType []byte) bool {
	const sse = "text/event-stream"
	return len(contentType) >= len(sse) && bytes.EqualFold(contentType[:len(sse)], []byte(sse))
}

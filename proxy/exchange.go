package proxy

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine/prefixtree"
	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
)

// retainScratch and retainHashes bound the scratch buffers of a pooled exchange.
const (
	retainScratch = 64 << 10
	retainHashes  = 8 << 10 // of a prompt of 4 MiB
)

// exchange is one request on its way: everything there is to know until its record is written. It is taken from a pool
// when the request has arrived and given back by finish, which every way out passes exactly once: at the end of the
// handler, or, for a response that is streamed, when fasthttp closes the stream.
type exchange struct {
	proxy *Proxy
	ctx   *fasthttp.RequestCtx
	conn  *clientConn
	head  requestHead
	query policy.Request
	guard guard
	rec   Record
	last  failure // of the last attempt that failed

	path   []byte
	target []byte // path and query
	body   []byte // to send
	edited []byte // scratch: the body with include_usage
	strip  bool   // the client did not ask for the usage that was asked for
	id     []byte // scratch of a minted id
	route  []byte // scratch of the route header

	// Scratch: what the query keeps of the prompt. Body and parser are let go long before a stream ends.
	names  []byte
	hashes []prefixtree.Hash

	sent     func()        // dispatched, made once
	up       *upstreamConn // of a response that is being relayed
	keep     bool          // up may be used again
	response bodyReader
	learner  engine.Stream
	learn    bool // the response is understood: tokens are counted
	sse      bool
	told     bool   // the client has had the stream's own end
	holding  bool   // waiting for the first byte, head held back
	first    []byte // body bytes at hand when relaying began
	partial  []byte // an event that has not arrived whole
	tail     []byte // last bytes of a long response, for its usage
	relay    relay
	relaying bool
	usage    engine.Usage
}

// guard owns the in-flight count of an attempt: it ends it once, whoever comes first.
type guard struct {
	attempt policy.Attempt
	open    bool
}

func newExchange(p *Proxy) *exchange {
	e := &exchange{proxy: p}
	e.relay.e = e
	e.query.Header = e.header
	e.sent = e.dispatched
	return e
}

// header returns a request header for the rules of the policy.
func (e *exchange) header(name string) []byte { return e.ctx.Request.Header.Peek(name) }

func (p *Proxy) acquire(ctx *fasthttp.RequestCtx, conn *clientConn) *exchange {
	e := p.exchanges.Get().(*exchange)
	e.ctx, e.conn = ctx, conn
	p.active.Add(1)
	return e
}

// unknown is the usage of an engine that did not tell.
var unknown = engine.Usage{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}

// startRecord begins the record.
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

// pick asks for a backend and opens the guard.
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

// end closes the guard.
func (e *exchange) end(f policy.Failure) {
	if !e.guard.open {
		return
	}
	e.guard.open = false
	e.rec.Failed = f
	e.guard.attempt.End(policy.Outcome{
		PromptTokens: e.usage.PromptTokens,
		CachedTokens: e.usage.CachedTokens,
		OutputTokens: e.usage.OutputTokens,
		Failed:       f,
	}, e.proxy.cfg.Picker.Now())
}

// release takes the backend connection away from the watch and gives it back, or closes it. It reports whether and why
// the watch had interrupted it.
func (e *exchange) release(up *upstreamConn, reusable bool) reason {
	why := e.conn.detach()
	if reusable && why == undisturbed && up.br.Buffered() == 0 {
		e.proxy.upstreams.put(up)
	} else {
		up.raw.Close()
	}
	return why
}

// finish ends the request: the guard if it is still open, the record, the exchange itself.
func (e *exchange) finish() {
	if e.up != nil { // a stream that was not read to its end
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
		r.Body = e.body
		e.tell(r)
		r.Body = nil
	}
	if ev := e.proxy.cfg.Log.Debug(); ev.Enabled() {
		ev.Bytes("id", r.ID).Stringer("kind", r.Kind).Int("status", r.Status).Str("backend", r.Backend).
			Int("attempt", r.Attempts).Stringer("failed", r.Failed).Dur("dur_ms", r.Total).Msg("request")
	}
}

// tell calls the observer. Its panic is a defect too, and may not keep the request from being counted as over.
func (e *exchange) tell(r *Record) {
	defer func() {
		if p := recover(); p != nil {
			e.proxy.logPanic(p)
		}
	}()
	e.proxy.cfg.Observer(r)
}

// recycle gives the exchange back to the pool without anything that belongs to the request.
func (e *exchange) recycle() {
	p := e.proxy
	e.conn.releaseBody(retainBody)
	e.ctx, e.conn = nil, nil
	e.path, e.target, e.body, e.first = nil, nil, nil, nil
	e.head = requestHead{block: reuse(e.head.block)}
	e.query = policy.Request{Header: e.query.Header, Exclude: e.query.Exclude[:0]}
	if cap(e.hashes) > retainHashes {
		e.hashes = nil
	}
	e.edited, e.partial, e.tail = reuse(e.edited), reuse(e.partial), reuse(e.tail)
	e.rec = Record{}
	e.last = failure{}
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

// dropBody lets go of the request's body once it can no longer be sent again: a stream may last for minutes, and its
// prompt be megabytes.
func (e *exchange) dropBody() {
	e.body = nil
	e.edited = reuse(e.edited)
	e.conn.releaseBody(smallBody)
}

// decorate adds the headers the client gets with every response.
func (e *exchange) decorate() {
	h := &e.ctx.Response.Header
	h.SetBytesV(headerRequestID, e.head.id)
	if e.proxy.cfg.NodeName != "" {
		h.Set(headerNode, e.proxy.cfg.NodeName)
	}
	if e.rec.Attempts > 0 {
		d := e.rec.Decision
		h.Set(headerBackend, e.rec.Backend)
		e.route = append(e.route[:0], d.Rung.String()...)
		e.route = append(e.route, ";matched="...)
		e.route = fasthttp.AppendUint(e.route, e.matchedTokens(d))
		h.SetBytesV(headerRoute, e.route)
	}
	if e.proxy.draining.Load() || !e.ctx.Request.Header.IsHTTP11() {
		e.ctx.SetConnectionClose()
	}
}

// matchedTokens estimates the tokens of the matched blocks from those of the whole prompt.
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

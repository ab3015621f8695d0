package proxy

import (
	"bytes"
	"errors"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// handle serves one request. fasthttp calls it on the connection's goroutine when the request's head has been read, and
// writes the response when it returns.
func (p *Proxy) handle(ctx *fasthttp.RequestCtx) {
	conn := ctx.Conn().(*clientConn)
	if err := conn.receive(ctx, p.cfg.MaxBody); err != nil {
		conn.releaseBody(0) // before the connection lingers
		if err == errBodyMemory {
			p.warn(&p.warned.bodyMemory, conn, "request bodies are refused with 503: they hold all of max_body_memory; raise it if the machine has the memory")
		}
		refuseUnread(ctx, err)
		ctx.SetConnectionClose()
		return
	}
	conn.begin()
	e := p.acquire(ctx, conn)
	defer e.leave()
	e.serve()
}

// leave ends the exchange unless its response is still to be streamed. A panic is a defect of the proxy or of what it
// calls: it costs this request, not the others.
func (e *exchange) leave() {
	if r := recover(); r != nil {
		e.proxy.logPanic(r)
		ctx := e.ctx
		if e.relaying {
			ctx.Response.Reset() // closes the relay, and with it the exchange
			ctx.SetStatusCode(fasthttp.StatusInternalServerError)
			ctx.SetConnectionClose()
			return
		}
		e.refuse(fault{fasthttp.StatusInternalServerError, "internal_error", "the router failed to handle the request"})
		ctx.SetConnectionClose()
	}
	if !e.relaying {
		e.flushWhole()
		e.finish()
	}
}

func (p *Proxy) logPanic(r any) {
	p.cfg.Log.Error().Interface("panic", r).Bytes("stack", debug.Stack()).Msg("request handler panicked")
}

// flushWhole has the response, if it has a body, flushed as soon as it is written.
func (e *exchange) flushWhole() {
	resp := &e.ctx.Response
	if body := resp.Body(); len(body) > 0 && !e.ctx.IsHead() {
		e.conn.whole.body = body
		resp.SetBodyStream(&e.conn.whole, len(body))
	}
}

func (e *exchange) serve() {
	ctx := e.ctx
	e.target = ctx.Request.Header.RequestURI()
	e.path, _, _ = bytes.Cut(e.target, []byte("?"))
	kind := prompt.KindOf(e.path)
	if kind != prompt.Other && !ctx.IsPost() {
		kind = prompt.Other
	}
	e.body = e.conn.body
	e.head.scan(ctx.Request.Header.RawHeaders(), kind != prompt.Other)
	if len(e.head.id) == 0 {
		e.id = mintID(e.id[:0])
		e.head.id = e.id
	}
	if e.head.announced > e.proxy.cfg.MaxBody {
		refuseUnread(ctx, fasthttp.ErrBodyTooLarge)
		ctx.SetConnectionClose()
		return
	}
	e.startRecord()
	e.rec.Kind = kind
	if f, bad := e.screen(); bad {
		e.refuse(f)
		e.conn.lingering = true
		ctx.SetConnectionClose()
		return
	}
	if e.serveLocal() {
		return
	}
	e.read(kind)
	e.forward()
}

// screen refuses what two parsers could understand differently, and what the proxy does not speak.
func (e *exchange) screen() (fault, bool) {
	h := &e.ctx.Request.Header
	bad := func(message string) (fault, bool) {
		return fault{fasthttp.StatusBadRequest, "bad_request", message}, true
	}
	switch {
	case e.head.fault != "":
		return bad(e.head.fault)
	case e.head.codings > 0 && e.head.lengths > 0:
		return bad("Content-Length and Transfer-Encoding may not both be given")
	case e.head.badCoding:
		return bad("unsupported transfer encoding")
	}
	switch string(h.Protocol()) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		// Responses to HTTP/1.0 end with the connection, so a second request cannot be told from a smuggled one.
		if e.ctx.ConnRequestNum() > 1 {
			return bad("HTTP/1.0 is served on a connection's first request only")
		}
	default:
		return fault{fasthttp.StatusHTTPVersionNotSupported, "http_version", "only HTTP/1.1 and HTTP/1.0 are spoken here"}, true
	}
	if e.ctx.IsConnect() || e.ctx.IsTrace() {
		return fault{fasthttp.StatusMethodNotAllowed, "method_not_allowed", "the method is not served"}, true
	}
	if len(e.target) == 0 || e.target[0] != '/' {
		return e.screenTarget(bad)
	}
	return fault{}, false
}

// screenTarget admits the absolute form of a request target if it names the host that the Host header names, and takes
// the origin form out of it.
func (e *exchange) screenTarget(bad func(string) (fault, bool)) (fault, bool) {
	_, rest, absolute := bytes.Cut(e.target, []byte("://"))
	if !absolute {
		return bad("the request target must be a path")
	}
	authority, path := rest, []byte("/")
	if slash := bytes.IndexAny(rest, "/?#"); slash >= 0 {
		authority, path = rest[:slash], rest[slash:]
	}
	if !bytes.EqualFold(authority, e.ctx.Request.Header.Host()) || path[0] != '/' {
		return bad("the request target and the Host header name different hosts")
	}
	e.target = path
	e.path, _, _ = bytes.Cut(path, []byte("?"))
	e.rec.Path = e.path
	return fault{}, false
}

// serveLocal answers what no backend is asked for.
func (e *exchange) serveLocal() bool {
	get := e.ctx.IsGet() || e.ctx.IsHead()
	switch {
	case !get:
		return false
	case string(e.path) == "/healthz":
		e.answer(fasthttp.StatusOK, "ok\n")
	case string(e.path) == "/readyz":
		if e.proxy.ready.Load() {
			e.answer(fasthttp.StatusOK, "ready\n")
		} else {
			e.answer(fasthttp.StatusServiceUnavailable, "not ready\n")
		}
	case e.proxy.cfg.Models != nil && bytes.HasPrefix(e.path, modelsPath) && (len(e.path) == len(modelsPath) || e.path[len(modelsPath)] == '/'):
		e.serveModels()
	default:
		return false
	}
	return true
}

// answer sends a short text of the proxy's own.
func (e *exchange) answer(status int, text string) {
	e.ctx.Response.Header.SetContentType("text/plain; charset=utf-8")
	e.ctx.SetStatusCode(status)
	e.ctx.Response.SetBodyString(text)
	e.decorate()
}

// read makes the policy's request of what the client sent. A body that is not understood is routed by load, and the
// engine judges it.
func (e *exchange) read(kind prompt.Kind) {
	q := &e.query
	q.Path = e.path
	q.Session = e.head.session
	if kind == prompt.Other || e.head.encoded {
		q.Whole = true // whatever its answer is, nobody looks for tokens in it
		e.rec.Kind, e.rec.Unparsed = kind, e.head.encoded
		return
	}
	d := e.proxy.parsers.Get().(*describer)
	defer d.release(e.proxy)
	r := &d.prompt
	err := d.parser.Parse(kind, e.body, r)
	e.rec.Unparsed = err != nil
	e.rec.Stream, e.rec.PromptBytes = r.Stream, r.PromptBytes
	e.names, e.hashes = describe(q, r, e.names[:0], e.hashes[:0])
	e.rec.Model = q.Model
	if err == nil && r.UsageEdited() {
		e.edited = r.AppendWithUsage(e.edited[:0], e.body)
		e.body = e.edited
		e.strip = true
	}
}

// forward tries one backend after the other until the client has been answered, the attempts are used up, or nobody is
// left.
func (e *exchange) forward() {
	began := e.rec.Start
	for {
		t, err := e.pick()
		if err != nil {
			e.refusePick(err)
			return
		}
		e.rec.Overhead += time.Since(began)
		if e.attempt(&t) {
			return
		}
		began = time.Now()
		if e.rec.Attempts == e.proxy.tuned.Load().MaxAttempts {
			e.refuseExhausted()
			return
		}
		e.query.Exclude = append(e.query.Exclude, t.ID)
	}
}

// refusePick answers a request that no backend can take.
func (e *exchange) refusePick(err error) {
	e.last.refused = true
	switch {
	case e.rec.Attempts > 0:
		e.refuseExhausted() // all there are have failed
	case errors.Is(err, policy.ErrUnknownModel):
		e.refuse(fault{fasthttp.StatusNotFound, "model_not_found", "no backend serves the model " + quoted(e.rec.Model)})
	case errors.Is(err, policy.ErrNoBackend):
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "no_backend", "no backend can take the request now"})
		e.retryAfter(1)
	default:
		e.proxy.cfg.Log.Error().Err(err).Msg("cannot pick a backend")
		e.refuse(fault{fasthttp.StatusInternalServerError, "internal_error", "the router could not choose a backend"})
	}
}

package proxy

import (
	"bytes"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

func (p *Proxy) handle(ctx *fasthttp.RequestCtx) {
	conn := ctx.Conn().(*clientConn)
	if err := conn.receive(ctx, p.tuned.Load().MaxBody); err != nil {
		conn.releaseBody(0) // before the connection lingers
		if err == errBodyMemory {
			p.warn(&p.warned.bodyMemory, conn, "refusing request bodies with 503: max_body_memory is used up; raise it if the machine has more memory")
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

// A panic costs one request.
func (e *exchange) leave() {
	if r := recover(); r != nil {
		e.proxy.logPanic(r)
		ctx := e.ctx
		if e.relaying {
			ctx.Response.Reset() // finishes the exchange
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

func (e *exchange) flushWhole() {
	resp := &e.ctx.Response
	if body := resp.Body(); len(body) > 0 && !e.ctx.IsHead() {
		e.conn.whole.body = body
		resp.SetBodyStream(&e.conn.whole, len(body))
	}
}

func (e *exchange) serve() {
	ctx := e.ctx
	badTarget := e.locate()
	kind := prompt.KindOf(e.path)
	if kind != prompt.Other && !ctx.IsPost() {
		kind = prompt.Other
	}
	e.body = e.conn.body
	e.scan(kind, e.tuned.AllowEngineControl && e.proxy.cfg.Clients == nil)
	if len(e.head.id) == 0 {
		e.id = mintID(e.id[:0])
		e.head.id = e.id
	}
	if e.head.announced > e.tuned.MaxBody || e.leftUnread() {
		refuseUnread(ctx, fasthttp.ErrBodyTooLarge)
		ctx.SetConnectionClose()
		return
	}
	e.startRecord()
	e.rec.Kind = kind
	if f, bad := e.screen(badTarget); bad {
		e.refuse(f)
		e.conn.lingering = true
		ctx.SetConnectionClose()
		return
	}
	if e.serveHealth() || !e.identify(kind) || e.serveModels() || !e.admit(kind) {
		return
	}
	if f, bad := e.read(kind); bad {
		e.last.refused = true
		e.refuse(f)
		return
	}
	if e.rec.Trace.Recorded() {
		e.rec.Parsed = time.Since(e.rec.Start)
	}
	if f, bad := e.readWishes(); bad {
		e.deny(f)
		return
	}
	if !e.mayUseModel() || !e.reserve() {
		return
	}
	e.forward()
}

func (e *exchange) scan(kind prompt.Kind, control bool) {
	e.head.scan(e.ctx.Request.Header.RawHeaders(), scanOptions{
		plainAnswer: kind != prompt.Other, control: control, ranked: e.proxy.ranks(e.client), takeKey: e.proxy.cfg.Clients != nil,
		traced: e.tuned.Tracing,
	})
}

// screen refuses requests that two parsers could read differently.
func (e *exchange) screen(badTarget string) (fault, bool) {
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
		// A second one may be smuggled: an HTTP/1.0 response ends with the connection.
		if e.ctx.ConnRequestNum() > 1 {
			return bad("HTTP/1.0 is accepted only for a connection's first request")
		}
	default:
		return fault{fasthttp.StatusHTTPVersionNotSupported, "http_version", "this router accepts only HTTP/1.1 and HTTP/1.0"}, true
	}
	if e.ctx.IsConnect() || e.ctx.IsTrace() {
		return fault{fasthttp.StatusMethodNotAllowed, "method_not_allowed", "this router does not accept the method"}, true
	}
	if badTarget != "" {
		return bad(badTarget)
	}
	if e.head.websocket && e.head.dropped([]byte("upgrade")) {
		return fault{fasthttp.StatusNotImplemented, "websocket_not_served", "this router does not serve WebSockets; use streaming over HTTP"}, true
	}
	return fault{}, false
}

// locate returns what is wrong with the target.
func (e *exchange) locate() (fault string) {
	e.target = e.ctx.Request.Header.RequestURI()
	if len(e.target) == 0 || e.target[0] != '/' {
		_, rest, absolute := bytes.Cut(e.target, []byte("://"))
		if !absolute {
			return "the request target must be a path"
		}
		authority, path := rest, []byte("/")
		if slash := bytes.IndexAny(rest, "/?#"); slash >= 0 {
			authority, path = rest[:slash], rest[slash:]
		}
		if !bytes.EqualFold(authority, e.ctx.Request.Header.Host()) || path[0] != '/' {
			return "the request target and the Host header name different hosts"
		}
		e.target = path
	}
	e.path, _, _ = bytes.Cut(e.target, []byte("?"))
	return ""
}

func (e *exchange) serveHealth() bool {
	switch {
	case !e.ctx.IsGet() && !e.ctx.IsHead():
		return false
	case string(e.path) == "/healthz":
		e.answer(fasthttp.StatusOK, "ok\n")
	case string(e.path) == "/readyz":
		if e.proxy.ready.Load() {
			e.answer(fasthttp.StatusOK, "ready\n")
		} else {
			e.answer(fasthttp.StatusServiceUnavailable, "not ready\n")
		}
	default:
		return false
	}
	return true
}

func (e *exchange) answer(status int, text string) {
	e.ctx.Response.Header.SetContentType("text/plain; charset=utf-8")
	e.ctx.SetStatusCode(status)
	e.ctx.Response.SetBodyString(text)
	e.decorate()
}

// TakesUnreadable reports whether unparsable inference bodies are routed by load, not refused.
func (p *Proxy) TakesUnreadable() bool { return p.tuned.Load().takesUnreadable() }

func (c *Config) takesUnreadable() bool {
	return c.AllowEngineControl && c.Tenant.none() && c.Clients == nil
}

// controls reports whether a client may steer engines.
func (c *Config) controls(client *clients.Client) bool {
	return c.AllowEngineControl && (client == nil || client.Trusted)
}

// ranks reports whether a client may say before which requests engines serve its own. Engines' scales run in opposite directions, so
// that no number stands for the priority of a client of the list.
func (p *Proxy) ranks(c *clients.Client) bool {
	if c == nil {
		return p.cfg.Clients == nil
	}
	return c.Trusted
}

// An unparsable body that needs edits is refused, because engines read UTF-16, NaN and more.
func (e *exchange) read(kind prompt.Kind) (fault, bool) {
	q := &e.query
	q.Path = e.path
	q.Session = e.head.conversation()
	e.pieces = e.splice(e.pieces[:0], nil)
	q.Need = needOf(kind)
	e.tenant = e.proxy.cfg.Tenant.of(e.tenant[:0], e.client, e.head.block)
	e.names = e.names[:0]
	if e.proxy.cfg.Rules != nil {
		e.names, q.Client = appendSender(e.names, e.client, q.Header, e.conn.forwarded)
	}
	if kind == prompt.Other {
		q.NonStreaming = true // tokens of the answer are not observed
		id, _ := responseOf(e.path)
		return e.findHolder(id)
	}
	o := prompt.Options{Control: e.tuned.controls(e.client), Unranked: !e.proxy.ranks(e.client), NameResponse: true, Tenant: e.tenant}
	o.Split = !o.Control && e.proxy.splits()
	if e.proxy.cfg.Rules != nil {
		e.members = e.proxy.cfg.Rules.SessionMembers()
		o.Members, o.Follow = e.members, e.follow
	}
	if e.head.encoded {
		q.NonStreaming, e.rec.Unparsed = true, true
		return fault{fasthttp.StatusUnsupportedMediaType, "encoded_body", "request bodies may not be compressed: send it without Content-Encoding"}, !e.tuned.takesUnreadable()
	}
	// A parser's scratch grows with the prompts, and requests last minutes.
	parser := e.proxy.parsers.Get().(*prompt.Parser)
	defer e.proxy.parsers.Put(parser)
	var r prompt.Request
	err := parser.Parse(kind, e.body, o, &r)
	e.rec.Unparsed = err != nil
	e.rec.Stream, e.rec.PromptBytes = r.Stream, r.PromptBytes
	if q.Route == nil {
		e.names = name(q, &r, e.names)
	}
	if e.rec.Model = q.Model; q.Route != nil && q.Route.Target != nil {
		e.rec.Model, e.rec.Target = q.Asked, q.Model
	}
	e.hashes, e.marks = describe(q, &r, e.hashes[:0], e.marks[:0])
	if err != nil {
		return fault{fasthttp.StatusBadRequest, "invalid_json", "the request body cannot be read: " + strings.TrimPrefix(err.Error(), "prompt: ")}, !e.tuned.takesUnreadable()
	}
	e.sketch(kind, parser, &r)
	e.strip, e.sessionAt, e.adapters = r.UsageAdded, r.SessionAt, r.LoRAs
	e.pieces = e.splice(e.pieces[:0], r.Edits)
	if r.Splits {
		e.allowSplit(&r)
	}
	if r.ResponseID >= 0 {
		e.named = e.inserted[r.ResponseID:][:prompt.ResponseIDLen]
	}
	return e.findHolder(r.Previous)
}

// sketch is called while the parser has the body. A prompt that an engine stores in part is not sketched.
func (e *exchange) sketch(kind prompt.Kind, parser *prompt.Parser, r *prompt.Request) {
	if e.proxy.cfg.Sketch == nil || len(r.Previous) > 0 || needOf(kind) != policy.Whole {
		return
	}
	if e.rec.Sketch = e.proxy.cfg.Sketch(); e.rec.Sketch != nil {
		parser.Sketch(e.rec.Sketch)
	}
}

// name says who a request is for. A session already in q wins over the body's.
func name(q *policy.Request, r *prompt.Request, names []byte) []byte {
	names, q.Model = appendName(names, r.Model)
	names, q.LoRA = appendName(names, r.LoRA)
	if len(q.Session) == 0 {
		names, q.Session = appendName(names, r.Session)
	}
	return names
}

// appendName also returns the copy.
func appendName(names, text []byte) (longer, kept []byte) {
	from := len(names)
	names = append(names, text...)
	return names, names[from:len(names):len(names)]
}

func describe(q *policy.Request, r *prompt.Request, hashes []prefixtree.Hash, marks []prefixtree.Mark) ([]prefixtree.Hash, []prefixtree.Mark) {
	if q.Continued = len(r.Previous) > 0; !q.Continued {
		hashes, marks = append(hashes, r.Hashes...), append(marks, r.Marks...)
	}
	q.Marks = marks
	q.Hashes, q.PromptBytes, q.OutputHint, q.NonStreaming = hashes, r.PromptBytes, r.MaxTokens, !r.Stream
	return hashes, marks
}

// Describe fills q, to ask the policy for its choice. A nil header means that body holds its
// tenant's salt. Safe for concurrent use.
func (p *Proxy) Describe(path []byte, header func(name string) []byte, body []byte, q *policy.Request) error {
	parser := p.parsers.Get().(*prompt.Parser)
	defer p.parsers.Put(parser)
	*q = policy.Request{Path: path, Header: header, Need: needOf(prompt.KindOf(path))}
	tuned := p.tuned.Load()
	o := prompt.Options{Control: tuned.AllowEngineControl}
	if header != nil {
		client := p.clientOf(header)
		q.Session = sessionOf(header)
		_, q.Client = appendSender(nil, client, header, nil)
		o.Control, o.Tenant = tuned.controls(client), p.cfg.Tenant.of(nil, client, p.cfg.Tenant.lines(header))
	}
	o.Split = !o.Control && p.splits()
	if p.cfg.Rules != nil {
		o.Members = p.cfg.Rules.SessionMembers()
		o.Follow = func(r *prompt.Request) []byte {
			p.follow(q, r, o.Members, nil)
			return q.Route.Target
		}
	}
	var r prompt.Request
	err := parser.Parse(prompt.KindOf(path), body, o, &r)
	if q.Route == nil {
		name(q, &r, nil)
	}
	describe(q, &r, nil, nil)
	if id := r.Previous; len(id) > 0 {
		q.Holder, q.Stored = p.responses.holder(id, o.Tenant, new(idBlock))
	}
	if r.Splits {
		q.Need = policy.Split
	}
	return err
}

func (e *exchange) forward() {
	if e.refuseBroken() {
		return
	}
	began := e.rec.Start
	for {
		before := e.rec.Waited
		t, settled, err := e.pickInTurn()
		if errors.Is(err, policy.ErrNoRole) && e.pairAgain() {
			t, settled, err = e.pickInTurn()
		}
		if settled {
			return
		}
		began = began.Add(e.rec.Waited - before)
		if err != nil {
			e.refusePick(err)
			return
		}
		if e.last.held {
			e.ctx.Response.ResetBody()
			e.last.held = false
		}
		e.rec.Overhead += time.Since(began)
		ready, settled := e.prefillElsewhere(&t)
		if settled || ready && e.attempt(&t) {
			return
		}
		here := ready && e.last.failed != books.Transfer // the failure is t's
		e.endPair(true)
		began = time.Now()
		if ready && !e.mayMove() || len(e.suspects) >= maxSeen {
			e.refuseExhausted()
			return
		}
		if here {
			e.query.Exclude = append(e.query.Exclude, t.ID)
		}
		if !ready || e.split.transfers() {
			e.runWhole()
		}
	}
}

func (e *exchange) refusePick(err error) {
	e.last.refused = true
	switch {
	case e.refuseWait(err):
	case e.rec.Attempts > 0:
		e.refuseExhausted() // every backend failed
	case errors.Is(err, policy.ErrUnknownModel):
		e.refuse(fault{fasthttp.StatusNotFound, "model_not_found", "no backend serves the model " + quoted(e.rec.Model)})
	case errors.Is(err, policy.ErrHolderGone):
		e.refuse(responseLost)
	case errors.Is(err, policy.ErrNoRole) && e.split.pairs > 0:
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "no_backend", "no prefill backend can take the request now"})
		e.retryAfter(1)
	case errors.Is(err, policy.ErrNoRole):
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "no_backend_role", "no active backend of the model has a role that can serve the request: it needs " +
			neededRoles(e.query.Need) + ". Add such a backend, or resume one"})
		e.retryAfter(1)
	case errors.Is(err, policy.ErrNoBackend):
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "no_backend", "no backend can take the request now"})
		e.retryAfter(1)
	default:
		e.proxy.cfg.Log.Error().Err(err).Msg("cannot pick a backend")
		e.refuse(fault{fasthttp.StatusInternalServerError, "internal_error", "the router could not choose a backend"})
	}
}

func (e *exchange) serveModels() bool {
	if e.proxy.cfg.Models == nil || !isModels(e.path) || !e.ctx.IsGet() && !e.ctx.IsHead() {
		return false
	}
	var may func(model []byte) bool
	if e.client != nil && e.client.Models != nil {
		may = e.client.MayUseModel
	}
	id, err := "", error(nil)
	if rest := e.path[len(modelsPath):]; len(rest) > 1 {
		id, err = url.PathUnescape(string(rest[1:]))
	}
	var body []byte
	if err == nil {
		body = e.proxy.cfg.Models(id, may)
	}
	switch {
	case body != nil:
		e.ctx.Response.Header.SetContentType("application/json")
		e.ctx.Response.SetBodyRaw(body)
		e.decorate()
	case len(e.path) <= len(modelsPath)+1:
		e.refuse(fault{fasthttp.StatusBadGateway, "upstream_unreachable", "no backend has reported its models yet"})
	default:
		e.refuse(fault{fasthttp.StatusNotFound, "model_not_found", "no backend serves the model " + quoted(e.path[len(modelsPath)+1:])})
	}
	return true
}

package proxy

import (
	"bytes"
	"cmp"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/prompt"
)

// bufferedBody bounds, in bytes, responses read whole, so that another backend can take over.
const bufferedBody = 256 << 10

// earlyAnswer is the wait for the answer of a backend that stopped reading.
const earlyAnswer = 200 * time.Millisecond

// attempt reports whether the request is settled; if not, e.last says why. It ends the policy's
// attempt unless the response is relayed.
func (e *exchange) attempt(t *Target) (settled bool) {
	// What was fetched once must not be fetched again, and a stale connection would require sending
	// other requests twice.
	once := e.split.transfers() || e.rec.Kind == prompt.Other && !e.ctx.IsGet() && !e.ctx.IsHead() && !e.ctx.IsOptions()
	up, f, why := e.reach(t, e.toSend(), &e.guard, e.patience(), !once)
	switch {
	case up != nil:
		return e.takeAnswer(up)
	case f != books.None:
		return e.failed(f)
	}
	return e.cutShort(why)
}

// reach sends pieces and reads the response's head. It returns the connection, what failed, or why
// the request must stop.
func (e *exchange) reach(t *Target, pieces [][]byte, g *guard, patience time.Duration, reuse bool) (up *upstreamConn, f books.Failure, why reason) {
	pieces = e.stampFor(t, pieces, g)
	if reuse {
		up = e.proxy.upstreams.get(t)
	}
	for {
		if up == nil {
			if up, f, why = e.dial(t); up == nil {
				return nil, f, why
			}
		}
		if why := e.conn.attach(up, patience); why != undisturbed {
			up.raw.Close()
			return nil, books.None, why
		}
		err := e.converse(up, t, pieces, g)
		if err == nil {
			return up, books.None, undisturbed
		}
		if !up.reused || !untouched(err) || e.conn.cause() != undisturbed {
			f, why := e.lost(up)
			return nil, f, why
		}
		// This says nothing about the backend's health.
		e.release(up, false)
		e.rec.Resent++
		up = nil
	}
}

func (e *exchange) dial(t *Target) (up *upstreamConn, f books.Failure, why reason) {
	up, err := e.proxy.upstreams.dial(e.proxy.base, t)
	if err == nil {
		return up, books.None, undisturbed
	}
	if why := e.conn.cause(); why != undisturbed && why != expired {
		return nil, books.None, why
	}
	if e.proxy.base.Err() != nil {
		return nil, books.None, forced // the drain's time is over, and this connection is interrupted in a moment
	}
	return nil, books.Connect, undisturbed
}

// lost closes a connection that failed, and returns what failed or why the request must stop.
func (e *exchange) lost(up *upstreamConn) (books.Failure, reason) {
	switch why := e.release(up, false); why {
	case undisturbed:
		return books.Reset, why
	case expired:
		return books.Timeout, why
	default:
		return books.None, why
	}
}

func (e *exchange) failed(f books.Failure) bool {
	e.end(f)
	e.blame(f, e.rec.Decision.Backend)
	return false
}

func (e *exchange) blame(f books.Failure, b prefixtree.Backend) {
	if f != books.Connect {
		e.suspects = append(e.suspects, b)
		if f == books.Reset && e.last.failed == books.Reset && len(e.suspects) == maxSeen {
			e.proxy.broken.add(e.requestName(), time.Now())
		}
	}
	e.last.failed, e.last.status = f, 0
}

// cutShort reports whether the request is settled: not if only its prefill failed.
func (e *exchange) cutShort(why reason) bool {
	if why == unpaired {
		e.end(books.Transfer)
		e.last.failed = books.Transfer
		return false
	}
	e.end(books.ClientGone)
	if why == forced {
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "shutting_down", "the router is shutting down"})
		e.retryAfter(1)
	} else {
		// A client that closed only its sending half would take an empty response for an answer.
		e.ctx.Response.Reset()
		e.conn.muted = true
		e.rec.Status = StatusClientGone
	}
	e.ctx.SetConnectionClose()
	return true
}

func (e *exchange) converse(up *upstreamConn, t *Target, pieces [][]byte, g *guard) error {
	up.head = e.appendRequest(up.head[:0], t, pieceBytes(pieces))
	if err := up.send(pieces); err != nil {
		if up.reused {
			return untouchedError{err}
		}
		return e.converseEarly(up, err)
	}
	g.attempt.Dispatched(e.proxy.cfg.Picker.Now())
	e.rec.Queue = time.Since(e.rec.Start)
	return readHead(up.br, &e.ctx.Response.Header)
}

// The backend may have answered and closed before it read the whole request.
func (e *exchange) converseEarly(up *upstreamConn, cause error) error {
	if err := up.raw.SetReadDeadline(time.Now().Add(earlyAnswer)); err != nil {
		return cause
	}
	if err := readHead(up.br, &e.ctx.Response.Header); err != nil || e.ctx.Response.StatusCode() < fasthttp.StatusBadRequest {
		return cause
	}
	e.ctx.Response.Header.SetConnectionClose()
	return nil
}

type untouchedError struct{ error }

// untouched reports whether an error came before any response byte.
func untouched(err error) bool {
	_, unsent := err.(untouchedError)
	return unsent || err == io.EOF
}

// takeAnswer passes on the response unless another backend must answer.
func (e *exchange) takeAnswer(up *upstreamConn) (settled bool) {
	h := &e.ctx.Response.Header
	status, length := h.StatusCode(), h.ContentLength()
	keep := cleanResponse(h)
	inference := e.rec.Kind != prompt.Other
	bodiless, clean := e.withoutBody()
	keep = keep && clean
	e.sse = isEventStream(h.ContentType()) && len(h.ContentEncoding()) == 0
	relayed := !bodiless && (length < 0 || length > bufferedBody || e.sse)
	if e.split.transfers() && status != fasthttp.StatusOK && status != fasthttp.StatusTooManyRequests {
		return e.loseTransfer(up)
	}
	switch status {
	case fasthttp.StatusBadGateway, fasthttp.StatusServiceUnavailable, fasthttp.StatusGatewayTimeout:
		if inference {
			return e.passOver(up, status)
		}
	case fasthttp.StatusTooManyRequests:
		if inference && relayed {
			return e.passOver(up, status)
		}
	}
	e.learn = inference && status == fasthttp.StatusOK && len(h.ContentEncoding()) == 0
	e.startRename(h)
	if relayed {
		return e.startRelay(up, length, keep)
	}
	if !bodiless {
		e.conn.arm(e.tuned.Timeouts.Idle)
		if err := e.ctx.Response.ReadBody(up.br, bufferedBody); err != nil {
			return e.broke(up)
		}
	}
	e.prefillArrived()
	if why := e.release(up, keep); why != undisturbed && why != expired {
		return e.cutShort(why)
	}
	if inference && status == fasthttp.StatusTooManyRequests {
		e.busy(true)
		return false
	}
	if e.learn {
		e.usage = engine.ParseUsage(e.ctx.Response.Body())
	}
	e.rec.TTFT = time.Since(e.rec.Start)
	e.rec.Total = e.rec.TTFT
	if e.renaming {
		e.ctx.Response.SetBody(e.renamer.whole(e.ctx.Response.Body()))
	}
	e.rec.ResponseBytes = int64(len(e.ctx.Response.Body()))
	e.end(outcome(status))
	e.prepare(status)
	return true
}

func (e *exchange) broke(up *upstreamConn) bool {
	f, why := e.lost(up)
	if f == books.None {
		return e.cutShort(why)
	}
	return e.failed(f)
}

// passOver closes the connection, which is cheaper than reading the body.
func (e *exchange) passOver(up *upstreamConn, status int) bool {
	e.last.retryAfter = append(e.last.retryAfter[:0], e.ctx.Response.Header.Peek("Retry-After")...)
	if why := e.release(up, false); why != undisturbed && why != expired {
		return e.cutShort(why)
	}
	if status == fasthttp.StatusTooManyRequests {
		e.busy(false)
		return false
	}
	e.failed(books.Status5xx)
	e.last.status = status
	return false
}

// Until body bytes come another backend can take over, but middle boxes close silent connections:
// wait at most HeaderHold.
func (e *exchange) startRelay(up *upstreamConn, length int, keep bool) bool {
	e.response.reset(up.br, length)
	hold := e.tuned.Timeouts.HeaderHold
	patience := e.patience()
	holding := hold < patience
	e.conn.arm(min(hold, patience))
	var err error
	if hold > 0 {
		e.first, err = e.response.next()
	}
	flush := hold == 0
	if err != nil && err != io.EOF {
		if e.conn.cause() != expired || !holding || e.conn.resume(patience) != undisturbed {
			return e.broke(up)
		}
		flush = true
	}
	e.conn.deadline.Store(0)
	if e.split.transfers() && e.sse && engine.BeginsWithError(e.first) {
		return e.loseTransfer(up)
	}
	if len(e.first) > 0 {
		e.prefillArrived()
	}
	e.up, e.keep = up, keep
	status := e.ctx.Response.StatusCode()
	e.prepare(status)
	e.learner.Reset(e.strip && e.sse && e.learn)
	e.dropBody()
	e.relaying = true
	e.ctx.Response.ImmediateHeaderFlush = flush
	switch {
	// The proxy may change the length of others.
	case length >= 0 && !e.sse && !e.renaming:
		e.ctx.Response.SetBodyStream(&e.relay, length)
	case e.ctx.Request.Header.IsHTTP11():
		e.ctx.Response.SetBodyStream(&e.relay, -1)
	default:
		e.relayToClose()
	}
	return true
}

func (e *exchange) appendRequest(dst []byte, t *Target, length int) []byte {
	dst = append(dst, e.ctx.Method()...)
	dst = append(dst, ' ')
	dst = append(dst, t.BasePath...)
	dst = append(dst, e.target...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, cmp.Or(t.Host, t.Addr)...)
	dst = append(dst, "\r\n"...)
	var own [][2]string
	if e.ownKey {
		own = t.Header
	}
	if e.head.nominees == 0 && len(own) == 0 && !e.stampHead {
		dst = append(dst, e.head.block...)
	} else {
		dst = e.appendFiltered(dst, own)
	}
	if e.stampHead {
		dst = appendHeader(dst, []byte(headerSession), e.stamp)
	}
	if e.tuned.Tracing {
		dst = e.appendTrace(dst)
	}
	dst = append(dst, "X-Request-Id: "...)
	dst = append(dst, e.head.id...)
	if len(e.conn.forwarded) > 0 {
		dst = append(dst, "\r\nX-Forwarded-For: "...)
		if len(e.head.forwarded) > 0 {
			dst = append(dst, e.head.forwarded...)
			dst = append(dst, ", "...)
		}
		dst = append(dst, e.conn.forwarded...)
	}
	if length > 0 || e.head.lengths+e.head.codings > 0 {
		dst = append(dst, "\r\nContent-Length: "...)
		dst = fasthttp.AppendUint(dst, length)
	}
	return append(dst, "\r\n\r\n"...)
}

func (e *exchange) appendFiltered(dst []byte, own [][2]string) []byte {
	block := e.head.block
	for len(block) > 0 {
		end := bytes.IndexByte(block, '\n') + 1
		line := block[:end]
		block = block[end:]
		name := line[:bytes.IndexByte(line, ':')]
		if !e.head.dropped(name) && !sets(own, name) && !(e.stampHead && namesSession(name)) {
			dst = append(dst, line...)
		}
	}
	for _, kv := range own {
		dst = appendHeader(dst, kv[0], kv[1])
	}
	return dst
}

package proxy

import (
	"errors"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// bufferedBody is the longest response that is read whole before it is passed on, in bytes. Until then another backend
// can still take over.
const bufferedBody = 256 << 10

// earlyAnswer is how long a backend that stopped reading a request is given to have answered it.
const earlyAnswer = 200 * time.Millisecond

// maxInterim bounds the 1xx responses before the final one.
const maxInterim = 100

var (
	errUnwanted = errors.New("unexpected response")
	errAborted  = errors.New("response aborted")
)

// failure is why an attempt did not answer.
type failure struct {
	failed     policy.Failure
	status     int    // of a backend that answered 502, 503 or 504
	retryAfter []byte // of the same; scratch
	dispatched int    // attempts whose request was sent
	refused    bool   // no backend was to be had
}

// attempt tries one backend and reports whether that settles the request: answered, or its client gone. If not, another
// may be tried, and e.last says what happened. It ends the attempt, except when the response is to be relayed.
func (e *exchange) attempt(t *Target) (settled bool) {
	up := e.proxy.upstreams.get(t)
	for {
		if up == nil {
			var err error
			if up, err = e.proxy.upstreams.dial(e.proxy.base, t); err != nil {
				if why := e.conn.cause(); why != undisturbed && why != expired {
					return e.cutShort(why)
				}
				return e.failed(policy.Connect)
			}
		}
		if why := e.conn.attach(up, e.patience()); why != undisturbed {
			up.raw.Close()
			return e.cutShort(why)
		}
		err := e.converse(up, t)
		if err == nil {
			return e.receive(up)
		}
		again := up.reused && untouched(err)
		why := e.release(up, false)
		switch {
		case why == expired:
			return e.failed(policy.Timeout)
		case why != undisturbed:
			return e.cutShort(why)
		case !again:
			return e.failed(policy.Reset)
		}
		// The backend closed the connection while it was idle, as it may: that says nothing of its health.
		e.rec.Resent++
		up = nil
	}
}

// patience is how long the backend may take to begin its response.
func (e *exchange) patience() time.Duration {
	if e.rec.Stream {
		return e.proxy.tuned.Load().Timeouts.StreamFirstByte
	}
	return e.proxy.tuned.Load().Timeouts.FirstByte
}

// failed ends the attempt; the request is not settled.
func (e *exchange) failed(f policy.Failure) bool {
	e.end(f)
	e.last.failed, e.last.status = f, 0
	return false
}

// cutShort settles a request whose client has left, or that the drain interrupted. Neither is the backend's fault.
func (e *exchange) cutShort(why reason) bool {
	e.end(policy.ClientGone)
	if why == forced {
		e.refuse(fault{fasthttp.StatusServiceUnavailable, "shutting_down", "the router is shutting down"})
		e.retryAfter(1)
	} else {
		// Nothing is sent: a client that has only closed its sending half would take an empty response for an answer.
		e.ctx.Response.Reset()
		e.conn.muted = true
		e.rec.Status = StatusClientGone
	}
	e.ctx.SetConnectionClose()
	return true
}

// converse sends the request and reads the head of the final response into the client's.
func (e *exchange) converse(up *upstreamConn, t *Target) error {
	up.head = e.appendRequest(up.head[:0], t, len(e.body))
	if err := up.send(e.body, e.sent); err != nil {
		if up.reused {
			return untouchedError{err}
		}
		return e.converseEarly(up, err)
	}
	return e.readHead(up)
}

// dispatched notes that the request has been written.
func (e *exchange) dispatched() {
	e.guard.attempt.Dispatched(e.proxy.cfg.Picker.Now())
	e.last.dispatched++
	e.rec.Queue = time.Since(e.rec.Start)
}

// converseEarly looks for the response of a backend that closed its side before it had read the whole request: it may
// have refused it, and said so.
func (e *exchange) converseEarly(up *upstreamConn, cause error) error {
	if err := up.raw.SetReadDeadline(time.Now().Add(earlyAnswer)); err != nil {
		return cause
	}
	if err := e.readHead(up); err != nil || e.ctx.Response.StatusCode() < fasthttp.StatusBadRequest {
		return cause
	}
	e.ctx.Response.Header.SetConnectionClose()
	return nil
}

func (e *exchange) readHead(up *upstreamConn) error {
	h := &e.ctx.Response.Header
	for range maxInterim {
		if err := h.Read(up.br); err != nil {
			return err
		}
		switch status := h.StatusCode(); {
		case status == fasthttp.StatusSwitchingProtocols || status < 100:
			return errUnwanted
		case status >= 200:
			return nil
		}
	}
	return errUnwanted
}

// untouchedError is an error of sending on a connection that had gone stale.
type untouchedError struct{ error }

// untouched reports whether an error came before any byte of a response.
func untouched(err error) bool {
	switch err.(type) {
	case untouchedError, fasthttp.ErrNothingRead:
		return true
	}
	return err == io.EOF
}

// receive takes the response whose head has been read: it is passed on, unless the backend says that another should be
// asked, or breaks before there is anything to pass on.
func (e *exchange) receive(up *upstreamConn) (settled bool) {
	h := &e.ctx.Response.Header
	status, length := h.StatusCode(), h.ContentLength()
	keep := cleanResponse(h)
	switch status {
	case fasthttp.StatusBadGateway, fasthttp.StatusServiceUnavailable, fasthttp.StatusGatewayTimeout:
		return e.passOver(up, status)
	}
	e.sse = isEventStream(h.ContentType()) && len(h.ContentEncoding()) == 0
	e.learn = e.rec.Kind != prompt.Other && status == fasthttp.StatusOK && len(h.ContentEncoding()) == 0
	bodiless := e.ctx.IsHead() || status == fasthttp.StatusNoContent || status == fasthttp.StatusNotModified
	if !bodiless && (length < 0 || length > bufferedBody || e.sse) {
		return e.startRelay(up, length, keep)
	}
	if !bodiless {
		e.conn.arm(e.proxy.tuned.Load().Timeouts.Idle)
		if err := e.ctx.Response.ReadBody(up.br, bufferedBody); err != nil {
			return e.broke(up)
		}
	}
	if why := e.release(up, keep); why != undisturbed && why != expired {
		return e.cutShort(why)
	}
	if e.learn {
		if u, ok := engine.ParseUsage(e.ctx.Response.Body()); ok {
			e.usage = u
		}
	}
	e.rec.TTFT = time.Since(e.rec.Start)
	e.rec.Total = e.rec.TTFT
	e.rec.ResponseBytes = int64(len(e.ctx.Response.Body()))
	e.settle(status)
	return true
}

// settle ends the attempt of a response that has arrived.
func (e *exchange) settle(status int) {
	e.end(outcome(status))
	e.prepare(status)
}

// prepare makes the response ready to be written.
func (e *exchange) prepare(status int) {
	e.rec.Status = status
	e.decorate()
	if status == fasthttp.StatusTooManyRequests && len(e.ctx.Response.Header.Peek("Retry-After")) == 0 {
		e.retryAfter(1)
	}
}

func outcome(status int) policy.Failure {
	switch {
	case status >= 500:
		return policy.Status5xx
	case status >= 400:
		return policy.Client4xx
	}
	return policy.None
}

// broke ends an attempt whose response broke before any of it was passed on.
func (e *exchange) broke(up *upstreamConn) bool {
	switch why := e.release(up, false); why {
	case undisturbed:
		return e.failed(policy.Reset)
	case expired:
		return e.failed(policy.Timeout)
	default:
		return e.cutShort(why)
	}
}

// passOver ends an attempt at a backend that sends the request elsewhere. Its body is not read: the connection is worth
// less than the wait.
func (e *exchange) passOver(up *upstreamConn, status int) bool {
	e.last.retryAfter = append(e.last.retryAfter[:0], e.ctx.Response.Header.Peek("Retry-After")...)
	if why := e.release(up, false); why != undisturbed && why != expired {
		return e.cutShort(why)
	}
	e.failed(policy.Status5xx)
	e.last.status = status
	return false
}

// startRelay prepares a response that is passed on as it comes. It waits for the first bytes of the body, since until
// then another backend can still take over; but not beyond the header hold, since somebody on the way to the client may
// lose patience with a connection that is silent.
func (e *exchange) startRelay(up *upstreamConn, length int, keep bool) bool {
	e.response.reset(up.br, length)
	hold := e.proxy.tuned.Load().Timeouts.HeaderHold
	patience := e.patience()
	e.holding = hold < patience
	e.conn.arm(min(hold, patience))
	var err error
	if hold > 0 {
		e.first, err = e.response.next()
	} else {
		e.first, err = nil, nil
	}
	flush := hold == 0
	if err != nil && err != io.EOF {
		if e.conn.cause() != expired || !e.holding || e.conn.resume(patience) != undisturbed {
			return e.broke(up)
		}
		flush = true
	}
	e.holding = false
	e.conn.deadline.Store(0)
	e.up, e.keep = up, keep
	status := e.ctx.Response.StatusCode()
	e.prepare(status)
	e.learner.Reset(e.strip && e.sse && e.learn)
	e.dropBody()
	e.relaying = true
	e.ctx.Response.ImmediateHeaderFlush = flush
	switch {
	case length >= 0 && !e.sse: // of an event stream what is delivered may be another length: the usage is stripped, an error added
		e.ctx.Response.SetBodyStream(&e.relay, length)
	case e.ctx.Request.Header.IsHTTP11():
		e.ctx.Response.SetBodyStream(&e.relay, -1)
	default:
		e.relayToClose()
	}
	return true
}

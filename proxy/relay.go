package proxy

import (
	"bytes"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
)

const (
	// maxPartial bounds, in bytes, an incomplete event held back.
	maxPartial = 64 << 10
	// tailWindow last bytes of a response are searched for usage.
	tailWindow = 8 << 10
)

// relay is written by fasthttp on the same goroutine; each Write is one chunk and one flush.
type relay struct {
	written
	e *exchange
}

var _ fasthttp.BodyWriterTo = (*relay)(nil)

func (r *relay) WriteTo(w io.Writer) (n int64, err error) {
	defer func() {
		if p := recover(); p != nil { // fasthttp would recover too, but log nothing
			r.e.proxy.logPanic(p)
			err = errAborted
		}
	}()
	return r.e.pump(w)
}

func (r *relay) Close() error {
	r.e.finish()
	return nil
}

// relayToClose serves HTTP/1.0 clients a body of unknown length, which fasthttp cannot.
func (e *exchange) relayToClose() {
	e.relaying = false
	h := &e.ctx.Response.Header
	h.SetContentLength(lengthChunked) // removes a given length, which lengthToClose does not
	h.Del("Transfer-Encoding")
	h.SetContentLength(lengthToClose)
	_, err := e.conn.Write(h.Header())
	if err == nil {
		_, err = e.pump(e.conn)
	}
	if err != nil && !e.sse {
		e.conn.abort() // a regular close would look like the end of the body
	}
	e.conn.muted = true
	e.ctx.Response.Reset()
	e.ctx.SetConnectionClose()
}

// pump's error aborts the client's connection, so that a truncated response does not look complete.
func (e *exchange) pump(w io.Writer) (int64, error) {
	view := e.first
	e.first = nil
	for {
		if len(view) > 0 {
			if err := e.deliver(w, e.inspect(view)); err != nil {
				return e.rec.ResponseBytes, err
			}
		}
		var err error
		e.conn.arm(e.gap())
		view, err = e.response.next()
		e.conn.deadline.Store(0)
		switch {
		case err == io.EOF:
			return e.rec.ResponseBytes, e.complete(w)
		case err != nil:
			return e.rec.ResponseBytes, e.breakOff(w)
		}
		e.prefillArrived()
	}
}

// gap is how long the backend may be silent.
func (e *exchange) gap() time.Duration {
	if e.rec.ResponseBytes == 0 {
		return e.patience()
	}
	return e.tuned.Timeouts.Idle
}

func (e *exchange) deliver(w io.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if e.renaming {
		p = e.renamer.feed(p)
	}
	n, err := w.Write(p)
	e.rec.ResponseBytes += int64(n)
	if err != nil {
		e.rec.Broken = true
		e.end(books.ClientGone)
		return errAborted
	}
	return nil
}

// inspect returns whole events, so that an error event may follow.
func (e *exchange) inspect(view []byte) []byte {
	if !e.sse {
		e.noteFirst(false)
		if e.learn {
			e.keepTail(view)
		}
		return view
	}
	if view = e.wholeEvents(view); len(view) == 0 {
		return nil
	}
	if !e.learn {
		e.noteFirst(false)
		return view
	}
	out, seen := e.learner.Feed(view)
	if seen.FirstToken {
		e.noteFirst(true)
	}
	e.ended = e.ended || seen.Done
	return out
}

func (e *exchange) noteFirst(token bool) {
	if e.rec.TTFT == 0 {
		e.rec.TTFT = time.Since(e.rec.Start)
		if !token {
			e.guard.attempt.Answers(e.proxy.cfg.Picker.Now())
			e.proxy.opened(e.rec.Decision.Backend)
		}
	}
	if token {
		e.guard.attempt.FirstToken(e.proxy.cfg.Picker.Now())
		e.proxy.opened(e.rec.Decision.Backend)
	}
}

func (e *exchange) wholeEvents(view []byte) []byte {
	held := len(e.partial) > 0
	if held {
		e.partial = append(e.partial, view...)
		view = e.partial
	}
	end := eventsEnd(view)
	if len(view)-end > maxPartial {
		end = len(view)
	}
	if held {
		e.partial = view[end:]
	} else {
		e.partial = append(e.partial[:0], view[end:]...)
	}
	return view[:end]
}

// eventsEnd counts the bytes of complete events and comment lines.
func eventsEnd(p []byte) int {
	if bytes.HasSuffix(p, []byte("\n\n")) || bytes.HasSuffix(p, []byte("\r\n\r\n")) {
		return len(p)
	}
	end := max(bytes.LastIndex(p, []byte("\n\n"))+2, bytes.LastIndex(p, []byte("\r\n\r\n"))+4)
	if end < 4 { // neither was found: -1+2, -1+4
		end = 0
	}
	for end < len(p) && p[end] == ':' {
		line := bytes.IndexByte(p[end:], '\n')
		if line < 0 {
			break
		}
		end += line + 1
	}
	return end
}

func (e *exchange) keepTail(view []byte) {
	e.tail = append(e.tail, view...)
	if extra := len(e.tail) - tailWindow; extra > tailWindow {
		e.tail = e.tail[:copy(e.tail, e.tail[extra:])]
	}
}

func (e *exchange) complete(w io.Writer) error {
	rest := e.partial
	if e.sse && e.learn {
		if len(rest) > 0 {
			rest, _ = e.learner.Feed(rest)
		}
		if err := e.deliver(w, rest); err != nil {
			return err
		}
		rest = e.learner.Flush()
		e.usage = e.learner.Usage()
	} else if e.learn {
		// A truncated tail may begin with a bracket that does not open the body.
		tail := e.tail
		if e.rec.ResponseBytes > int64(len(tail)) {
			tail = bytes.TrimLeft(tail, "[ \t\r\n")
		}
		e.usage = engine.ParseUsage(tail)
	}
	if err := e.deliver(w, rest); err != nil {
		return err
	}
	e.release(e.up, e.keep)
	e.up = nil
	e.end(outcome(e.rec.Status))
	return nil
}

// breakOff ends a broken event stream with an error event, unless its own end was delivered, and
// cuts off other bodies.
func (e *exchange) breakOff(w io.Writer) error {
	why := e.conn.cause()
	if e.sse && e.ended && why != departed && why != stalled {
		e.partial, e.keep = e.partial[:0], false
		return e.complete(w)
	}
	e.rec.Broken = true
	f := fault{fasthttp.StatusBadGateway, "upstream_broken", "the backend closed the connection before the end of its response"}
	switch why {
	case departed, stalled:
		e.end(books.ClientGone)
		return errAborted
	case forced:
		f = fault{fasthttp.StatusServiceUnavailable, "shutting_down", "the router is shutting down"}
		e.end(books.ClientGone)
	case unpaired:
		f.message = "the prefill backend failed"
		e.end(books.Transfer)
	case expired:
		f = fault{fasthttp.StatusGatewayTimeout, "upstream_timeout", "the backend stopped sending its response"}
		e.end(books.Timeout)
	default:
		e.end(books.Reset)
	}
	e.proxy.cfg.Log.Warn().Str("backend", e.rec.Backend).Bytes("id", e.rec.ID).Str("class", f.code).Msg("backend broke off its response")
	if !e.sse {
		return errAborted
	}
	if e.learn {
		e.usage = e.learner.Usage()
	}
	event := append(e.learner.Flush(), f.event(e.path)...)
	if err := e.deliver(w, event); err != nil {
		return err
	}
	if e.ctx.Request.Header.IsHTTP11() {
		// Without the last chunk, which fasthttp omits, some clients drop the event.
		_, _ = e.conn.Write([]byte("0\r\n\r\n"))
	}
	return errAborted
}

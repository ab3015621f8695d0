package proxy

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
)

const (
	// maxPairs of engines may fail on one request.
	maxPairs = 3
	// pairGrace is how long a prefill backend may take to answer after the reply has ended. It answers
	// when the KV cache has arrived, before the reply's first token.
	pairGrace = 200 * time.Millisecond
)

// pair is a prefill backend's part of a request whose reply a decode backend waits to begin. SGLang's
// engines take both parts at once and meet at a room, a number that both requests name.
type pair struct {
	up   *upstreamConn // nil: none runs
	done chan struct{} // closed once the goroutine that reads the answer has ended
	lost atomic.Bool   // failed, and done is about to be closed

	// Written by that goroutine, which ends the policy's attempt if nothing failed.
	failed books.Failure
	usage  engine.Usage
	wait   int // seconds, of a 429
	took   time.Duration
}

// startPair sends the prompt to p, and prepares the request to t.
func (e *exchange) startPair(p *Target) (ready, settled bool) {
	s := &e.split
	s.member = appendRoom(s.member[:0], p)
	s.prompt[askedMember] = s.member
	s.reply = withMember(s.reply[:0], e.pieces, s.inside, s.member)
	began := time.Now()
	up, f, why := e.sendPrompt(p)
	e.rec.Prefill = PrefillRecord{Backend: p.Name, Decision: e.prefill.attempt.Decision(), Failed: f, Took: time.Since(began)}
	switch {
	case up != nil:
		e.pair = pair{up: up, done: make(chan struct{}), usage: engine.Unknown}
		e.conn.awaitPair()
		go e.readPair(began)
		return true, false
	case f != books.None:
		s.pairs++
		e.prefillFailed(f)
		return false, false
	}
	e.close(&e.prefill, books.ClientGone, engine.Unknown)
	return false, e.cutShort(why)
}

// appendRoom uses a random room: engines crash over a number that another request uses.
func appendRoom(dst []byte, p *Target) []byte {
	dst = append(dst, `"bootstrap_host":`...)
	dst = strconv.AppendQuote(dst, p.Addr[:strings.LastIndexByte(p.Addr, ':')])
	dst = append(dst, `,"bootstrap_port":`...)
	dst = strconv.AppendUint(dst, uint64(p.Bootstrap), 10)
	dst = append(dst, `,"bootstrap_room":`...)
	dst = strconv.AppendInt(dst, rand.Int64(), 10)
	return append(dst, ',')
}

// sendPrompt uses a new connection, because a stale one would require using the room twice.
func (e *exchange) sendPrompt(p *Target) (*upstreamConn, books.Failure, reason) {
	patience := e.tuned.Timeouts.StreamFirstByte
	up, f, why := e.dial(p)
	if up == nil {
		return nil, f, why
	}
	if why := e.conn.attach(up, patience); why != undisturbed {
		up.raw.Close()
		return nil, books.None, why
	}
	e.stampHead = false // that of a reply before
	up.head = e.appendRequest(up.head[:0], p, pieceBytes(e.split.prompt))
	err := up.send(e.split.prompt)
	if err == nil {
		e.prefill.attempt.Dispatched(e.proxy.cfg.Picker.Now())
		err = up.raw.SetReadDeadline(time.Now().Add(patience))
	}
	if err != nil || e.conn.cause() != undisturbed {
		f, why := e.lost(up)
		return nil, f, why
	}
	if why := e.conn.detach(); why != undisturbed {
		up.raw.Close()
		return nil, books.None, why
	}
	return up, books.None, undisturbed
}

// readPair runs beside the exchange. A failure also ends the decode backend's part, which would wait
// for minutes.
func (e *exchange) readPair(began time.Time) {
	p := &e.pair
	defer close(p.done)
	defer func() {
		if r := recover(); r != nil {
			e.proxy.logPanic(r)
			p.failed = books.Transfer
		}
		if p.failed != books.None {
			p.lost.Store(true)
			e.conn.interrupt(unpaired)
		}
	}()
	response := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(response)
	err := readHead(p.up.br, &response.Header)
	if err == nil {
		err = response.ReadBody(p.up.br, maxTransfer)
	}
	p.took = time.Since(began)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.failed = books.Timeout
	case err != nil:
		p.failed = books.Reset
	case response.StatusCode() == fasthttp.StatusTooManyRequests:
		p.failed, p.wait = books.Busy, retryAfterOf(response)
	case response.StatusCode() != fasthttp.StatusOK:
		p.failed = books.Transfer // the decode backend may be at fault
	default:
		p.usage = engine.ParseUsage(response.Body())
		now := e.proxy.cfg.Picker.Now()
		e.prefill.attempt.Answers(now) // also the decode backend may have made it wait
		e.prefill.attempt.End(policy.Outcome{PromptTokens: p.usage.PromptTokens, CachedTokens: p.usage.CachedTokens, OutputTokens: -1}, now)
	}
}

// prefillArrived is called once the reply begins: what becomes of the prefill's answer no longer
// matters.
func (e *exchange) prefillArrived() {
	if e.pair.up != nil {
		e.conn.settlePair()
	}
}

// endPair ends the prefill's part, at once if the reply failed.
func (e *exchange) endPair(failed bool) {
	p := &e.pair
	if p.up == nil {
		return
	}
	e.conn.settlePair()
	canceled := !p.lost.Load() && !p.endsWithin(0) && (failed || !p.endsWithin(pairGrace))
	p.up.interrupt()
	<-p.done
	p.up.raw.Close()
	p.up = nil
	e.split.usage, e.rec.Prefill.Took = p.usage, p.took
	f := p.failed
	switch {
	case f == books.None:
		e.prefill.open = false
	case canceled:
		e.close(&e.prefill, books.ClientGone, engine.Unknown)
	default:
		e.wait = p.wait
		e.close(&e.prefill, f, engine.Unknown)
	}
	if !failed || e.rec.Failed == books.ClientGone {
		return
	}
	e.split.pairs++
	e.rec.Prefill.Failed = books.Transfer
	if canceled || f == books.None || f == books.Transfer {
		return
	}
	e.rec.Prefill.Failed = f
	b := e.rec.Prefill.Decision.Backend
	e.query.Exclude = append(e.query.Exclude, b)
	if f != books.Busy {
		e.blame(f, b)
	}
}

func (p *pair) endsWithin(grace time.Duration) bool {
	select {
	case <-p.done:
		return true
	default:
	}
	if grace == 0 {
		return false
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// pairAgain lets another pair serve the request if no backend can alone.
func (e *exchange) pairAgain() bool {
	if e.split.pairs == 0 || e.split.pairs >= maxPairs || e.query.Need != policy.Whole {
		return false
	}
	e.query.Need = policy.Split
	return true
}

package proxy

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/books"
	"grapevine.example/proxy/prompt"
)

const (
	// maxSeen engines may fail on one request: then the request is more likely at fault.
	maxSeen = 2
	// maxBusy bounds the engines that answer 429 to one request.
	maxBusy = 16
	// brokeFor outlasts the repeats of SDKs, which come within seconds.
	brokeFor  = time.Minute
	brokeKept = 256
)

// A request that no engine received may always move; one of inference, which has no side effects,
// once; one for a stored response never, because another engine would deny that it exists.
func (e *exchange) mayMove() bool {
	if e.last.failed == books.Busy {
		e.last.busy++
		return e.last.busy < maxBusy && !e.rec.Decision.LastResort && !e.query.Stored
	}
	if e.query.Stored || e.rec.Attempts-e.last.busy >= e.tuned.MaxAttempts {
		return false
	}
	return e.last.failed == books.Connect || e.rec.Kind != prompt.Other && len(e.suspects) < maxSeen
}

// broken remembers requests that broke two engines.
type broken struct {
	seed uint64       // random, so that clients cannot forge names
	last atomic.Int64 // when the latest entry expires, Unix nanoseconds

	mu   sync.Mutex
	ring [brokeKept]struct {
		name  uint64
		until time.Time
	}
	next int
}

func (b *broken) add(name uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := now.Add(brokeFor)
	b.ring[b.next].name, b.ring[b.next].until = name, until
	b.next = (b.next + 1) % brokeKept
	b.last.Store(until.UnixNano())
}

func (b *broken) has(name uint64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.ring {
		if b.ring[i].name == name && now.Before(b.ring[i].until) {
			return true
		}
	}
	return false
}

// The body is hashed only while a broken request is remembered.
func (e *exchange) refuseBroken() bool {
	b := &e.proxy.broken
	if e.rec.Kind == prompt.Other || e.rec.Start.UnixNano() >= b.last.Load() || !b.has(e.requestName(), e.rec.Start) {
		return false
	}
	e.last.refused = true
	e.refuse(fault{fasthttp.StatusBadGateway, "upstream_broken", "two backends closed the connection on this request less than " +
		strconv.Itoa(int(brokeFor.Seconds())) + " s ago: the router does not send it to another"})
	e.ctx.Response.Header.Set(headerRetry, "false")
	return true
}

// retryAfterOf returns seconds, at least 1.
func retryAfterOf(response *fasthttp.Response) int {
	wait, err := fasthttp.ParseUint(response.Header.Peek("Retry-After"))
	if err != nil || wait == 0 {
		return 1
	}
	return wait
}

// held says that the response holds the 429 answer.
func (e *exchange) busy(held bool) {
	wait := retryAfterOf(&e.ctx.Response)
	if e.last.busy == 0 || wait < e.last.wait {
		e.last.wait = wait
	}
	e.last.failed, e.last.held, e.wait = books.Busy, held, wait
	e.end(books.Busy)
}

func (e *exchange) refuseBusy() {
	wait := e.last.wait
	if e.last.held {
		e.prepare(fasthttp.StatusTooManyRequests)
		e.rec.ResponseBytes = int64(len(e.ctx.Response.Body()))
	} else {
		e.refuse(fault{fasthttp.StatusTooManyRequests, "backends_busy", "no backend has room for the request; backends tried: " + strconv.Itoa(e.rec.Attempts)})
	}
	e.retryAfter(wait)
}

// x-should-retry: false stops a client's own retries after a timeout, which still occupies engines,
// and after maxSeen broken engines.
func (e *exchange) refuseExhausted() {
	last := &e.last
	if last.busy > 0 {
		e.refuseBusy()
		return
	}
	f := fault{fasthttp.StatusBadGateway, "upstream_unreachable", "cannot connect to a backend"}
	again := true
	switch last.failed {
	case books.Transfer:
		f = fault{fasthttp.StatusBadGateway, "upstream_broken", "the decode backend did not get the KV cache of the prompt"}
	case books.Timeout:
		f = fault{fasthttp.StatusGatewayTimeout, "upstream_timeout", "the backend did not answer in time"}
		again = false
	case books.Reset:
		f = fault{fasthttp.StatusBadGateway, "upstream_broken", "the backend closed the connection without an answer, or did not answer in HTTP"}
		again = len(e.suspects) < maxSeen
	case books.Status5xx:
		f = fault{last.status, "upstream_unavailable", "the backend answered " + strconv.Itoa(last.status)}
	}
	f.message += "; backends tried: " + strconv.Itoa(e.rec.Attempts)
	wait := string(last.retryAfter)
	e.refuse(f)
	if !again {
		e.ctx.Response.Header.Set(headerRetry, "false")
	}
	if f.status == fasthttp.StatusServiceUnavailable {
		if wait == "" {
			wait = "1"
		}
		e.ctx.Response.Header.Set("Retry-After", wait)
	}
}

package proxy

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/zeebo/xxh3"

	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

const (
	// maxSeen is how many engines may see a request that does not end well on them. The first may have failed by itself;
	// after the second it is rather the request, and each further engine would be harmed for it.
	maxSeen = 2
	// maxBusy bounds how many engines are asked that answer 429: they have done nothing of it.
	maxBusy = 16
	// brokeFor is how long a request that broke two engines is not sent again: SDKs and agents repeat within seconds.
	brokeFor = time.Minute
	// brokeKept is how many such requests are remembered, the latest.
	brokeKept = 256
)

// mayMove says whether the request may go to another engine after the attempt that has just failed. What no engine has
// been given can go anywhere; what one has been given goes to one more, if it is inference, which changes nothing.
func (e *exchange) mayMove() bool {
	if e.last.failed == policy.Busy {
		e.last.busy++
		return e.last.busy < maxBusy && !e.rec.Decision.LastResort
	}
	if e.rec.Attempts-e.last.busy >= e.proxy.tuned.Load().MaxAttempts {
		return false
	}
	return e.last.failed == policy.Connect || e.rec.Kind != prompt.Other && len(e.suspects) < maxSeen
}

// requestName tells this request from others: by its body, or by its prompt or its id if the body has been let go.
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

// broken remembers the requests that broke two engines: they are not tried on more. Safe for concurrent use.
type broken struct {
	seed uint64       // so that nobody can make a request that has the name of another's
	last atomic.Int64 // until when any of them counts, Unix nanoseconds

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

// refuseBroken refuses a request that broke two engines a moment ago, and reports whether it is one. While there is none
// the body is not even hashed.
func (e *exchange) refuseBroken() bool {
	b := &e.proxy.broken
	if e.rec.Kind == prompt.Other || e.rec.Start.UnixNano() >= b.last.Load() || !b.has(e.requestName(), e.rec.Start) {
		return false
	}
	e.last.refused = true
	e.refuse(fault{fasthttp.StatusBadGateway, "upstream_broken", "this request made two backends close the connection less than " +
		strconv.Itoa(int(brokeFor.Seconds())) + " s ago: it is not sent to more"})
	e.ctx.Response.Header.Set(headerRetry, "false")
	return true
}

// busy ends an attempt at an engine that has no room. Its answer, if it was read, is kept for the case that none has.
func (e *exchange) busy(held bool) {
	wait := max(retrySeconds(e.ctx.Response.Header.Peek("Retry-After")), 1)
	if e.last.busy == 0 || wait < e.last.wait {
		e.last.wait = wait
	}
	e.last.failed, e.last.held, e.wait = policy.Busy, held, wait
	e.end(policy.Busy)
}

// refuseBusy answers 429 with the shortest wait that an engine has asked for: as the last of them did, if that is at hand.
func (e *exchange) refuseBusy() {
	wait := e.last.wait
	if e.last.held {
		e.prepare(fasthttp.StatusTooManyRequests)
	} else {
		e.refuse(fault{fasthttp.StatusTooManyRequests, "backends_busy", "no backend has room for the request; backends tried: " + strconv.Itoa(e.rec.Attempts)})
	}
	e.retryAfter(wait)
}

// retrySeconds reads a Retry-After in seconds; 0 for none, or for a date, which engines do not send.
func retrySeconds(value []byte) int {
	n, err := fasthttp.ParseUint(value)
	if err != nil {
		return 0
	}
	return n
}

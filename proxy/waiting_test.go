package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/queue"
)

var roomy = queue.Limits{Requests: 64, Bytes: 1 << 20, Wait: time.Minute}

// gated is a backend that streams an answer for each value sent to its channel, and knows which requests came.
// Until then it is full with one request: none has its first token.
type gated struct {
	*backend
	answer chan bool
	begun  chan string // X-Request-Id, as requests arrive
}

func newGated(t testing.TB) *gated {
	g := &gated{answer: make(chan bool, 1000), begun: make(chan string, 1000)}
	g.backend = newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		g.begun <- req.Header.Get("X-Request-Id")
		select {
		case <-g.answer:
			return c.send(sseHead + chunk(event("a")) + chunk("data: [DONE]\n\n") + chunkEnd)
		case <-t.Context().Done():
			return false
		}
	})
	return g
}

// start sends a request on a connection of its own. The channel gets its answer, or nothing if the client leaves.
func (r *rig) start(id string, headers ...string) (net.Conn, <-chan reply) {
	r.t.Helper()
	c, got := r.dial(), make(chan reply, 1)
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	_, err := io.WriteString(c, request("POST", "/v1/chat/completions", body, append(headers, "X-Request-Id: "+id)...))
	must(r.t, err)
	go func() {
		if rp, err := tryReply(bufio.NewReader(c), "POST"); err == nil {
			got <- rp
		}
		close(got)
	}()
	return c, got
}

func (r *rig) waiting(n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d requests wait", n), func() bool {
		all := 0
		for _, p := range clients.Priorities() {
			requests, _ := r.proxy.Queued(p)
			all += requests
		}
		return all == n
	})
}

func TestQueueWaits(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(1, roomy))
	_, first := r.start("first")
	<-b.begun
	_, low := r.start("low", "X-Grapevine-Priority: batch")
	r.waiting(1)
	_, high := r.start("high")
	r.waiting(2)
	if n := len(b.requests()); n != 1 {
		t.Fatalf("the engine got %d requests, want 1", n)
	}
	b.answer <- true
	(<-first).want(t, 200)
	if id := <-b.begun; id != "high" {
		t.Errorf("%q came next, want high", id)
	}
	b.answer <- true
	(<-high).want(t, 200)
	<-b.begun
	b.answer <- true
	(<-low).want(t, 200)
	if rec := r.record(0); rec.Waited != 0 {
		t.Errorf("the first one waited %v", rec.Waited)
	}
	if rec := r.record(2); rec.Waited <= 0 || rec.Queue < rec.Waited || rec.Overhead+rec.Waited > rec.Total || rec.Priority != clients.Batch {
		t.Errorf("waited %v, until dispatch %v, overhead %v, in all %v, %v", rec.Waited, rec.Queue, rec.Overhead, rec.Total, rec.Priority)
	}
}

// A router tells what waits, serves its requests although far more waits elsewhere, as long as engines would
// have nothing to do, and forgets routers that are gone.
func TestQueueAmongRouters(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(1, roomy))
	if got := r.proxy.Claims(nil); len(got) != 0 {
		t.Fatalf("claims of an idle router: %+v", got)
	}
	_, first := r.start("first")
	<-b.begun
	_, second := r.start("second", "X-Grapevine-Priority: batch")
	r.waiting(1)
	mine := r.proxy.Claims(nil)
	if len(mine) != 1 || mine[0].Requests != 1 || mine[0].Tokens < 1 || mine[0].Weight != 1 || mine[0].Priority != clients.Batch {
		t.Fatalf("claims %+v", mine)
	}
	theirs := queue.Claim{Lane: mine[0].Lane, Client: 7, Priority: clients.Interactive, Weight: 1, Tokens: 1e6, Requests: 1000}
	r.proxy.PeerClaims("other", []queue.Claim{theirs})
	b.answer <- true
	(<-first).want(t, 200)
	<-b.begun
	_, third := r.start("third")
	r.waiting(1)
	b.answer <- true
	(<-second).want(t, 200)
	<-b.begun
	b.answer <- true
	(<-third).want(t, 200)
	_, fourth := r.start("fourth") // nothing waits here, but elsewhere
	<-b.begun
	b.answer <- true
	(<-fourth).want(t, 200)
	if rec := r.record(3); rec.Waited <= 0 {
		t.Error("a request did not queue although others wait elsewhere")
	}
	r.proxy.PeerClaims("other", nil)
	_, fifth := r.start("fifth")
	<-b.begun
	b.answer <- true
	(<-fifth).want(t, 200)
	if rec := r.record(4); rec.Waited != 0 || len(r.proxy.Claims(nil)) != 0 {
		t.Errorf("the other router is gone, and a request waited %v; claims %+v", rec.Waited, r.proxy.Claims(nil))
	}
}

// Inference that goes on from a stored response waits for the engine that stores it, unless that one drains: then the
// queue never offers it. Reading a stored response does not wait.
func TestQueueOfStoredResponses(t *testing.T) {
	holder, other := newGated(t), newGated(t)
	r := newRig(t, []string{holder.addr, other.addr}, withQueue(1, roomy))
	id := make([]byte, prompt.ResponseIDLen)
	r.proxy.responses.name(id, "b0", nil, new(idBlock))
	both := func() {
		t.Helper()
		r.start("one")
		r.start("another")
		<-holder.begun
		<-other.begun
	}
	ask := func(text string) <-chan reply {
		c, got := r.dial(), make(chan reply, 1)
		_, err := io.WriteString(c, text)
		must(t, err)
		go func() {
			rp, _ := tryReply(bufio.NewReader(c), "POST")
			got <- rp
		}()
		return got
	}
	both()
	next := ask(follow(string(id)))
	r.waiting(1)
	read := ask(request("GET", "/v1/responses/"+string(id), ""))
	<-holder.begun
	other.answer <- true
	eventually(t, "the other engine is open", func() bool {
		_, active := r.router.Load(1)
		return active == 0
	})
	r.waiting(1)
	holder.answer <- true
	holder.answer <- true
	(<-read).want(t, 200)
	<-holder.begun
	holder.answer <- true
	(<-next).want(t, 200)
	eventually(t, "the record of a request that waited, and went to its holder", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.records, func(rec Record) bool { return rec.Waited > 0 && rec.Backend == "b0" })
	})

	both()
	entries := slices.Clone(r.router.View().Backends)
	entries[0].State = policy.Draining
	view, err := policy.NewView(entries, nil)
	must(t, err)
	r.router.SetView(view)
	next = ask(follow(string(id)))
	<-holder.begun
	holder.answer <- true
	holder.answer <- true
	other.answer <- true
	(<-next).want(t, 200)
}

// refusing is a backend that answers 503 for each value sent to its channel.
func newRefusing(t testing.TB) *gated {
	g := &gated{answer: make(chan bool, 1000), begun: make(chan string, 1000)}
	g.backend = newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		g.begun <- req.Header.Get("X-Request-Id")
		select {
		case <-g.answer:
			return c.send(jsonReply(503, `{}`))
		case <-t.Context().Done():
			return false
		}
	})
	return g
}

// A request whose engine failed waits again, as the first of its client, and no other engine holds more than it may.
func TestQueueTakesBack(t *testing.T) {
	bad, good := newRefusing(t), newGated(t)
	r := newRig(t, []string{bad.addr, good.addr}, withQueue(1, roomy))
	_, one := r.start("one")
	_, two := r.start("two")
	moved := <-bad.begun
	<-good.begun
	_, later := r.start("later")
	r.waiting(1)
	_, last := r.start("last")
	r.waiting(2)
	bad.answer <- true
	if id := <-bad.begun; id != "later" {
		t.Fatalf("%q came to the engine that is open, want later", id)
	}
	r.waiting(2)
	if n := len(good.requests()); n != 1 {
		t.Fatalf("an engine that may hold one request got %d", n)
	}
	good.answer <- true
	if id := <-good.begun; id != moved {
		t.Errorf("%q came next, want %q, whose engine failed", id, moved)
	}
	bad.answer <- true
	if id := <-bad.begun; id != "last" {
		t.Fatalf("%q came to the engine that is open, want last", id)
	}
	r.waiting(1)
	good.answer <- true
	<-good.begun
	bad.answer <- true
	r.waiting(1)
	good.answer <- true
	<-good.begun
	good.answer <- true
	for _, got := range []<-chan reply{one, two, later, last} {
		(<-got).want(t, 200)
	}
	eventually(t, "a record of each request", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.records) == 4
	})
	for i := range 4 {
		if rec := r.record(i); string(rec.ID) == moved && (rec.Attempts != 2 || rec.Waited <= 0 || rec.Overhead+rec.Waited > rec.Total) {
			t.Errorf("%d attempts, waited %v, overhead %v", rec.Attempts, rec.Waited, rec.Overhead)
		}
	}
}

// One that finds no other engine in time is refused.
func TestQueueTakesBackForAWhile(t *testing.T) {
	bad, good := newRefusing(t), newGated(t)
	r := newRig(t, []string{bad.addr, good.addr}, withQueue(1, queue.Limits{Requests: 8, Bytes: 1 << 20, Wait: 50 * time.Millisecond}))
	_, one := r.start("one")
	_, two := r.start("two")
	moved, stayed := one, two
	if <-bad.begun == "two" {
		moved, stayed = two, one
	}
	<-good.begun
	bad.answer <- true
	(<-moved).want(t, 429, "overloaded")
	if rec := r.record(0); rec.Refused != RefusedTimeout || rec.Attempts != 1 || rec.Waited <= 0 || rec.Total < 50*time.Millisecond {
		t.Errorf("record %+v", rec)
	}
	good.answer <- true
	(<-stayed).want(t, 200)
}

func TestQueueRefuses(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(1, queue.Limits{Requests: 1, Bytes: 1 << 20, Wait: time.Minute}))
	_, first := r.start("first")
	<-b.begun
	_, second := r.start("second")
	r.waiting(1)
	for path, kind := range map[string]string{"/v1/chat/completions": `"code":"overloaded"`, "/v1/messages": `"type":"rate_limit_error"`} {
		rp := r.raw(request("POST", path, `{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`)).want(t, 429, kind)
		if after, err := strconv.Atoi(rp.Header.Get("Retry-After")); err != nil || after < 1 {
			t.Errorf("%s: Retry-After %q", path, rp.Header.Get("Retry-After"))
		}
	}
	if rec := r.record(0); rec.Refused != RefusedFull || rec.Status != 429 || rec.Attempts != 0 {
		t.Errorf("record %+v", rec)
	}
	for _, header := range []string{"X-Grapevine-Priority: urgent", "X-Llm-D-Slo-Ttft-Ms: 0", "X-Llm-D-Slo-Ttft-Ms: soon"} {
		r.raw(request("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, header)).want(t, 400, strings.Split(header, ":")[0])
	}
	b.answer <- true
	b.answer <- true
	(<-first).want(t, 200)
	(<-second).want(t, 200)
}

func TestQueueTimesOut(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(1, queue.Limits{Requests: 8, Bytes: 1 << 20, Wait: 50 * time.Millisecond}))
	_, first := r.start("first")
	<-b.begun
	_, second := r.start("second")
	(<-second).want(t, 429, "overloaded")
	if rec := r.record(0); rec.Refused != RefusedTimeout || rec.Waited <= 0 || rec.Total < 50*time.Millisecond {
		t.Errorf("record %+v", rec)
	}
	b.answer <- true
	(<-first).want(t, 200)
}

// A deadline that lies before the time to compute the prompt is refused at once, also where no engine has anything to do; one before the
// end of what an open engine has queued, too. One that passes while the request waits ends the wait.
func TestQueueDeadlines(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(2, roomy))
	text := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("a long prompt ", 10_000))
	late := func(within string) string {
		return request("POST", "/v1/chat/completions", text, "X-Llm-D-Slo-Ttft-Ms: "+within)
	}
	r.raw(late("20")).want(t, 429, "overloaded", "the first token cannot come within")
	if rec := r.record(0); rec.Refused != RefusedLate || rec.Waited != 0 || rec.Attempts != 0 {
		t.Errorf("record %+v", rec)
	}
	c, long := r.dial(), make(chan reply, 1) // an hour is enough
	_, err := io.WriteString(c, late("3600000"))
	must(t, err)
	go func() {
		rp, _ := tryReply(bufio.NewReader(c), "POST")
		long <- rp
	}()
	<-b.begun
	_, behind := r.start("behind", "X-Llm-D-Slo-Ttft-Ms: 500")
	(<-behind).want(t, 429, "overloaded")
	if rec := r.record(1); rec.Refused != RefusedLate || rec.Waited != 0 {
		t.Errorf("behind %d tokens of prefill: refused as %q after %v", len(text)/4, rec.Refused, rec.Waited)
	}
	b.answer <- true
	(<-long).want(t, 200)

	_, one := r.start("one")
	_, another := r.start("another")
	<-b.begun
	<-b.begun
	for i, within := 3, 150; ; i, within = i+1, 4*within {
		_, waits := r.start("waits", "X-Llm-D-Slo-Ttft-Ms: "+strconv.Itoa(within))
		(<-waits).want(t, 429, "overloaded")
		rec := r.record(i)
		if rec.Refused == RefusedLate && within < 5_000 {
			continue // a stalled machine may use up a short time before the wait begins
		}
		if rec.Refused != RefusedTimeout || rec.Waited <= 0 {
			t.Errorf("refused as %q after %v, want %q", rec.Refused, rec.Waited, RefusedTimeout)
		}
		break
	}
	b.answer <- true
	b.answer <- true
	(<-one).want(t, 200)
	(<-another).want(t, 200)
}

// The kernel's report alone takes a client that left out of the queue: the watch and the patrol stand still.
func TestQueueClientLeaves(t *testing.T) {
	b := newGated(t)
	r := newRig(t, []string{b.addr}, withQueue(1, roomy), withTimeouts(func(t *Timeouts) { t.Watch = time.Hour }))
	_, first := r.start("first")
	<-b.begun
	gone, _ := r.start("gone")
	r.waiting(1)
	gone.Close()
	r.waiting(0)
	if rec := r.record(0); rec.Status != StatusClientGone || rec.Failed != books.ClientGone || rec.Attempts != 0 {
		t.Errorf("record %+v", rec)
	}
	b.answer <- true
	(<-first).want(t, 200)
	if n := len(b.requests()); n != 1 {
		t.Errorf("the engine got %d requests, want 1", n)
	}
}

// A drain lets requests that wait have their turn; when its time is over, they are refused.
func TestQueueDrains(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%v", cut), func(t *testing.T) {
			b := newGated(t)
			r := newRig(t, []string{b.addr}, withQueue(1, roomy))
			_, first := r.start("first")
			<-b.begun
			_, second := r.start("second")
			r.waiting(1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- r.proxy.Shutdown(ctx) }()
			if cut {
				cancel()
				(<-second).want(t, 503, "shutting_down")
				(<-first).want(t, 503)
				if err := <-done; err == nil {
					t.Error("Shutdown returned no error")
				}
				return
			}
			b.answer <- true
			b.answer <- true
			(<-first).want(t, 200)
			(<-second).want(t, 200)
			must(t, <-done)
		})
	}
}

// Requests whose engines change wait for the new ones, and are answered if there are none.
func TestQueueEnginesChange(t *testing.T) {
	old, fresh := newGated(t), newGated(t)
	r := newRig(t, []string{old.addr, fresh.addr}, withQueue(1, roomy))
	both := r.router.View().Backends
	view := func(n int) {
		v, err := policy.NewView(both[:n], nil)
		must(t, err)
		r.router.SetView(v)
	}
	view(1)
	_, first := r.start("first")
	<-old.begun
	_, second := r.start("second")
	r.waiting(1)
	view(2)
	if id := <-fresh.begun; id != "second" {
		t.Fatalf("the new engine got %q, want second", id)
	}
	_, third := r.start("third")
	r.waiting(1)
	view(0)
	if rp := <-third; rp.StatusCode != 404 && rp.StatusCode != 503 {
		t.Errorf("status %d without engines, want 404 or 503", rp.StatusCode)
	}
	view(2)
	old.answer <- true
	fresh.answer <- true
	(<-first).want(t, 200)
	(<-second).want(t, 200)
}

// Over any mix of answers, failures, departures, deadlines and refusals every request ends in one response
// or with its client, and all counts of queue and engines return to zero.
func TestQueueAnyOutcome(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("GV_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d (set GV_SEED to repeat)", seed)
	const engines, limit, senders, each = 3, 1, 24, 25
	var addrs []string
	for range engines {
		b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
			switch h := fnv(req.Header.Get("X-Request-Id")) % 16; h {
			case 0:
				return false
			case 1:
				return c.send(jsonReply(503, `{}`))
			case 2:
				return c.send(jsonReply(429, `{}`, "Retry-After: 0"))
			case 3:
				return c.send(sseHead + chunk(event("a"))) // and then nothing: the client leaves, or the stream breaks
			case 4, 5, 6, 7:
				return c.send(sseHead + chunk(event("a")) + chunk(event("b")) + chunk("data: [DONE]\n\n") + chunkEnd)
			default:
				return answering(c, req)
			}
		})
		addrs = append(addrs, b.addr)
	}
	r := newRig(t, addrs, withQueue(limit, queue.Limits{Requests: 12, Bytes: 1 << 20, Wait: 100 * time.Millisecond}),
		withTimeouts(func(t *Timeouts) { t.Idle, t.FirstByte = 200*time.Millisecond, time.Second }))
	var all sync.WaitGroup
	var answers [600]atomic.Int64
	for i := range senders {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for k := range each {
				headers := []string{"X-Grapevine-Priority: " + clients.Priority(rnd.IntN(3)).String()}
				if rnd.IntN(4) == 0 {
					headers = append(headers, "X-Llm-D-Slo-Ttft-Ms: "+strconv.Itoa(1+rnd.IntN(60)))
				}
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				id := strconv.Itoa(i) + "-" + strconv.Itoa(k) + "-" + strconv.FormatUint(seed, 10)
				body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, id)
				_, err = io.WriteString(c, request("POST", "/v1/chat/completions", body, append(headers, "X-Request-Id: "+id)...))
				if err != nil {
					t.Error(err)
				}
				if rnd.IntN(5) == 0 { // leave, at a random time
					_ = c.SetReadDeadline(time.Now().Add(time.Duration(rnd.IntN(30)) * time.Millisecond))
					_, _ = c.Read(make([]byte, 1))
					c.Close()
					continue
				}
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Errorf("%s: no response: %v", id, err)
				} else {
					_, _ = io.Copy(io.Discard, resp.Body)
					answers[resp.StatusCode].Add(1)
				}
				c.Close()
			}
		})
	}
	all.Wait()
	r.settled()
	eventually(t, "a record for each request", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.records) == senders*each
	})
	for status := range answers {
		if n := answers[status].Load(); n > 0 {
			t.Logf("status %d: %d", status, n)
		}
	}
	if answers[200].Load() == 0 {
		t.Error("no request was answered")
	}
	if n := r.proxy.waiting.queue.Len(); n != 0 || len(r.proxy.waiting.queue.Lanes(nil)) != 0 {
		t.Errorf("%d requests are left in the queue", n)
	}
}

func fnv(s string) (h uint32) {
	h = 2166136261
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

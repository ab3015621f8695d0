// Package accounts sums what each client's requests used at one node: tokens, seconds of GPUs and their price, and how fast the
// answers came. Limits are proxy/clients' business, and the sum over nodes is Prometheus's.
package accounts

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/node/metrics"
	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
)

// Accounts are those of the clients in force. Safe for concurrent use; the zero value has none.
type Accounts struct {
	byName atomic.Pointer[map[string]*account] // replaced, never written
	price  atomic.Uint64                       // bits of a float64: of an hour of one engine
}

// Totals count since the client was first listed. Tokens are as engines count them.
type Totals struct {
	Requests               uint64    // forwarded to an engine
	Failed                 uint64    // of these: answered 5xx or 429, or broken off
	Prompt, Cached, Output uint64    // tokens; Cached is part of Prompt
	Prefill, Decode, Saved float64   // seconds of an engine
	Cost                   float64   // of Prefill and Decode, at the prices of their time
	TTFT                   Histogram // seconds to the first token of streams
	Speed                  Histogram // output tokens/s of streams behind their first token
	Wait                   Histogram // seconds in the router's queue, of requests that waited there
	QueueRefused           uint64    // requests that the queue answered 429
}

type account struct {
	mu sync.Mutex
	t  Totals
}

// Few buckets: there may be thousands of clients.
var (
	ttftBounds  = [bounds]float64{.1, .25, .5, 1, 2.5, 5, 10, 30}
	speedBounds = [bounds]float64{2, 5, 10, 20, 40, 80, 160, 320}
)

// Adopt replaces the clients. Names that stay keep their account.
func (a *Accounts) Adopt(b *clients.Book) {
	known, next := a.accounts(), make(map[string]*account, len(b.Clients))
	for _, c := range b.Clients {
		if next[c.Name] = known[c.Name]; next[c.Name] == nil {
			next[c.Name] = &account{t: Totals{TTFT: Histogram{Bounds: &ttftBounds}, Speed: Histogram{Bounds: &speedBounds}, Wait: Histogram{Bounds: &ttftBounds}}}
		}
	}
	a.byName.Store(&next)
}

func (a *Accounts) accounts() map[string]*account {
	if m := a.byName.Load(); m != nil {
		return *m
	}
	return nil
}

// SetPrice sets what an hour of one engine costs from now on.
func (a *Accounts) SetPrice(hour float64) { a.price.Store(math.Float64bits(hour)) }

// Price returns what SetPrice has set.
func (a *Accounts) Price() float64 { return math.Float64frombits(a.price.Load()) }

// Of returns a client's totals.
func (a *Accounts) Of(client string) (t Totals) {
	if c := a.accounts()[client]; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		t = c.t
	}
	return t
}

// Observe counts a finished request; r is valid during the call only. It allocates nothing.
func (a *Accounts) Observe(r *proxy.Record) {
	c := a.accounts()[r.Client]
	if c == nil {
		return
	}
	c.queued(r)
	if r.Decision == nil {
		return
	}
	used := measure(r)
	cost := used.seconds() / 3600 * math.Float64frombits(a.price.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.t
	t.Requests++
	if r.Status >= 500 || r.Status == 429 || r.Broken {
		t.Failed++
	}
	t.Prompt += uint64(max(r.PromptTokens, 0))
	t.Cached += uint64(max(r.CachedTokens, 0))
	t.Output += uint64(max(r.OutputTokens, 0))
	t.Prefill, t.Decode, t.Saved, t.Cost = t.Prefill+used.prefill, t.Decode+used.decode, t.Saved+used.saved, t.Cost+cost
	if r.Stream && r.TTFT > 0 && r.Status < 400 {
		t.TTFT.add(r.TTFT.Seconds())
		if reply := r.Total - r.TTFT; reply > 0 && r.OutputTokens > 1 {
			t.Speed.add(float64(r.OutputTokens-1) / reply.Seconds())
		}
	}
}

// queued counts a request that waited in the router's queue, or was refused there.
func (c *account) queued(r *proxy.Record) {
	if r.Waited == 0 && r.Refused == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Waited > 0 {
		c.t.Wait.add(r.Waited.Seconds())
	}
	if r.Refused != "" {
		c.t.QueueRefused++
	}
}

// work is seconds of an engine.
type work struct{ prefill, decode, saved float64 }

func (w work) seconds() float64 { return w.prefill + w.decode }

// measure splits the time of a request at its engine:
//
//	prefill = uncached prompt tokens / the engine's prefill rate, at most the time since the engine got the request
//	saved   = cached prompt tokens / rate
//	decode  = time from the first token to the end / the requests that the engine served when it got this one
//
// The engine's count of tokens leads; what it does not report is as the router predicted. The prefill of a request whose answer is
// not streamed ends when it should have. Requests that an engine refused, and attempts before the last, count nothing.
func measure(r *proxy.Record) (w work) {
	left := r.Failed == books.ClientGone
	if r.Queue == 0 || len(r.Decision.Candidates) == 0 || r.Status >= 400 && !left || r.TTFT == 0 && !left {
		return w
	}
	at := r.Decision
	split := r.Prefill.Backend != "" && r.Prefill.Failed == books.None
	if split && r.Prefill.Decision != nil && len(r.Prefill.Decision.Candidates) > 0 {
		at = r.Prefill.Decision
	}
	prompt, cached := r.PromptTokens, r.CachedTokens
	if prompt < 0 {
		prompt = at.PromptTokens
	}
	if cached < 0 {
		cached = at.PredictedTokens
	}
	cached = min(cached, prompt)
	here := r.Total - r.Queue
	if split {
		here += r.Prefill.Took
	}
	if rate := at.Candidates[0].Rate; rate > 0 {
		w.prefill = min(float64(prompt-cached)/rate, here.Seconds())
		w.saved = float64(cached) / rate
	}
	reply := r.Total - r.TTFT
	switch {
	case r.TTFT == 0: // the client left before an answer
		return work{prefill: w.prefill}
	case !r.Stream && split:
		reply = r.Total - r.Queue
	case !r.Stream:
		reply = here - time.Duration(w.prefill*float64(time.Second))
	}
	w.decode = max(reply, 0).Seconds() / float64(1+max(r.Decision.Candidates[0].Active, 0))
	return w
}

// Collect adds the series of clients with requests.
func (a *Accounts) Collect(s metrics.Scrape) {
	tokens := s.Counter("client_tokens_total", "Tokens of the client's requests as engines count them; cached ones are part of the prompt.", "client", "type")
	seconds := s.Counter("client_gpu_seconds_total", "Seconds of engines for the client: prefill (uncached tokens by the engine's rate) and decode (its replies' time, shared with the requests beside them). An engine counts as one GPU.", "client", "part")
	saved := s.Counter("client_gpu_seconds_saved_total", "Seconds of prefill that caches saved: cached tokens by the engine's rate.", "client")
	cost := s.Counter("client_cost_total", "Price of the client's GPU seconds by gpu_hour_price; no series while that is 0.", "client")
	ttft := s.Histogram("client_time_to_first_token_seconds", "From the arrival of a request to the first token of its stream.", "client")
	speed := s.Histogram("client_output_tokens_per_second", "Output tokens per second of streams, behind the first token.", "client")
	wait := s.Histogram("client_queue_wait_seconds", "How long the client's requests waited in the router's queue; those that did not wait are not counted.", "client")
	for name := range a.accounts() {
		t := a.Of(name) // a file may list thousands
		if t.Wait.Count() > 0 {
			wait(t.Wait.Prometheus(), name)
		}
		if t.Requests == 0 {
			continue
		}
		tokens(float64(t.Prompt), name, "prompt")
		tokens(float64(t.Cached), name, "cached")
		tokens(float64(t.Output), name, "output")
		seconds(t.Prefill, name, "prefill")
		seconds(t.Decode, name, "decode")
		saved(t.Saved, name)
		if t.Cost > 0 {
			cost(t.Cost, name)
		}
		ttft(t.TTFT.Prometheus(), name)
		speed(t.Speed.Prometheus(), name)
	}
}

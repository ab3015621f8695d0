// Package replay sends a workload to running routers in real time over sockets, and measures the
// clients' view.
//
// It is an open loop: a request is sent when due, and every latency counts from the due time. A
// stall thus shows in every request that it delays, and cannot slow the load down. Only the next
// turn of a conversation waits for the last answer.
//
// It starts no server and judges nothing. Timers of an idle process can be a millisecond late,
// which is part of the latencies: it measures fleets, not the microseconds of proxies.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
)

// Spread selects the target of a request.
type Spread string

const (
	// PerRequest draws a target for every request, as a layer-4 balancer does for clients without
	// keep-alive.
	PerRequest Spread = "request"
	// PerSession keeps a session on one target, as a balancer does for a kept connection. Requests
	// without a session are drawn one by one.
	PerSession Spread = "session"
)

// DefaultMaxInFlight bounds running requests, because each takes a descriptor and tens of
// kilobytes.
const DefaultMaxInFlight = 4096

// DefaultTimeout bounds a request from its due time, as in the OpenAI client.
const DefaultTimeout = 10 * time.Minute

// Config configures a run. Only Targets has no default. The tags are those of command line flags.
type Config struct {
	Targets []string `name:"target" required:"" sep:"none" placeholder:"URL" help:"Router to load. Repeatable: requests are spread over all of them."`
	// Admins are host:port or URLs. The overhead includes the warm-up.
	Admins []string `name:"admin" sep:"none" placeholder:"ADDR" help:"Admin address of a router, to report its overhead from its metrics. Repeatable."`
	Spread Spread   `name:"spread" enum:"request,session" default:"request" help:"What keeps its target: each request draws one (request), or a session keeps one (session)."`
	Model  string   `name:"model" placeholder:"NAME" help:"Model to ask for; the first one the target lists if not given."` // default "default"
	APIKey string   `name:"api-key" env:"OPENAI_API_KEY" placeholder:"KEY" help:"Sent as a bearer token."`
	// MinBackends is the least number of engines reported, if only their number is known.
	MinBackends int `name:"backends" placeholder:"N" help:"Engines behind the targets: scales the rate of generated sessions to them, and counts those without a request in the load spread."`
	// MaxInFlight refuses requests with the class overflow.
	MaxInFlight int           `name:"max-in-flight" default:"4096" placeholder:"N" help:"Requests under way at most. What is due beyond is counted as failed, not delayed."`
	Timeout     time.Duration `name:"timeout" default:"10m" placeholder:"DURATION" help:"Longest a request may take from when it was due."`
	Policy      string        `name:"policy" default:"live" placeholder:"NAME" help:"What the routers run; a label in the report."`

	Warmup time.Duration // requests due before are sent, and excluded from the report
	Seed   uint64        // of the spread over targets; also a label

	// NewConnections opens a connection for every request, so that a layer-4 balancer sees each.
	// Otherwise idle connections are reused.
	NewConnections bool
	// Retries is how often a request is sent again after its connection failed before an answer
	// began. The OpenAI and Anthropic clients retry twice; their pauses (0.5 s, doubling, less up
	// to a quarter) are used. Default 0.
	Retries int

	// Backends are the names of all engines, so that idle ones count in the load's spread. Other
	// names in answers are appended. Optional.
	Backends []string

	// Workload, Nodes and Speed only label the report.
	Workload string
	Nodes    int
	Speed    float64

	// Progress, if not nil, is called a few times per second from Run's goroutine. It must not
	// block.
	Progress func(Progress)
	// Started, if not nil, is called once with the zero of the run's times.
	Started func(time.Time)
	// Excuse, if not nil, is called for every failed request. If it returns true, the failure is
	// the experiment's and counts as cut, not as an error.
	Excuse func(Ended) bool
	// Observe, if not nil, is called for every request that ended, after Excuse. Both run in Run's
	// goroutine and must not block.
	Observe func(Ended)
}

// Ended is one request that ended, as the client saw it.
type Ended struct {
	report.Sample
	Sent  time.Duration // first attempt, since the start of the run
	Node  string        // the router that answered, or ""
	Class Class         // of the failure, or ""
	Err   error         // nil if it did not fail
}

type Progress struct {
	Elapsed        time.Duration
	Sent, InFlight int
	Done, Failed   int
}

// Result is the report of a run with the figures that only live runs have.
type Result struct {
	report.Report
	Live Live `json:"live"`
}

// Live has the load generator's own figures, warm-up included.
type Live struct {
	// TTFTFromSend is the first-token time counted from sending.
	TTFTFromSend report.Quantiles `json:"ttft_from_send_ms"`
	// StartDelay is the generator's own lag in sending. Unless it is small against the latencies,
	// the generator's machine is the bottleneck.
	StartDelay report.Quantiles `json:"start_delay_ms"`
	// Errors counts failed requests by class.
	Errors map[Class]int `json:"errors_by_class"`
	// Cancelled counts requests that ran when ctx was cancelled; they are neither requests nor
	// errors.
	Cancelled int `json:"cancelled"`
	// Retried counts repeated attempts; see Config.Retries.
	Retried int `json:"retried"`
	// LostReplies counts turns sent with invented text because an earlier answer had failed or was
	// dropped.
	LostReplies int `json:"lost_replies"`
	// Sample is one error message of each class.
	Sample map[Class]string `json:"error_samples"`
	// BackendNames are the engines' names, by the ids of the report's backends.
	BackendNames []string `json:"backend_names"`
}

var ErrConfig = errors.New("replay configuration")

func baseURL(target string) string {
	return strings.TrimSuffix(strings.TrimSuffix(target, "/"), "/v1")
}

func (c Config) checked() (Config, error) {
	if len(c.Targets) == 0 {
		return c, fmt.Errorf("%w: no target", ErrConfig)
	}
	c.Targets = slices.Clone(c.Targets)
	for i, t := range c.Targets {
		u, err := url.Parse(t)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return c, fmt.Errorf("%w: target %q is not an http or https URL", ErrConfig, t)
		}
		c.Targets[i] = baseURL(t)
	}
	c.Spread = cmp.Or(c.Spread, PerRequest)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, DefaultMaxInFlight)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Model = cmp.Or(c.Model, "default")
	switch {
	case c.Spread != PerRequest && c.Spread != PerSession:
		return c, fmt.Errorf("%w: spread %q, want %s or %s", ErrConfig, c.Spread, PerRequest, PerSession)
	case c.MaxInFlight < 0 || c.Timeout < 0 || c.Warmup < 0 || c.Retries < 0:
		return c, fmt.Errorf("%w: limits must not be negative", ErrConfig)
	}
	return c, nil
}

// Run sends the requests of src until all have ended or ctx is cancelled. Cancellation ends running
// requests, and Run returns the measurements with the context's error. It leaves no goroutine or
// connection.
func Run(ctx context.Context, cfg Config, src workload.Source) (Result, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return Result{}, err
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: cfg.MaxInFlight,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		DisableKeepAlives:   cfg.NewConnections,
	}
	defer transport.CloseIdleConnections()
	p := &player{
		cfg: cfg, src: src,
		client:  &client{http: &http.Client{Transport: transport}, cfg: &cfg},
		ended:   make(chan outcome, cfg.MaxInFlight),
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0x7a46)),
		replies: newReplies(maxReplyBytes),
		errors:  make(map[Class]int), messages: make(map[Class]string),
		backends: make(map[string]int),
	}
	for _, name := range cfg.Backends {
		p.backendID(name)
	}
	before, err := overheadOf(ctx, cfg.Admins)
	if err != nil {
		return Result{}, err
	}
	err = p.play(ctx)
	res := p.result()
	if err == nil && len(cfg.Admins) > 0 {
		after, err := overheadOf(ctx, cfg.Admins)
		if err != nil {
			return res, err
		}
		res.RouterOverhead = after.since(before)
	}
	return res, err
}

type player struct {
	cfg    Config
	src    workload.Source
	client *client
	ended  chan outcome // has room for every running request, so that none waits to report
	wg     sync.WaitGroup
	rng    *rand.Rand

	start              time.Time
	inFlight           int
	sent, done, failed int
	replies            *replies
	recorder           report.Recorder
	fromSend, lag      []float64 // ms
	errors             map[Class]int
	messages           map[Class]string
	cancelled, lost    int
	retried            int
	backends           map[string]int
	names              []string
}

func (p *player) play(ctx context.Context) error {
	defer p.wg.Wait() // all requests have reported by then; waits for the goroutines' last steps
	p.start = time.Now()
	if p.cfg.Started != nil {
		p.cfg.Started(p.start)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var tick <-chan time.Time
	if p.cfg.Progress != nil {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		tick = ticker.C
	}
	calledOff := ctx.Done()
	sending := true
	for {
		at, more := p.src.Peek()
		more = more && sending
		if !more && p.inFlight == 0 {
			return ctx.Err()
		}
		var due <-chan time.Time
		if more {
			timer.Reset(time.Until(p.start.Add(at)))
			due = timer.C
		}
		select { // chooses at random, so that a burst of due requests cannot starve the rest
		case <-due:
			p.dispatch(ctx, p.src.Next())
		case o := <-p.ended:
			p.finish(o)
		case <-tick:
			p.cfg.Progress(p.progress())
		case <-calledOff:
			sending, calledOff = false, nil
		}
	}
}

func (p *player) dispatch(ctx context.Context, r *workload.Request) {
	p.sent++
	if p.inFlight >= p.cfg.MaxInFlight {
		now := time.Since(p.start)
		p.inFlight++
		p.finish(outcome{req: r, end: now, sent: now, firstToken: -1, prompt: -1, cached: -1, output: -1, predicted: -1,
			err: &Error{Class: Overflow, Err: fmt.Errorf("%d requests were under way", p.cfg.MaxInFlight)}})
		return
	}
	j := job{req: r, target: p.target(r), start: p.start}
	for _, s := range r.Segments() {
		if s.ReplyOf == 0 {
			continue
		}
		text, ok := p.replies.get(r.Session, s.ReplyOf)
		if !ok {
			p.lost++
			text = string(workload.Text(nil, uint64(r.Session)<<16|uint64(s.ReplyOf), s.Tokens))
		}
		j.replies = append(j.replies, text)
	}
	p.inFlight++
	p.wg.Go(func() { p.ended <- p.client.send(ctx, j) })
}

func (p *player) target(r *workload.Request) string {
	if len(p.cfg.Targets) == 1 {
		return p.cfg.Targets[0]
	}
	if p.cfg.Spread == PerSession && r.Session >= 0 {
		// Each session has its own random source: dense ids modulo the number of targets would
		// alternate.
		return p.cfg.Targets[rand.New(rand.NewPCG(p.cfg.Seed, uint64(r.Session))).IntN(len(p.cfg.Targets))]
	}
	return p.cfg.Targets[p.rng.IntN(len(p.cfg.Targets))]
}

func (p *player) finish(o outcome) {
	p.inFlight--
	p.retried += o.retries
	if o.err != nil && o.err.Class == Cancelled {
		p.cancelled++
		p.src.Done(o.req, o.end)
		return
	}
	p.done++
	s := report.Sample{
		At: o.req.At, End: o.end, Session: o.req.Session, Turn: o.req.Turn, Backend: -1,
		PromptTokens: o.prompt, CachedTokens: o.cached, OutputTokens: o.output, Predicted: o.predicted,
		TTFT: -1, Overhead: -1, Rung: o.rung,
	}
	if o.backend != "" {
		s.Backend = p.backendID(o.backend)
	}
	if o.firstToken >= 0 {
		s.TTFT = o.firstToken - o.req.At
		p.fromSend = append(p.fromSend, report.Milliseconds(o.firstToken-o.sent))
	}
	if o.err != nil {
		s.Failed = true
	} else if o.req.Turn > 0 {
		p.replies.put(o.req.Session, o.req.Turn, o.text)
	}
	p.tell(&s, &o)
	if s.Failed && !s.Cut {
		p.failed++
		p.errors[o.err.Class]++
		if _, ok := p.messages[o.err.Class]; !ok {
			p.messages[o.err.Class] = o.err.Error()
		}
	}
	if o.err == nil || o.err.Class != Overflow {
		p.lag = append(p.lag, report.Milliseconds(o.sent-o.req.At))
	}
	p.recorder.Add(s)
	p.src.Done(o.req, o.end)
}

func (p *player) tell(s *report.Sample, o *outcome) {
	e := Ended{Sample: *s, Sent: o.sent, Node: o.node}
	if o.err != nil {
		e.Class, e.Err = o.err.Class, o.err
		if p.cfg.Excuse != nil {
			s.Cut = p.cfg.Excuse(e)
			e.Cut = s.Cut
		}
	}
	if p.cfg.Observe != nil {
		p.cfg.Observe(e)
	}
}

func (p *player) backendID(name string) int {
	id, ok := p.backends[name]
	if !ok {
		id = len(p.names)
		p.backends[name] = id
		p.names = append(p.names, name)
	}
	return id
}

func (p *player) progress() Progress {
	return Progress{Elapsed: time.Since(p.start), Sent: p.sent, InFlight: p.inFlight, Done: p.done, Failed: p.failed}
}

func (p *player) result() Result {
	if p.cfg.Progress != nil {
		p.cfg.Progress(p.progress())
	}
	return Result{
		Report: p.recorder.Report(report.Setting{
			Policy: p.cfg.Policy, Workload: p.cfg.Workload, Nodes: p.cfg.Nodes, Backends: max(len(p.names), p.cfg.MinBackends),
			Seed: p.cfg.Seed, Speed: p.cfg.Speed, Warmup: p.cfg.Warmup,
		}),
		Live: Live{
			TTFTFromSend: report.Summarise(p.fromSend), StartDelay: report.Summarise(p.lag),
			Errors: p.errors, Cancelled: p.cancelled, Retried: p.retried, LostReplies: p.lost, Sample: p.messages, BackendNames: p.names,
		},
	}
}

// Package replay puts a workload on running routers, in real time and over real sockets, and measures what clients see.
//
// It is an open loop: a request is sent when it is due, whatever became of the ones before, and every latency counts from the time the
// request was due. A fleet that stalls therefore shows the stall in every request it held up, and cannot slow the load down to
// what it can bear. The one exception is part of the workload: the next turn of a conversation starts after the answer to the last.
//
// It starts no server and judges nothing. Timers of an idle process fire up to a millisecond late, which counts into the
// latencies: this measures engines' and fleets' times, not microseconds of proxies.
package replay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"grapevine/chaos/report"
	"grapevine/chaos/workload"
)

// Spread says which target a request goes to when there are several.
type Spread string

const (
	// PerRequest draws a target for every request, as a layer-4 balancer does for clients without keep-alive.
	PerRequest Spread = "request"
	// PerSession keeps a session on one target, as a balancer does for a client that keeps its connection. Requests without a
	// session are drawn one by one.
	PerSession Spread = "session"
)

// DefaultMaxInFlight bounds requests under way: one file descriptor and a few tens of kilobytes each.
const DefaultMaxInFlight = 4096

// DefaultTimeout is the longest a request may take, from when it was due; what the OpenAI client waits.
const DefaultTimeout = 10 * time.Minute

// Config says where to and how. Targets is the one field without a default.
type Config struct {
	Targets []string // base URLs, http or https, without /v1
	Spread  Spread   // default PerRequest
	Model   string   // default "default"
	APIKey  string   // sent as a bearer token if not empty

	// Admins are the admin addresses (host:port or URL) of the routers behind Targets, from whose metrics the router overhead in the report
	// comes; warm-up included. May be nil: it is then left out.
	Admins []string

	// MaxInFlight bounds the requests under way. One that is due beyond it is not sent and not delayed: it counts as failed, with
	// class overflow. Default DefaultMaxInFlight.
	MaxInFlight int
	Timeout     time.Duration // default DefaultTimeout
	Warmup      time.Duration // requests due before are sent, and left out of the report
	Seed        uint64        // of the spread over targets; also a label

	// NewConnections opens a connection for every request, so that a layer-4 balancer at the target sees each of them. Otherwise idle
	// connections are used again, as many as were ever needed at once.
	NewConnections bool
	// Retries is how often a request is sent again after its connection failed before an answer had begun: 2 is what the OpenAI and
	// Anthropic clients do, and their pauses (0.5 s, doubling, less up to a quarter) are used. Default 0: it has failed.
	Retries int

	// Backends are the names of all engines behind the targets, so that one without a request counts in the load's spread. Names seen
	// in answers are added behind them. May be nil.
	Backends []string
	// MinBackends is for when only their number is known: as many are reported even if fewer were seen.
	MinBackends int

	// Policy, Workload, Nodes and Speed only label the report.
	Policy, Workload string
	Nodes            int
	Speed            float64

	// Progress, if not nil, is called a few times a second from the goroutine that runs Run. It must not block.
	Progress func(Progress)
	// Started, if not nil, is called once with the moment that all times of the run count from.
	Started func(time.Time)
	// Excuse, if not nil, is asked about every failed request: true means that whoever runs this broke it on purpose. It then counts as
	// cut, not as an error.
	Excuse func(Ended) bool
	// Observe, if not nil, is told of every request that ended, after Excuse. Like Progress both are called from the goroutine that
	// runs Run and must not block.
	Observe func(Ended)
}

// Ended is one request that ended, as the client saw it.
type Ended struct {
	report.Sample
	Sent  time.Duration // when it was sent first, since the start of the run
	Node  string        // the router that answered; "" if none did
	Class Class         // of the failure; "" if there was none
	Err   error         // nil if it did not fail
}

// Progress is how far a run has come.
type Progress struct {
	Elapsed        time.Duration
	Sent, InFlight int
	Done, Failed   int
}

// Result is the report of a run and what only a live run can tell.
type Result struct {
	report.Report
	Live Live `json:"live"`
}

// Live is about the load generator's own view. All of it includes the warm-up.
type Live struct {
	// TTFTFromSend is what a load generator that counts from the moment of sending would have shown.
	TTFTFromSend report.Quantiles `json:"ttft_from_send_ms"`
	// StartDelay is how late requests were sent: the generator's own lag. If it is not small against the latencies, the machine
	// that runs the generator is the bottleneck.
	StartDelay report.Quantiles `json:"start_delay_ms"`
	// Errors counts failed requests by class; see Class.
	Errors map[Class]int `json:"errors_by_class"`
	// Cancelled requests were under way when the run was called off; they count neither as requests nor as errors.
	Cancelled int `json:"cancelled"`
	// Retried counts attempts that were repeated; see Config.Retries.
	Retried int `json:"retried"`
	// LostReplies counts turns sent with made-up text because the answer to an earlier turn had failed or was no longer kept.
	LostReplies int `json:"lost_replies"`
	// Sample is one error message of each class.
	Sample map[Class]string `json:"error_samples"`
	// BackendNames are the engines' names, by the ids of the report's backends.
	BackendNames []string `json:"backend_names"`
}

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("replay configuration")

func (c Config) checked() (Config, error) {
	if len(c.Targets) == 0 {
		return c, fmt.Errorf("%w: no target", ErrConfig)
	}
	targets := make([]string, len(c.Targets))
	for i, t := range c.Targets {
		u, err := url.Parse(t)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return c, fmt.Errorf("%w: target %q is not an http or https URL", ErrConfig, t)
		}
		targets[i] = strings.TrimSuffix(strings.TrimSuffix(t, "/"), "/v1")
	}
	c.Targets = targets
	switch c.Spread {
	case "":
		c.Spread = PerRequest
	case PerRequest, PerSession:
	default:
		return c, fmt.Errorf("%w: spread %q, want %s or %s", ErrConfig, c.Spread, PerRequest, PerSession)
	}
	if c.MaxInFlight < 0 || c.Timeout < 0 || c.Warmup < 0 || c.Retries < 0 {
		return c, fmt.Errorf("%w: limits must not be negative", ErrConfig)
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Model == "" {
		c.Model = "default"
	}
	return c, nil
}

// Run sends what src yields until it is exhausted and every request has ended, or ctx is cancelled. Cancellation ends requests under
// way, and Run returns what was measured so far together with the context's error. No goroutine or connection of it outlives it.
func Run(ctx context.Context, cfg Config, src workload.Source) (Result, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return Result{}, err
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: cfg.MaxInFlight, // keep-alive: as many as were ever needed at once
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

// player runs one workload. All its fields belong to the goroutine of Run; requests talk to it through ended alone.
type player struct {
	cfg    Config
	src    workload.Source
	client *client
	ended  chan outcome // room for every request under way, so that none ever waits to be taken note of
	wg     sync.WaitGroup
	rng    *rand.Rand

	start              time.Time
	inFlight           int
	sent, done, failed int
	replies            *replies
	recorder           report.Recorder
	fromSend, lag      []time.Duration
	errors             map[Class]int
	messages           map[Class]string
	cancelled, lost    int
	retried            int
	backends           map[string]int
	names              []string
}

// play is the loop: send what is due, take note of what has ended, sleep until either happens.
func (p *player) play(ctx context.Context) error {
	defer p.wg.Wait() // every request has reported before it ends, so this waits for nothing but the goroutines' last steps
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
			wait := time.Until(p.start.Add(at))
			if wait <= 0 {
				p.dispatch(ctx, p.src.Next())
				p.settle()
				continue
			}
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-due:
		case o := <-p.ended:
			p.finish(o)
		case <-tick:
			p.cfg.Progress(p.progress())
		case <-calledOff:
			sending, calledOff = false, nil // what is under way ends by the same context
		}
	}
}

// settle takes note of everything that has ended, without waiting: a burst of due requests must not starve it.
func (p *player) settle() {
	for {
		select {
		case o := <-p.ended:
			p.finish(o)
		default:
			return
		}
	}
}

// dispatch sends a request now, or counts it as overflow.
func (p *player) dispatch(ctx context.Context, r *workload.Request) {
	p.sent++
	if p.inFlight >= p.cfg.MaxInFlight {
		now := time.Since(p.start)
		p.inFlight++ // finish takes it off again
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
		// A stream of its own per session: dense ids modulo the number of targets would alternate.
		return p.cfg.Targets[rand.New(rand.NewPCG(p.cfg.Seed, uint64(r.Session))).IntN(len(p.cfg.Targets))]
	}
	return p.cfg.Targets[p.rng.IntN(len(p.cfg.Targets))]
}

// finish takes note of a request that ended and lets the source go on from it.
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
		p.fromSend = append(p.fromSend, o.firstToken-o.sent)
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
		p.lag = append(p.lag, o.sent-o.req.At)
	}
	p.recorder.Add(s)
	p.src.Done(o.req, o.end)
}

// tell asks whether a failure is excused, and passes the request on to who observes.
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

// backendID numbers engines by name in the order in which they are first met.
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
			TTFTFromSend: quantiles(p.fromSend), StartDelay: quantiles(p.lag),
			Errors: p.errors, Cancelled: p.cancelled, Retried: p.retried, LostReplies: p.lost, Sample: p.messages, BackendNames: p.names,
		},
	}
}

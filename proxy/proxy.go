// Package proxy reads a request, asks a Picker for a backend, streams the answer back and reports
// one Record to the Observer. See DESIGN.md.
package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
	"grapevine.example/proxy/queue"
)

// ErrConfig is wrapped by every error of New and Retune.
var ErrConfig = errors.New("invalid proxy configuration")

// ErrClosed is returned by Serve after Shutdown has begun.
var ErrClosed = errors.New("proxy is shut down")

// Picker chooses backends. It must be safe for concurrent use.
type Picker interface {
	// Pick books the request; after a nil error the proxy calls a.End exactly once.
	// policy.ErrNoBackend is answered 503, policy.ErrUnknownModel and policy.ErrHolderGone 404, other
	// errors 500.
	Pick(q *policy.Request, a *policy.Attempt) (Target, error)
	// PickPrefill books the prompt at another backend, for the decode backend that Pick chose. After
	// true the proxy calls a.End exactly once.
	PickPrefill(q *policy.Request, decode, a *policy.Attempt) (Target, bool)
	Now() prefixtree.Time
}

// Rules are the routing rules, as policy.Router implements them.
type Rules interface {
	// SessionMembers returns the members of bodies that name sessions.
	SessionMembers() []string
	// Follow sets the model, the session and the route of a request.
	Follow(q *policy.Request)
}

// Timeouts are explained in DESIGN.md. Zero means the default; most expire up to two Watch late.
type Timeouts struct {
	Read            time.Duration // until the head with 256 KiB of body, and each further 256 KiB, arrived; 30 s
	KeepAlive       time.Duration // of idle client connections; 6 min, above the 350 s of AWS's balancer
	Connect         time.Duration // dialing a backend with the TLS handshake; 2 s
	FirstByte       time.Duration // of a response that is not streamed; 10 min, the limit of OpenAI's client
	StreamFirstByte time.Duration // of a stream, so the prefill; 5 min
	Idle            time.Duration // between two reads of a response; 2 min
	HeaderHold      time.Duration // of a stream's head without a body byte; 15 s, negative means none
	Write           time.Duration // of one write to a client that does not read; 1 min
	UpstreamIdle    time.Duration // of unused backend connections; 4 s, because uvicorn closes after 5 s
	Watch           time.Duration // the period of deadline checks; 250 ms
	DrainGrace      time.Duration // how long Shutdown keeps accepting; 1 s, negative means none
}

const (
	DefaultMaxBody       = 32 << 20 // the limit of Anthropic's API
	DefaultMaxHeader     = 16 << 10 // the read buffer of every connection
	DefaultMaxBodyMemory = 256 << 20
)

// Config describes a Proxy. Only Picker and Hasher are required.
type Config struct {
	Picker Picker
	Hasher *prefixtree.Hasher
	// Models returns, without blocking, the body for GET /v1/models (id "") or /v1/models/ID, nil
	// if unknown, with the models for which may (nil: all) returns true. If nil, a backend answers.
	Models func(id string, may func(model []byte) bool) []byte
	// Stamper names requests for the cache events of engines; nil: none are named.
	Stamper Stamper
	// Clients may use the proxy; SetClients replaces them. If nil, everybody may, and credentials
	// are passed on to engines.
	Clients *clients.Book
	// Meter holds clients to their limits. If nil, the limits are those of this proxy alone.
	Meter *clients.Meter
	// PromptTokens estimates a prompt's tokens, for limits. It must not block. If nil, prompts count
	// nothing until their engine has counted them.
	PromptTokens func(*policy.Request) int
	// Rules, if not nil, say which models engines are asked for, and what names sessions. They must not block.
	Rules Rules
	// Roles, if not nil, reports whether backends have roles; only then are bodies read for what two
	// backends can share. It must not block.
	Roles func() bool
	// Sketch, if not nil, returns a sketch for each prompt of which Record.Sketch shall have one, and nil for the others. It must not
	// block.
	Sketch func() *prompt.Sketch
	// Tracing gives a span to requests whose caller records their trace, and to TraceShare, from 0 to 1, of those without a valid
	// traceparent. Their engines get this span as their parent.
	Tracing    bool
	TraceShare float64
	// Observer receives, concurrently, the Record of every request to be forwarded.
	Observer func(*Record)
	Log      zerolog.Logger
	NodeName string

	// PassPaths are prefixes, in whole segments, of paths forwarded unread and without
	// Target.Header.
	PassPaths []string
	// AllowEngineControl forwards what steers engines, and unreadable bodies.
	AllowEngineControl bool
	ResponseHeaders    ResponseHeaders
	Tenant             Tenant
	Queue              Queue

	MaxBody int // bytes; 413 above
	// MaxBodyMemory is for all bodies together, in bytes; 503 above. At least BodyMemoryShare times
	// MaxBody.
	MaxBodyMemory int
	MaxHeader     int // bytes, at least 16 KiB; 431 above
	MaxAttempts   int // backends tried per request, besides those that answer 429
	MaxConns      int // client connections
	MaxIdle       int // per backend

	Timeouts Timeouts

	TLS           *tls.Config // nil for plain HTTP
	ProxyProtocol bool        // require a PROXY header, v1 or v2
}

// Proxy is the data plane of one node, safe for concurrent use.
type Proxy struct {
	cfg     Config                 // as given to New
	tuned   atomic.Pointer[Config] // replaced by Retune, never modified
	clients atomic.Pointer[clients.Book]
	meter   *clients.Meter
	server  atomic.Pointer[fasthttp.Server] // of new connections
	base    context.Context                 // of dials; canceled to cut a drain short
	cancel  context.CancelFunc
	hurried context.Context
	hurry   context.CancelFunc
	epoch   time.Time
	clock   atomic.Int64 // nanoseconds since epoch, at most one Watch old
	sweeps  atomic.Uint64

	ready    atomic.Bool
	draining atomic.Bool
	active   atomic.Int64 // requests being served

	exchanges sync.Pool
	parsers   sync.Pool // of *prompt.Parser
	upstreams upstreams
	bodies    bodyMemory
	warned    warnings

	waiting    *waitingRoom // nil: no queue
	departures departures
	broken     broken
	responses  responseIDs

	mu        sync.Mutex // guards the fields below
	listeners map[net.Listener]struct{}
	conns     map[uint64]*clientConn // by key
	lastKey   uint64                 // keys, unlike descriptors, are not reused
	closed    bool
	watchDone chan struct{} // closed when the watch ends; nil before the first Serve
	attended  chan struct{} // closed when the waiting room is left alone; nil without one
	watchStop chan struct{}
	accepting sync.WaitGroup // calls of Serve
	served    sync.WaitGroup // connections
	finished  chan struct{}  // closed at the end of Shutdown
	result    error          // valid after finished
}

// New returns a proxy that is not ready. It starts no goroutine.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg:       cfg,
		epoch:     time.Now(),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[uint64]*clientConn),
		watchStop: make(chan struct{}),
		finished:  make(chan struct{}),
	}
	p.tuned.Store(&cfg)
	if p.meter = cfg.Meter; p.meter == nil {
		p.meter = clients.NewMeter()
	}
	if cfg.Clients != nil {
		p.SetClients(cfg.Clients)
	}
	var err error
	if p.waiting, err = newWaitingRoom(p, cfg.Queue); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	p.base, p.cancel = context.WithCancel(context.Background())
	p.hurried, p.hurry = context.WithCancel(context.Background())
	p.bodies.limit.Store(int64(cfg.MaxBodyMemory))
	p.upstreams.init(p)
	p.broken.seed = rand.Uint64()
	p.responses = newResponseIDs(cfg.Hasher)
	p.exchanges.New = func() any { return newExchange(p) }
	p.parsers.New = func() any { return prompt.NewParser(cfg.Hasher) }
	p.server.Store(p.newServer(&cfg))
	return p, nil
}

// Retune checks new values and returns a function that applies PassPaths, AllowEngineControl,
// ResponseHeaders, Tracing, TraceShare, the limits from MaxBody on, the queue's, and the timeouts except Watch. Requests that
// have begun keep the old values, open connections their MaxHeader, Read and KeepAlive.
func (p *Proxy) Retune(cfg Config) (apply func(), err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return func() {
		p.tuned.Store(&cfg)
		p.server.Store(p.newServer(&cfg))
		p.bodies.limit.Store(int64(cfg.MaxBodyMemory))
		p.waiting.retune(cfg.Queue.Limits)
	}, nil
}

// Tuned returns the values in force; read only.
func (p *Proxy) Tuned() *Config { return p.tuned.Load() }

// SetClients replaces the clients of a proxy that was built with some; b is not nil. Requests that
// have begun keep theirs.
func (p *Proxy) SetClients(b *clients.Book) {
	p.meter.Adopt(b)
	p.clients.Store(b)
}

// Ready sets whether /readyz answers 200 or 503; requests are served either way.
func (p *Proxy) Ready(ready bool) { p.ready.Store(ready) }

// InFlight counts the requests being served.
func (p *Proxy) InFlight() int { return int(p.active.Load()) }

// Connections counts the open client connections.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// BodyMemory returns the bytes that bodies hold and the number of refusals.
func (p *Proxy) BodyMemory() (used int64, refused uint64) {
	return p.bodies.used.Load(), p.bodies.refused.Load()
}

func (c *Config) complete() error {
	if c.Picker == nil {
		return fmt.Errorf("%w: no picker", ErrConfig)
	}
	if c.Hasher == nil {
		return fmt.Errorf("%w: no hasher", ErrConfig)
	}
	t := &c.Timeouts
	if err := cmp.Or(
		orDefault("MaxBody", &c.MaxBody, DefaultMaxBody, false),
		orDefault("MaxHeader", &c.MaxHeader, DefaultMaxHeader, false),
		orDefault("MaxAttempts", &c.MaxAttempts, 3, false),
		orDefault("MaxConns", &c.MaxConns, 256<<10, false),
		orDefault("MaxIdle", &c.MaxIdle, 512, false),
		orDefault("Read", &t.Read, 30*time.Second, false),
		orDefault("KeepAlive", &t.KeepAlive, 6*time.Minute, false),
		orDefault("Connect", &t.Connect, 2*time.Second, false),
		orDefault("FirstByte", &t.FirstByte, 10*time.Minute, false),
		orDefault("StreamFirstByte", &t.StreamFirstByte, 5*time.Minute, false),
		orDefault("Idle", &t.Idle, 2*time.Minute, false),
		orDefault("HeaderHold", &t.HeaderHold, 15*time.Second, true),
		orDefault("Write", &t.Write, time.Minute, false),
		orDefault("UpstreamIdle", &t.UpstreamIdle, 4*time.Second, false),
		orDefault("Watch", &t.Watch, 250*time.Millisecond, false),
		orDefault("DrainGrace", &t.DrainGrace, time.Second, true),
	); err != nil {
		return err
	}
	if err := orDefault("MaxBodyMemory", &c.MaxBodyMemory, max(DefaultMaxBodyMemory, BodyMemoryShare*c.MaxBody), false); err != nil {
		return err
	}
	if c.MaxBodyMemory/BodyMemoryShare < c.MaxBody {
		return fmt.Errorf("%w: MaxBodyMemory is below %d times MaxBody", ErrConfig, BodyMemoryShare)
	}
	if l := c.Queue.Limits; l != (queue.Limits{}) {
		if err := l.Check(); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	for _, prefix := range c.PassPaths {
		if err := CheckPassPath(prefix); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	if c.MaxHeader < DefaultMaxHeader {
		return fmt.Errorf("%w: MaxHeader is below %d", ErrConfig, DefaultMaxHeader)
	}
	if c.TLS != nil && len(c.TLS.NextProtos) == 0 {
		// So that clients do not choose HTTP/2.
		c.TLS = c.TLS.Clone()
		c.TLS.NextProtos = []string{"http/1.1"}
	}
	return nil
}

func orDefault[T int | time.Duration](name string, value *T, fallback T, optional bool) error {
	switch {
	case *value == 0:
		*value = fallback
	case *value < 0 && optional:
		*value = 0
	case *value < 0:
		return fmt.Errorf("%w: %s is negative", ErrConfig, name)
	}
	return nil
}

func (p *Proxy) logPanic(r any) {
	p.cfg.Log.Error().Interface("panic", r).Bytes("stack", debug.Stack()).Msg("request handler panicked")
}

// When each may be logged again.
type warnings struct{ proxyHeader, plain, bodyMemory, noTransfer atomic.Int64 }

func (p *Proxy) mayWarn(due *atomic.Int64) bool {
	now, then := int64(time.Since(p.epoch)), due.Load()
	return now >= then && due.CompareAndSwap(then, now+int64(time.Minute))
}

func (p *Proxy) warn(due *atomic.Int64, c *clientConn, message string) {
	if p.mayWarn(due) {
		p.cfg.Log.Warn().Str("peer", c.raw.RemoteAddr().String()).Msg(message)
	}
}

// Record describes a finished request, during the Observer's call only.
type Record struct {
	Start    time.Time // when the request was complete
	ID       []byte
	Method   []byte
	Path     []byte // without the query
	Kind     prompt.Kind
	Model    []byte // as the client asks for it
	Target   []byte // as a rule has engines asked for it; nil: Model
	Stream   bool
	Unparsed bool             // refused, or routed by load
	Client   string           // "" if unknown, or without a list of clients
	Limit    string           // of the client, that refused the request: tokens or in_flight; else ""
	Refused  string           // by the queue: RefusedFull, RefusedTimeout or RefusedLate; else ""
	Priority clients.Priority // in the queue
	Peer     []byte           // the address of the client's connection or, in a PROXY header, the client's
	Trace    Trace            // by the client's traceparent, and Config.Tracing

	Status   int           // StatusClientGone if the client left first
	Failed   books.Failure // of the last attempt
	Broken   bool
	Attempts int
	Resent   int // sends repeated after a stale connection

	Decision *policy.Decision // the last attempt's receipt, or nil
	Backend  string
	Prefill  PrefillRecord

	RequestBytes  int   // as received
	ResponseBytes int64 // as sent
	PromptBytes   int
	Sketch        *prompt.Sketch // of the prompt, if Config.Sketch wanted one; the observer may keep it
	// MatchedTokens is how much of the prompt the backend was believed to hold, estimated.
	MatchedTokens int
	// Tokens by the engine's count; -1 if unknown.
	PromptTokens, CachedTokens, OutputTokens int

	Parsed   time.Duration // until the body was read; 0 without a span
	Picked   time.Duration // until the last backend was chosen; 0 without a span
	Overhead time.Duration // the router's own time
	Queue    time.Duration // until the last dispatch
	Waited   time.Duration // in the router's queue; 0: did not wait
	// TTFT lasts until a stream's first token, a relayed body's first byte, or a whole body's end.
	TTFT  time.Duration
	Total time.Duration
}

// PrefillRecord describes the prompt's computation by another backend than the reply's.
type PrefillRecord struct {
	Backend  string           // "": not tried
	Decision *policy.Decision // its receipt, or nil
	Failed   books.Failure    // of the prefill backend, or Transfer: one backend then computed all
	Took     time.Duration
}

// StatusClientGone, as in nginx, means that the client left before the answer.
const StatusClientGone = 499

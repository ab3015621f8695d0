// Package proxy is the data plane: it reads a request, asks a Picker for a backend, forwards the
// request, streams the answer back, and reports to the policy what it measured. DESIGN.md describes
// the stages.
//
// The package keeps no list of backends, probes nothing, reads no configuration and exports no
// metrics; the Observer receives one Record per request.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// ErrConfig is wrapped by every error of New and Retune.
var ErrConfig = errors.New("invalid proxy configuration")

// ErrClosed is returned by Serve after Shutdown has begun.
var ErrClosed = errors.New("proxy is shut down")

// Target is the backend that a Picker chose.
type Target struct {
	ID       prefixtree.Backend
	Name     string      // for the X-Grapevine-Backend header, logs and records
	Addr     string      // host:port to dial
	Host     string      // Host header; "" means Addr
	TLS      *tls.Config // nil for plain HTTP; one pointer per backend, since pools are keyed by it
	BasePath string      // put before the request's path; no trailing slash
	// Header is set on requests to inference paths, e.g. the engine's key, and replaces the
	// client's headers of these names.
	Header [][2]string
}

// Picker chooses backends. Its methods must be safe for concurrent use.
type Picker interface {
	// Pick chooses a backend and books the request there. After a nil error the proxy calls a.End
	// exactly once. The proxy answers policy.ErrNoBackend with 503, policy.ErrUnknownModel with 404
	// and any other error with 500.
	Pick(q *policy.Request, a *policy.Attempt) (Target, error)
	// Now is the policy's clock: the proxy passes its times to the Attempt's methods.
	Now() prefixtree.Time
}

// Timeouts are explained in DESIGN.md. A zero field takes its default. The watch enforces most of
// them once per Watch, so they expire up to two Watch periods late and never early.
type Timeouts struct {
	// Read bounds the time in which the head and the first 256 KiB of the body must arrive, and
	// then each further 256 KiB or the rest. Default 30 s.
	Read time.Duration
	// KeepAlive bounds how long a client connection may be idle between requests. Default 6 min:
	// AWS's balancer forgets a flow after 350 s, so it closes first and no request is lost in
	// flight.
	KeepAlive time.Duration
	// Connect bounds dialing a backend, including the TLS handshake. Default 2 s.
	Connect time.Duration
	// FirstByte bounds the wait for a response that is not streamed, i.e. the whole generation.
	// Default 10 min, the limit of OpenAI's client.
	FirstByte time.Duration
	// StreamFirstByte bounds the wait for a streamed response, i.e. the prefill. Default 5 min.
	StreamFirstByte time.Duration
	// Idle bounds the gap between two reads of a response. Default 2 min.
	Idle time.Duration
	// HeaderHold bounds how long the proxy holds back the head of a stream while no body byte has
	// come: until the client sees a byte, another backend can take over. Default 15 s; negative
	// means no hold.
	HeaderHold time.Duration
	// Write bounds one write to a client that does not read. Default 1 min.
	Write time.Duration
	// UpstreamIdle bounds how long an unused backend connection is kept. Default 4 s, because
	// uvicorn closes after 5 s.
	UpstreamIdle time.Duration
	// Watch is the period at which the watch checks all deadlines. Default 250 ms.
	Watch time.Duration
	// DrainGrace is how long Shutdown keeps accepting, with Connection: close on each response,
	// before it closes the listeners and idle connections. Default 1 s; negative means none.
	DrainGrace time.Duration
}

const (
	// DefaultMaxBody is the limit of Anthropic's API: a conversation with a dozen base64 images.
	DefaultMaxBody     = 32 << 20
	DefaultMaxHeader   = 16 << 10 // every connection has a read buffer of this size
	DefaultMaxAttempts = 3
	DefaultMaxConns    = 256 << 10
	DefaultMaxIdle     = 512

	DefaultMaxBodyMemory = 256 << 20
)

// Config describes a Proxy. Picker and Hasher are required; any other zero field takes its default.
type Config struct {
	Picker Picker
	Hasher *prefixtree.Hasher
	// Models returns the body for GET /v1/models (id "") or /v1/models/ID, nil if it knows nothing
	// of that model. The proxy calls it per request, so it must not block. If Models is nil, these
	// requests go to a backend.
	Models func(id string) []byte
	// Observer receives the Record of every request that the proxy forwarded or tried to forward,
	// on the request's goroutine, after the attempt ended. The record is valid only during the
	// call. Observer must be fast and safe for concurrent use.
	Observer func(*Record)
	Log      zerolog.Logger
	NodeName string // x-grapevine-node

	// PassPaths are path prefixes, in whole segments, that are forwarded although the proxy does
	// not know them. It does not read their bodies and does not add Target.Header.
	PassPaths []string
	// AllowEngineControl forwards the members and headers that steer engines, and unreadable
	// bodies.
	AllowEngineControl bool
	ResponseHeaders    ResponseHeaders
	Tenant             Tenant

	MaxBody int // bytes of a request body; 413 above
	// MaxBodyMemory bounds the bytes of all request bodies together; a request that does not fit
	// gets 503 with Retry-After. At least BodyMemoryShare times MaxBody.
	MaxBodyMemory int
	MaxHeader     int // bytes of a request's head; 431 above. At least 16 KiB.
	MaxAttempts   int // backends tried for one request, not counting those that answer 429
	MaxConns      int // client connections
	MaxIdle       int // unused connections kept per backend

	Timeouts Timeouts

	TLS           *tls.Config // nil serves plain HTTP
	ProxyProtocol bool        // every connection must begin with a PROXY protocol header, v1 or v2
}

// Proxy is the data plane of one node. All methods are safe for concurrent use.
type Proxy struct {
	cfg    Config                 // as New received it
	tuned  atomic.Pointer[Config] // what Retune replaces; never modified in place
	server *fasthttp.Server
	base   context.Context // canceled when Shutdown runs out of time or has finished
	cancel context.CancelFunc
	epoch  time.Time    // of the coarse clock
	clock  atomic.Int64 // nanoseconds since epoch, at most one Watch old
	sweeps atomic.Uint64

	ready    atomic.Bool
	draining atomic.Bool
	active   atomic.Int64 // requests from complete arrival to the last response byte

	exchanges sync.Pool
	parsers   sync.Pool // of *describer
	upstreams upstreams
	bodies    bodyMemory
	warned    warnings

	departures departures // open while watchDone is not nil
	broken     broken

	mu        sync.Mutex // guards the fields below
	listeners map[net.Listener]struct{}
	conns     registry
	closed    bool          // no more connections are accepted
	watchDone chan struct{} // closed when the watch has ended; nil before the first Serve
	watchStop chan struct{}
	served    sync.WaitGroup // accept loops and connections
	shutdown  sync.Once
	finished  chan struct{} // closed when Shutdown is done
	result    error         // of Shutdown; read it after finished
	force     chan struct{} // closed by a second Shutdown
	forced    sync.Once
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
		watchStop: make(chan struct{}),
		finished:  make(chan struct{}),
		force:     make(chan struct{}),
	}
	p.tuned.Store(&cfg)
	p.base, p.cancel = context.WithCancel(context.Background())
	p.bodies.limit = int64(cfg.MaxBodyMemory)
	p.upstreams.init(p)
	p.broken.seed = rand.Uint64()
	p.exchanges.New = func() any { return newExchange(p) }
	p.parsers.New = func() any { return newDescriber(p) }
	p.server = p.newServer()
	return p, nil
}

// Retune replaces MaxAttempts, MaxIdle and all timeouts except Read, KeepAlive and Watch while the
// proxy serves, and ignores the other fields. A request in progress may still use the old values.
// Nothing changes after an error.
func (p *Proxy) Retune(cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	p.tuned.Store(&cfg)
	return nil
}

// Ready sets the answer of /readyz: true for 200, false for 503. The proxy serves requests either
// way.
func (p *Proxy) Ready(ready bool) { p.ready.Store(ready) }

// InFlight returns how many requests are being served.
func (p *Proxy) InFlight() int { return int(p.active.Load()) }

// Connections returns how many client connections are open.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns.list)
}

func (c *Config) complete() error {
	if c.Picker == nil {
		return fmt.Errorf("%w: no picker", ErrConfig)
	}
	if c.Hasher == nil {
		return fmt.Errorf("%w: no hasher", ErrConfig)
	}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"MaxBody", &c.MaxBody, DefaultMaxBody},
		{"MaxHeader", &c.MaxHeader, DefaultMaxHeader},
		{"MaxAttempts", &c.MaxAttempts, DefaultMaxAttempts},
		{"MaxConns", &c.MaxConns, DefaultMaxConns},
		{"MaxIdle", &c.MaxIdle, DefaultMaxIdle},
		{"MaxBodyMemory", &c.MaxBodyMemory, max(DefaultMaxBodyMemory, BodyMemoryShare*c.MaxBody)},
	} {
		if *f.value < 0 {
			return fmt.Errorf("%w: %s is negative", ErrConfig, f.name)
		}
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	if c.MaxBodyMemory/BodyMemoryShare < c.MaxBody {
		return fmt.Errorf("%w: MaxBodyMemory is below %d times MaxBody", ErrConfig, BodyMemoryShare)
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
		// Naming http/1.1 keeps clients that prefer HTTP/2 from speaking it.
		c.TLS = c.TLS.Clone()
		c.TLS.NextProtos = []string{"http/1.1"}
	}
	return c.Timeouts.complete()
}

func (t *Timeouts) complete() error {
	for _, f := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
		optional bool // negative means none
	}{
		{"Read", &t.Read, 30 * time.Second, false},
		{"KeepAlive", &t.KeepAlive, 6 * time.Minute, false},
		{"Connect", &t.Connect, 2 * time.Second, false},
		{"FirstByte", &t.FirstByte, 10 * time.Minute, false},
		{"StreamFirstByte", &t.StreamFirstByte, 5 * time.Minute, false},
		{"Idle", &t.Idle, 2 * time.Minute, false},
		{"HeaderHold", &t.HeaderHold, 15 * time.Second, true},
		{"Write", &t.Write, time.Minute, false},
		{"UpstreamIdle", &t.UpstreamIdle, 4 * time.Second, false},
		{"Watch", &t.Watch, 250 * time.Millisecond, false},
		{"DrainGrace", &t.DrainGrace, time.Second, true},
	} {
		switch {
		case *f.value == 0:
			*f.value = f.fallback
		case *f.value < 0 && f.optional:
			*f.value = 0
		case *f.value < 0:
			return fmt.Errorf("%w: timeout %s is negative", ErrConfig, f.name)
		}
	}
	return nil
}

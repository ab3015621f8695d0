// Package proxy stands between clients and engines: it reads a request, has a backend picked for it, forwards it, streams
// the answer back as it arrives, and tells the policy what it learned. DESIGN.md tells the life of a request.
//
// The package decides how a request travels, never where: that is the Picker's. It keeps no list of backends, probes
// nothing, reads no configuration, and exports no metrics; one Record per request says all there is to count.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("invalid proxy configuration")

// ErrClosed is returned by Serve after Shutdown has begun.
var ErrClosed = errors.New("proxy is shut down")

// Target is where a picked request goes. Values are compared by Addr and TLS only to share connections.
type Target struct {
	ID       prefixtree.Backend
	Name     string      // for x-grapevine-backend, logs and records
	Addr     string      // host:port to dial
	Host     string      // Host header; "" means Addr
	TLS      *tls.Config // nil for plain HTTP; one pointer per backend, since it is part of the pool's key
	BasePath string      // put before the request's path, without a trailing slash
	Header   [][2]string // set on every request, in place of the client's headers of these names (engine keys)
}

// Picker decides which backend a request goes to. Both methods are called from many goroutines.
type Picker interface {
	// Pick chooses a backend and books the request there. After a nil error the proxy calls a.End exactly once; it
	// returns policy.ErrNoBackend and policy.ErrUnknownModel as they are, and any other error answers 500.
	Pick(q *policy.Request, a *policy.Attempt) (Target, error)
	// Now is the clock of the policy: the times given to the attempt's methods come from it.
	Now() prefixtree.Time
}

// Timeouts are the ladder of DESIGN.md. A zero field takes its default. Those that every request has are kept by no timer
// of their own, but looked at once every Watch: they end up to two Watches late, never early.
type Timeouts struct {
	// Read bounds the arrival of a request: its head with the first 256 KiB of its body, and each further
	// 256 KiB or the rest. Default 30 s.
	Read time.Duration
	// KeepAlive is how long a client connection may be idle between requests. Default 6 min, above the 350 s after
	// which AWS's balancer forgets a flow, so that it is not we who close under a request in flight.
	KeepAlive time.Duration
	// Connect bounds dialling a backend, TLS handshake included. Default 2 s.
	Connect time.Duration
	// FirstByte bounds the wait for the response to a request that is not streamed, which is the whole generation.
	// Default 10 min, the OpenAI client's own limit.
	FirstByte time.Duration
	// StreamFirstByte is FirstByte for streamed requests, which owe only their prefill. Default 5 min.
	StreamFirstByte time.Duration
	// Idle bounds the gap between two reads of a response that has begun. Default 2 min.
	Idle time.Duration
	// HeaderHold is how long the head of a stream is kept back for want of a first body byte: engines send it before the
	// prefill, and until the client has seen a byte another backend can still take over. Default 15 s; negative: none.
	HeaderHold time.Duration
	// Write bounds one write to a client that does not read. Default 1 min.
	Write time.Duration
	// UpstreamIdle is how long an unused backend connection is kept. Default 4 s, because uvicorn closes after 5.
	UpstreamIdle time.Duration
	// Watch is the period at which connections are looked at for passed deadlines. Default 250 ms.
	Watch time.Duration
	// Models bounds the answer of one backend to /v1/models. Default 5 s.
	Models time.Duration
	// DrainGrace is how long Shutdown goes on accepting, answering with Connection: close, before it closes the
	// listeners and the idle connections. Default 1 s; negative: none.
	DrainGrace time.Duration
}

// Defaults of Config.
const (
	DefaultMaxBody     = 32 << 20 // what Anthropic's API takes: a conversation with a dozen images in base64
	DefaultMaxHeader   = 16 << 10 // also the read buffer of every connection: larger costs memory on all of them
	DefaultMaxAttempts = 3
	DefaultMaxConns    = 256 << 10
	DefaultMaxIdle     = 512

	DefaultMaxBodyMemory = 256 << 20
)

// Config describes a Proxy. Picker and Hasher are required, any other zero field takes its default.
type Config struct {
	Picker Picker
	Hasher *prefixtree.Hasher
	// Models lists the backends whose /v1/models are merged. It is called per request; nil serves none.
	Models func() []Target
	// Observer is called once per finished request that was to be forwarded, from the goroutine that served it, after
	// the attempt has ended. The record is valid during the call only. It must be quick and safe for concurrent use.
	Observer func(*Record)
	Log      zerolog.Logger
	NodeName string // x-grapevine-node

	MaxBody int // bytes of a request body; more is answered 413
	// MaxBodyMemory bounds the bytes that all request bodies hold at once; a request whose body does not
	// fit is answered 503 with Retry-After. At least BodyMemoryShare times MaxBody.
	MaxBodyMemory int
	MaxHeader     int // bytes of a request's head; more is answered 431. At least 16 KiB.
	MaxAttempts   int // backends tried for one request
	MaxConns      int // client connections
	MaxIdle       int // unused connections kept per backend

	Timeouts Timeouts

	TLS           *tls.Config // nil serves plain HTTP
	ProxyProtocol bool        // every connection must begin with a PROXY protocol header, v1 or v2
}

// Proxy is the data plane of one node. Create it with New. All methods are safe for concurrent use.
type Proxy struct {
	cfg    Config                 // as New got it
	tuned  atomic.Pointer[Config] // what Retune may replace is read from here; never written
	server *fasthttp.Server
	base   context.Context // ends when the drain is cut short
	cancel context.CancelFunc
	epoch  time.Time    // of the coarse clock
	clock  atomic.Int64 // nanoseconds since epoch, at most one Watch old
	sweeps atomic.Uint64

	ready    atomic.Bool
	draining atomic.Bool
	active   atomic.Int64 // requests between the end of their arrival and their last byte

	exchanges sync.Pool
	parsers   sync.Pool // of Describe
	upstreams upstreams
	models    modelCache
	bodies    bodyMemory
	warned    warnings

	departures departures // of clients; open while watchDone is not nil

	mu        sync.Mutex // guards what follows
	listeners map[net.Listener]struct{}
	conns     registry
	closed    bool          // no more connections are taken
	watchDone chan struct{} // closed when the watch has ended; nil before the first Serve
	watchStop chan struct{}
	served    sync.WaitGroup // goroutines of accept loops and connections
	shutdown  sync.Once
	finished  chan struct{} // closed when Shutdown is done
	result    error         // of Shutdown; read after finished
	force     chan struct{} // closed by a second Shutdown
	forced    sync.Once
}

// New returns a proxy that is not ready and serves nothing yet. It starts no goroutine.
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
	p.models.init()
	p.exchanges.New = func() any { return newExchange(p) }
	p.parsers.New = func() any { return newDescriber(p) }
	p.server = p.newServer()
	return p, nil
}

// Retune takes from a configuration what can change while the proxy serves: MaxAttempts,
// MaxIdle, and the timeouts but Read, KeepAlive, Watch and Models. What was begun before
// may still end by the old values. Nothing changes after an error.
func (p *Proxy) Retune(cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	p.tuned.Store(&cfg)
	return nil
}

// Ready says what /readyz answers: true once the node may take traffic, false when it is about to stop. Requests are
// served either way.
func (p *Proxy) Ready(ready bool) { p.ready.Store(ready) }

// InFlight returns the requests being served.
func (p *Proxy) InFlight() int { return int(p.active.Load()) }

// Connections returns the open client connections.
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
	if c.MaxHeader < DefaultMaxHeader {
		return fmt.Errorf("%w: MaxHeader is below %d", ErrConfig, DefaultMaxHeader)
	}
	if c.TLS != nil && len(c.TLS.NextProtos) == 0 {
		// By name, so that clients that prefer HTTP/2 do not speak it unasked.
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
		{"Models", &t.Models, 5 * time.Second, false},
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

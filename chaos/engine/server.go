package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// MetricsStyle selects the engine whose metric names and reporting of cached tokens the server
// imitates.
type MetricsStyle string

// SGLang omits cached_tokens when nothing was cached.
const (
	StyleVLLM   MetricsStyle = "vllm"
	StyleSGLang MetricsStyle = "sglang"
)

// ServerConfig configures a live engine. Zero fields take the defaults. The tags are those of
// command line flags.
type ServerConfig struct {
	Config `embed:""`

	Models         []string      `name:"model" default:"emulated" placeholder:"NAME" group:"server" help:"Name of the model. Repeatable: all names mean the same model."`
	Adapters       []string      `name:"adapter" placeholder:"NAME" group:"server" help:"LoRA adapter: a name and a cache of its own. Repeatable."`
	Ranks          int           `name:"ranks" placeholder:"N" group:"server" help:"Data-parallel ranks, each with a KV memory and batch of its own; without --events and --transfer. X-data-parallel-rank chooses one, else the fewest requests. Default 1."`
	MaxModelLen    int           `name:"max-model-len" placeholder:"N" group:"server" help:"Most tokens of prompt and reply together. Default: the size of the KV memory."`
	DefaultOutput  int           `name:"default-output" placeholder:"N" group:"server" help:"Tokens of a reply if the request sets no length. Default 64."`
	TokensPerChunk int           `name:"tokens-per-chunk" placeholder:"N" group:"server" help:"Tokens in one event of a stream. Default 1."`
	HideCached     bool          `name:"hide-cached" group:"server" help:"Do not report cached tokens, as engines do by default."`
	Transfer       bool          `name:"transfer" group:"server" help:"Give the KV cache of prompts to other engines, and fetch it from them, as vLLM with the NIXL connector."`
	TransferRate   float64       `name:"transfer-rate" placeholder:"N" group:"server" help:"Tokens whose KV cache it gives per second. Default 200000."`
	TransferStart  time.Duration `name:"transfer-start" placeholder:"DURATION" group:"server" help:"Time before the first of them. Default 5ms."`
	Part           Part          `name:"disaggregation-mode" enum:",prefill,decode" default:"" placeholder:"PART" group:"server" help:"Serve only a part of requests, as SGLang: prefill (its bootstrap port is its own port) or decode. The flags of transfers count."`
	MetricsStyle   MetricsStyle  `name:"metrics" enum:"vllm,sglang" default:"vllm" group:"server" help:"Style of metrics names and of cached-token reports: vllm or sglang."`

	EventsConfig `embed:""`

	Lease        time.Duration // how long another engine may fetch a prompt's KV cache; default 30 s
	MaxBody      int64         // bytes of a request body; default 256 MiB
	IdleTimeout  time.Duration // of a kept-alive connection; default 5 s, as uvicorn
	WriteTimeout time.Duration // how long a client may take to accept a write; default 30 s

	// Watch, if not nil, is called twice for every request to an inference endpoint: on arrival
	// and, with Ended set, at the end. It runs in the request's goroutine and must not block.
	Watch func(Visit)
	Log   zerolog.Logger
}

func (c ServerConfig) withDefaults() (ServerConfig, error) {
	var err error
	if c.Config, err = c.Config.withDefaults(); err != nil {
		return c, err
	}
	if len(c.Models) == 0 {
		c.Models = []string{"emulated"}
	}
	c.Ranks = cmp.Or(c.Ranks, 1)
	c.MaxModelLen = cmp.Or(c.MaxModelLen, c.KVTokens)
	c.DefaultOutput = cmp.Or(c.DefaultOutput, 64)
	c.TokensPerChunk = cmp.Or(c.TokensPerChunk, 1)
	c.TransferRate = cmp.Or(c.TransferRate, 200_000)
	c.TransferStart = cmp.Or(c.TransferStart, 5*time.Millisecond)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.MetricsStyle = cmp.Or(c.MetricsStyle, StyleVLLM)
	c.MaxBody = cmp.Or(c.MaxBody, 256<<20)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 30*time.Second)
	switch {
	case c.MetricsStyle != StyleVLLM && c.MetricsStyle != StyleSGLang:
		return c, fmt.Errorf("%w: metrics style %q, want %q or %q", ErrConfig, c.MetricsStyle, StyleVLLM, StyleSGLang)
	case c.Ranks < 1 || c.Ranks > maxRanks:
		return c, fmt.Errorf("%w: %d ranks, want 1 to %d", ErrConfig, c.Ranks, maxRanks)
	case c.Ranks > 1 && (c.Transfer || c.Events != "" || c.Part != ""):
		return c, fmt.Errorf("%w: several ranks publish no cache events and transfer no KV caches: leave out one of both", ErrConfig)
	case c.Part != "" && c.Part != PartPrefill && c.Part != PartDecode:
		return c, fmt.Errorf("%w: disaggregation mode %q, want prefill or decode", ErrConfig, c.Part)
	case c.MaxModelLen < 2 || c.MaxModelLen > c.KVTokens:
		return c, fmt.Errorf("%w: context of %d tokens, want 2 to the KV memory's %d", ErrConfig, c.MaxModelLen, c.KVTokens)
	case !(c.TransferRate > 0) || math.IsInf(c.TransferRate, 0) || c.TransferStart < 0 || c.Lease < 0:
		return c, fmt.Errorf("%w: transfer of %v tokens/s after %v within %v", ErrConfig, c.TransferRate, c.TransferStart, c.Lease)
	case c.DefaultOutput < 1 || c.TokensPerChunk < 1 || c.MaxBody < 1 || c.IdleTimeout < 0 || c.WriteTimeout < 0:
		return c, fmt.Errorf("%w: negative limit", ErrConfig)
	}
	return c, c.EventsConfig.check()
}

// ErrDied is what Serve returns after the fault die.
var ErrDied = errors.New("engine: died by an injected fault")

// Server is a live emulated engine. Safe for concurrent use.
type Server struct {
	cfg    ServerConfig
	driver *driver // of rank 0
	ranks  ranks
	http   http.Server
	mux    *http.ServeMux
	faults faults
	leases leases
	rooms  rooms
	nonce  string
	began  time.Time
	ids    atomic.Int64
	stored responseStore
	events *publisher // nil: none

	requests atomic.Int64 // to inference endpoints
	aborted  atomic.Int64 // requests whose client left before the end

	stop      context.CancelFunc
	closeOnce sync.Once
	closed    chan struct{} // closed when Close is complete
	died      atomic.Bool

	mu      sync.Mutex // guards the fields below, and additions to work
	closing bool
	addr    net.Addr       // set by Start
	work    sync.WaitGroup // handlers and Start's goroutines
}

// NewServer returns a running, idle engine without a listener. The caller must Close it even if it
// never serves.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	model, err := NewModel(cfg.Config)
	if err != nil {
		return nil, err
	}
	var nonce [6]byte
	_, _ = rand.Read(nonce[:])
	s := &Server{cfg: cfg, nonce: hex.EncodeToString(nonce[:]), began: time.Now(), closed: make(chan struct{})}
	if err := s.startEvents(model); err != nil {
		return nil, err
	}
	s.driver = newDriver(model)
	s.ranks = ranks{s.driver}
	for range cfg.Ranks - 1 {
		another, _ := NewModel(cfg.Config) // as valid as the first
		s.ranks = append(s.ranks, newDriver(another))
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.routes()
	s.http = http.Server{
		Handler:           s,
		IdleTimeout:       cfg.IdleTimeout,
		ReadHeaderTimeout: time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:          log.New(cfg.Log, "", 0),
	}
	return s, nil
}

type connKey struct{}

// Config returns the configuration with its defaults filled in.
func (s *Server) Config() ServerConfig { return s.cfg }

// Serve serves ln, and closes it, until Close (nil), the fault die (ErrDied) or a listener error.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(ln)
	if errors.Is(err, http.ErrServerClosed) {
		<-s.closed
		if err = nil; s.died.Load() {
			err = ErrDied
		}
	}
	return err
}

// Start listens on addr ("127.0.0.1:0" for any free port) and serves in the background until Close.
func (s *Server) Start(addr string) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.addr = ln.Addr()
	s.mu.Unlock()
	if !s.enter() {
		_ = ln.Close()
		return http.ErrServerClosed
	}
	go func() {
		defer s.work.Done()
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Log.Error().Err(err).Msg("emulated engine stopped serving")
		}
	}()
	return nil
}

// Addr is the host:port of Start, "" before it.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == nil {
		return ""
	}
	return s.addr.String()
}

// Close closes listeners and connections, drops all jobs and returns when all goroutines of the
// server have ended. Idempotent; the error is always nil.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		s.stop()
		_ = s.http.Close() // the listener is being closed anyway
		s.work.Wait()
		for _, d := range s.ranks {
			d.stop()
		}
		if s.events != nil {
			s.events.close()
		}
		close(s.closed)
	})
	<-s.closed
	return nil
}

func (s *Server) die() {
	s.died.Store(true)
	go func() { _ = s.Close() }()
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.work.Add(1)
	return true
}

// ServeHTTP answers one request. Only the fault reset needs the connection that Serve puts into the
// context.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()
	if _, inference := paths[r.URL.Path]; inference {
		defer s.visits(r)()
	}
	if !strings.HasPrefix(r.URL.Path, "/emulator/") {
		var done bool
		if w, done = s.suffer(w, r); done {
			return
		}
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	for path, e := range paths {
		infer := s.answering(e, func(w http.ResponseWriter, r *http.Request, body []byte) (any, error) { return s.infer(w, r, e, body) })
		s.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			s.requests.Add(1)
			infer(w, r)
		})
	}
	s.mux.HandleFunc("POST /v1/chat/completions/render", s.answering(endpointChat, s.renderHandler))
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /v1/responses/{id}", s.answering(endpointResponses, s.retrieve))
	s.mux.HandleFunc("POST /v1/responses/{id}/cancel", s.answering(endpointResponses, s.cancelResponse))
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.routeMetrics()
	s.routeEvents()
	s.mux.HandleFunc("POST /emulator/cached", s.answering(endpointNone, s.cachedHandler))
	s.mux.HandleFunc("POST /emulator/kv", s.answering(endpointNone, s.giveHandler))
	s.mux.HandleFunc("POST /emulator/room", s.answering(endpointNone, s.roomHandler))
	s.mux.HandleFunc("POST /emulator/fault", s.answering(endpointNone, s.faultHandler))
	s.mux.HandleFunc("GET /emulator/stats", s.statsHandler)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, known := paths[r.URL.Path]; known {
			w.Header().Set("Allow", http.MethodPost)
			writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
			return
		}
		writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
}

// answering serves a handler of request bodies. It sends the answer as JSON, if there is one, or the
// error as e states errors.
func (s *Server) answering(e endpoint, handle func(http.ResponseWriter, *http.Request, []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := s.readBody(w, r)
		var answer any
		if err == nil {
			answer, err = handle(w, r, body)
		}
		if err != nil {
			writeError(w, e, err)
		} else if answer != nil {
			writeJSON(w, http.StatusOK, answer)
		}
	}
}

// infer returns the answer, or nil if it has streamed one.
func (s *Server) infer(w http.ResponseWriter, r *http.Request, e endpoint, body []byte) (any, error) {
	c, err := s.parse(e, body)
	if err != nil {
		return nil, err
	}
	if e == endpointCountTokens {
		return object{"input_tokens": c.promptTokens()}, nil
	}
	d, err := s.ranks.choose(r.Header.Get("X-Data-Parallel-Rank"), s.requests.Load())
	if err != nil {
		return nil, err
	}
	d.active.Add(1)
	defer d.active.Add(-1)
	c.session = s.sessionOf(r, &c.fields)
	if err := s.checkPart(c); err != nil {
		return nil, err
	}
	if s.cfg.Part == PartPrefill && c.generates() {
		return s.prefillPart(r.Context(), c)
	}
	f := c.flight()
	d.prepare(f)
	if err := s.begin(r.Context(), d, c, f); err != nil {
		return nil, err
	}
	// The context shows a client that leaves during a blocked write; the failed write shows one
	// that does not read.
	abort := func() {
		if f.abort() {
			s.aborted.Add(1)
		}
	}
	release := context.AfterFunc(r.Context(), abort)
	defer func() {
		release()
		abort()
	}()
	t := told{c: c, f: f, s: s, created: time.Now().Unix()}
	if c.fields.Stream && c.generates() {
		t.stream(w, r)
		return nil, nil
	}
	if err := f.wait(r.Context()); err != nil {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the client has left or the engine is closing: send no answer
		}
		return nil, err
	}
	if e == endpointEmbeddings {
		return t.embeddings(), nil
	}
	answer := t.script().whole()
	if s.cfg.Transfer && c.leases() {
		answer["kv_transfer_params"] = s.lease(r.Context(), c)
	}
	return answer, nil
}

// begin launches a prepared flight, or will do so once it has the KV cache of its prompt.
func (s *Server) begin(ctx context.Context, d *driver, c *call, f *flight) error {
	switch {
	case s.cfg.Part == PartDecode && c.generates():
		return s.decodePart(ctx, c, f)
	case s.cfg.Transfer && c.fetches():
		return s.fetch(ctx, c, f)
	}
	return d.launch(f)
}

func (f *flight) wait(ctx context.Context) error {
	for {
		if done, err := f.landed(); done || err != nil {
			return err
		}
		select {
		case <-f.notify:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), s.cfg.MaxBody, 1<<20)) + bytes.MinRead)
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &apiError{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("Request body is larger than %d bytes", s.cfg.MaxBody)}
	case err != nil:
		return nil, badRequest("", "There was an error reading the body: %v", err)
	}
	return body.Bytes(), nil
}

func (s *Server) id(prefix string) string {
	return prefix + s.nonce + strconv.FormatInt(s.ids.Add(1), 16)
}

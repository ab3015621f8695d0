// Package policy chooses a backend for one request from the request, the prefix tree's matches, a
// view of the fleet and this node's books on its engines (package books). Time and the random seed are
// parameters.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/demand"
)

var (
	ErrNoBackend = errors.New("no backend can take the request") // no active backend is left after exclusions
	// ErrNoRole: the model has active backends, but none whose role lets it take the request.
	ErrNoRole          = errors.New("no backend has a role that the request needs")
	ErrUnknownModel    = errors.New("no backend serves the model")
	ErrHolderGone      = errors.New("the backend that stores the response is no longer in the fleet")
	ErrUnknownStrategy = errors.New("no such strategy")
	ErrAttemptInUse    = errors.New("attempt has not ended")        // Pick before End of the previous request
	ErrConfig          = errors.New("invalid policy configuration") // wrapped by every error of NewRouter
)

const (
	defaultHashBytes  = 8192
	defaultBlockBytes = 512
	// defaultPrefillRate, tokens/s, is about one GPU; only ratios between backends matter.
	defaultPrefillRate = 10_000
)

// Config configures a Router. The zero value of every field selects its default.
type Config struct {
	Strategy   string // default strategy; "" means prefix
	BlockBytes int    // bytes of one block of Request.Hashes
	Nodes      int    // routers in the fleet; 0 and 1 mean a single node
	Staleness  time.Duration
	Weights    map[string]float64
	HashBlocks int           // blocks that prefix-hash keys on; 0 means about 2k tokens
	SlowStart  time.Duration // see easeIn; 0 means DefaultSlowStart, negative disables it
	// Zone is where the node is: an engine labelled with another zone costs ZoneCost more. "": anywhere.
	Zone     string
	ZoneCost time.Duration
	Seed     uint64
	Extra    map[string]Strategy
	Truth    Truth // nil: none
	Gate     Gate  // for requests that may wait
	// Failed, if not nil, is called for every failure that counts against its backend. It must not
	// block.
	Failed func(b prefixtree.Backend, f books.Failure, now prefixtree.Time)
	// Forgot, if not nil, is called when a backend lost its cache. It must not block.
	Forgot func(b prefixtree.Backend)
}

// Index is what policy uses of prefixtree.Tree. Safe for concurrent use.
type Index interface {
	Match(m *prefixtree.Matches, chain []prefixtree.Hash, now prefixtree.Time)
	Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, tr *prefixtree.TouchHistory)
	Learn(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory, cached int, now prefixtree.Time) prefixtree.Lesson
	Revert(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.TouchHistory) (retracted int)
}

// Truth knows what some backends hold by their own account. Safe for concurrent use; it must not block.
type Truth interface {
	// Held returns what a backend holds of a prompt of which the tree knows so many leading blocks there.
	Held(b prefixtree.Backend, q *Request, blocks int) Held
	// Latest returns the backend that got the latest prompt that q goes on from, as far as is known. Where many backends hold what all
	// prompts share, and the tree knows no more, that is the one to ask.
	Latest(q *Request) (b prefixtree.Backend, known bool)
}

// Held is what a backend holds of a prompt. The zero value means that it is not known.
type Held struct {
	Known   bool
	Tokens  int     // leading tokens of the prompt
	Loading float64 // tokens whose computation would take as long as loading those that are not in GPU memory
}

// Request describes one request. Hashes and Marks must not change before End.
type Request struct {
	Model        []byte
	LoRA         []byte
	Path         []byte
	Session      []byte
	Client       []byte // who sends it, for shares of rules; may be nil
	Route        *Route // see Router.Follow; nil: the rule that fits now
	Asked        []byte // the model that the client named, where Route is not nil
	Hashes       []prefixtree.Hash
	Marks        []prefixtree.Mark        // the ends of the prompt's messages and, last, its own; may be empty
	PromptBytes  int                      // canonical prompt bytes; 0: computed from Hashes
	OutputHint   int                      // expected output tokens; 0: unknown
	NonStreaming bool                     // the proxy cannot observe the first token: not streamed, or not understood
	Header       func(name string) []byte // may be nil; used when a rule names a header
	Member       func(name string) []byte // of the body; may be nil; used when a rule names a member
	Exclude      []prefixtree.Backend     // backends that already failed this request
	Need         Need
	// Continued: a backend stores the conversation, and the prompt bytes are its last turn only. They
	// have no hashes, and neither caches nor bytes per token are learned from them.
	Continued bool
	// Stored: only the backend with the prefixtree.BackendKey Holder can answer.
	Stored bool
	Holder uint32
	// MayWait: Pick returns ErrFull rather than send the request to an engine that is full.
	MayWait bool
	Waited  bool // it has a place among those that wait
	// Behind is the prefill tokens of its client's other requests that wait at the routers. Routers that
	// divide engines fairly make a client wait for its own work alone.
	Behind int64
	// First: no other request of its client, and none of higher priority, waits at this router. It may be the
	// one request before its first token that each router may have at an engine that is full.
	First bool
}

type named struct {
	name string
	Strategy
}

// Router chooses backends and accounts for this node's load. Safe for concurrent use.
type Router struct {
	cfg         Config
	tree        Index
	books       *books.Fleet
	adapterTime adapterTime
	transfers   transfers
	ejecting    sync.Mutex // serialises failures to bound ejections; taken before locks of the books
	table       atomic.Pointer[table]
	viewMu      sync.Mutex // serialises SetView, SetPeerTraffic and what Retune applies; taken before locks of the books
	scenes      sync.Pool
	seq         atomic.Uint64
	tuning      atomic.Pointer[tuning]
	coldUntil   atomic.Int64 // ms; no backend is cold after this time
	fleet       atomic.Pointer[fleetState]
	peerTraffic map[uint64]demand.Report // by pool; guarded by viewMu
	hot         atomic.Pointer[hotPrefixes]

	rungs      [rungs]atomic.Uint64
	blind      atomic.Uint64
	outcomes   [books.Failures]atomic.Uint64
	doubleEnds atomic.Uint64
}

// NewRouter returns a router with an empty view.
func NewRouter(cfg Config, tree Index) (*Router, error) {
	if tree == nil {
		return nil, fmt.Errorf("%w: no index: give a tree", ErrConfig)
	}
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	t, err := cfg.tuning()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := &Router{cfg: cfg, tree: tree, books: books.New(defaultPrefillRate)}
	r.tuning.Store(t)
	r.scenes.New = func() any { return new(Scene) }
	r.SetFleet(cfg.Nodes, cfg.Staleness)
	r.SetView(&View{})
	return r, nil
}

func (c *Config) complete() error {
	c.Strategy = cmp.Or(c.Strategy, Prefix)
	c.BlockBytes = cmp.Or(c.BlockBytes, defaultBlockBytes)
	c.HashBlocks = cmp.Or(c.HashBlocks, max(defaultHashBytes/max(c.BlockBytes, 1), 1))
	if c.BlockBytes < 0 || c.HashBlocks < 0 || c.Nodes < 0 || c.Staleness < 0 || c.ZoneCost < 0 {
		return fmt.Errorf("block bytes %d, hash blocks %d, nodes %d, staleness %s, zone cost %s: none may be negative",
			c.BlockBytes, c.HashBlocks, c.Nodes, c.Staleness, c.ZoneCost)
	}
	return c.Gate.check()
}

// tuning is what Retune replaces; immutable.
type tuning struct {
	cfg        Config
	slowStart  int64   // ms; 0: none
	zoneCost   float64 // seconds
	strategies map[string]*named
	fallback   *named
}

func (c *Config) tuning() (*tuning, error) {
	w, err := newWeighted(c.Weights)
	if err != nil {
		return nil, err
	}
	t := &tuning{cfg: *c, slowStart: slowStartOf(c.SlowStart), zoneCost: c.ZoneCost.Seconds(), strategies: map[string]*named{}}
	for name, s := range map[string]Strategy{
		Prefix:       prefix{},
		PrefixHash:   &prefixHash{blocks: c.HashBlocks, bound: hashBound},
		LeastRequest: leastRequest{},
		Session:      session{},
		RoundRobin:   roundRobin{},
		Random:       random{},
		Weighted:     w,
	} {
		t.strategies[name] = &named{name, s}
	}
	for name, s := range c.Extra {
		if _, ok := t.strategies[name]; ok || name == "" || s == nil {
			return nil, fmt.Errorf("extra strategy %q: give it a name of its own and an implementation", name)
		}
		t.strategies[name] = &named{name, s}
	}
	if t.fallback = t.strategies[c.Strategy]; t.fallback == nil {
		return nil, fmt.Errorf("%w %q: use one of %v", ErrUnknownStrategy, c.Strategy, slices.Sorted(maps.Keys(t.strategies)))
	}
	return t, nil
}

// Retune checks new values and returns a function that applies Strategy, Weights, HashBlocks, Extra, Zone, ZoneCost, SlowStart and Gate.
// Requests after Follow keep their strategy.
func (r *Router) Retune(cfg Config) (apply func(), err error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	next, err := cfg.tuning()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return func() {
		r.viewMu.Lock()
		defer r.viewMu.Unlock()
		if longer := next.slowStart - r.tuning.Swap(next).slowStart; longer > 0 {
			raise(&r.coldUntil, r.coldUntil.Load()+longer)
		}
		r.setViewLocked(r.View())
	}, nil
}

// Tuned returns the last configuration; what Retune does not apply need not be in force.
func (r *Router) Tuned() Config { return r.tuning.Load().cfg }

// Stats are counters since the start.
type Stats struct {
	Picks      uint64
	Blind      uint64 // made while peer loads were older than maxStaleness, or unknown
	Rungs      [rungs]uint64
	Outcomes   map[string]uint64
	DoubleEnds uint64 // Attempts ended twice: a bug in the caller
}

func (r *Router) Stats() Stats {
	st := Stats{Outcomes: map[string]uint64{}, Blind: r.blind.Load(), DoubleEnds: r.doubleEnds.Load()}
	for i := range r.rungs {
		st.Rungs[i] = r.rungs[i].Load()
		st.Picks += st.Rungs[i]
	}
	for i := range r.outcomes {
		st.Outcomes[books.Failure(i).String()] = r.outcomes[i].Load()
	}
	return st
}

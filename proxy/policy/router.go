// Package policy picks a backend for a request: pure functions over the request, what the prefix tree matches, the
// immutable view of the fleet and the load this node has put on it.
//
// Time and randomness are parameters: the same seed and the same order of calls give the same choices. There are no sockets,
// goroutines, clocks, loggers or metrics in here, nor knowledge of how requests are parsed or backends probed. DESIGN.md
// has the decisions and the measurements behind every constant.
package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine/prefixtree"
)

// Errors of Pick, to be tested with errors.Is.
var (
	ErrNoBackend       = errors.New("no backend can take the request")      // none is active, or all are excluded
	ErrUnknownModel    = errors.New("no backend serves the model")          // none declares it and none serves any model
	ErrUnknownStrategy = errors.New("no such strategy")                     // Request.Strategy or configuration
	ErrAttemptInUse    = errors.New("attempt has not ended")                // Pick with an Attempt before its End
	ErrConfig          = errors.New("invalid policy configuration")         // wrapped by every error of NewRouter
	errNoIndex         = fmt.Errorf("%w: no index: give a tree", ErrConfig) //
)

// Defaults of Config.
const (
	DefaultHashBound  = 1.25 // of prefix-hash: what consistent hashing with bounded loads is usually run with
	defaultHashBytes  = 8192 // prefix-hash keys on about the first 2k tokens
	defaultBlockBytes = 512
)

// Config is what a Router is made from. The zero value of every field means its default.
type Config struct {
	Strategy    string        // default strategy; "" means prefix
	WorkWeight  float64       // W: cost of an uncached token relative to a queued one
	Epsilon     float64       // bounded-load slack of prefix with several nodes
	BlockBytes  int           // bytes of one block of Request.Hashes
	Nodes       int           // routers in the fleet; 0 and 1 mean alone
	Staleness   time.Duration // how late what other nodes did is known; see SetFleet
	Weights     map[string]float64
	HashBlocks  int                 // blocks prefix-hash keys on; 0 means about 2k tokens
	HashBound   float64             // c of prefix-hash: load at most c times the mean
	PrefillRate float64             // prior for the prefill rate, tokens/s
	SlowStart   time.Duration       // in which the share of a backend that returns grows; 0 means DefaultSlowStart, below 0 none
	Seed        uint64              // of every random choice
	Extra       map[string]Strategy // further strategies by name
	// Failed, if not nil, is told of every attempt that speaks against its backend, at once: it must not block.
	Failed func(b prefixtree.Backend, f Failure, now prefixtree.Time)
	// Forgot, if not nil, is told of a backend whose answers have shown an empty cache (prefixtree.Lesson.Amnesia), on the same terms.
	Forgot func(b prefixtree.Backend)
}

// Index is the tree as policy sees it: prefixtree.Tree fits. Safe for concurrent use.
type Index interface {
	Match(m *prefixtree.Matches, chain []prefixtree.Hash, now prefixtree.Time)
	Record(b prefixtree.Backend, chain []prefixtree.Hash, now prefixtree.Time, tr *prefixtree.Trail)
	Learn(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.Trail, cached int, now prefixtree.Time) prefixtree.Lesson
}

// Retractor is an Index that can also take back what Record added for a placement, by its trail. It is used for requests
// that failed after they were sent. An Index without it is corrected by the next response instead.
type Retractor interface {
	Revert(b prefixtree.Backend, chain []prefixtree.Hash, tr *prefixtree.Trail) (retracted int)
}

// Witness is an Index that also tells how many blocks other nodes' placements have newly put on a backend so far: what its
// engine had to compute for them. Where nodes do not tell their load, this shows it. An Index without it leaves them blind.
type Witness interface {
	Placed(b prefixtree.Backend) int64
}

// Request is one request as policy sees it. Byte slices are only read, and Hashes must stay unchanged until End.
type Request struct {
	Model       []byte // "" for requests that name none
	LoRA        []byte
	Path        []byte
	Session     []byte // session key from a header or the body
	Hashes      []prefixtree.Hash
	PromptBytes int                      // canonical prompt bytes; 0: taken from Hashes
	OutputHint  int                      // expected output tokens, 0 unknown
	Whole       bool                     // its first token will not be told: the answer comes as a whole, or is not understood
	Header      func(name string) []byte // may be nil; only used when a rule names a header
	Exclude     []prefixtree.Backend     // backends that failed this request already
	Strategy    string                   // override; "" = by rules
}

type named struct {
	name string
	Strategy
}

// Router decides where requests go and keeps the own load. Safe for concurrent use.
type Router struct {
	cfg        Config
	tree       Index
	retract    Retractor // nil if the index has none
	witness    Witness   // likewise
	strategies map[string]*named
	fallback   *named
	rate       *fleetRate
	hold       holdTime
	peers      peerLoads
	models     *modelStats
	sketch     *sketch
	ledger     ledger
	ejecting   sync.Mutex // serialises failures, so that the bound on ejections holds; taken before slot.mu
	table      atomic.Pointer[table]
	viewMu     sync.Mutex // serialises SetView and SetPeerHeat, so that no pool misses what comes meanwhile
	scenes     sync.Pool
	seq        atomic.Uint64
	slowStart  int64        // ms; 0 none
	coldUntil  atomic.Int64 // ms; until then some backend may be cold
	fleet      atomic.Pointer[fleetState]
	peerHeat   peerHeat // under viewMu
	hot        atomic.Pointer[hotPrefixes]
	witnessed  atomic.Int64 // when placements of others were last seen by infer, ms
	streamed   atomic.Bool  // some first token has been told

	rungs      [rungs]atomic.Uint64
	blind      atomic.Uint64
	outcomes   [len(failureNames)]atomic.Uint64
	doubleEnds atomic.Uint64
}

// NewRouter returns a router with an empty view. cfg is copied.
func NewRouter(cfg Config, tree Index) (*Router, error) {
	if tree == nil {
		return nil, errNoIndex
	}
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	w, err := newWeighted(cfg.Weights)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := &Router{
		cfg: cfg, tree: tree, rate: newFleetRate(cfg.PrefillRate), models: newModelStats(), sketch: newSketch(),
		ledger: ledger{slots: map[prefixtree.Backend]*slot{}}, slowStart: slowStartOf(cfg.SlowStart),
	}
	r.retract, _ = tree.(Retractor)
	r.witness, _ = tree.(Witness)
	r.strategies = map[string]*named{}
	for name, s := range map[string]Strategy{
		Prefix:       &prefix{work: cfg.WorkWeight, epsilon: cfg.Epsilon},
		PrefixHash:   &prefixHash{blocks: cfg.HashBlocks, bound: cfg.HashBound},
		LeastRequest: leastRequest{},
		Session:      session{},
		RoundRobin:   roundRobin{},
		Random:       random{},
		Weighted:     w,
	} {
		r.strategies[name] = &named{name, s}
	}
	for name, s := range cfg.Extra {
		if _, ok := r.strategies[name]; ok || name == "" || s == nil {
			return nil, fmt.Errorf("%w: extra strategy %q: give it a name of its own and an implementation", ErrConfig, name)
		}
		r.strategies[name] = &named{name, s}
	}
	r.fallback = r.strategies[cfg.Strategy]
	if r.fallback == nil {
		return nil, fmt.Errorf("%w: %w %q: use one of %v", ErrConfig, ErrUnknownStrategy, cfg.Strategy, r.Strategies())
	}
	r.scenes.New = func() any { return new(Scene) }
	r.SetFleet(cfg.Nodes, cfg.Staleness)
	r.SetView(&View{})
	return r, nil
}

func (c *Config) complete() error {
	if c.Strategy == "" {
		c.Strategy = Prefix
	}
	for _, f := range []struct {
		name  string
		value *float64
		def   float64
		least float64
	}{
		{"work weight", &c.WorkWeight, DefaultWorkWeight, 0},
		{"epsilon", &c.Epsilon, DefaultEpsilon, 0},
		{"hash bound", &c.HashBound, DefaultHashBound, 1},
		{"prefill rate", &c.PrefillRate, defaultPrefillRate, 0},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if math.IsNaN(*f.value) || math.IsInf(*f.value, 0) || *f.value < f.least {
			return fmt.Errorf("%s %v: use a number of at least %v, or 0 for %v", f.name, *f.value, f.least, f.def)
		}
	}
	if c.BlockBytes == 0 {
		c.BlockBytes = defaultBlockBytes
	}
	if c.HashBlocks == 0 {
		c.HashBlocks = max(defaultHashBytes/max(c.BlockBytes, 1), 1)
	}
	if c.BlockBytes < 0 || c.HashBlocks < 0 || c.Nodes < 0 || c.Staleness < 0 {
		return fmt.Errorf("block bytes %d, hash blocks %d, nodes %d, staleness %s: none may be negative", c.BlockBytes, c.HashBlocks, c.Nodes, c.Staleness)
	}
	c.Weights = maps.Clone(c.Weights)
	c.Extra = maps.Clone(c.Extra)
	return nil
}

// Strategies returns the names this router knows, sorted.
func (r *Router) Strategies() []string { return slices.Sorted(maps.Keys(r.strategies)) }

// Pick decides where the request goes and books it there at once. After a nil error att.End must be called exactly once.
// Errors: ErrNoBackend, ErrUnknownModel, ErrUnknownStrategy, ErrAttemptInUse.
func (r *Router) Pick(q *Request, now prefixtree.Time, att *Attempt) error {
	if att.stage != idle && att.stage != ended {
		if invariants {
			panic("policy: Pick with an Attempt that has not ended")
		}
		return ErrAttemptInUse
	}
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	s.peek = false
	chosen, err := r.decide(s, q, now, &att.decision)
	if err != nil {
		return err
	}
	c := &s.Candidates[chosen]
	att.router, att.slot, att.model = r, c.slot, s.model
	att.hashes, att.bytes = q.Hashes, s.promptBytes(r.cfg.BlockBytes)
	att.held, att.followed = c.Held, c.Held > s.CommonTokens
	att.charged = int64(att.decision.UncachedTokens)
	att.resident = int64(s.PromptTokens + q.OutputHint)
	att.trial, att.interval, att.adapter, att.inferred, att.whole = c.half, 0, 0, s.inferred, q.Whole
	if len(q.LoRA) > 0 {
		att.adapter = xxh3.Hash(q.LoRA)
	}
	att.work, att.prefix = &s.pool.work, s.count(c)
	att.at.picked, att.at.dispatched, att.at.first = now, 0, 0
	att.stage = picked
	c.slot.charge(att, now)
	if c.charged {
		c.slot.credit.Add(-oneRequest)
	}
	if n := uint64(len(s.pool.entries)); n > 0 { // one at each request: all of them have their turn
		s.pool.entries[r.seq.Load()%n].slot.freshen(r.rate, now)
	}
	r.rungs[att.decision.Rung].Add(1)
	if s.Nodes > 1 && s.loadLate() > blindAfter {
		r.blind.Add(1)
	}
	return nil
}

// Explain fills d with the decision Pick would make now, and changes nothing: no charge, placement, turn or count. Errors
// as Pick. d shares nothing with the router.
func (r *Router) Explain(q *Request, now prefixtree.Time, d *Decision) error {
	s := r.scenes.Get().(*Scene)
	defer r.putScene(s)
	s.peek = true
	_, err := r.decide(s, q, now, d)
	return err
}

// decide sets the scene, runs the strategy and writes the receipt. It returns the chosen candidate.
func (r *Router) decide(s *Scene, q *Request, now prefixtree.Time, d *Decision) (int, error) {
	t := r.table.Load()
	strategy := t.rules.strategy(q)
	if q.Strategy != "" {
		if strategy = r.strategies[q.Strategy]; strategy == nil {
			return 0, fmt.Errorf("%w: %q: use one of %v", ErrUnknownStrategy, q.Strategy, r.Strategies())
		}
	}
	p := t.pool(q.Model)
	if p == nil {
		return 0, ErrUnknownModel
	}
	s.model = r.models.of(q.Model) // after the pool: names that nobody serves must not fill the table
	r.open(s, q, p, now)
	lastResort := r.populate(s, strategy)
	if len(s.Candidates) == 0 {
		return 0, ErrNoBackend
	}
	if int64(now) < r.coldUntil.Load() {
		r.easeIn(s, strategy)
	}
	chosen, rung := r.choose(s, strategy)
	d.fill(s, chosen, rung, strategy, lastResort)
	return chosen, nil
}

// populate puts forward the candidates of a scene, with their load and what they hold of the prompt; a selection of them if the pool is
// large and the strategy makes do with one. None: there is nobody to choose. It reports whether all are being avoided.
func (r *Router) populate(s *Scene, strategy *named) (lastResort bool) {
	if s.pool.order != nil && r.scan(s, strategy) {
		r.match(s)
		r.assign(s)
		return false
	}
	matched := false
	if _, ok := strategy.Strategy.(*prefix); ok && s.pool.order != nil && s.pool.survey.look(r, s) {
		s.sampled, matched = true, true
		r.match(s)
		r.shortlist(s)
		if len(s.Candidates) > 0 {
			r.assign(s)
			return false
		}
		s.sampled = false
	}
	lastResort = s.stage()
	if len(s.Candidates) > 0 {
		if !matched {
			r.match(s)
		}
		r.assign(s)
	}
	return lastResort
}

// choose runs the strategy, again if the backend it took was half-open and another request has just become its trial.
func (r *Router) choose(s *Scene, strategy *named) (int, Rung) {
	if s.scanned {
		return 0, s.rung
	}
	for {
		i, rung := strategy.Choose(s)
		c := &s.Candidates[i]
		if !c.half || s.peek || c.slot.trial.CompareAndSwap(false, true) {
			return i, rung
		}
		if len(s.Candidates) == 1 {
			c.half = false // the only one there is: not a trial, but no worse than refusing
			return i, rung
		}
		s.Candidates = append(s.Candidates[:i], s.Candidates[i+1:]...)
	}
}

func (r *Router) putScene(s *Scene) {
	s.Request, s.pool, s.model = nil, nil, nil
	r.scenes.Put(s)
}

// Release forgets a backend whose id will stand for another engine. It must be in no view any more. false: requests still run there, and
// nothing is forgotten.
func (r *Router) Release(b prefixtree.Backend) bool { return r.ledger.drop(b) }

// Load returns the own outstanding prefill tokens and active requests on a backend of the present view.
func (r *Router) Load(b prefixtree.Backend) (prefillTokens, active int64) {
	if s := r.table.Load().slot(b); s != nil {
		return s.charged.Load(), s.active.Load()
	}
	return 0, 0
}

// Rate returns the learned prefill rate of a backend in tokens/s, or the fleet's if it has not been measured.
func (r *Router) Rate(b prefixtree.Backend) float64 {
	if s := r.table.Load().slot(b); s != nil {
		return s.rateOr(r.rate.load())
	}
	return r.rate.load()
}

// BytesPerToken returns the learned bytes of prompt per token of a model.
func (r *Router) BytesPerToken(model []byte) float64 { return r.models.of(model).bytesPerToken() }

// SetTelemetry hands over what an engine reported; it replaces the last report.
func (r *Router) SetTelemetry(b prefixtree.Backend, t Telemetry) {
	if s := r.table.Load().slot(b); s != nil {
		s.telemetry.Store(&t)
	}
}

// Stats are counters since the start.
type Stats struct {
	Picks      uint64
	Blind      uint64        // of these, made among other nodes without knowing what they have placed in the last blindAfter
	Rungs      [rungs]uint64 // by Rung
	Outcomes   map[string]uint64
	DoubleEnds uint64 // Attempts ended twice: a defect of the caller
}

// Stats returns the counters.
func (r *Router) Stats() Stats {
	st := Stats{Outcomes: map[string]uint64{}, Blind: r.blind.Load(), DoubleEnds: r.doubleEnds.Load()}
	for i := range r.rungs {
		st.Rungs[i] = r.rungs[i].Load()
		st.Picks += st.Rungs[i]
	}
	for i := range r.outcomes {
		st.Outcomes[failureNames[i]] = r.outcomes[i].Load()
	}
	return st
}

// Avoided reports whether a backend is left alone because it failed, and until when.
func (r *Router) Avoided(b prefixtree.Backend, now prefixtree.Time) (until prefixtree.Time, avoid bool) {
	if s := r.table.Load().slot(b); s != nil {
		return prefixtree.Time(min(s.retryAt.Load(), int64(now)+backoffMax)), s.health(now) != healthy
	}
	return 0, false
}

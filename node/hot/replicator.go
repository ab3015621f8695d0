package hot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/node/metrics"
	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

const MaxPools = 4

type Config struct {
	Router *policy.Router
	Peers  func(Sum) // adds the work that peers report; nil: the node is alone
	WarmUp *WarmUp   // nil: requests warm new replicas
	Log    zerolog.Logger
}

type Store interface {
	State() *raftstore.State
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool
}

// Replicator applies the agreed hot prefixes and, on the leader, decides how many backends hold
// each. Safe for concurrent use.
type Replicator struct {
	cfg    Config
	warmer *warmer // nil without WarmUp

	changes atomic.Uint64 // replica counts changed by this node
	failed  atomic.Uint64 // commands

	mu      sync.Mutex
	sizer   *Sizer // nil unless leading
	inForce []policy.HotPrefix
	version uint64 // of inForce's state
}

func New(cfg Config) *Replicator {
	h := &Replicator{cfg: cfg}
	if cfg.WarmUp != nil {
		h.warmer = &warmer{WarmUp: *cfg.WarmUp, log: cfg.Log, kept: make(map[prefixtree.Hash]keptPrompt)}
	}
	return h
}

func (h *Replicator) Run(ctx context.Context, s Store) {
	every := time.NewTicker(Every * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case at := <-every.C:
			h.look(ctx, s, at)
		case <-ctx.Done():
			return
		}
	}
}

// Observe keeps the prompt of a finished request for warm-ups; r is valid during the call only.
func (h *Replicator) Observe(r *proxy.Record) {
	if h.warmer != nil {
		h.warmer.observe(r)
	}
}

// Adopt applies the unexpired prefixes, or none if the fleet has switched them off. It ignores
// older states.
func (h *Replicator) Adopt(s *raftstore.State, at time.Time) {
	var list []policy.HotPrefix
	for _, p := range agreedPrefixes(s) {
		if s.Switches.Hot && p.Expires > millis(at) {
			list = append(list, p.HotPrefix)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.Version < h.version {
		return
	}
	h.version = s.Version
	if !slices.Equal(list, h.inForce) {
		h.inForce = list
		h.cfg.Router.SetHotPrefixes(list)
	}
}

// AnchorText is how pages and logs show an anchor.
func AnchorText(h prefixtree.Hash) string { return fmt.Sprintf("%016x", uint64(h)) }

func millis(at time.Time) prefixtree.Time { return prefixtree.Time(at.UnixMilli()) }

func agreedPrefixes(s *raftstore.State) []Prefix {
	list := make([]Prefix, len(s.Hot))
	for i, p := range s.Hot {
		list[i] = Prefix{
			HotPrefix: policy.HotPrefix{Anchor: prefixtree.Hash(p.Anchor), Tokens: int(p.Depth), Replicas: int(p.R)},
			Since:     prefixtree.Time(p.Since), Changed: prefixtree.Time(p.LastChange), Expires: prefixtree.Time(p.Expires),
		}
	}
	return list
}

func (h *Replicator) work(at time.Time) Sum {
	sum := Sum{}
	sum.Add(h.cfg.Router.OwnWork(MaxPools, millis(at)))
	if h.cfg.Peers != nil {
		h.cfg.Peers(sum)
	}
	return sum
}

func (h *Replicator) pools() []Pool {
	var list []Pool
	for _, p := range h.cfg.Router.Pools() {
		list = append(list, Pool{Key: p.Pool, Backends: p.Backends, KVTokens: p.KVTokens})
	}
	return list
}

func (h *Replicator) look(ctx context.Context, s Store, at time.Time) {
	state := s.State()
	h.Adopt(state, at)
	changes := h.decide(s.Leading(), state, at)
	if len(changes) == 0 {
		return
	}
	command := raftstore.SetHot{Changes: make([]raftstore.HotChange, len(changes))}
	for i, c := range changes {
		command.Changes[i] = raftstore.HotChange{
			Anchor: uint64(c.Anchor), Remove: c.Remove, Depth: uint32(c.Tokens), R: uint16(c.Replicas), Expires: int64(c.Expires),
		}
	}
	if _, err := s.Apply(ctx, command); err != nil {
		if ctx.Err() == nil {
			h.failed.Add(1)
			h.cfg.Log.Warn().Err(err).Msg("cannot commit the changes of hot prefixes; retrying")
		}
		return // the next look retries
	}
	h.tell(ctx, state, changes)
}

func (h *Replicator) decide(leads bool, state *raftstore.State, at time.Time) []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !leads || !state.Switches.Hot {
		h.sizer = nil // a new leader observes afresh
		return nil
	}
	if h.sizer == nil {
		h.sizer = new(Sizer)
	}
	return h.sizer.Decide(millis(at), h.pools(), h.work(at), agreedPrefixes(state))
}

func (h *Replicator) tell(ctx context.Context, before *raftstore.State, changes []Change) {
	ctx, cancel := context.WithTimeout(ctx, warmLimit) // for all changes: prefixes must not expire meanwhile
	defer cancel()
	was := make(map[prefixtree.Hash]policy.HotPrefix)
	for _, p := range agreedPrefixes(before) {
		was[p.Anchor] = p.HotPrefix
	}
	for _, c := range changes {
		old := was[c.Anchor]
		if c.Remove {
			c.Replicas = 0
		}
		if old.Replicas == c.Replicas {
			continue // renewed
		}
		h.changes.Add(1)
		h.cfg.Log.Info().Str("anchor", AnchorText(c.Anchor)).Int("tokens", c.Tokens).Int("replicas", c.Replicas).Int("before", old.Replicas).
			Str("why", c.Why).Msg("hot prefix")
		if h.warmer != nil && old.Replicas > 0 && c.Replicas > old.Replicas {
			h.warmer.warm(ctx, c.Anchor, h.joining(c.HotPrefix, old))
		}
	}
}

func (h *Replicator) joining(now, before policy.HotPrefix) []string {
	pool, ok := poolOf(now.Anchor, h.work(time.Now()))
	if !ok {
		return nil
	}
	held := h.cfg.Router.HotSet(pool, before)
	return slices.DeleteFunc(h.cfg.Router.HotSet(pool, now), func(name string) bool { return slices.Contains(held, name) })
}

// BeforeDrain warms, within warmLimit, the backends that take over hot prefixes from named ones.
func (h *Replicator) BeforeDrain(ctx context.Context, names []string) {
	if h.warmer == nil {
		return // the drain moves them: drained backends are not eligible
	}
	ctx, cancel := context.WithTimeout(ctx, warmLimit) // for all prefixes: the client waits
	defer cancel()
	h.mu.Lock()
	list := slices.Clone(h.inForce)
	h.mu.Unlock()
	sum := h.work(time.Now())
	for _, p := range list {
		pool, ok := poolOf(p.Anchor, sum)
		if !ok {
			continue
		}
		held := h.cfg.Router.HotSet(pool, p)
		heirs := slices.DeleteFunc(h.cfg.Router.HotSet(pool, p, names...), func(name string) bool { return slices.Contains(held, name) })
		if len(heirs) > 0 {
			h.warmer.warm(ctx, p.Anchor, heirs)
		}
	}
}

// poolOf is the pool with most requests for a prefix.
func poolOf(anchor prefixtree.Hash, sum Sum) (pool uint64, ok bool) {
	most := -1.0
	for k, w := range sum {
		if k.Anchor == anchor && (w.Requests > most || w.Requests == most && k.Pool < pool) {
			pool, most, ok = k.Pool, w.Requests, true
		}
	}
	return pool, ok
}

// Set is an agreed prefix with its need and backends as this node computes them.
type Set struct {
	Prefix
	Need     Need     // zero if no node reports requests that begin with the prefix
	Backends []string // in order of preference; nil with a zero Need
}

func (h *Replicator) Sets(s *raftstore.State, at time.Time) []Set {
	sum, sizes := h.work(at), make(map[uint64]int)
	for _, p := range h.pools() {
		sizes[p.Key] = p.Backends
	}
	list := make([]Set, len(s.Hot))
	for i, p := range agreedPrefixes(s) {
		list[i].Prefix = p
		if pool, ok := poolOf(p.Anchor, sum); ok {
			list[i].Need = Size(sum[Key{pool, p.Anchor}].Work, sum[Key{Pool: pool}].Work, max(sizes[pool], 1), -1)
			list[i].Backends = h.cfg.Router.HotSet(pool, p.HotPrefix)
		}
	}
	return list
}

func (h *Replicator) Collect(s metrics.Scrape) {
	h.mu.Lock()
	replicas, prefixes := 0, len(h.inForce)
	for _, p := range h.inForce {
		replicas += p.Replicas
	}
	h.mu.Unlock()
	s.Gauge("hot_prefixes", "Hot prefixes that this node routes by. Not additive.")(float64(prefixes))
	s.Gauge("hot_prefix_replicas", "Backends that hold hot prefixes, summed over prefixes. Not additive.")(float64(replicas))
	s.Counter("hot_prefix_changes_total", "Changed sizes of replica sets, counted by the leader that made them.")(float64(h.changes.Load()))
	s.Counter("hot_prefix_failures_total", "Changes of hot prefixes that this node could not commit.")(float64(h.failed.Load()))
	w := h.warmer
	if w == nil {
		w = new(warmer) // the series exist without a warmer
	}
	warmed := s.Counter("hot_warm_ups_total", "Requests that make an engine compute a hot prefix beforehand: warmed, failed, or not sent because the node had kept no prompt (unknown).", "outcome")
	warmed(float64(w.warmed.Load()), "warmed")
	warmed(float64(w.failed.Load()), "failed")
	warmed(float64(w.unknown.Load()), "unknown")
}

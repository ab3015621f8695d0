package hot

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/metrics"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

const MaxPools = 4

type Config struct {
	Router *policy.Router
	Peers  func(Sum) // adds the work that peers report; nil: the node is alone
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
	cfg Config

	changes atomic.Uint64 // replica counts changed by this node
	failed  atomic.Uint64 // commands

	mu      sync.Mutex
	sizer   *Sizer // nil unless leading
	inForce []policy.HotPrefix
	version uint64 // of inForce's state
}

func New(cfg Config) *Replicator {
	return &Replicator{cfg: cfg}
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
	h.tell(state, changes)
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
	return h.sizer.Decide(millis(at), h.cfg.Router.Pools(), h.work(at), agreedPrefixes(state))
}

// tell counts and logs changed sizes.
func (h *Replicator) tell(before *raftstore.State, changes []Change) {
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
	}
}

// Set is an agreed prefix with its need and backends as this node computes them.
type Set struct {
	Prefix
	Need     Need     // zero if no node reports requests that begin with the prefix
	Backends []string // in order of preference; nil with a zero Need
}

func (h *Replicator) Sets(s *raftstore.State, at time.Time) []Set {
	sum, sizes := h.work(at), make(map[uint64]int)
	for _, p := range h.cfg.Router.Pools() {
		sizes[p.Pool] = p.Backends
	}
	owners, list := sum.owners(), make([]Set, len(s.Hot))
	for i, p := range agreedPrefixes(s) {
		list[i].Prefix = p
		if pool, ok := owners[p.Anchor]; ok {
			list[i].Need = Size(sum[Key{pool, p.Anchor}].Work, sum[Key{Pool: pool}].Work, max(sizes[pool], 1))
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
}

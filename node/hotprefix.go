package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/node/hot"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

const hotEvery = hot.Every * time.Millisecond

// replicator applies the agreed hot prefixes and, on the leader, decides how many backends hold
// each. Safe for concurrent use.
type replicator struct {
	router *policy.Router
	log    zerolog.Logger
	others func(hot.Sum)       // adds peers' work; nil: alone
	store  func() hotAgreement // may return nil: the store is not open
	// warm makes backends compute a prefix, and returns when done or out of time. nil: requests do
	// it.
	warm func(ctx context.Context, anchor prefixtree.Hash, backends []string)

	changes atomic.Uint64 // replica counts changed by this node
	refused atomic.Uint64 // failed commands

	mu      sync.Mutex
	sizer   *hot.Sizer // nil unless leading
	inForce []policy.HotPrefix
	version uint64 // of inForce's state
}

type hotAgreement interface {
	State() *raftstore.State
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool
}

func (n *Node) startHotPrefixes() {
	h := n.hot
	h.store = func() hotAgreement {
		if s := n.store.Load(); s != nil {
			return s
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		every := time.NewTicker(hotEvery)
		defer every.Stop()
		for {
			select {
			case at := <-every.C:
				h.look(ctx, at)
			case <-ctx.Done():
				return
			}
		}
	}()
	n.cleanups.push("hot prefixes", func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

// adopt applies the unexpired prefixes, or none if the fleet has switched them off. It ignores
// older states, since follow and look both call it.
func (h *replicator) adopt(s *raftstore.State, at time.Time) {
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
		h.router.SetHotPrefixes(list)
	}
}

func millis(at time.Time) prefixtree.Time { return prefixtree.Time(at.UnixMilli()) }

func agreedPrefixes(s *raftstore.State) []hot.Prefix {
	list := make([]hot.Prefix, len(s.Hot))
	for i, p := range s.Hot {
		list[i] = hot.Prefix{
			HotPrefix: policy.HotPrefix{Anchor: prefixtree.Hash(p.Anchor), Tokens: int(p.Depth), Replicas: int(p.R)},
			Since:     prefixtree.Time(p.Since), Changed: prefixtree.Time(p.LastChange), Expires: prefixtree.Time(p.Expires),
		}
	}
	return list
}

// work sums the reported work of all nodes.
func (h *replicator) work(at time.Time) hot.Sum {
	sum := hot.Sum{}
	sum.Add(h.router.OwnWork(heatPaces, millis(at)))
	if h.others != nil {
		h.others(sum)
	}
	return sum
}

func (h *replicator) pools() []hot.Pool {
	var list []hot.Pool
	for _, p := range h.router.Pools() {
		list = append(list, hot.Pool{Key: p.Pool, Backends: p.Backends, KVTokens: p.KVTokens})
	}
	return list
}

// look adopts the agreed prefixes and, on the leader, commits changes.
func (h *replicator) look(ctx context.Context, at time.Time) {
	s := h.store()
	if s == nil {
		return
	}
	state := s.State()
	h.adopt(state, at)
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
			h.refused.Add(1)
			h.log.Warn().Err(err).Msg("what is to be held of hot prefixes cannot be written down")
		}
		return // the next look retries
	}
	h.tell(ctx, state, changes)
}

func (h *replicator) decide(leads bool, state *raftstore.State, at time.Time) []hot.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !leads || !state.Switches.Hot {
		h.sizer = nil // a new leader observes afresh
		return nil
	}
	if h.sizer == nil {
		h.sizer = new(hot.Sizer)
	}
	return h.sizer.Decide(millis(at), h.pools(), h.work(at), agreedPrefixes(state))
}

// tell logs and counts committed changes, and warms new holders.
func (h *replicator) tell(ctx context.Context, before *raftstore.State, changes []hot.Change) {
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
		h.log.Info().Str("anchor", anchorText(c.Anchor)).Int("tokens", c.Tokens).Int("replicas", c.Replicas).Int("before", old.Replicas).
			Str("why", c.Why).Msg("hot prefix")
		if h.warm != nil && old.Replicas > 0 && c.Replicas > old.Replicas {
			h.warm(ctx, c.Anchor, h.joining(c.HotPrefix, old))
		}
	}
}

func (h *replicator) joining(now, before policy.HotPrefix) []string {
	pool, ok := poolOf(now.Anchor, h.work(time.Now()))
	if !ok {
		return nil
	}
	held := h.router.HotSet(pool, before)
	return slices.DeleteFunc(h.router.HotSet(pool, now), func(name string) bool { return slices.Contains(held, name) })
}

// leave warms backends that take over from those about to be drained.
func (h *replicator) leave(ctx context.Context, names []string) {
	if h.warm == nil {
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
		held := h.router.HotSet(pool, p)
		heirs := slices.DeleteFunc(h.router.HotSet(pool, p, names...), func(name string) bool { return slices.Contains(held, name) })
		if len(heirs) > 0 {
			h.warm(ctx, p.Anchor, heirs)
		}
	}
}

// poolOf is the pool with most requests for a prefix; false if none are reported.
func poolOf(anchor prefixtree.Hash, sum hot.Sum) (pool uint64, ok bool) {
	most := -1.0
	for k, w := range sum {
		if k.Anchor == anchor && (w.Requests > most || w.Requests == most && k.Pool < pool) {
			pool, most, ok = k.Pool, w.Requests, true
		}
	}
	return pool, ok
}

type hotFigures struct {
	prefixes, replicas int
	changes, refused   uint64
}

func (h *replicator) figures() (f hotFigures) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.inForce {
		f.prefixes++
		f.replicas += p.Replicas
	}
	f.changes, f.refused = h.changes.Load(), h.refused.Load()
	return f
}

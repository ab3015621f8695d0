// Package prefixtree remembers which backend was sent which prompt prefix, and estimates how much
// of it the backend still holds in its KV cache.
//
// A prompt is a chain of blocks; each Hash names the prefix up to its block. Facts (hash, backend,
// time of last touch) merge by maximum time. Time is a parameter.
package prefixtree

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultBudget      = 256 << 20
	defaultHorizon     = 10 * time.Minute
	defaultMaxBackends = 4096

	maxMaxBackends = 1<<16 - 1 // a span counts its holders in 16 bits

	minShardBytes        = 64 << 10 // a rebuild of 256 KiB takes 0.1 ms
	shardBytesPerBackend = 64
	maxShards            = 4096
	allocatorRounding    = 16 << 10 // slots and arena each round up by less than a page
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("prefixtree: invalid config")

// Config configures a Tree. Each zero field selects its default.
type Config struct {
	// Budget bounds the tables, in bytes, by evicting the oldest; default 256 MiB, about 10 million
	// facts. Each concurrent rebuild exceeds it by one shard.
	Budget int64
	// Horizon is each backend's initial age of probable eviction; default 10 minutes.
	Horizon time.Duration
	// MaxBackends is one more than the highest id; default 4096, at most 65535.
	MaxBackends int
	// Changed, if not nil, receives what each call changed at anchors, root first, on the calling
	// goroutine. It must not keep the slice.
	Changed func(changes []Fact)
	// Placed, if not nil, receives each anchor that another node adds, root first, span blocks below the anchor before, on the
	// goroutine of ApplyDelta. The time is equal within a placement.
	Placed func(b Backend, anchor Hash, span int, at Time)
}

func (c Config) withDefaults() (Config, error) {
	if c.Budget == 0 {
		c.Budget = defaultBudget
	}
	if c.Horizon == 0 {
		c.Horizon = defaultHorizon
	}
	if c.MaxBackends == 0 {
		c.MaxBackends = defaultMaxBackends
	}
	switch {
	case c.MaxBackends < 0 || c.MaxBackends > maxMaxBackends:
		return c, fmt.Errorf("%w: max backends %d not in [1, %d]", ErrConfig, c.MaxBackends, maxMaxBackends)
	case c.Horizon < minHorizon || c.Horizon > maxHorizon:
		return c, fmt.Errorf("%w: horizon %v not in [%v, %v]", ErrConfig, c.Horizon, minHorizon, maxHorizon)
	case c.Budget < c.minShare():
		return c, fmt.Errorf("%w: budget of %d bytes below %d", ErrConfig, c.Budget, c.minShare())
	}
	return c, nil
}

func (c Config) minShare() int64 {
	return max(minShardBytes, shardBytesPerBackend*int64(c.MaxBackends))
}

// Tree is safe for concurrent use; Match takes no lock unless a writer stalls.
type Tree struct {
	share   int64 // bytes of one shard's table and arena
	mask    uint64
	turn    Time // of the sweep, ms
	shards  []shard
	limits  []limits
	ledgers []ledger
	newest  []atomic.Int64
	changed func([]Fact)
	heard   func(b Backend, anchor Hash, span int, at Time)
	buffers sync.Pool // of *[]Fact, for changed

	retractions retractions

	clock      atomic.Int64 // latest time seen, for Apply
	highest    atomic.Int64 // highest backend id with a fact
	workspaces sync.Pool

	surprises, cachesLost, refused atomic.Uint64
}

func New(cfg Config) (*Tree, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	shards := min(maxShards, 1<<(bits.Len64(uint64(cfg.Budget/cfg.minShare()))-1))
	t := &Tree{
		share:   cfg.Budget/int64(shards) - allocatorRounding,
		mask:    uint64(shards - 1),
		turn:    Time(cfg.Horizon.Milliseconds()),
		shards:  make([]shard, shards),
		limits:  make([]limits, cfg.MaxBackends),
		ledgers: make([]ledger, cfg.MaxBackends),
		newest:  make([]atomic.Int64, cfg.MaxBackends),
		changed: cfg.Changed,
		heard:   cfg.Placed,
	}
	t.highest.Store(-1)
	t.workspaces.New = func() any { return new(workspace) }
	t.buffers.New = func() any { return new([]Fact) }
	for i := range t.shards {
		tb := newTable(minSlots, 0)
		t.shards[i].tab.Store(tb)
		t.shards[i].counts.bytes.Store(tb.bytes())
	}
	for i := range t.limits {
		t.limits[i].span.Store(cfg.Horizon.Milliseconds())
		t.ledgers[i].usage.horizon = cfg.Horizon.Milliseconds()
	}
	return t, nil
}

func (t *Tree) shard(key uint64) *shard { return &t.shards[key&t.mask] }

func (t *Tree) dead(e entry, now Time) bool {
	return t.limits[entryBackend(e)].dead(entryTime(e), now)
}

func (t *Tree) advance(now Time) { raise(&t.clock, int64(now)) }

func raise(v *atomic.Int64, to int64) {
	for old := v.Load(); to > old; old = v.Load() {
		if v.CompareAndSwap(old, to) {
			return
		}
	}
}

func (t *Tree) noteBackend(b Backend, at Time) {
	raise(&t.newest[b], int64(at))
	raise(&t.highest, int64(b))
}

// Record notes that b was sent this prompt, and touches its blocks older than a grain. tr, if not
// nil, receives the earlier belief. An id out of range is refused. Safe for concurrent use.
func (t *Tree) Record(b Backend, chain []Hash, now Time, tr *TouchHistory) {
	news := t.buffer()
	defer t.publish(news)
	if tr == nil {
		tr = new(TouchHistory)
	}
	tr.reset()
	if int(b) >= len(t.limits) {
		t.refused.Add(1)
		return
	}
	now = clampTime(now)
	t.advance(now)
	lim := &t.limits[b]
	if floor := Time(lim.floor.Load()); now <= floor {
		now = clampTime(floor + 1) // a fence in the same millisecond, or from a faster clock, precedes this call
	}
	t.noteBackend(b, now)
	tr.recorded, tr.settled = now, lim.settled(now)
	var a prefetch
	for from := 0; from < len(chain); from += lookahead {
		for i := range a.look(t, b, chain[from:]) {
			depth := from + i + 1
			if chain[depth-1] == 0 {
				continue
			}
			p := &a.places[i]
			prior := p.entry
			flags := prior&entryFlags | blockFlags(depth, len(chain))
			e := makeEntry(b, now, flags)
			if entryTime(prior) > tr.settled {
				e = prior | flags
			}
			if e != prior {
				if !p.touch(e, now) {
					prior = t.change(p, uint64(chain[depth-1]), e, now)
				}
				t.tell(news, chain[depth-1], prior, e, now)
			}
			if prior != 0 && !lim.dead(entryTime(prior), now) {
				tr.push(depth, entryTime(prior))
			}
		}
	}
	t.use(b, tr, len(chain), now)
}

// change merges e under the lock, after p.touch failed.
func (t *Tree) change(p *place, key uint64, e entry, now Time) (prior entry) {
	s := p.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.facts
	prior = t.putLocked(p, key, e, now)
	t.tendLocked(s, before, now)
	if prior == e && p.entry != 0 {
		return p.entry // the failed touch did take effect
	}
	return prior
}

// Revert undoes the Record that filled tr, for a request that failed before prefill, and returns
// the number of removed blocks; those touched since stay. Safe for concurrent use.
func (t *Tree) Revert(b Backend, chain []Hash, tr *TouchHistory) (retracted int) {
	if tr.recorded == 0 || int(b) >= len(t.limits) {
		return 0
	}
	news := t.buffer()
	defer t.publish(news)
	floor := Time(t.limits[b].floor.Load())
	for i, h := range chain {
		before := tr.at(i + 1)
		if before <= floor {
			before = 0 // fenced since: sending it would revive it on nodes with an earlier fence
		}
		was, is, removed := t.edit(&place{shard: t.shard(uint64(h))}, b, uint64(h), func(e entry) (entry, bool) {
			if entryTime(e) != tr.recorded || before >= tr.recorded { // touched again, or coarsened by the touch history
				return e, false
			}
			return entryAt(e, max(before, 1)), before == 0
		})
		if removed {
			retracted++
		}
		if removed || is != was {
			t.tellGone(news, Revert, h, was, tr.recorded, before)
		}
	}
	return retracted
}

// edit lets change replace or remove a fact and returns it before (0: none) and after. It calls
// change again after a concurrent touch.
func (t *Tree) edit(p *place, b Backend, key uint64, change func(entry) (to entry, remove bool)) (was, is entry, removed bool) {
	s := p.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	tb := s.tab.Load()
	slot, found := tb.locate(key, p.slot)
	if !found || key == 0 {
		return 0, 0, false
	}
	for {
		v := tb.value(slot)
		i := tb.indexOf(v, b, p.index)
		if i < 0 {
			return 0, 0, false
		}
		e := tb.holder(v, i)
		to, remove := change(e)
		if remove {
			s.removeLocked(slot, i)
			s.counts.retracted.Add(1)
			s.counts.facts.Store(int64(s.facts))
			return e, 0, true
		}
		if to == e || tb.replace(slot, v, i, e, to) {
			return e, to, false
		}
	}
}

type Stats struct {
	Facts      int64 // including dead ones not swept yet
	Bytes      int64
	Budget     int64
	Evicted    uint64 // dropped at the budget, oldest first
	Expired    uint64 // removed as dead
	Retracted  uint64
	Refused    uint64 // backend id out of range, or no room after eviction
	Rebuilds   uint64 // tables replaced to grow, compact, shrink or evict
	Surprises  uint64 // responses with nothing cached where a young match was predicted
	CachesLost uint64 // backends cleared for a lost cache
}

// Stats takes no lock; shards may differ by moments. Counts are totals since New.
func (t *Tree) Stats() Stats {
	st := Stats{
		Budget:     t.share * int64(len(t.shards)),
		Refused:    t.refused.Load(),
		Surprises:  t.surprises.Load(),
		CachesLost: t.cachesLost.Load(),
	}
	for i := range t.shards {
		c := &t.shards[i].counts
		st.Facts += c.facts.Load()
		st.Bytes += c.bytes.Load()
		st.Evicted += c.evicted.Load()
		st.Expired += c.expired.Load()
		st.Retracted += c.retracted.Load()
		st.Refused += c.refused.Load()
		st.Rebuilds += c.rebuilds.Load()
	}
	return st
}

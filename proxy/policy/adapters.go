package policy

import (
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
)

const (
	// maxAdapters bounds what is remembered per engine.
	maxAdapters = 64
	// adaptersLast is how long, in ms, an engine's report counts; nodes read it every few seconds.
	adaptersLast = 30_000
	// adapterWindow is over how many requests their mean time is taken.
	adapterWindow = 512
)

// adapters is what this node knows of an engine's LoRA adapters. Guarded by the slot's lock.
type adapters struct {
	slots    int          // adapters that a batch may use; 0: not reported
	own      []adapterUse // by this node's requests
	reported []uint64     // that requests of all nodes used at that time
	at       prefixtree.Time
}

type adapterUse struct {
	name   uint64
	active int // requests
	last   prefixtree.Time
}

func (a *adapters) find(name uint64) *adapterUse {
	for i := range a.own {
		if a.own[i].name == name {
			return &a.own[i]
		}
	}
	return nil
}

// begin forgets the longest unused adapter if there are too many; with all in use it does not remember the new one.
func (a *adapters) begin(name uint64, now prefixtree.Time) {
	u := a.find(name)
	switch {
	case u != nil:
	case len(a.own) < maxAdapters:
		a.own = append(a.own, adapterUse{name: name})
		u = &a.own[len(a.own)-1]
	default:
		for i := range a.own {
			if o := &a.own[i]; o.active == 0 && (u == nil || o.last < u.last) {
				u = o
			}
		}
		if u == nil {
			return
		}
		u.name = name
	}
	u.last = now
	u.active++
}

func (a *adapters) end(name uint64) {
	if u := a.find(name); u != nil && u.active > 0 {
		u.active--
	}
}

// taken returns the share of the slots that other adapters use, above 1 if adapters wait for slots; 0 if the adapter has one, or
// nothing is known of slots.
func (a *adapters) taken(name uint64, now prefixtree.Time) float64 {
	if a.slots == 0 {
		return 0
	}
	mine, inUse, since := a.find(name), 0, 0
	if mine != nil && mine.active > 0 {
		return 0
	}
	for i := range a.own {
		if u := &a.own[i]; u.active > 0 {
			inUse++
		} else if mine != nil && u.last > mine.last {
			since++ // took a slot, maybe this adapter's
		}
	}
	if now-a.at < adaptersLast {
		for _, r := range a.reported {
			if r == name {
				return 0
			}
			if u := a.find(r); u == nil || u.active == 0 {
				inUse++
			}
		}
	}
	if inUse == 0 || mine != nil && inUse+since < a.slots {
		return 0
	}
	return float64(inUse+1) / float64(a.slots)
}

// adapterTime is the mean time of requests that use an adapter. Safe for concurrent use.
type adapterTime struct {
	mu               sync.Mutex
	seconds, counted float64
}

func (t *adapterTime) add(seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seconds += seconds
	if t.counted++; t.counted > adapterWindow {
		t.seconds, t.counted = t.seconds/2, t.counted/2
	}
}

func (t *adapterTime) mean() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seconds / max(t.counted, 1)
}

// adapter returns the name of the request's LoRA adapter, 0 without one.
func (s *Scene) adapter() uint64 {
	switch {
	case len(s.Request.LoRA) > 0:
		return xxh3.Hash(s.Request.LoRA)
	case s.pool.adapter:
		return xxh3.Hash(s.Request.Model)
	}
	return 0
}

// equip adds the price of an adapter's slot to the start of candidates where it has none.
func (s *Scene) equip() {
	name := s.adapter()
	if name == 0 {
		return
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.slot.mu.Lock()
		taken := c.slot.adapters.taken(name, s.Now)
		c.slot.mu.Unlock()
		price := taken * s.slotTime
		c.start += price
		c.place += price
	}
}

// SetAdapters takes an engine's report of its LoRA adapters: how many a batch may use (0: none, or unknown), and those that its
// requests use or wait for.
func (r *Router) SetAdapters(b prefixtree.Backend, slots int, inUse []string, now prefixtree.Time) {
	s := r.table.Load().slot(b)
	if s == nil {
		return
	}
	names := make([]uint64, 0, min(len(inUse), maxAdapters))
	for _, name := range inUse[:cap(names)] {
		if h := xxh3.HashString(name); !slices.Contains(names, h) {
			names = append(names, h)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adapters.slots, s.adapters.reported, s.adapters.at = slots, names, now
}

package books

import (
	"slices"

	"grapevine.example/prefixtree"
)

// maxAdapters bounds what is remembered per engine.
const maxAdapters = 64

// adapters is what this node knows of an engine's LoRA adapters. Guarded by Engine.mu. Names are hashes.
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
	if now-a.at < ReportsLast {
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

// BeginAdapter notes that a request was sent that uses an adapter, which is named by a hash.
func (e *Engine) BeginAdapter(name uint64, now prefixtree.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adapters.begin(name, now)
}

// EndAdapter notes that the request has ended.
func (e *Engine) EndAdapter(name uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adapters.end(name)
}

// HoldsAdapter reports whether this router lately sent requests there that used the adapter.
func (e *Engine) HoldsAdapter(name uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.adapters.find(name) != nil
}

// AdapterSlotsTaken returns the share of the slots that other adapters use, above 1 if adapters wait for slots; 0 if the adapter has one,
// or nothing is known of slots.
func (e *Engine) AdapterSlotsTaken(name uint64, now prefixtree.Time) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.adapters.taken(name, now)
}

// SetAdapters takes an engine's report of its LoRA adapters: how many a batch may use (0: none, or unknown), and those that its
// requests use or wait for.
func (e *Engine) SetAdapters(slots int, inUse []uint64, now prefixtree.Time) {
	names := make([]uint64, 0, min(len(inUse), maxAdapters))
	for _, name := range inUse[:cap(names)] {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adapters.slots, e.adapters.reported, e.adapters.at = slots, names, now
}

package gossip

import (
	"sync"

	"grapevine/gossip/wire"
)

// keepIdle is in updates; subscribers further behind get the full vector.
const keepIdle = 256

// loadTable versions this node's load, so that subscribers get changes without a queue. Safe for
// concurrent use.
type loadTable struct {
	mu      sync.Mutex
	slots   []loadSlot
	index   map[uint32]int
	version uint64 // of the latest change
	updates uint64
	purged  uint64 // versions up to here may have been removed
	time    int64  // Unix ms of the latest update
}

type loadSlot struct {
	load    Load
	changed uint64 // version of the last change
	seen    uint64
	idle    uint64
}

// beyond counts entries above the bound.
func (t *loadTable) update(loads []Load, now int64) (changed bool, beyond int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.index == nil {
		t.index = map[uint32]int{}
		t.version = 1 // subscribers begin at 0
	}
	t.updates++
	t.time = now
	next := t.version + 1
	for _, l := range loads {
		i, ok := t.index[l.Backend]
		if !ok {
			if len(t.slots) == wire.MaxLoads {
				beyond++
				continue
			}
			i = len(t.slots)
			t.index[l.Backend] = i
			t.slots = append(t.slots, loadSlot{load: Load{Backend: l.Backend}})
		}
		s := &t.slots[i]
		s.seen = t.updates
		if s.load != l {
			s.load, s.changed, changed = l, next, true
		}
	}
	for i := 0; i < len(t.slots); i++ {
		s := &t.slots[i]
		if s.seen == t.updates {
			continue
		}
		if s.load.PrefillTokens|s.load.Active != 0 {
			s.load.PrefillTokens, s.load.Active = 0, 0
			s.changed, s.idle, changed = next, t.updates, true
			continue
		}
		if t.updates-max(s.idle, s.seen) > keepIdle {
			t.removeLocked(i)
			i--
		}
	}
	if changed {
		t.version = next
	}
	return changed, beyond
}

func (t *loadTable) removeLocked(i int) {
	t.purged = max(t.purged, t.slots[i].changed)
	delete(t.index, t.slots[i].load.Backend)
	last := len(t.slots) - 1
	if i != last {
		t.slots[i] = t.slots[last]
		t.index[t.slots[i].load.Backend] = i
	}
	t.slots = t.slots[:last]
}

// since appends changes after version, or all busy entries if full or if changes were purged.
func (t *loadTable) since(dst []Load, version uint64, full bool) (loads []Load, now uint64, time int64, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	whole = full || version < t.purged
	if !whole && version == t.version {
		return dst, version, t.time, false
	}
	for i := range t.slots {
		s := &t.slots[i]
		if whole && s.load.PrefillTokens|s.load.Active != 0 || !whole && s.changed > version {
			dst = append(dst, s.load)
		}
	}
	return dst, t.version, t.time, whole
}

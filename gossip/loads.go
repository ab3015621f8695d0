package gossip

import (
	"sync"

	"grapevine.example/gossip/wire"
)

// keepIdle is in updates; subscribers further behind get the full vector.
const keepIdle = 256

// table versions a sparse vector of this node, its load, its clients' usage or its figures, so that subscribers
// get changes without a queue. Safe for concurrent use.
type table[E wire.Entry[E]] struct {
	mu      sync.Mutex
	slots   []slot[E]
	index   map[uint32]int
	version uint64 // of the latest change
	updates uint64
	purged  uint64 // versions up to here may have been removed
	time    int64  // Unix ms of the latest update
}

type (
	loadTable  = table[Load]
	usageTable = table[Usage]

	figureTable = table[Figure]
)

type slot[E wire.Entry[E]] struct {
	entry   E
	key     uint32
	changed uint64 // version of the last change
	seen    uint64
	idle    uint64
}

func (s *slot[E]) busy() bool {
	_, first, second := s.entry.Numbers()
	return first|second != 0
}

// beyond counts entries above the bound.
func (t *table[E]) update(entries []E, now int64) (changed bool, beyond int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.index == nil {
		t.index = map[uint32]int{}
		t.version = 1 // subscribers begin at 0
	}
	t.updates++
	t.time = now
	next := t.version + 1
	for _, e := range entries {
		key, _, _ := e.Numbers()
		i, ok := t.index[key]
		if !ok {
			if len(t.slots) == wire.MaxLoads {
				beyond++
				continue
			}
			i = len(t.slots)
			t.index[key] = i
			t.slots = append(t.slots, slot[E]{entry: e.Of(key, 0, 0), key: key})
		}
		s := &t.slots[i]
		s.seen = t.updates
		if s.entry != e {
			s.entry, s.changed, changed = e, next, true
		}
	}
	for i := 0; i < len(t.slots); i++ {
		s := &t.slots[i]
		if s.seen == t.updates {
			continue
		}
		if s.busy() {
			s.entry = s.entry.Of(s.key, 0, 0)
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

// begun is false until the first update.
func (t *table[E]) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version > 0
}

func (t *table[E]) removeLocked(i int) {
	t.purged = max(t.purged, t.slots[i].changed)
	delete(t.index, t.slots[i].key)
	last := len(t.slots) - 1
	if i != last {
		t.slots[i] = t.slots[last]
		t.index[t.slots[i].key] = i
	}
	t.slots = t.slots[:last]
}

// since appends changes after version, or all busy entries if full or if changes were purged.
func (t *table[E]) since(dst []E, version uint64, full bool) (entries []E, now uint64, time int64, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	whole = full || version < t.purged
	if !whole && version == t.version {
		return dst, version, t.time, false
	}
	for i := range t.slots {
		s := &t.slots[i]
		if whole && s.busy() || !whole && s.changed > version {
			dst = append(dst, s.entry)
		}
	}
	return dst, t.version, t.time, whole
}

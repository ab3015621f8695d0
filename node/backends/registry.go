// Package backends knows the engines: their numbers, the roster in force, the node's own
// connections to them, and the models and loads that they report.
package backends

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/prefixtree"
)

type Number = prefixtree.Backend

const (
	// StrangerFor protects an unlisted engine's number for longer than an agreed list takes to
	// arrive.
	StrangerFor = time.Minute
	// retry spares a full registry a scan for each unknown key.
	retry = time.Second
)

// Registry gives engines the dense numbers by which the parts of one node refer to them. An engine
// keeps its number until the Registry gives it to another, once all records under it are dropped.
// Safe for concurrent use; implements prefixtree.Names.
type Registry struct {
	capacity int
	release  func(Number) bool
	now      func() time.Time
	keys     []atomic.Uint64 // by number: listed bit and key, or 0

	mu        sync.RWMutex
	numbers   map[uint32]Number // by key
	holders   []holder          // by number
	strangers int
	fullUntil time.Time // no number for strangers before this
	round     uint64    // calls of List
}

const listed = 1 << 32

type holder struct {
	key   uint32
	name  string    // "": a stranger, mentioned only by peers
	round uint64    // of the last List with it; 0: none
	since time.Time // when first mentioned or unlisted
}

// NewRegistry returns a registry of numbers below capacity, of which strangers get at most half.
// release must drop all records under a number, or return false while requests run there; it must
// not call the registry.
func NewRegistry(capacity int, release func(Number) bool, clock func() time.Time) *Registry {
	return &Registry{
		capacity: capacity, release: release, now: clock,
		keys: make([]atomic.Uint64, capacity), numbers: make(map[uint32]Number),
	}
}

// List replaces the listed engines, whose names must be distinct, and returns numbers and errors by
// index: another engine has the key, or no number is free.
func (r *Registry) List(names []string) (numbers []Number, errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	numbers, errs = make([]Number, len(names)), make([]error, len(names))
	var fresh []int
	for i, name := range names {
		b, known := r.numbers[prefixtree.BackendKey(name)]
		if !known || r.holders[b].name != "" && r.holders[b].name != name {
			fresh = append(fresh, i)
			continue
		}
		numbers[i] = b
		r.enlist(b, name)
	}
	var waiting []Number
	for _, i := range fresh {
		if numbers[i], errs[i] = r.number(names[i], &waiting); errs[i] == nil {
			r.enlist(numbers[i], names[i])
		}
	}
	at := r.now()
	for b := range r.holders {
		if e := &r.holders[b]; e.round != 0 && e.round == r.round-1 {
			e.since = at
			r.keys[b].Store(0)
		}
	}
	return numbers, errs
}

func (r *Registry) number(name string, waiting *[]Number) (Number, error) {
	key := prefixtree.BackendKey(name)
	b, taken := r.numbers[key]
	switch {
	case !taken:
		var ok bool
		if b, ok = r.take(false, waiting); !ok {
			return 0, fmt.Errorf("there are no more than %d numbers, and requests run at all engines that were removed", r.capacity)
		}
	case r.recent(b) || !r.release(b):
		return 0, fmt.Errorf("it has the same key %08x as %s, which is listed, or was removed and still has requests: give it another name", key, r.holders[b].name)
	}
	r.bind(b, holder{key: key, name: name})
	return b, nil
}

func (r *Registry) enlist(b Number, name string) {
	e := &r.holders[b]
	if e.name == "" {
		e.name = name
		r.strangers--
	}
	e.round = r.round
	r.keys[b].Store(listed | uint64(e.key))
}

func (r *Registry) recent(b Number) bool {
	round := r.holders[b].round
	return round != 0 && round+1 >= r.round
}

func (r *Registry) bind(b Number, e holder) {
	if int(b) == len(r.holders) {
		r.holders = append(r.holders, holder{})
	} else {
		old := &r.holders[b]
		delete(r.numbers, old.key)
		if old.name == "" {
			r.strangers--
		}
	}
	r.holders[b], r.numbers[e.key] = e, b
	if e.name == "" {
		r.strangers++
	}
}

// take returns an unused number, else that of the engine unlisted longest. A stranger gets only
// numbers unlisted for StrangerFor and, if strangers hold half, only a stranger's. waiting caches
// the candidates.
func (r *Registry) take(stranger bool, waiting *[]Number) (Number, bool) {
	crowded := stranger && r.strangers >= r.capacity/2
	if len(r.holders) < r.capacity && !crowded {
		return Number(len(r.holders)), true
	}
	if *waiting == nil {
		at := r.now()
		*waiting = []Number{}
		for b := range r.holders {
			e := &r.holders[b]
			if r.recent(Number(b)) || stranger && at.Sub(e.since) <= StrangerFor || crowded && e.name != "" {
				continue
			}
			*waiting = append(*waiting, Number(b))
		}
		slices.SortFunc(*waiting, func(a, b Number) int { return r.holders[a].since.Compare(r.holders[b].since) })
	}
	for len(*waiting) > 0 {
		b := (*waiting)[0]
		*waiting = (*waiting)[1:]
		if !r.recent(b) && r.release(b) {
			return b, true
		}
	}
	return 0, false
}

// Backend returns the number for a key, assigned at its first mention; false if none is free.
func (r *Registry) Backend(key uint32) (Number, bool) {
	if b, ok := r.Lookup(key); ok {
		return b, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.numbers[key]; ok {
		return b, true
	}
	at := r.now()
	if at.Before(r.fullUntil) {
		return 0, false
	}
	b, ok := r.take(true, new([]Number))
	if !ok {
		r.fullUntil = at.Add(retry)
		return 0, false
	}
	r.bind(b, holder{key: key, since: at})
	return b, true
}

func (r *Registry) Lookup(key uint32) (Number, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b, ok := r.numbers[key]
	return b, ok
}

// Key returns a listed engine's key; false for unlisted ones, about which the node sends nothing.
func (r *Registry) Key(b Number) (key uint32, ok bool) {
	if int(b) >= len(r.keys) {
		return 0, false
	}
	v := r.keys[b].Load()
	return uint32(v), v&listed != 0
}

func (r *Registry) Listed(yield func(b Number, key uint32)) {
	for b := range r.keys {
		if v := r.keys[b].Load(); v&listed != 0 {
			yield(Number(b), uint32(v))
		}
	}
}

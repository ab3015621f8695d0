// Package backends numbers the engines that a node knows of.
//
// All nodes of a fleet call an engine by its name; what travels between them carries the name's key, 32 bits. Inside a node the tree,
// the policy and the queues of news use a dense number instead. A Registry gives an engine its number when any part of the node first
// mentions it: the node's own configuration, the list the fleet has agreed on, or another node's report about an engine that this node
// has not heard of yet. The number keeps its meaning until the Registry gives it to another engine, and before that it has the node
// forget everything that was recorded under it. Numbers never leave the node.
package backends

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/prefixtree"
)

// Number is an engine's number in this node.
type Number = prefixtree.Backend

const (
	// StrangerFor is how long an engine that only other nodes have mentioned keeps its number when others wait for one: longer than an
	// agreement takes to arrive.
	StrangerFor = time.Minute
	// retry is how long strangers are turned away after none could be given a number: looking for one goes over all of them.
	retry = time.Second
)

// Registry holds the numbers of one node. Safe for concurrent use. It is also the prefixtree.Names by which the node reads and writes
// what nodes send each other.
type Registry struct {
	capacity int
	release  func(Number) bool
	now      func() time.Time
	keys     []atomic.Uint64 // by number: listed and the key, 0 if the engine is not listed

	mu        sync.RWMutex
	numbers   map[uint32]Number // by key
	engines   []engine          // by number
	strangers int
	fullUntil time.Time // strangers are turned away until then
	round     uint64    // Lists so far
}

const listed = 1 << 32

// engine is what has a number.
type engine struct {
	key   uint32
	name  string    // "": a stranger, which only other nodes have mentioned
	round uint64    // of the last List that had it; 0: none
	since time.Time // when it was first mentioned, or left the list
}

// New returns a registry of numbers below capacity. Half of them at most go to engines that only other nodes have mentioned, so that a
// faulty node cannot use them up. release is called before a number goes to another engine: it has everything
// forgotten that the node keeps under the number and reports true, or reports false if requests still run there, and the number stays
// as it is. It must not call the registry. clock is time.Now outside of tests.
func New(capacity int, release func(Number) bool, clock func() time.Time) *Registry {
	return &Registry{
		capacity: capacity, release: release, now: clock,
		keys: make([]atomic.Uint64, capacity), numbers: make(map[uint32]Number),
	}
}

// List makes the engines of these names, which must differ, the listed ones: those that the node routes to. It returns their numbers.
// Engines that leave the list keep their numbers as long as no other engine needs one. An engine that cannot have a number has an
// error in its place: its name has the key of another, or requests still run at as many engines that left as there are numbers.
func (r *Registry) List(names []string) (numbers []Number, errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	numbers, errs = make([]Number, len(names)), make([]error, len(names))
	var fresh []int
	for i, name := range names {
		b, known := r.numbers[prefixtree.BackendKey(name)]
		if !known || r.engines[b].name != "" && r.engines[b].name != name {
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
	for b := range r.engines {
		if e := &r.engines[b]; e.round != 0 && e.round == r.round-1 {
			e.since = at
			r.keys[b].Store(0)
		}
	}
	return numbers, errs
}

// number gives one to a listed engine that has none.
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
		return 0, fmt.Errorf("it has the same key %08x as %s, which is listed, or was removed and still has requests: give it another name", key, r.engines[b].name)
	}
	r.bind(b, engine{key: key, name: name})
	return b, nil
}

// enlist marks an engine as one of the present list.
func (r *Registry) enlist(b Number, name string) {
	e := &r.engines[b]
	if e.name == "" {
		e.name = name
		r.strangers--
	}
	e.round = r.round
	r.keys[b].Store(listed | uint64(e.key))
}

// recent says whether an engine is in the last List or was in the one before, by which requests may be routed still.
func (r *Registry) recent(b Number) bool {
	round := r.engines[b].round
	return round != 0 && round+1 >= r.round
}

// bind makes a number stand for an engine.
func (r *Registry) bind(b Number, e engine) {
	if int(b) == len(r.engines) {
		r.engines = append(r.engines, engine{})
	} else {
		old := &r.engines[b]
		delete(r.numbers, old.key)
		if old.name == "" {
			r.strangers--
		}
	}
	r.engines[b], r.numbers[e.key] = e, b
	if e.name == "" {
		r.strangers++
	}
}

// take returns a number to be bound: one that was never used, else that of the engine that has been off the list for the longest.
// For a stranger that is one of more than StrangerFor, and another stranger's if there are as many of these as there may be. waiting
// is what a former call has found and not taken; nil before the first.
func (r *Registry) take(stranger bool, waiting *[]Number) (Number, bool) {
	crowded := stranger && r.strangers >= r.capacity/2
	if len(r.engines) < r.capacity && !crowded {
		return Number(len(r.engines)), true
	}
	if *waiting == nil {
		at := r.now()
		*waiting = []Number{}
		for b := range r.engines {
			e := &r.engines[b]
			if r.recent(Number(b)) || stranger && at.Sub(e.since) <= StrangerFor || crowded && e.name != "" {
				continue
			}
			*waiting = append(*waiting, Number(b))
		}
		slices.SortFunc(*waiting, func(a, b Number) int { return r.engines[a].since.Compare(r.engines[b].since) })
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

// Backend returns the number of the engine with that key. An engine that is mentioned for the first time gets one; false if no number
// can be spared for it now.
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
	r.bind(b, engine{key: key, since: at})
	return b, true
}

// Lookup returns the number of the engine with that key, and false if it has none.
func (r *Registry) Lookup(key uint32) (Number, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b, ok := r.numbers[key]
	return b, ok
}

// Key returns the key of a listed engine; false for all others, about which the node sends nothing.
func (r *Registry) Key(b Number) (key uint32, ok bool) {
	if int(b) >= len(r.keys) {
		return 0, false
	}
	v := r.keys[b].Load()
	return uint32(v), v&listed != 0
}

// Listed calls yield with every listed engine, by number.
func (r *Registry) Listed(yield func(b Number, key uint32)) {
	for b := range r.keys {
		if v := r.keys[b].Load(); v&listed != 0 {
			yield(Number(b), uint32(v))
		}
	}
}

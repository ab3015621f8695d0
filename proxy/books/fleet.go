// Package books keeps one router's books on every engine: the work charged to it by this router and reported by others, its prefill
// rate, what it reports of itself, its LoRA adapters, and whether failures make requests avoid it. It chooses nothing.
package books

import (
	"errors"
	"slices"
	"sync"

	"grapevine.example/prefixtree"
)

// Fleet is one router's books on all engines. Safe for concurrent use.
type Fleet struct {
	rate  fleetRate
	peers peerLoads

	mu       sync.Mutex
	engines  map[prefixtree.Backend]*Engine
	replaced []*Engine // earlier generations on which requests still ran
}

// New returns empty books. Until prefills are measured, all engines compute so many tokens/s.
func New(prior float64) *Fleet {
	f := &Fleet{engines: map[prefixtree.Backend]*Engine{}, peers: peerLoads{byOrigin: map[string]map[*Engine]peerLoad{}}}
	f.rate.begin(prior)
	return f
}

// of creates a missing engine: peers' reports may precede the view.
func (f *Fleet) of(id prefixtree.Backend) *Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.engines[id]
	if e == nil {
		e = &Engine{id: id}
		f.engines[id] = e
	}
	return e
}

// Engine returns the books on a generation of a backend; 0: unknown. A missing one begins with so much in its bucket. One of unknown
// generation takes the first known.
func (f *Fleet) Engine(id prefixtree.Backend, generation uint32, bucket int64) *Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.engines[id]
	switch {
	case e != nil && (generation == 0 || e.generation.CompareAndSwap(0, generation) || e.generation.Load() == generation):
		return e
	case e != nil:
		f.replaced = append(slices.DeleteFunc(f.replaced, (*Engine).unused), e)
	}
	e = &Engine{id: id}
	e.generation.Store(generation)
	e.bucket.Store(bucket)
	f.engines[id] = e
	return e
}

func (e *Engine) unused() bool { return e.active.Load() == 0 }

// Drop forgets a backend, for reuse of its id. False: requests run there, on whatever generation, and it stays.
func (f *Fleet) Drop(id prefixtree.Backend) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.engines[id]; e != nil && !e.unused() || slices.ContainsFunc(f.replaced, func(e *Engine) bool { return e.id == id && !e.unused() }) {
		return false
	}
	delete(f.engines, id)
	return true
}

// Left returns an error that lists what the books hold of requests, this router's and others'. It is nil once all have ended and the
// other routers' reports were dropped; tests hold the books to that.
func (f *Fleet) Left() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []error
	for _, e := range f.engines {
		left = append(left, e.Left())
	}
	for _, e := range f.replaced {
		left = append(left, e.Left())
	}
	return errors.Join(left...)
}

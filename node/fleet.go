package node

import (
	"fmt"
	"slices"
	"sync"

	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// fleet is what this node knows of its backends: the static list, and what
// each engine has said it serves. The view that requests are routed by is
// made from it. Safe for concurrent use.
type fleet struct {
	backends []Backend // by id; never changed
	rules    []policy.Rule
	open     bool // not every model there is, is configured: one that is not listed may exist all the same

	mu       sync.Mutex
	found    [][]string // by id: models an engine listed; nil if it never answered
	failures []string   // by id: why the last question failed, "" if it did not
}

func newFleet(backends []Backend, rules []Rule) *fleet {
	f := &fleet{
		backends: backends, open: len(backends) == 0, found: make([][]string, len(backends)), failures: make([]string, len(backends)),
	}
	for _, b := range backends {
		f.open = f.open || len(b.Models) == 0
	}
	for _, r := range rules {
		f.rules = append(f.rules, policy.Rule{
			Model: r.Model, PathPrefix: r.Path, Header: r.Header, HeaderValue: r.HeaderValue, Strategy: r.Strategy,
		})
	}
	return f
}

// view makes the immutable snapshot of what is known now.
func (f *fleet) view() (*policy.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.viewLocked()
}

func (f *fleet) viewLocked() (*policy.View, error) {
	list := make([]policy.Backend, len(f.backends))
	for id, b := range f.backends {
		list[id] = policy.Backend{
			ID: prefixtree.Backend(id), Name: b.Name, Models: f.modelsLocked(id),
			Weight: b.Weight, State: policy.Active, KVTokens: b.KVTokens,
		}
	}
	v, err := policy.NewView(list, f.rules)
	if err != nil {
		return nil, fmt.Errorf("backends: %w", err)
	}
	return v, nil
}

func (f *fleet) modelsLocked(id int) []string {
	if m := f.backends[id].Models; len(m) > 0 {
		return m
	}
	return f.found[id]
}

// learn takes an engine's answer, and hands a new view to publish if that
// changed what is known; under the lock, so that views are published in the
// order in which they were made. An engine that fails keeps the models it last
// listed: it is avoided by its failures, not forgotten.
func (f *fleet) learn(id int, models []string, failure error, publish func(*policy.View)) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if failure != nil {
		f.failures[id] = failure.Error()
		return false, nil
	}
	f.failures[id] = ""
	if slices.Equal(f.found[id], models) {
		return false, nil
	}
	f.found[id] = models
	v, err := f.viewLocked()
	if err != nil {
		return true, err
	}
	publish(v)
	return true, nil
}

// models returns what a backend serves as far as is known, where that comes
// from ("configured", "engine", or "unknown": any), and why the last question
// failed.
func (f *fleet) models(id int) (names []string, source, failure string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(f.backends[id].Models) > 0:
		return f.backends[id].Models, "configured", ""
	case f.found[id] != nil:
		return f.found[id], "engine", f.failures[id]
	}
	return nil, "unknown", f.failures[id]
}

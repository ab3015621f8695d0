package node

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"grapevine/prefixtree"
	"grapevine/proxy/engine"
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
	reports  []report   // by id: what the engine last said of its load
}

// report is an engine's own word on its load, and when it was given; the zero
// time if it never was.
type report struct {
	engine.Metrics
	at time.Time
}

func newFleet(backends []Backend, rules []Rule) *fleet {
	f := &fleet{
		backends: backends, open: len(backends) == 0, found: make([][]string, len(backends)), failures: make([]string, len(backends)),
		reports: make([]report, len(backends)),
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
			Weight: b.Weight, State: policy.Active, KVTokens: f.kvTokensLocked(id),
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

// kvTokensLocked is what a backend's cache holds: as configured, else as it
// says itself, else 0, unknown.
func (f *fleet) kvTokensLocked(id int) int {
	if t := f.backends[id].KVTokens; t > 0 {
		return t
	}
	return int(f.reports[id].KVTokens)
}

// learnModels takes an engine's answer, and hands a new view to publish if that
// changed what is known; under the lock, so that views are published in the
// order in which they were made. An engine that fails keeps the models it last
// listed: it is avoided by its failures, not forgotten.
func (f *fleet) learnModels(id int, models []string, failure error, publish func(*policy.View)) (changed bool, err error) {
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

// learnMetrics takes what an engine says of itself, and hands a new view to
// publish if it gives another size for its cache than before and none is
// configured, which it reports.
func (f *fleet) learnMetrics(id int, m engine.Metrics, at time.Time, publish func(*policy.View)) (resized bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.kvTokensLocked(id)
	if m.KVTokens <= 0 || m.KVTokens > maxKVTokens {
		m.KVTokens = f.reports[id].KVTokens // not told this time
	}
	f.reports[id] = report{m, at}
	if f.kvTokensLocked(id) == before {
		return false, nil
	}
	v, err := f.viewLocked()
	if err != nil {
		return false, err
	}
	publish(v)
	return true, nil
}

// maxKVTokens is more than any engine holds; beyond it is nonsense on a
// metrics page, and would overflow what is computed from it.
const maxKVTokens = 1 << 40

// report returns the engine's last word on its load, and the size of its cache
// as far as is known.
func (f *fleet) report(id int) (r report, kvTokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reports[id], f.kvTokensLocked(id)
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

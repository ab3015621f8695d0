package node

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine/node/backends"
	"grapevine/proxy/engine"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// fleet holds the roster of backends, agreed or from the node's own list, and what each engine
// reports about itself. Routing views are made from it. Safe for concurrent use.
type fleet struct {
	backends []Backend // the node's own list; never changed
	rules    []policy.Rule
	idle     time.Duration // how long a connection for questions to an engine may stay idle

	// publish receives every new roster and its view, in order, since it is called under mu. view
	// is nil if it did not change. publish is nil until the node is built.
	publish func(old, now *roster, view *policy.View)

	current atomic.Pointer[roster]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced

	refreshing sync.Mutex // one refresh at a time; taken before mu

	mu           sync.Mutex
	locals       map[string]local       // by backend name; replaced, never written
	last         []policy.Backend       // of the newest view
	heard, shown uint64                 // changes that engines reported, and how many of them the newest view contains
	numbers      *backends.Registry     // its List is called under mu once newFleet has returned
	entries      map[string]listedModel // by model
	listed       *modelList             // the last answer to /v1/models
}

// report is an engine's latest report on its load; at is zero before the first one.
type report struct {
	engine.Metrics
	at time.Time
}

// newFleet starts with the node's own list.
func newFleet(own []Backend, rules []Rule, idle time.Duration, numbers *backends.Registry) (*fleet, error) {
	locals, err := readLocals(own)
	if err != nil {
		return nil, err
	}
	f := &fleet{backends: own, rules: policyRules(rules), locals: locals, idle: idle, numbers: numbers, entries: make(map[string]listedModel)}
	f.changed.Store(new(make(chan struct{})))
	first, err := f.configuredRoster()
	f.current.Store(first)
	return f, err
}

func (f *fleet) roster() *roster { return f.current.Load() }

// rosterChanged returns a channel that closes when the roster is replaced. Take it before the
// roster so that no change is missed.
func (f *fleet) rosterChanged() <-chan struct{} { return *f.changed.Load() }

func (f *fleet) view() (*policy.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.roster()
	f.last = r.policyBackends()
	return newView(f.last, r.rules)
}

func newView(backends []policy.Backend, rules []policy.Rule) (*policy.View, error) {
	v, err := policy.NewView(backends, rules)
	if err != nil {
		return nil, fmt.Errorf("backends: %w", err)
	}
	return v, nil
}

// adopt makes a newer agreed state the roster. Rules that cannot be used are an error; the backends
// take effect all the same.
func (f *fleet) adopt(s *raftstore.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.Version <= f.roster().version {
		return nil
	}
	next, errRules := f.agreedRoster(s)
	if err := f.changeLocked(next); err != nil {
		return err
	}
	return errRules
}

// changeLocked publishes a roster, and its view if that differs from the last.
func (f *fleet) changeLocked(next *roster) error {
	old := f.roster()
	list := next.policyBackends()
	var v *policy.View
	if !equalBackends(list, f.last) || !slices.Equal(next.rules, old.rules) {
		var err error
		if v, err = newView(list, next.rules); err != nil {
			return err
		}
		f.last = list
	}
	f.shown = f.heard
	f.current.Store(next)
	if f.publish != nil {
		f.publish(old, next, v)
	}
	close(*f.changed.Swap(new(make(chan struct{}))))
	kept := make(map[*link]bool, len(next.list))
	for _, u := range next.list {
		kept[u.link] = true
	}
	for _, u := range old.list {
		if !kept[u.link] {
			u.client.CloseIdleConnections()
		}
	}
	return nil
}

// refresh publishes a view with all reported changes. Concurrent callers share one: when a node
// starts every engine reports changes, and a view of thousands takes milliseconds.
func (f *fleet) refresh() error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown == f.heard {
		return nil // another call has published it
	}
	r := f.roster()
	list := r.policyBackends()
	v, err := newView(list, r.rules)
	if err != nil {
		return err
	}
	f.last, f.shown = list, f.heard
	if f.publish != nil {
		f.publish(r, r, v)
	}
	return nil
}

// learnModels records an engine's model list and publishes a new view if the list changed. An
// engine that fails keeps its last list: its failures already keep requests away. was is the
// outcome of the previous question.
func (f *fleet) learnModels(u *upstream, models []listedModel, failure error) (changed bool, was answering, err error) {
	if changed, was = f.noteModels(u, models, failure); changed {
		err = f.refresh()
	}
	return changed, was, err
}

func (f *fleet) noteModels(u *upstream, models []listedModel, failure error) (changed bool, was answering) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was = u.answered
	if failure != nil {
		u.answered, u.failure = silent, failure.Error()
		return false, was
	}
	u.answered, u.failure = tells, ""
	f.noteEntries(u, models)
	ids := idsOf(models)
	if slices.Equal(u.found, ids) {
		return false, was
	}
	u.found = ids
	f.heard++
	return true, was
}

// learnMetrics records an engine's metrics. It reports whether they changed the cache size in use,
// which a configured size overrides; if so, it publishes a new view.
func (f *fleet) learnMetrics(u *upstream, m engine.Metrics, at time.Time) (resized bool, err error) {
	if resized = f.noteMetrics(u, m, at); resized {
		err = f.refresh()
	}
	return resized, err
}

func (f *fleet) noteMetrics(u *upstream, m engine.Metrics, at time.Time) (resized bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := u.kvTokens()
	if m.KVTokens <= 0 || m.KVTokens > maxKVTokens {
		m.KVTokens = u.link.report.KVTokens // not in this report
	}
	u.link.report = report{m, at}
	if u.kvTokens() == before {
		return false
	}
	f.heard++
	return true
}

// maxKVTokens is more than any engine holds; larger values would overflow what is computed from
// them.
const maxKVTokens = 1 << 40

// reportOf returns the engine's latest report, and its cache size as far as known.
func (f *fleet) reportOf(u *upstream) (r report, kvTokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return u.link.report, u.kvTokens()
}

// modelsOf returns the known models of a backend, their source ("configured", "engine" or
// "unknown", which matches any model), and why the last question failed.
func (f *fleet) modelsOf(u *upstream) (names []string, source, failure string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(u.Models) > 0:
		return u.Models, "configured", ""
	case u.found != nil:
		return u.found, "engine", u.failure
	}
	return nil, "unknown", u.failure
}

func (f *fleet) close() {
	for _, u := range f.roster().list {
		u.client.CloseIdleConnections()
	}
}

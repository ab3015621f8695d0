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

// fleet holds the roster and what engines report; views are made from it. Safe for concurrent use.
type fleet struct {
	backends []Backend // own list; never changed
	rules    []policy.Rule
	idle     time.Duration // how long a connection for questions may idle

	// publish receives new rosters and views in order, under mu; a nil view means unchanged.
	// publish is nil until the node is built.
	publish func(old, now *roster, view *policy.View)

	current atomic.Pointer[roster]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced

	refreshing sync.Mutex // one refresh at a time; taken before mu

	mu           sync.Mutex
	locals       map[string]local       // by backend name; replaced, never written
	last         []policy.Backend       // of the newest view
	heard, shown uint64                 // number of changes that engines reported, and that the newest view has
	numbers      *backends.Registry     // its List is called under mu
	entries      map[string]listedModel // by model
	listed       *modelList             // the last /v1/models answer
}

// report is an engine's latest load report; at is zero before the first.
type report struct {
	engine.Metrics
	at time.Time
}

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
// roster.
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

// adopt makes a newer state the roster. Its error names what is left out: unusable rules, and
// backends that get no number.
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

// changeLocked publishes a roster, with a view if that changed.
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

// refresh publishes reported changes. Concurrent callers share a view: at a start every engine
// reports, and a view of thousands takes milliseconds.
func (f *fleet) refresh() error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown == f.heard {
		return nil // another call published it
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

// learnModels records an engine's models. An engine that fails keeps its list, since its failures
// make the router avoid it. was is the outcome of the previous question.
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

// learnMetrics reports whether the cache size in use changed; a configured size stays.
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
		m.KVTokens = u.link.report.KVTokens // not reported
	}
	u.link.report = report{m, at}
	if u.kvTokens() == before {
		return false
	}
	f.heard++
	return true
}

// maxKVTokens exceeds any engine; larger values would overflow sums.
const maxKVTokens = 1 << 40

func (f *fleet) reportOf(u *upstream) (r report, kvTokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return u.link.report, u.kvTokens()
}

// modelsOf returns a backend's models, their source ("configured", "engine" or "unknown", which
// matches any), and the last question's failure.
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

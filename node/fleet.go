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

// fleet is what this node knows of its backends: which there are, by agreement or
// by its own list, and what each engine has said of itself. The view that requests
// are routed by is made from it. Safe for concurrent use.
type fleet struct {
	backends []Backend // the node's own list; never changed
	rules    []policy.Rule
	idle     time.Duration // how long an idle connection for questions is kept

	// publish is told every new roster and the view made of it, under mu, so that
	// they are published in the order in which they were made. view is nil if it
	// is as it was. nil before the node is built.
	publish func(old, now *roster, view *policy.View)

	current atomic.Pointer[roster]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced

	refreshing sync.Mutex // one refresh at a time; taken before mu

	mu           sync.Mutex
	locals       map[string]local       // by backend name; replaced, never written
	last         []policy.Backend       // of the newest view
	heard, shown uint64                 // what engines have told that changes the view, and how much of that the newest has
	numbers      *backends.Registry     // its List is called under mu, once the fleet is built
	entries      map[string]listedModel // by model
	listed       *modelList             // the last answer to /v1/models
}

// report is an engine's own word on its load, and when it was given; the zero
// time if it never was.
type report struct {
	engine.Metrics
	at time.Time
}

// newFleet begins with the node's own list.
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

// roster is what there is to route to now.
func (f *fleet) roster() *roster { return f.current.Load() }

// rosterChanged gives a channel that is closed when the roster is replaced. Take it
// before the roster, so that no change is missed.
func (f *fleet) rosterChanged() <-chan struct{} { return *f.changed.Load() }

// view makes the immutable snapshot of what is known now.
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

// adopt makes what the fleet has agreed on the roster, unless that is older than
// what is in force. An error says what of it could not be taken; the rest is.
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

// changeLocked publishes a roster, with a view of it if that is another one.
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

// refresh publishes a view of what has become known of the engines. Those that ask
// while one is made share the next: when a node starts every engine tells
// something new, and a view of thousands takes milliseconds.
func (f *fleet) refresh() error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shown == f.heard {
		return nil // it is in the view that another one made
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

// learnModels takes an engine's answer and publishes a new view if that
// changed what is known. An engine that fails keeps the models it last
// listed: it is avoided by its failures, not forgotten. was is how the question
// before this one ended.
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

// learnMetrics takes what an engine says of itself. It reports whether that gives
// another size for its cache than before and none is configured; there is a new
// view then.
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
		m.KVTokens = u.link.report.KVTokens // not told this time
	}
	u.link.report = report{m, at}
	if u.kvTokens() == before {
		return false
	}
	f.heard++
	return true
}

// maxKVTokens is more than any engine holds; beyond it is nonsense on a
// metrics page, and would overflow what is computed from it.
const maxKVTokens = 1 << 40

// reportOf returns the engine's last word on its load, and the size of its cache
// as far as is known.
func (f *fleet) reportOf(u *upstream) (r report, kvTokens int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return u.link.report, u.kvTokens()
}

// modelsOf returns what a backend serves as far as is known, where that comes
// from ("configured", "engine", or "unknown": any), and why the last question
// failed.
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

// close drops idle connections to engines.
func (f *fleet) close() {
	for _, u := range f.roster().list {
		u.client.CloseIdleConnections()
	}
}

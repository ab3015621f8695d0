package backends

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

type Config struct {
	Own     []config.Backend // the node's own list; never changed
	Rules   []config.Rule    // the node's own
	Idle    time.Duration    // how long a connection for the node's own requests may idle
	Numbers *Registry
	Log     zerolog.Logger
	// Publish receives rosters and views in order, under the directory's lock. old is nil for the
	// first roster, now if only the view is new; a nil view is unchanged.
	Publish func(old, now *Roster, view *policy.View)
	// Reported receives every report; leads is false if this node believes another of the engine's.
	Reported func(e *Engine, l *Load, leads bool)
	Nodes    func() int // in the fleet, this one included
}

// Directory holds the roster in force and what its engines report, and makes the policy's views.
// Safe for concurrent use.
type Directory struct {
	cfg     Config
	rules   []rules.Rule // the node's own
	current atomic.Pointer[Roster]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced

	refreshing sync.Mutex // one refresh at a time; taken before mu

	mu              sync.Mutex
	keys            Keys                   // replaced, never written
	viewed          []policy.Backend       // of the newest view
	reported, shown uint64                 // number of changes that engines reported, and that the newest view has
	entries         map[string]listedModel // by model
	page            *modelList             // the last /v1/models answer
}

// NewDirectory returns a directory with the node's own list. Publish has to follow.
func NewDirectory(cfg Config) (*Directory, error) {
	keys, err := ReadKeys(cfg.Own)
	if err != nil {
		return nil, err
	}
	d := &Directory{cfg: cfg, rules: config.Specs(cfg.Rules), keys: keys, entries: make(map[string]listedModel)}
	d.changed.Store(new(make(chan struct{})))
	first, err := d.ownRoster()
	d.current.Store(first)
	return d, err
}

func (d *Directory) Publish() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.Roster()
	v, err := d.viewLocked(r)
	if err == nil {
		d.cfg.Publish(nil, r, v)
	}
	return err
}

func (d *Directory) Roster() *Roster { return d.current.Load() }

func (d *Directory) Numbers() *Registry { return d.cfg.Numbers }

// Changed returns a channel that closes when the roster is replaced. Take it before the roster.
func (d *Directory) Changed() <-chan struct{} { return *d.changed.Load() }

func (d *Directory) Close() {
	for _, e := range d.Roster().List {
		e.client.CloseIdleConnections()
	}
}

// Adopt makes a newer state the roster and ignores an older one. Its error names what is left out:
// unusable rules, backends without a number.
func (d *Directory) Adopt(s *raftstore.State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.Roster()
	if s.Version <= old.Version {
		return nil
	}
	next, errLeftOut := d.agreedRoster(s)
	if err := d.replaceLocked(next); err != nil {
		return err
	}
	if old.Version > 0 {
		d.logChanges(old, next)
	} else {
		d.logFirst(s)
	}
	return errLeftOut
}

func (d *Directory) replaceLocked(next *Roster) error {
	old := d.Roster()
	var v *policy.View
	if !slices.EqualFunc(backendsOf(next), d.viewed, sameForPolicy) || !slices.Equal(next.Rules, old.Rules) {
		var err error
		if v, err = d.viewLocked(next); err != nil {
			return err
		}
	}
	d.shown = d.reported
	d.current.Store(next)
	d.cfg.Publish(old, next, v)
	if next == old {
		return nil
	}
	close(*d.changed.Swap(new(make(chan struct{}))))
	kept := make(map[*link]bool, len(next.List))
	for _, e := range next.List {
		kept[e.link] = true
	}
	for _, e := range old.List {
		if !kept[e.link] {
			e.client.CloseIdleConnections()
		}
	}
	return nil
}

func backendsOf(r *Roster) []policy.Backend {
	list := make([]policy.Backend, len(r.List))
	for i, e := range r.List {
		list[i] = e.forPolicy()
	}
	return list
}

func (d *Directory) viewLocked(r *Roster) (*policy.View, error) {
	list := backendsOf(r)
	v, err := policy.NewView(list, r.Rules)
	if err != nil {
		return nil, fmt.Errorf("backends: %w", err)
	}
	d.viewed = list
	return v, nil
}

// refresh publishes reported changes. Concurrent callers share a view, which takes milliseconds for
// thousands of engines.
func (d *Directory) refresh() error {
	d.refreshing.Lock()
	defer d.refreshing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shown == d.reported {
		return nil // another call published it
	}
	return d.replaceLocked(d.Roster())
}

// SetKeys makes new requests and connections use keys. After an error the old keys stay.
func (d *Directory) SetKeys(keys Keys) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if maps.Equal(d.keys, keys) {
		return false, nil
	}
	before, old := d.keys, d.Roster()
	d.keys = keys
	list := make([]*Engine, len(old.List))
	for i, e := range old.List {
		list[i] = new(*e)
	}
	next := d.newRoster(old.Version, list, old.Rules)
	next.Source = old.Source
	if err := d.replaceLocked(next); err != nil {
		d.keys = before
		return false, err
	}
	return true, nil
}

// visit connects to the engine of a new backend. A name's api_key goes only to its configured URL,
// or clients could have it sent anywhere.
func (d *Directory) visit(b raftstore.Backend) *Engine {
	d.mu.Lock()
	c := d.keys[b.Name]
	d.mu.Unlock()
	configured := func(own config.Backend) bool { return own.Name == b.Name && config.SameURL(own.URL, b.URL) }
	if !slices.ContainsFunc(d.cfg.Own, configured) {
		c.apiKey = "" // a 401 counts as an answer, too
	}
	e := &Engine{Backend: b}
	d.connect(e, nil, c)
	return e
}

// Reach asks the engine of a new backend for its models; any answer below 500 passes, since a 5xx
// may come from a proxy without an engine.
func (d *Directory) Reach(ctx context.Context, b raftstore.Backend) error {
	e := d.visit(b)
	defer e.client.CloseIdleConnections()
	resp, err := e.send(ctx, "/v1/models")
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("it says %s", resp.Status)
	}
	return nil
}

// Load returns an engine's latest load report and the cache size in use, 0 if unknown.
func (d *Directory) Load(e *Engine) (l Load, kvTokens int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.load, e.kvTokens()
}

// Models returns a backend's models, their source ("configured", "engine" or "unknown": any), and
// the last query's failure.
func (d *Directory) Models(e *Engine) (names []string, source, failure string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case len(e.Models) > 0:
		return e.Models, "configured", ""
	case e.listed != nil:
		return e.listed, "engine", e.failure
	}
	return nil, "unknown", e.failure
}

// OnlyServedBy lists models that only going engines serve. A staying engine with unknown models
// serves any.
func (d *Directory) OnlyServedBy(going, staying []*Engine) (models []string) {
	served := make(map[string]bool)
	for _, e := range staying {
		names, _, _ := d.Models(e)
		if names == nil {
			return nil
		}
		for _, name := range names {
			served[name] = true
		}
	}
	for _, e := range going {
		names, _, _ := d.Models(e)
		for _, name := range names {
			if !served[name] {
				models = append(models, name)
			}
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// Package sources follows the lists of engines that backends_from names. Every node reads them; the
// leader applies them to the agreed state.
package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/config"
	"grapevine.example/node/metrics"
	"grapevine.example/raftstore"
)

// Values of the log field "event".
const (
	EventSourceFails   = "source_fails"
	EventSourceAnswers = "source_answers"
)

const (
	// Prefix begins the reason of every state change that sources make.
	Prefix = "source: "
	// goneWait bounds the wait for requests on a dropped backend.
	goneWait   = 10 * time.Minute
	applyEvery = time.Second
	// refusalLasts is how long a refused backend is not proposed again.
	refusalLasts = time.Minute
)

type Store interface {
	State() *raftstore.State
	Apply(ctx context.Context, c raftstore.Command) (raftstore.Result, error)
	Leading() bool
}

// Sources holds the last answers. Safe for concurrent use.
type Sources struct {
	log  zerolog.Logger
	busy func(name string) bool

	complained time.Time // last log of a refused change; apply's alone

	mu      sync.Mutex
	answers []answer
	drained map[string]time.Time // by name; when first seen here
	refused map[string]time.Time // by name; last refusal
}

type answer struct {
	*source
	list    map[string]config.Backend
	missing map[string]time.Time
	at      time.Time // of the last good answer
	err     error
	clash   string // entries that contradict an earlier source
	logged  time.Time
}

type Status struct {
	Source   string    // as configured
	Backends int       // of the last good answer
	At       time.Time // of the last good answer; zero: none yet
	Error    string    // the last failure, or which entries do not count
}

// New parses the entries of backends_from. busy says whether any node has requests at a backend.
func New(entries []string, busy func(name string) bool, log zerolog.Logger) (*Sources, error) {
	s := &Sources{log: log, busy: busy, drained: make(map[string]time.Time), refused: make(map[string]time.Time)}
	for _, e := range entries {
		src, err := newSource(e)
		if err != nil {
			return nil, err
		}
		s.answers = append(s.answers, answer{source: src, missing: make(map[string]time.Time)})
	}
	return s, nil
}

// Run reads the sources and, on the leader, applies them until ctx ends.
func (s *Sources) Run(ctx context.Context, store Store) {
	var loops sync.WaitGroup
	defer loops.Wait()
	for i := range s.answers {
		loops.Go(func() { s.follow(ctx, i) })
	}
	if len(s.answers) > 0 {
		s.apply(ctx, store)
	}
}

func (s *Sources) follow(ctx context.Context, i int) {
	src := s.answers[i].source
	tick := time.NewTicker(src.every)
	defer tick.Stop()
	for {
		list, unchanged, err := src.read(ctx)
		if ctx.Err() != nil {
			return
		}
		s.take(i, list, unchanged, err, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Sources) take(i int, list []config.Backend, unchanged bool, err error, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.answers[i]
	failed := a.err != nil
	a.err = err
	switch {
	case err != nil:
		if !failed || at.Sub(a.logged) >= errSilence {
			a.logged = at
			s.log.Warn().Str("event", EventSourceFails).Err(err).Str("source", a.Entry).Msg("source of backends fails: its last answer stays in force")
		}
		return
	case failed:
		s.log.Info().Str("event", EventSourceAnswers).Str("source", a.Entry).Msg("source of backends answers again")
	}
	a.at = at
	if unchanged {
		return
	}
	now := make(map[string]config.Backend, len(list))
	for _, b := range list {
		now[b.Name] = b
		delete(a.missing, b.Name)
	}
	for name := range a.list {
		if _, still := now[name]; !still {
			a.missing[name] = at
		}
	}
	a.list = now
	s.findClashesLocked()
}

// findClashesLocked: the first source wins.
func (s *Sources) findClashesLocked() {
	names, urls := make(map[string]int), make(map[string]string)
	for i := range s.answers {
		a := &s.answers[i]
		was := a.clash
		a.clash = ""
		var clashes []string
		for _, name := range slices.Sorted(maps.Keys(a.list)) {
			b := a.list[name]
			url, err := raftstore.NormalURL(b.URL)
			if err != nil {
				continue // the fleet refuses it with a message
			}
			if first, taken := names[name]; taken {
				if theirs := s.answers[first].list[name]; !sameBackend(&theirs, &b) {
					clashes = append(clashes, fmt.Sprintf("%s: %s, which comes first, has other values", name, s.answers[first].Entry))
				}
				continue
			}
			names[name] = i
			if other, taken := urls[url]; taken {
				clashes = append(clashes, fmt.Sprintf("%s: its url is also that of %s", name, other))
				continue
			}
			urls[url] = name
		}
		if len(clashes) > maxClashes {
			clashes = append(clashes[:maxClashes], fmt.Sprintf("%d more", len(clashes)-maxClashes))
		}
		if a.clash = strings.Join(clashes, "; "); a.clash != was && a.clash != "" {
			s.log.Warn().Str("source", a.Entry).Str("ignored", a.clash).Msg("sources of backends contradict each other: one is ignored")
		}
	}
}

const maxClashes = 5

func sameBackend(b, c *config.Backend) bool {
	return config.SameURL(b.URL, c.URL) && b.Weight == c.Weight && b.KVTokens == c.KVTokens && slices.Equal(b.Models, c.Models) &&
		b.Role == c.Role && b.BootstrapPort == c.BootstrapPort && slices.Equal(b.Labels, c.Labels)
}

func (s *Sources) firstLocked(name string) *answer {
	for i := range s.answers {
		if _, ok := s.answers[i].list[name]; ok {
			return &s.answers[i]
		}
	}
	return nil
}

func (s *Sources) apply(ctx context.Context, store Store) {
	tick := time.NewTicker(applyEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if store.Leading() {
			s.applyOnce(ctx, store, time.Now())
		}
	}
}

func (s *Sources) applyOnce(ctx context.Context, store Store, at time.Time) {
	for _, c := range s.changes(store.State(), at) {
		err := s.write(ctx, store, c, at)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if at.Sub(s.complained) >= errSilence {
			s.complained = at
			s.log.Warn().Err(err).Msg("cannot commit a change that a source of backends asks for; retrying")
		}
		if !refusedByFleet(err) {
			return // the store takes no changes now
		}
	}
}

// refusedByFleet says whether the fleet rejected only this command.
func refusedByFleet(err error) bool {
	for _, refusal := range []error{raftstore.ErrInvalid, raftstore.ErrExists, raftstore.ErrNotFound, raftstore.ErrConflict, raftstore.ErrTooMany} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// write tries new backends that are rejected together one by one.
func (s *Sources) write(ctx context.Context, store Store, c raftstore.Command, at time.Time) error {
	_, err := store.Apply(ctx, c)
	if err == nil || !refusedByFleet(err) {
		return err
	}
	if add, ok := c.(raftstore.AddBackends); ok && len(add.Backends) > 1 {
		var errs []error
		for _, b := range add.Backends {
			err := s.write(ctx, store, raftstore.AddBackends{Backends: []raftstore.Backend{b}}, at)
			if err != nil && !refusedByFleet(err) {
				return err
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range namesOf(c) {
		s.refused[name] = at
	}
	return err
}

func namesOf(c raftstore.Command) (names []string) {
	switch c := c.(type) {
	case raftstore.AddBackends:
		for i := range c.Backends {
			names = append(names, c.Backends[i].Name)
		}
	case raftstore.UpdateBackend:
		names = []string{c.Name}
	case raftstore.SetBackendState:
		names = c.Names
	case raftstore.RemoveBackends:
		names = c.Names
	}
	return names
}

// changes returns the commands that apply the sources: add, update, and drain, then remove.
// Backends of an operator or the configuration stay.
func (s *Sources) changes(state *raftstore.State, at time.Time) (commands []raftstore.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.refused, func(_ string, when time.Time) bool { return at.Sub(when) >= refusalLasts })
	urls := make(map[string]bool, len(state.Backends))
	for i := range state.Backends {
		urls[state.Backends[i].URL] = true
	}
	var add []raftstore.Backend
	for i := range s.answers {
		a := &s.answers[i]
		for _, name := range slices.Sorted(maps.Keys(a.list)) {
			b := a.list[name]
			have, ok := state.Backend(name)
			switch {
			case s.firstLocked(name) != a, !s.refused[name].IsZero():
			case ok && (have.Source == raftstore.File || have.Source == raftstore.DNS):
				commands = append(commands, changed(&have, &b)...)
			case !ok:
				if url, err := raftstore.NormalURL(b.URL); err == nil && !urls[url] {
					urls[url] = true
					spec := b.Spec()
					spec.Source = a.Kind
					add = append(add, spec)
				}
			}
		}
	}
	if len(add) > 0 {
		commands = append(commands, raftstore.AddBackends{Backends: add})
	}
	return append(commands, s.removals(state, at)...)
}

func changed(have *raftstore.Backend, b *config.Backend) (commands []raftstore.Command) {
	if have.Drained && have.DrainedBy == raftstore.BySource {
		commands = append(commands, raftstore.SetBackendState{
			Names: []string{have.Name}, Action: raftstore.Resume, By: raftstore.BySource, Reason: Prefix + "listed again",
		})
	}
	u := raftstore.UpdateBackend{Name: have.Name}
	differs := false
	if !config.SameURL(have.URL, b.URL) {
		u.URL, differs = &b.URL, true
	}
	if have.Weight != b.Weight {
		u.Weight, differs = &b.Weight, true
	}
	if tokens := int64(b.KVTokens); have.KVTokens != tokens {
		u.KVTokens, differs = &tokens, true
	}
	if spec := b.Spec(); have.Role != spec.Role || have.BootstrapPort != spec.BootstrapPort {
		u.Role, u.BootstrapPort, differs = &spec.Role, &spec.BootstrapPort, true
	}
	if !slices.Equal(have.Models, b.Models) {
		u.Models, differs = &b.Models, true
	}
	if !slices.Equal(have.Labels, b.Labels) {
		u.Labels, differs = &b.Labels, true
	}
	if differs {
		commands = append(commands, u)
	}
	return commands
}

// removals removes what no source names, once all sources of its kind have answered.
func (s *Sources) removals(state *raftstore.State, at time.Time) (commands []raftstore.Command) {
	draining := make(map[string]time.Time)
	defer func() { s.drained = draining }()
	for i := range state.Backends {
		b := &state.Backends[i]
		since, gone := s.missing(b)
		if !gone || !s.refused[b.Name].IsZero() {
			continue
		}
		if b.Source == raftstore.DNS && at.Sub(since) < dnsPatience {
			continue
		}
		// The state's times come from another node's clock.
		drained, seen := s.drained[b.Name]
		if !seen {
			drained = at
		}
		if b.Drained {
			draining[b.Name] = drained
		}
		switch {
		case !b.Drained && b.State != raftstore.Down: // a backend that is down has no requests to finish
			commands = append(commands, raftstore.SetBackendState{
				Names: []string{b.Name}, Action: raftstore.Drain, By: raftstore.BySource, Reason: Prefix + "no longer listed",
			})
		case b.State == raftstore.Down, !s.busy(b.Name) && at.Sub(drained) >= applyEvery, at.Sub(drained) > goneWait:
			commands = append(commands, raftstore.RemoveBackends{Names: []string{b.Name}})
		}
	}
	return commands
}

// missing says since when no source has named a source's backend, at the earliest since the first
// answers.
func (s *Sources) missing(b *raftstore.Backend) (since time.Time, gone bool) {
	if s.firstLocked(b.Name) != nil {
		return time.Time{}, false
	}
	kinds := 0
	for i := range s.answers {
		a := &s.answers[i]
		if a.Kind != b.Source {
			continue
		}
		kinds++
		if a.list == nil {
			return time.Time{}, false
		}
		if _, known := a.missing[b.Name]; !known {
			a.missing[b.Name] = a.at
		}
		if m := a.missing[b.Name]; m.After(since) {
			since = m
		}
	}
	return since, kinds > 0
}

func (s *Sources) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Status, len(s.answers))
	for i := range s.answers {
		a := &s.answers[i]
		out[i] = Status{Source: a.Entry, Backends: len(a.list), At: a.at}
		if out[i].Error = a.clash; a.err != nil {
			out[i].Error = a.err.Error()
		}
	}
	return out
}

func (s *Sources) Collect(m metrics.Scrape) {
	listed := m.Gauge("source_backends", "Backends in the last answer of a source.", "source")
	failing := m.Gauge("source_failing", "1 while a source of backends fails or contradicts another; its last answer stays in force.", "source")
	for _, st := range s.Status() {
		listed(float64(st.Backends), st.Source)
		failing(metrics.Bool(st.Error != ""), st.Source)
	}
}

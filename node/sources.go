package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine/raftstore"
)

const (
	// gonePrefix begins the reason of a drain by a source.
	gonePrefix = "source: "
	// goneWait is how long requests may take to end on a backend that its source
	// does not name any more, before it is removed all the same.
	goneWait = 10 * time.Minute
	// sourceRetry is the least pause between two attempts to change the state.
	sourceRetry = time.Second
)

// sources keeps what the sources of backends last said. All nodes read theirs;
// the one that leads changes the fleet's state by it.
type sources struct {
	log   zerolog.Logger
	store func() agreement
	state func() *raftstore.State
	busy  func(name string) bool // some node has requests there

	mu      sync.Mutex
	answers []sourceAnswer
}

// sourceAnswer is a source and its last word.
type sourceAnswer struct {
	*source
	list    map[string]Backend // by name; nil: none yet
	missing map[string]time.Time
	at      time.Time // of the last good answer
	err     error     // of the last attempt
	logged  time.Time
}

// SourceStatus is how a source of backends is doing.
type SourceStatus struct {
	Source   string  `json:"source"`
	Backends int     `json:"backends"` // of the last good answer
	AgeS     float64 `json:"age_s"`    // of it; 0: none yet
	Error    string  `json:"error,omitempty"`
}

func newSources(entries []string, log zerolog.Logger) (*sources, error) {
	s := &sources{log: log}
	for _, e := range entries {
		src, err := parseSource(e)
		if err != nil {
			return nil, err
		}
		s.answers = append(s.answers, sourceAnswer{source: src, missing: make(map[string]time.Time)})
	}
	return s, nil
}

// startSources reads the sources until the node stops.
func (n *Node) startSources() {
	s := n.sources
	if len(s.answers) == 0 {
		return
	}
	s.store = n.checker.store
	s.state = func() *raftstore.State {
		if store := n.store.Load(); store != nil {
			return store.State()
		}
		return &raftstore.State{}
	}
	s.busy = func(name string) bool {
		u := n.fleet.roster().named(name)
		if u == nil {
			return false
		}
		_, own := n.router.Load(u.id)
		_, others := n.router.PeerLoad(u.id)
		return own+others > 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for i := range s.answers {
		loops.Go(func() { s.follow(ctx, i) })
	}
	loops.Go(func() { s.apply(ctx) })
	n.cleanups.push("sources", func(context.Context) error {
		cancel()
		loops.Wait()
		return nil
	})
}

// follow reads one source again and again.
func (s *sources) follow(ctx context.Context, i int) {
	src := s.answers[i].source
	tick := time.NewTicker(src.every())
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

// take notes an answer. A source that fails keeps the last good one.
func (s *sources) take(i int, list []Backend, unchanged bool, err error, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.answers[i]
	failed := a.err != nil
	a.err = err
	switch {
	case err != nil:
		if !failed || at.Sub(a.logged) >= errSilence {
			a.logged = at
			s.log.Warn().Err(err).Str("source", a.entry).Msg("source of backends fails: its last answer stands")
		}
		return
	case failed:
		s.log.Info().Str("source", a.entry).Msg("source of backends answers again")
	}
	a.at = at
	if unchanged {
		return
	}
	now := make(map[string]Backend, len(list))
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
}

// apply changes the fleet's state by what the sources say, on the node that leads.
func (s *sources) apply(ctx context.Context) {
	tick := time.NewTicker(sourceRetry)
	defer tick.Stop()
	var logged time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		store := s.store()
		if store == nil || !store.Leading() {
			continue
		}
		for _, c := range s.changes(s.state(), time.Now()) {
			if _, err := store.Apply(ctx, c); err != nil {
				if ctx.Err() == nil && time.Since(logged) >= errSilence {
					logged = time.Now()
					s.log.Warn().Err(err).Msg("what a source of backends says cannot be written down")
				}
				break
			}
		}
	}
}

// changes are the commands that bring a state in line with the sources. They add
// what is missing, change what is theirs, and drain, then remove what was theirs
// and is named no more. What an operator or the configuration added is left alone.
func (s *sources) changes(state *raftstore.State, at time.Time) (commands []raftstore.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	urls := make(map[string]bool, len(state.Backends))
	for i := range state.Backends {
		urls[state.Backends[i].URL] = true
	}
	var add []raftstore.BackendSpec
	for i := range s.answers {
		a := &s.answers[i]
		for _, name := range sortedNames(a.list) {
			b := a.list[name]
			have, ok := state.Backend(name)
			switch {
			case ok && have.Source == a.kind:
				commands = append(commands, changed(&have, &b)...)
			case !ok:
				if url, err := raftstore.NormalURL(b.URL); err == nil && !urls[url] {
					urls[url] = true
					add = append(add, raftstore.BackendSpec{
						Name: name, URL: b.URL, Models: b.Models, Weight: b.Weight, KVTokens: int64(b.KVTokens), Source: a.kind,
					})
				}
			}
		}
	}
	if len(add) > 0 {
		commands = append(commands, raftstore.AddBackends{Backends: add})
	}
	return append(commands, s.removals(state, at)...)
}

// changed brings back, or up to date, a backend that its source names.
func changed(have *raftstore.Backend, b *Backend) (commands []raftstore.Command) {
	if have.Drained && len(have.Reason) >= len(gonePrefix) && have.Reason[:len(gonePrefix)] == gonePrefix {
		commands = append(commands, raftstore.SetBackendState{Names: []string{have.Name}, Action: raftstore.Resume, Reason: gonePrefix + "named again"})
	}
	u := raftstore.UpdateBackend{Name: have.Name}
	differs := false
	if !sameURL(have.URL, b.URL) {
		u.URL, differs = &b.URL, true
	}
	if have.Weight != b.Weight {
		u.Weight, differs = &b.Weight, true
	}
	if tokens := int64(b.KVTokens); have.KVTokens != tokens {
		u.KVTokens, differs = &tokens, true
	}
	if !slices.Equal(have.Models, b.Models) {
		u.Models, differs = &b.Models, true
	}
	if differs {
		commands = append(commands, u)
	}
	return commands
}

// removals take away what no source names any more. A kind of which some source
// has not answered yet removes nothing: what is missing may be that one's.
func (s *sources) removals(state *raftstore.State, at time.Time) (commands []raftstore.Command) {
	for i := range state.Backends {
		b := &state.Backends[i]
		since, gone := s.missing(b)
		if !gone {
			continue
		}
		if b.Source == raftstore.DNS && at.Sub(since) < dnsPatience {
			continue
		}
		drained := time.UnixMilli(b.Since)
		switch {
		case !b.Drained:
			commands = append(commands, raftstore.SetBackendState{Names: []string{b.Name}, Action: raftstore.Drain, Reason: gonePrefix + "not named any more"})
		case b.State == raftstore.Down, !s.busy(b.Name) && at.Sub(drained) > sourceRetry, at.Sub(drained) > goneWait:
			commands = append(commands, raftstore.RemoveBackends{Names: []string{b.Name}})
		}
	}
	return commands
}

// missing says since when no source has named a backend that one has added.
// What was missing already when the sources first answered is missing since then.
func (s *sources) missing(b *raftstore.Backend) (since time.Time, gone bool) {
	kinds := 0
	for i := range s.answers {
		a := &s.answers[i]
		if a.kind != b.Source {
			continue
		}
		kinds++
		if a.list == nil {
			return time.Time{}, false
		}
		if _, named := a.list[b.Name]; named {
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

func sortedNames(list map[string]Backend) []string {
	names := make([]string, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// status is how the sources are doing, in the order of the configuration.
func (s *sources) status() []SourceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]SourceStatus, len(s.answers))
	for i := range s.answers {
		a := &s.answers[i]
		out[i] = SourceStatus{Source: a.entry, Backends: len(a.list)}
		if !a.at.IsZero() {
			out[i].AgeS = tenths(time.Since(a.at))
		}
		if a.err != nil {
			out[i].Error = a.err.Error()
		}
	}
	return out
}

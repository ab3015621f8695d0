package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/health"
	"grapevine.example/node/sources"
	"grapevine.example/prefixtree"
	"grapevine.example/raftstore"
)

// change applies a command and waits until this node routes by it, so that the client's next
// request sees the change.
func (n *Node) change(ctx context.Context, c raftstore.Command) (*admin.Changed, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	// Tests with slower Raft timers get as much more time.
	within, cancel := context.WithTimeout(ctx, changeWithin+n.raftTimers.Call)
	defer cancel()
	if err := n.awaitSaid(within, s); err != nil {
		return nil, err
	}
	result, err := s.Apply(within, c)
	if err != nil {
		return nil, err
	}
	if !result.Changed {
		return &admin.Changed{Version: s.State().Version}, nil // no new version comes
	}
	n.adopt(awaitState(ctx, s, func(s *raftstore.State) bool { return s.Version >= result.Index }))
	return &admin.Changed{Version: result.Index, Changed: true}, nil
}

// awaitSaid waits for the configured backends: an earlier change would make all nodes route by a
// state without them.
func (n *Node) awaitSaid(ctx context.Context, s *raftstore.Store) error {
	select {
	case <-n.said:
		return nil
	default:
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := s.Read(asking) // finds out why the list waits: mostly missing voters
		answered <- err
	}()
	select {
	case <-n.said:
		return nil
	case <-ctx.Done():
	}
	if err := <-answered; err != nil {
		return fmt.Errorf("%w: %w", admin.ErrNotProposed, err)
	}
	return admin.ErrNotProposed
}

// ownWait bounds how long a lagging follower holds the answer to a change.
const ownWait = time.Second

// awaitState returns the first state that is ok, or after ownWait the newest.
func awaitState(ctx context.Context, s *raftstore.Store, ok func(*raftstore.State) bool) *raftstore.State {
	ctx, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	for {
		changed := s.Changed()
		if state := s.State(); ok(state) || ctx.Err() != nil {
			return state
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

const (
	// changeWithin, engine check included, makes a fleet without a majority answer within 2 s.
	changeWithin = 1900 * time.Millisecond
	// changeLeast, the time of an election, remains after a long engine check.
	changeLeast = 1200 * time.Millisecond
)

func changeBy(began, now time.Time) time.Time {
	by := began.Add(changeWithin)
	if least := now.Add(changeLeast); by.Before(least) {
		return least
	}
	return by
}

// AddBackends adds all backends, or none. Unless force is set, their engines must answer.
func (n *Node) AddBackends(ctx context.Context, specs []raftstore.Backend, force bool) (*admin.Changed, error) {
	began := time.Now()
	specs, err := n.eachRank(ctx, specs)
	if err != nil {
		return nil, err
	}
	if err := n.checkNew(ctx, specs, force); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, changeBy(began, time.Now()).Add(n.raftTimers.Call)) // see change
	defer cancel()
	return n.changePlaced(ctx, raftstore.AddBackends{Backends: specs}, func(s *raftstore.State) string { return placeTaken(s, specs) })
}

// eachRank replaces engines that are given with all their data-parallel ranks by a backend for each, and asks those that are given
// without a number.
func (n *Node) eachRank(ctx context.Context, specs []raftstore.Backend) (list []raftstore.Backend, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	for i, b := range specs {
		ranks := config.Ranks(b.URL)
		if ranks == 0 {
			if ranks, err = n.backends.CountRanks(ctx, b); err != nil {
				return nil, admin.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("backends[%d].url", i), "write #ranks=N",
					"%s does not say how many data-parallel ranks it has: %v", b.Name, err)
			}
		}
		if ranks < 0 {
			list = append(list, b)
		}
		for rank := range max(ranks, 0) {
			one := b
			one.Name, one.URL = config.OfRank(b.Name, b.URL, rank)
			list = append(list, one)
		}
	}
	return list, nil
}

// changePlaced makes a refusal for ErrExists or ErrNotFound name the field that place finds.
func (n *Node) changePlaced(ctx context.Context, c raftstore.Command, place func(*raftstore.State) string) (*admin.Changed, error) {
	done, err := n.change(ctx, c)
	if s := n.store.Load(); s != nil && (errors.Is(err, raftstore.ErrExists) || errors.Is(err, raftstore.ErrNotFound)) {
		refused := admin.RefusalOf(err)
		refused.Place = place(s.State())
		return nil, refused
	}
	return done, err
}

func placeTaken(s *raftstore.State, specs []raftstore.Backend) string {
	names, urls := make(map[string]bool), make(map[string]bool)
	for i := range s.Backends {
		names[s.Backends[i].Name], urls[s.Backends[i].URL] = true, true
	}
	for i := range specs {
		url, _ := raftstore.NormalURL(specs[i].URL) // checked by completeNew
		switch {
		case names[specs[i].Name]:
			return fmt.Sprintf("backends[%d].name", i)
		case urls[url]:
			return fmt.Sprintf("backends[%d].url", i)
		}
		names[specs[i].Name], urls[url] = true, true
	}
	return ""
}

func placeUnknown(s *raftstore.State, names []string, place func(i int) string) string {
	for i, name := range names {
		if _, ok := s.Backend(name); !ok {
			return place(i)
		}
	}
	return ""
}

func (n *Node) checkNew(ctx context.Context, specs []raftstore.Backend, force bool) error {
	keys := make(map[uint32]string)
	for _, u := range n.backends.Roster().List {
		keys[prefixtree.BackendKey(u.Name)] = u.Name
	}
	for i, b := range specs {
		key := prefixtree.BackendKey(b.Name)
		if other, taken := keys[key]; taken && other != b.Name {
			return admin.Refuse(http.StatusConflict, fmt.Sprintf("backends[%d].name", i), "take another name",
				"%s and %s have the same key %08x in gossip", b.Name, other, key)
		}
		keys[key] = b.Name
	}
	if force {
		return nil
	}
	for i, err := range n.reach(ctx, specs) {
		if err != nil {
			return admin.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("backends[%d].url", i), "start it first, or add it all the same with force (--force)",
				"no engine answers at %s: %v", specs[i].URL, err)
		}
	}
	return nil
}

// reachTimeout, for all new engines together, stays below clients' patience.
const reachTimeout = 4 * time.Second

const reachers = 64

func (n *Node) reach(ctx context.Context, specs []raftstore.Backend) []error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	errs := make([]error, len(specs))
	slots := make(chan struct{}, reachers)
	var asked sync.WaitGroup
	for i := range specs {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = n.backends.Reach(ctx, specs[i])
		})
	}
	asked.Wait()
	return errs
}

// SetBackendState acts on all named backends, or on none. Unless force is set, no model may lose
// its last active engine.
func (n *Node) SetBackendState(ctx context.Context, names []string, action raftstore.Action, reason string, force bool) (*admin.Changed, error) {
	for _, prefix := range []string{health.Prefix, sources.Prefix} {
		if strings.HasPrefix(reason, prefix) {
			return nil, admin.Refuse(http.StatusBadRequest, "reason", "write it another way", "%q begins the reasons that the fleet itself writes", prefix)
		}
	}
	if !force && (action == raftstore.Drain || action == raftstore.MarkDown) {
		if err := n.checkLast(names, "names", action.String()); err != nil {
			return nil, err
		}
	}
	return n.changePlaced(ctx, raftstore.SetBackendState{Names: names, Action: action, Reason: reason}, func(s *raftstore.State) string {
		return placeUnknown(s, names, func(i int) string { return fmt.Sprintf("names[%d]", i) })
	})
}

// UpdateBackend changes a backend. Unless force is set, an engine must answer at a new URL.
func (n *Node) UpdateBackend(ctx context.Context, c raftstore.UpdateBackend, force bool) (*admin.Changed, error) {
	if c.URL != nil && !force {
		if err := n.reach(ctx, []raftstore.Backend{{Name: c.Name, URL: *c.URL}})[0]; err != nil {
			return nil, admin.Refuse(http.StatusUnprocessableEntity, "url", "start it first, or change it all the same with force",
				"no engine answers at %s: %v", *c.URL, err)
		}
	}
	return n.change(ctx, c)
}

// RemoveBackends removes all named backends, or none; force is as in SetBackendState.
func (n *Node) RemoveBackends(ctx context.Context, names []string, force bool) (*admin.Changed, error) {
	if !force {
		if err := n.checkLast(names, "name", "removal"); err != nil {
			return nil, err
		}
	}
	return n.changePlaced(ctx, raftstore.RemoveBackends{Names: names}, func(s *raftstore.State) string {
		return placeUnknown(s, names, func(int) string { return "name" })
	})
}

func (n *Node) CatchUp(ctx context.Context) error {
	s, err := n.agreement()
	if err != nil {
		return err
	}
	state, err := s.Read(ctx)
	if err == nil {
		n.adopt(state)
	}
	return err
}

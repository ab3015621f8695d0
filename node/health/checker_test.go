package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/bubble"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

type rig struct {
	*Checker
	t      *testing.T
	router *policy.Router
	dir    *backends.Directory
}

func newRig(t *testing.T, urls ...string) *rig {
	t.Helper()
	tree, err := prefixtree.New(prefixtree.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t}
	if r.router, err = policy.NewRouter(policy.Config{Seed: 1}, tree); err != nil {
		t.Fatal(err)
	}
	var own []config.Backend
	for _, url := range urls {
		b := config.Backend{URL: url}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		own = append(own, b)
	}
	release := func(backends.Number) bool { return true }
	r.dir, err = backends.NewDirectory(backends.Config{
		Own: own, Numbers: backends.NewRegistry(64, release, time.Now), Log: zerolog.Nop(),
		Publish: func(_, now *backends.Roster, v *policy.View) {
			if v != nil {
				r.router.SetView(v)
			}
			r.Adopted(now)
		},
		Reported: func(e *backends.Engine, l *backends.Load, _ bool) { r.Started(e, &l.Metrics) }, Nodes: func() int { return 1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.dir.Close)
	r.Checker = NewChecker(CheckerConfig{
		Self: "self", Probing: Probing{"/health", 50 * time.Millisecond, 5 * time.Second},
		Backends: r.dir, Router: r.router, Log: zerolog.Nop(),
	})
	if err := r.dir.Publish(); err != nil {
		t.Fatal(err)
	}
	return r
}

// adopt adopts two engines, of which health took the first down if reason is given.
func (r *rig) adopt(version uint64, name, url, reason string) *backends.Roster {
	r.t.Helper()
	s := &raftstore.State{Version: version}
	for _, b := range []raftstore.Backend{{Name: name, URL: url}, {Name: "other", URL: "http://other:1"}} {
		b.Generation, b.Weight, b.Version = uint32(version), 1, version
		s.Backends = append(s.Backends, b)
	}
	if b := &s.Backends[0]; reason != "" {
		b.State, b.DownBy, b.Reason = raftstore.Down, raftstore.ByHealth, reason
	}
	if err := r.dir.Adopt(s); err != nil {
		r.t.Fatal(err)
	}
	return r.dir.Roster()
}

type fakeStore struct {
	asked    atomic.Int64 // calls of Leading
	mu       sync.Mutex
	leads    bool
	err      error
	commands []raftstore.Command
}

func (f *fakeStore) Apply(_ context.Context, c raftstore.Command) (raftstore.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return raftstore.Result{}, f.err
	}
	f.commands = append(f.commands, c)
	return raftstore.Result{Changed: true}, nil
}

func (f *fakeStore) Leading() bool {
	f.asked.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads
}

func (f *fakeStore) set(leads bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leads, f.err = leads, err
}

func (f *fakeStore) first() raftstore.Command {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.commands) == 0 {
		return nil
	}
	return f.commands[0]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestRemovedEngineIsForgotten(t *testing.T) {
	r, at := newRig(t), time.Now()
	before := r.adopt(1, "a", "http://a:1", Prefix+"refused")
	r.board.SetBackends(agreedBackends(before), at)
	for version, name := range []string{"b", "a"} {
		now := r.adopt(uint64(version+2), name, "http://"+name+":1", "")
		r.avoid(before, at) // with the replaced roster
		r.board.SetBackends(agreedBackends(now), at)
		r.avoid(now, at)
		if r.router.Health(now.Named(name).ID).Reported {
			t.Errorf("%s is healthy and avoided for ever", name)
		}
		before = now
	}
	now := r.adopt(4, "c", "http://c:1", Prefix+"refused")
	r.avoid(before, at)
	if !r.router.Health(now.Named("c").ID).Reported {
		t.Error("an engine that is down is not avoided: the previous roster's was healthy")
	}
}

// TestLateAnswerOfARemovedEngine: late metrics do not affect its successor.
func TestLateAnswerOfARemovedEngine(t *testing.T) {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "process_start_time_seconds 1700000000\nvllm:num_requests_running 7\n")
	}))
	t.Cleanup(e.Close)
	r := newRig(t)
	was := r.adopt(1, "a", e.URL, "").Named("a")
	r.dir.AskMetrics(t.Context(), was)
	if l, _ := r.dir.Load(was); l.At.IsZero() {
		t.Fatal("the engine did not answer")
	}
	now := r.adopt(2, "b", "http://b:1", "").Named("b")
	r.board.SetBackends(agreedBackends(r.dir.Roster()), time.Now())
	r.dir.AskMetrics(t.Context(), was)
	// b's first start time would seem a restart if the removed engine's were recorded.
	if ended, again := r.board.Started(now.Key, time.Unix(1_800_000_000, 0), now.Generation); again {
		t.Errorf("generation %d has ended", ended)
	}
}

func TestReturnedEngineIsAskedAtOnce(t *testing.T) {
	var sick atomic.Bool
	var scraped atomic.Int64
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/metrics" {
			scraped.Add(1)
		}
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(e.Close)
	r := newRig(t, e.URL)
	roster := r.dir.Roster()
	r.board.SetBackends(agreedBackends(roster), time.Now())
	for _, c := range []struct {
		sick  bool
		asked int64
	}{{true, 0}, {false, 1}, {false, 1}} {
		sick.Store(c.sick)
		r.probeOne(t.Context(), roster.List[0], r.probing.Load(), Probe{Backend: roster.List[0].Key, Began: time.Now()})
		if got := scraped.Load(); got != c.asked {
			t.Errorf("sick %v: asked for metrics %d times, want %d", c.sick, got, c.asked)
		}
	}
}

// TestRoundsAreBounded: at most a hundred a second.
func TestRoundsAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, store := newRig(t), &fakeStore{} // each round calls Leading
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, store) })
		const lasts = time.Second
		for range lasts / time.Millisecond {
			r.poke()
			time.Sleep(time.Millisecond)
		}
		cancel()
		running.Wait()
		if rounds, most := store.asked.Load(), int64(lasts/leastPause)+1; rounds > most || rounds < most/2 {
			t.Errorf("%d rounds in %v, want at most %d", rounds, lasts, most)
		}
	})
}

// TestOnlyTheLeaderCommits: a failed commit is counted and retried.
func TestOnlyTheLeaderCommits(t *testing.T) {
	dead, well := httptest.NewServer(nil), httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	dead.Close()
	t.Cleanup(well.Close)
	r, store := newRig(t, dead.URL, well.URL), &fakeStore{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx, store) })
	defer running.Wait()
	defer cancel()
	name := strings.TrimPrefix(dead.URL, "http://")
	key := prefixtree.BackendKey(name)
	eventually(t, "the dead one is avoided", func() bool { return slices.Contains(r.board.Avoid(nil, time.Now()), key) })
	if r.failed.Load() > 0 || store.first() != nil {
		t.Error("a node that does not lead has committed")
	}
	store.set(true, errors.New("no quorum"))
	eventually(t, "an attempt that fails", func() bool { return r.failed.Load() > 0 })
	store.set(true, nil)
	eventually(t, "a commit", func() bool { return store.first() != nil })
	want := raftstore.SetBackendState{
		Names: []string{name}, Action: raftstore.MarkDown, Reason: Prefix + "refused, say 1 of 1 nodes", By: raftstore.ByHealth,
		IfVersions: []uint64{0}, // of its own list
	}
	if got := store.first(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("committed %+v, want %+v", got, want)
	}
}

func TestOperatorsMarkStays(t *testing.T) {
	r, store := newRig(t), &fakeStore{leads: true}
	r.adopt(1, "a", "http://a:1", "the rack is being moved")
	s := *r.dir.Roster().Named("a")
	s.DownBy = raftstore.ByOperator
	if err := r.dir.Adopt(&raftstore.State{Version: 2, Backends: []raftstore.Backend{s.Backend}}); err != nil {
		t.Fatal(err)
	}
	r.commitProposal(t.Context(), store, Proposal{Names: []string{"a"}, Reason: Prefix + "answers again", Renew: []Generation{{Name: "a"}}})
	if c := store.first(); c != nil {
		t.Errorf("committed %+v", c)
	}
}

// TestLateMarkDown: what health judged before an operator's change does not undo it.
func TestLateMarkDown(t *testing.T) {
	s, err := raftstore.Open(raftstore.Config{Timers: raftstore.Timers{Call: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply := func(c raftstore.Command) raftstore.Backend {
		t.Helper()
		if _, err := s.Apply(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		b, _ := s.State().Backend("a")
		return b
	}
	apply(raftstore.AddBackends{Backends: []raftstore.Backend{{Name: "a", URL: "http://a:1"}}})
	judged := apply(raftstore.SetBackendState{Names: []string{"a"}, Action: raftstore.MarkDown, Reason: "the rack is being moved"}).Version
	current := apply(raftstore.SetBackendState{Names: []string{"a"}, Action: raftstore.MarkUp})
	r := newRig(t)
	late := Proposal{Down: true, Names: []string{"a"}, Versions: []uint64{judged}, Reason: Prefix + "refused"}
	r.commitProposal(t.Context(), s, late)
	if b, _ := s.State().Backend("a"); b.State != raftstore.Active || r.downs.Load() > 0 || r.failed.Load() > 0 {
		t.Errorf("%+v, %d commits, %d failures", b, r.downs.Load(), r.failed.Load())
	}
	late.Versions[0] = current.Version
	r.commitProposal(t.Context(), s, late)
	if b, _ := s.State().Backend("a"); b.State != raftstore.Down || r.downs.Load() != 1 {
		t.Errorf("judged in time: %+v, %d commits", b, r.downs.Load())
	}
}

// TestReportsTravel: a malformed section of a peer changes nothing.
func TestReportsTravel(t *testing.T) {
	urls := []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}
	a, b := newRig(t, urls...), newRig(t, urls...)
	roster, at := a.dir.Roster(), time.Now()
	key := roster.List[0].Key
	for _, r := range []*rig{a, b} {
		r.board.SetBackends(agreedBackends(r.dir.Roster()), at)
	}
	b.board.SetNodes([]string{"a"}, at)
	if got := a.Reports(); got != nil {
		t.Errorf("%d bytes of reports before anything happened", len(got))
	}
	a.board.Ejected(key, true, Status5xx, at)
	if err := b.Received("a", a.Reports()); err != nil {
		t.Fatal(err)
	}
	if err := b.Received("a", []byte{1, 2, 3}); !errors.Is(err, ErrReports) {
		t.Errorf("a malformed section: %v", err)
	}
	if got := b.board.Avoid(nil, time.Now()); !slices.Equal(got, []uint32{key}) {
		t.Fatalf("avoids %v", got)
	}
	if err := b.Received("a", nil); err != nil || len(b.board.Avoid(nil, time.Now())) > 0 {
		t.Errorf("avoids an engine that no peer reports any more: %v", err)
	}
}

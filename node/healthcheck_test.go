package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine/node/admin"
	"grapevine/node/backends"
	"grapevine/node/health"
	"grapevine/node/share"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// mortal is a fake engine that can close its port and return at the same address.
type mortal struct {
	*fakeEngine
	t    *testing.T
	addr string

	mu     sync.Mutex
	server *httptest.Server // nil while dead
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	m := &mortal{fakeEngine: newFakeEngine(t, "m"), t: t, addr: elsewhere()}
	m.rise()
	t.Cleanup(m.die)
	return m
}

func (m *mortal) url() string { return "http://" + m.addr }

func (m *mortal) rise() {
	m.t.Helper()
	var ln net.Listener
	eventually(m.t, "the engine's port is free", func() bool {
		var err error
		ln, err = net.Listen("tcp", m.addr)
		return err == nil
	})
	m.addr = ln.Addr().String()
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: m.Config.Handler}}
	s.Start()
	m.mu.Lock()
	m.server = s
	m.mu.Unlock()
}

func (m *mortal) die() {
	m.mu.Lock()
	s := m.server
	m.server = nil
	m.mu.Unlock()
	if s != nil {
		s.CloseClientConnections()
		s.Close()
	}
}

func probing(c *Config) {
	c.ProbePath, c.ProbeInterval, c.ProbeTimeout = "/health", 50*time.Millisecond, 5*time.Second
}

// TestEngineDiesAndReturns: a dead engine is avoided, marked down, and returns with a new
// generation and a slow start.
func TestEngineDiesAndReturns(t *testing.T) {
	t.Parallel()
	victim := newMortal(t)
	urls := []string{victim.url()}
	for range 3 {
		urls = append(urls, newFakeEngine(t, "m").URL)
	}
	nodes := startAgreeingWith(t, probing, urls...)
	name := victim.addr
	avoidedBy := func() (count int) {
		for _, n := range nodes {
			u := n.backends.Roster().Named(name)
			if _, avoided := n.router.Avoided(u.ID, now()); avoided {
				count++
			}
		}
		return count
	}
	eventually(t, "its reporters find it well", func() bool {
		h := backendOf(t, nodes[0], name).Health
		return h.OK == len(nodes) && !h.Failing
	})
	before := nodes[0].backends.Roster().Named(name).Generation

	victim.die()
	eventually(t, "avoided everywhere", func() bool { return avoidedBy() == len(nodes) })
	eventually(t, "down everywhere", func() bool { return inState(nodes, name, "down") })
	if b := backendOf(t, nodes[1], name); !strings.HasPrefix(b.Reason, health.Prefix+"refused") {
		t.Errorf("down, because of %q", b.Reason)
	}
	for _, n := range nodes {
		if code := chatCode(t, n, "while it is dead"); code != http.StatusOK {
			t.Errorf("%s answers %d", n.Name(), code)
		}
	}

	victim.rise()
	eventually(t, "active everywhere", func() bool { return inState(nodes, name, "active") && avoidedBy() == 0 })
	for _, n := range nodes {
		u := n.backends.Roster().Named(name)
		if u.Generation != before+1 {
			t.Errorf("%s: generation %d after %d: its port was closed, so its cache is gone", n.Name(), u.Generation, before)
		}
		if since := sinceOf(n, u); since == 0 || now()-since > 60_000 {
			t.Errorf("%s: it does not begin slowly: since %d", n.Name(), since)
		}
	}
	eventually(t, "metrics tell that it is well again", func() bool {
		v, ok := scrape(t, nodes[0])[`grapevine_backend_failing{backend="`+name+`"}`]
		return ok && v == 0
	})
}

// TestDownIsTheLastResort: an engine that health took down serves only if no other can.
func TestDownIsTheLastResort(t *testing.T) {
	t.Parallel()
	down, other := newFakeEngine(t, "m"), newMortal(t)
	cfg := testConfig(down.URL, other.url())
	n := startNode(t, cfg)
	awaitAgreement(t, n)
	name := strings.TrimPrefix(down.URL, "http://")
	mark := func(action raftstore.Action, by raftstore.Author, reason string, names ...string) {
		t.Helper()
		if _, err := n.change(t.Context(), raftstore.SetBackendState{Names: names, Action: action, Reason: reason, By: by}); err != nil {
			t.Fatal(err)
		}
	}
	mark(raftstore.MarkDown, raftstore.ByHealth, health.Prefix+"refused", name)
	for i := range 50 {
		if code := chatCode(t, n, fmt.Sprint("to the other one ", i)); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if got := down.requests.Load(); got > 0 {
		t.Errorf("%d requests went to an engine that is down", got)
	}
	if b := backendOf(t, n, name); b.State != "down" {
		t.Errorf("shown as %s", b.State)
	}
	other.die()
	if code := chatCode(t, n, "nobody else is left"); code != http.StatusOK || down.requests.Load() == 0 {
		t.Errorf("answered %d", code)
	}
	mark(raftstore.MarkDown, raftstore.ByOperator, "the rack is being moved", name, other.addr) // an operator's mark outlasts health's
	list := health.Proposal{Names: []string{name}, Reason: health.Prefix + "answers again", Renew: []health.Generation{{Name: name}}}
	n.checker.writeProposal(t.Context(), list)
	if b := backendOf(t, n, name); b.State != "down" || b.Reason != "the rack is being moved" || b.Generation != 1 {
		t.Errorf("%+v", b)
	}
	if code := chatCode(t, n, "an operator's word"); code != http.StatusServiceUnavailable {
		t.Errorf("answered %d", code)
	}
	judged := n.backends.Roster().Named(name).Version
	mark(raftstore.MarkUp, raftstore.ByOperator, "", name)
	late := health.Proposal{Down: true, Names: []string{name}, Versions: []uint64{judged}, Reason: health.Prefix + "refused"}
	n.checker.writeProposal(t.Context(), late)
	if b := backendOf(t, n, name); b.State == "down" || n.checker.downs.Load() > 0 {
		t.Errorf("by what health had seen before an operator's word: %+v", b)
	}
	eventually(t, "it is a backend as any", func() bool {
		at, avoided := n.router.Avoided(n.backends.Roster().Named(name).ID, now())
		return !avoided && at == 0
	})
}

// TestWhoLeftIsForgotten: a removed engine's failures do not outlive it.
func TestWhoLeftIsForgotten(t *testing.T) {
	n := unstarted(t)
	c := n.checker
	adopt := func(version uint64, generation uint32, name, reason string) (now *backends.Roster) {
		t.Helper()
		s := stateWith(version, generation, name, "other")
		if b := &s.Backends[0]; reason != "" {
			b.State, b.DownBy, b.Reason = raftstore.Down, raftstore.ByHealth, reason
		}
		if err := n.backends.Adopt(s); err != nil {
			t.Fatal(err)
		}
		return n.backends.Roster()
	}
	at := time.Now()
	before := adopt(1, 1, "a", health.Prefix+"refused")
	c.board.SetBackends(agreedBackends(before), at)
	for version, name := range []string{"b", "a"} {
		now := adopt(uint64(version+2), uint32(version+2), name, "")
		c.leave(before, at) // with the replaced roster
		c.board.SetBackends(agreedBackends(now), at)
		c.leave(now, at)
		if n.router.Health(now.Named(name).ID).Reported {
			t.Errorf("%s is healthy and left alone for good", name)
		}
		before = now
	}
	now := adopt(4, 4, "c", health.Prefix+"refused")
	c.leave(before, at)
	if !n.router.Health(now.Named("c").ID).Reported {
		t.Error("an engine that is down is not left alone: the one before it was well")
	}
}

// TestAnswerOfOneThatWent: late metrics of a removed engine do not affect its successor.
func TestAnswerOfOneThatWent(t *testing.T) {
	e := newFakeEngine(t, "m")
	e.setMetrics("process_start_time_seconds 1700000000\nvllm:num_requests_running 7\n")
	n := unstarted(t)
	s := stateWith(1, 1, "a")
	s.Backends[0].URL = e.URL
	if err := n.backends.Adopt(s); err != nil {
		t.Fatal(err)
	}
	was := n.backends.Roster().List[0]
	n.backends.AskMetrics(t.Context(), was)
	if l, _ := n.backends.Load(was); l.At.IsZero() {
		t.Fatal("the engine did not answer")
	}
	if err := n.backends.Adopt(stateWith(2, 1+1, "b")); err != nil {
		t.Fatal(err)
	}
	now := n.backends.Roster().List[0]
	n.checker.board.SetBackends(agreedBackends(n.backends.Roster()), time.Now())
	n.backends.AskMetrics(t.Context(), was)
	// b's first start time would seem a restart if the removed engine's were recorded.
	ended, again := n.checker.board.Started(prefixtree.BackendKey("b"), time.Unix(1_800_000_000, 0), now.Generation)
	if again {
		t.Errorf("generation %d has ended", ended)
	}
}

func TestDrainIsNotOverridden(t *testing.T) {
	t.Parallel()
	victim := newMortal(t)
	cfg := testConfig(victim.url(), newFakeEngine(t, "m").URL)
	probing(&cfg)
	n := startNode(t, cfg)
	awaitAgreement(t, n)
	if _, err := n.change(t.Context(), raftstore.SetBackendState{Names: []string{victim.addr}, Action: raftstore.Drain, Reason: "maintenance"}); err != nil {
		t.Fatal(err)
	}
	told := func(state, drainedBy, downBy string) {
		t.Helper()
		eventually(t, state, func() bool {
			return slices.ContainsFunc(n.BackendList().Backends, func(b admin.BackendStatus) bool {
				return b.Name == victim.addr && b.State == state && b.DrainedBy == drainedBy && b.DownBy == downBy
			})
		})
	}
	told("draining", "operator", "")
	victim.die()
	told("down", "operator", "health")
	victim.rise()
	told("draining", "operator", "")
}

func TestRestartFencesTheTree(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	page := func(started float64) { e.setMetrics(fmt.Sprintf("process_start_time_seconds %f\n", started)) }
	page(1_700_000_000)
	cfg := testConfig(e.URL)
	cfg.MetricsInterval = 10 * time.Millisecond
	n := startNode(t, cfg)
	awaitAgreement(t, n)
	u := n.backends.Roster().List[0]
	eventually(t, "its start is known", func() bool { return e.scraped.Load() > 3 })
	if u.Generation != 1 {
		t.Fatalf("generation %d", u.Generation)
	}
	if code := chatCode(t, n, strings.Repeat("a long prompt ", 500)); code != http.StatusOK {
		t.Fatal(code)
	}
	held := func() int {
		r, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(chatBody("m", strings.Repeat("a long prompt ", 500))))
		if err != nil {
			t.Fatal(err)
		}
		return r.MatchedBlocks
	}
	eventually(t, "the prompt is known to be cached", func() bool { return held() > 0 })
	page(1_700_000_090)
	eventually(t, "a new generation", func() bool { return n.backends.Roster().List[0].Generation == 1+1 })
	eventually(t, "nothing is believed to be cached", func() bool { return held() == 0 })
	if since := sinceOf(n, n.backends.Roster().List[0]); since == 0 {
		t.Error("it does not begin slowly")
	}
}

type fakeAgreement struct {
	asked    atomic.Int64 // calls of Leading
	failed   atomic.Int64 // commands, with err
	attempts atomic.Int64 // refused commands
	mu       sync.Mutex
	leads    bool
	err      error
	commands []raftstore.Command
}

func (f *fakeAgreement) Apply(_ context.Context, c raftstore.Command) (raftstore.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		f.failed.Add(1)
		return raftstore.Result{}, f.err
	}
	f.commands = append(f.commands, c)
	return raftstore.Result{Changed: true}, nil
}

func (f *fakeAgreement) Leading() bool {
	f.asked.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads
}

func TestReturnIsAskedAboutInTime(t *testing.T) {
	e := newMortal(t)
	cfg := testConfig(e.url())
	probing(&cfg)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	c, r := n.checker, n.backends.Roster()
	c.board.SetBackends(agreedBackends(r), time.Now())
	p := health.Probe{Backend: prefixtree.BackendKey(e.addr), Began: time.Now()}
	e.die()
	c.probeOne(t.Context(), r.List[0], p)
	e.rise()
	c.probeOne(t.Context(), r.List[0], p)
	if asked := e.scraped.Load(); asked != 1 {
		t.Errorf("asked for metrics %d times", asked)
	}
}

// TestRoundsAreBounded: the checker runs at most a hundred rounds a second.
func TestRoundsAreBounded(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	c := n.checker
	c.path = "/health" // each round calls Leading
	c.board.SetBackends(nil, time.Now())
	agreed := &fakeAgreement{}
	c.store = func() agreement { return agreed }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	eventually(t, "twenty rounds", func() bool {
		c.poke()
		return agreed.asked.Load() > 20
	})
	cancel()
	running.Wait()
	if rounds, most := agreed.asked.Load(), int64(time.Since(began)/leastPause)+1; rounds > most {
		t.Errorf("%d rounds in %v, want %d at most", rounds, time.Since(began), most)
	}
}

func TestOnlyTheLeaderWrites(t *testing.T) {
	t.Parallel()
	dead := newMortal(t)
	cfg := testConfig(dead.url(), newFakeEngine(t, "m").URL)
	probing(&cfg)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	dead.die()
	agreed := &fakeAgreement{err: errors.New("no quorum")}
	c := n.checker
	c.store = func() agreement { return agreed }
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { c.run(ctx) })
	loops.Go(func() { c.write(ctx) })
	defer loops.Wait()
	defer cancel()
	key := prefixtree.BackendKey(dead.addr)
	eventually(t, "the dead one is avoided", func() bool { return slices.Contains(c.board.Avoid(nil, time.Now()), key) })
	if c.refused.Load() > 0 {
		t.Error("a node that does not lead has written")
	}
	agreed.mu.Lock()
	agreed.leads = true
	agreed.mu.Unlock()
	eventually(t, "an attempt that fails", func() bool { return c.refused.Load() > 0 })
	agreed.mu.Lock()
	agreed.err = nil
	agreed.mu.Unlock()
	eventually(t, "it is written down", func() bool {
		agreed.mu.Lock()
		defer agreed.mu.Unlock()
		return len(agreed.commands) > 0
	})
	agreed.mu.Lock()
	defer agreed.mu.Unlock()
	want := raftstore.SetBackendState{
		Names: []string{dead.addr}, Action: raftstore.MarkDown, Reason: health.Prefix + "refused, say 1 of 1 nodes", By: raftstore.ByHealth,
		IfVersions: []uint64{0}, // of its own list
	}
	if got, ok := agreed.commands[0].(raftstore.SetBackendState); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("wrote %+v, want %+v", agreed.commands[0], want)
	}
}

// TestFailsAtOnceIsNoFavourite: an engine that fails fast looks idle, but gets few requests.
func TestFailsAtOnceIsNoFavourite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		bad    bool
	}{{http.StatusInternalServerError, true}, {http.StatusBadRequest, false}} {
		odd := newOddEngine(t, c.status)
		good := []*fakeEngine{newFakeEngine(t, "m"), newFakeEngine(t, "m")}
		cfg := testConfig(odd.URL, good[0].URL, good[1].URL)
		cfg.Strategy = policy.LeastRequest
		probing(&cfg)
		n := startNode(t, cfg)
		failures := 0
		const requests = 60
		for i := range requests {
			if code := chatCode(t, n, fmt.Sprint("request ", i)); code != http.StatusOK {
				failures++
			}
		}
		got := int(odd.requests.Load())
		if failures != got {
			t.Errorf("%d clients saw an error, of %d requests that it got", failures, got)
		}
		// Trials are one, two, four seconds apart.
		if c.bad && got > requests/4 {
			t.Errorf("%d of %d requests went to an engine that fails them all", got, requests)
		}
		u := n.backends.Roster().Named(strings.TrimPrefix(odd.URL, "http://"))
		if _, avoided := n.router.Avoided(u.ID, now()); !c.bad && (avoided || got < requests/4) {
			t.Errorf("answers of %d: avoided %v, %d of %d requests", c.status, avoided, got, requests)
		}
	}
}

func newOddEngine(t *testing.T, status int) *fakeEngine {
	t.Helper()
	e := newFakeEngine(t, "m")
	well := e.Config.Handler
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/completions") {
			e.requests.Add(1)
			w.WriteHeader(status)
			return
		}
		well.ServeHTTP(w, r)
	})
	return e
}

// TestHealthTravels: reports travel in the state; bad sections harm nothing else.
func TestHealthTravels(t *testing.T) {
	a, b := newKnowledgeNode(t, "a"), newKnowledgeNode(t, "b")
	key := prefixtree.BackendKey(a.backends.Roster().List[0].Name)
	a.checker.board.SetBackends(agreedBackends(a.backends.Roster()), time.Now())
	a.checker.board.Ejected(key, true, health.Status5xx, time.Now())
	b.checker.board.SetBackends(agreedBackends(b.backends.Roster()), time.Now())
	b.checker.board.SetNodes([]string{"a"}, time.Now())
	state := a.knowledge.State(nil)
	b.knowledge.PeerState("a", state)
	if got := b.checker.board.Avoid(nil, time.Now()); !slices.Equal(got, []uint32{key}) {
		t.Fatalf("avoids %v", got)
	}
	if n := b.knowledge.malformed.Load(); n > 0 {
		t.Errorf("%d malformed", n)
	}
	b.knowledge.PeerState("a", share.AppendSection([]byte{1}, share.SectionHealth, []byte{1, 2, 3}))
	if n := b.knowledge.malformed.Load(); n != 1 {
		t.Errorf("%d malformed, want 1", n)
	}
	if got := b.checker.board.Avoid(nil, time.Now()); len(got) != 1 {
		t.Error("a section that cannot be read has changed what is known")
	}
	b.knowledge.PeerState("a", share.AppendSection([]byte{1}, 77, []byte{1, 2, 3}))
	if got := b.checker.board.Avoid(nil, time.Now()); len(got) > 0 {
		t.Errorf("avoids %v, of which nobody says anything any more", got)
	}
}

func newKnowledgeNode(t *testing.T, name string) *Node {
	t.Helper()
	n, err := New(fleetConfig(name, nil, "http://127.0.0.1:1", "http://127.0.0.1:2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	return n
}

func chatCode(t *testing.T, n *Node, text string) int {
	t.Helper()
	code, _, _ := chat(t, n, chatBody("m", text))
	return code
}

func backendOf(t *testing.T, n *Node, name string) admin.BackendStatus {
	t.Helper()
	for _, b := range n.BackendList().Backends {
		if b.Name == name {
			return b
		}
	}
	t.Fatalf("%s does not know %s", n.Name(), name)
	return admin.BackendStatus{}
}

// TestRestartedEngineIsUsedSoon: within 2.5 s by default; ten here, for busy machines.
func TestRestartedEngineIsUsedSoon(t *testing.T) {
	t.Parallel()
	victim := newMortal(t)
	cfg := testConfig(victim.url(), newFakeEngine(t, "m").URL)
	cfg.ProbePath = "/health"
	n := startNode(t, cfg)
	awaitAgreement(t, n)
	answers := func() {
		t.Helper()
		i, before := 0, victim.requests.Load()
		eventually(t, "it serves a request", func() bool {
			i++
			return chatCode(t, n, fmt.Sprint("prompt ", i)) == http.StatusOK && victim.requests.Load() > before
		})
	}
	answers()
	var took []time.Duration
	for range 3 { // no more relapses than health forgives
		victim.die()
		eventually(t, "it is down", func() bool {
			if code := chatCode(t, n, "while it is dead"); code != http.StatusOK {
				t.Errorf("answered %d", code)
			}
			return backendOf(t, n, victim.addr).State == "down"
		})
		victim.rise()
		rose := time.Now()
		answers()
		took = append(took, time.Since(rose))
	}
	t.Logf("used again after %v", took)
	if slices.Max(took) > 10*time.Second {
		t.Errorf("used again after %v", took)
	}
}

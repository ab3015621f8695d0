package node

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/health"
	"grapevine.example/node/share"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

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

func probing(c *config.Config) {
	c.ProbePath, c.ProbeInterval, c.ProbeTimeout = "/health", 50*time.Millisecond, 5*time.Second
}

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
	if b := backendOf(t, n, name); b.State != "down" || b.Reason != "the rack is being moved" || b.Generation != 1 {
		t.Errorf("%+v", b)
	}
	if code := chatCode(t, n, "an operator's word"); code != http.StatusServiceUnavailable {
		t.Errorf("answered %d", code)
	}
	mark(raftstore.MarkUp, raftstore.ByOperator, "", name)
	eventually(t, "it is a backend as any", func() bool {
		at, avoided := n.router.Avoided(n.backends.Roster().Named(name).ID, now())
		return !avoided && at == 0
	})
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

// TestHealthTravels: a node avoids an engine that failed only its peer's requests, until the peer
// leaves. A malformed section of the peer's state changes nothing.
func TestHealthTravels(t *testing.T) {
	t.Parallel()
	odd := newOddEngine(t, http.StatusInternalServerError)
	nodes := startFleet(t, 2, odd.URL, newFakeEngine(t, "m").URL, newFakeEngine(t, "m").URL)
	a, b := nodes[0], nodes[1]
	name, i := strings.TrimPrefix(odd.URL, "http://"), 0
	eventually(t, "its requests make the first node avoid the engine", func() bool {
		i++
		chatCode(t, a, fmt.Sprint("request ", i))
		_, avoided := a.router.Avoided(a.backends.Roster().Named(name).ID, now())
		return avoided
	})
	e := b.backends.Roster().Named(name)
	avoids := func() bool {
		v, ok := b.health.Verdict(e)
		return ok && v.Avoid
	}
	eventually(t, "the second node avoids it", func() bool {
		_, avoided := b.router.Avoided(e.ID, now())
		return avoided && avoids()
	})
	if n := b.knowledge.malformed.Load(); n > 0 {
		t.Errorf("%d malformed", n)
	}
	b.knowledge.PeerState(a.Name(), share.AppendSection([]byte{1}, share.SectionHealth, []byte{1, 2, 3}))
	if n := b.knowledge.malformed.Load(); n != 1 || !avoids() {
		t.Errorf("%d malformed, want 1; avoids the engine: %v", n, avoids())
	}
	b.knowledge.PeerState("other", share.AppendSection([]byte{1}, 77, []byte{1, 2, 3}))
	if n := b.knowledge.malformed.Load(); n != 1 {
		t.Errorf("%d malformed by an unknown section, want 1", n)
	}
	stopNode(t, a)
	eventually(t, "the second node uses it again", func() bool {
		_, avoided := b.router.Avoided(e.ID, now())
		return !avoided && !avoids()
	})
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

// TestRestartedEngineIsUsedAgain; health.TestDeadEngine holds the time, in virtual time.
func TestRestartedEngineIsUsedAgain(t *testing.T) {
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
	for range 3 { // no more relapses than health forgives
		victim.die()
		eventually(t, "it is down", func() bool {
			if code := chatCode(t, n, "while it is dead"); code != http.StatusOK {
				t.Errorf("answered %d", code)
			}
			return backendOf(t, n, victim.addr).State == "down"
		})
		victim.rise()
		answers()
	}
}

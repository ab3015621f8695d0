package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func founderAddrs(t *testing.T, count int) (addrs []string) {
	for range count {
		l, err := net.Listen("tcp", elsewhere())
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, l.Addr().String())
		l.Close()
	}
	return addrs
}

func founding(t *testing.T, name string, founders []string, i int, urls ...string) config.Config {
	c := fleetConfig(name, nil, urls...)
	c.DataDir, c.Founders, c.Gossip = t.TempDir(), founders, founders[i]
	return c
}

func startAgreeing(t *testing.T, urls ...string) []*Node {
	t.Helper()
	return startAgreeingWith(t, func(*config.Config) {}, urls...)
}

func startAgreeingWith(t *testing.T, adjust func(*config.Config), urls ...string) []*Node {
	t.Helper()
	return startAgreeingWithin(t, patientChange, adjust, urls...)
}

func startAgreeingWithin(t *testing.T, change time.Duration, adjust func(*config.Config), urls ...string) []*Node {
	t.Helper()
	var nodes []*Node
	founders := founderAddrs(t, 3)
	for i, name := range []string{"one", "two", "three"} {
		cfg := founding(t, name, founders, i, urls...)
		cfg.WarmDeadline = 2 * time.Second
		adjust(&cfg)
		nodes = append(nodes, startNodeWithin(t, cfg, change))
	}
	awaitAgreement(t, nodes...)
	return nodes
}

func awaitAgreement(t *testing.T, nodes ...*Node) {
	t.Helper()
	eventually(t, "the nodes agree", func() bool {
		leaders, version := 0, nodes[0].backends.Roster().Version
		for _, n := range nodes {
			st, err := n.Raft()
			if err != nil || st.Leader == "" || n.backends.Roster().Version != version || version == 0 || !n.proposed.Load() {
				return false
			}
			if st.Role == "leader" {
				leaders++
			}
		}
		return leaders == 1
	})
}

func leader(t *testing.T, nodes []*Node) (led *Node, others []*Node) {
	t.Helper()
	eventually(t, "a leader", func() bool {
		led, others = nil, nil
		for _, n := range nodes {
			if st, err := n.Raft(); err == nil && st.Role == "leader" && led == nil {
				led = n
			} else {
				others = append(others, n)
			}
		}
		return led != nil
	})
	return led, others
}

func client(n *Node) *admin.Client { return admin.NewClient(n.AdminAddr()) }

func states(n *Node) map[string]string {
	out := make(map[string]string)
	for _, b := range n.BackendList().Backends {
		if b.Agreed {
			out[b.Name] = b.State
		}
	}
	return out
}

func inState(nodes []*Node, name, state string) bool {
	for _, n := range nodes {
		if states(n)[name] != state {
			return false
		}
	}
	return true
}

// TestOneTruth: a change at one node takes effect at all.
func TestOneTruth(t *testing.T) {
	t.Parallel()
	first, second := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	nodes := startAgreeing(t, first.URL)
	_, others := leader(t, nodes)
	ctx := t.Context()
	if _, err := client(others[0]).AddBackends(ctx, []admin.NewBackend{{Name: "second", URL: second.URL + "/v1"}}, false); err != nil {
		t.Fatal(err)
	}
	if !inState(others[:1], "second", "active") {
		t.Error("the node that was asked does not have it when it has answered")
	}
	eventually(t, "all have the new backend", func() bool { return inState(nodes, "second", "active") })
	want := nodes[0].backends.Roster().Named("second")
	for _, n := range nodes {
		u := n.backends.Roster().Named("second")
		if u.Generation != want.Generation || u.Source != raftstore.Admin {
			t.Errorf("%s: %+v, elsewhere %+v", n.Name(), u, want)
		}
	}
	eventually(t, "every node routes to it", func() bool {
		for i, n := range nodes {
			for range 4 {
				chat(t, n, chatBody("m", strings.Repeat(fmt.Sprintf("Something new, %d. ", second.requests.Load()*10+int64(i)), 40)))
			}
		}
		return second.requests.Load() > 20
	})
	release := second.holdAnswers()
	defer release()
	ended := make(chan int, 1)
	eventually(t, "a request waits at it", func() bool {
		go func() {
			resp, err := http.Post("http://"+nodes[0].Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", strings.Repeat("Held. ", int(second.requests.Load())+60))))
			if err == nil {
				resp.Body.Close()
				ended <- resp.StatusCode
			}
		}()
		select {
		case <-second.entered:
			return true
		case <-ended: // it went to the other engine
			return false
		}
	})
	if _, err := client(nodes[1]).SetBackendState(ctx, []string{"second"}, "drain", "new disk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all drain it", func() bool { return inState(nodes, "second", "draining") })
	eventually(t, "all know what runs there", func() bool {
		for _, n := range nodes {
			for _, b := range n.BackendList().Backends {
				if b.Name == "second" && b.FleetActive != 1 {
					return false
				}
			}
		}
		return true
	})
	before := second.requests.Load()
	for i := range 30 {
		if status, _, _ := chat(t, nodes[i%3], chatBody("m", fmt.Sprintf("While it drains, %d", i))); status != 200 {
			t.Fatalf("request %d: %d", i, status)
		}
	}
	if got := second.requests.Load(); got != before {
		t.Errorf("%d requests begun on a draining backend", got-before)
	}
	release()
	if status := <-ended; status != 200 {
		t.Errorf("the request that ran ended with %d", status)
	}
	if _, err := client(nodes[2]).RemoveBackends(ctx, []string{"second"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all have forgotten it", func() bool { return inState(nodes, "second", "") })
	if status, _, _ := chat(t, nodes[0], chatBody("m", "after all")); status != 200 {
		t.Error(status)
	}
}

// TestLeaderStops: no request fails meanwhile, and writes soon work again.
func TestLeaderStops(t *testing.T) {
	t.Parallel()
	more := newFakeEngine(t, "m")
	nodes := startAgreeing(t, newFakeEngine(t, "m").URL)
	led, others := leader(t, nodes)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var traffic sync.WaitGroup
	var sent, failed atomic.Int64
	for _, n := range others {
		traffic.Go(func() {
			for ctx.Err() == nil {
				resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "on and on")))
				sent.Add(1)
				if err != nil || resp.StatusCode != 200 {
					failed.Add(1)
				}
				if err == nil {
					resp.Body.Close()
				}
			}
		})
	}
	stopNode(t, led)
	led2, _ := leader(t, others)
	eventually(t, "a write is taken again", func() bool {
		_, err := client(led2).AddBackends(t.Context(), []admin.NewBackend{{Name: "more", URL: more.URL}}, false)
		var refused *admin.Refusal
		return err == nil || errors.As(err, &refused) && refused.Status == http.StatusConflict // an earlier attempt did it
	})
	eventually(t, "both have it", func() bool { return inState(others, "more", "active") })
	cancel()
	traffic.Wait()
	if sent.Load() == 0 || failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), sent.Load())
	}
}

func TestTimeToHandOn(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	ctx, cancel := timeToHandOn(over)
	defer cancel()
	if _, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded {
		t.Errorf("%v, bounded: %v", ctx.Err(), bounded)
	}
}

// TestMajorityLost: the last node routes on and refuses changes with the reason.
func TestMajorityLost(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	nodes := startAgreeingWithin(t, 0, func(*config.Config) {}, e.URL)
	last := nodes[2]
	kill(t, nodes[0])
	kill(t, nodes[1])
	began := time.Now()
	_, err := client(last).Forced().SetBackendState(t.Context(), []string{last.cfg.Backends[0].Name}, "drain", "")
	took := time.Since(began)
	var refused *admin.Refusal
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable && refused.Status != http.StatusGatewayTimeout || refused.Remedy == "" {
		t.Fatalf("%v", err)
	}
	t.Logf("refused after %v: %v", took.Round(time.Millisecond), err) // at most 2 s on an idle machine
	if took > 20*time.Second {
		t.Errorf("refused only after %v", took)
	}
	eventually(t, "the reason names who is missing", func() bool {
		_, err := client(last).Forced().SetBackendState(t.Context(), []string{last.cfg.Backends[0].Name}, "drain", "")
		return errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable && strings.Contains(refused.Reason, "one (") && strings.Contains(refused.Reason, "two (")
	})
	for i := range 20 {
		if status, _, _ := chat(t, last, chatBody("m", fmt.Sprintf("without a majority, %d", i))); status != 200 {
			t.Fatalf("request %d: %d", i, status)
		}
	}
	if l := last.BackendList().Backends; len(l) != 1 || !l[0].Agreed {
		t.Errorf("%+v", l)
	}
}

func TestRestartKeepsTheAgreement(t *testing.T) {
	t.Parallel()
	a, b := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	cfg := testConfig(a.URL)
	cfg.DataDir, cfg.Secret = t.TempDir(), "a secret that is kept"
	n := startNode(t, cfg)
	eventually(t, "an agreement", func() bool { return n.backends.Roster().Version > 0 })
	if _, err := client(n).AddBackends(t.Context(), []admin.NewBackend{{Name: "b", URL: b.URL}}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := client(n).ApplyRules(t.Context(), "rules:\n  - {strategy: random}\n", nil, false); err != nil {
		t.Fatal(err)
	}
	before := n.BackendList().Backends
	stopNode(t, n)
	again := startNode(t, cfg)
	var after []admin.BackendStatus
	eventually(t, "what was agreed on is back", func() bool {
		after = again.BackendList().Backends
		return len(after) == len(before) && len(again.Rules().Rules) == 1
	})
	if !slices.EqualFunc(before, after, func(x, y admin.BackendStatus) bool {
		return x.Name == y.Name && x.Generation == y.Generation && x.Version == y.Version && y.Agreed
	}) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if r := again.Rules(); r.Source != "fleet" || len(r.Rules) != 1 || r.Rules[0].Strategy != "random" {
		t.Errorf("%+v", r)
	}
}

func TestServesBeforeThereIsAnAgreement(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	cfg := founding(t, "one", founderAddrs(t, 3), 0, e.URL)
	cfg.WarmDeadline = 100 * time.Millisecond
	n := startNodeWithin(t, cfg, 0)
	if status, _, _ := chat(t, n, chatBody("m", "hello")); status != 200 {
		t.Error(status)
	}
	if l := n.BackendList().Backends; len(l) != 1 || l[0].Agreed {
		t.Errorf("%+v", l)
	}
	eventually(t, "it says what it waits for", func() bool {
		st, err := n.Raft()
		return err == nil && st.Waiting != ""
	})
	_, err := client(n).Forced().SetBackendState(t.Context(), []string{n.cfg.Backends[0].Name}, "drain", "")
	var refused *admin.Refusal
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
		t.Error(err)
	}
}

// TestOwnListThatTheFleetRefuses: a node serves its refused list while the fleet has none.
func TestOwnListThatTheFleetRefuses(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	cfg := testConfig(e.URL)
	cfg.DataDir, cfg.Secret = t.TempDir(), "a secret that is kept"
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.cfg.Backends[0].Models = []string{strings.Repeat("m", raftstore.MaxNameBytes+1)} // as if the leader's release were stricter
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	var done *admin.Changed
	eventually(t, "a state without backends", func() bool {
		done, err = client(n).SwitchPrefixes(t.Context(), false)
		return err == nil
	})
	if s := n.store.Load().State(); done.Version == 0 || s.Version < done.Version || len(s.Backends) != 0 {
		t.Fatalf("%+v %+v", done, s)
	}
	if status, _, _ := chat(t, n, chatBody("m", "hello")); status != 200 || len(n.BackendList().Backends) != 1 {
		t.Errorf("%d, %+v", status, n.BackendList().Backends)
	}
}

func TestDataDirThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	founders := founderAddrs(t, 3)
	used := founding(t, "one", founders, 0)
	used.WarmDeadline = 100 * time.Millisecond
	startNodeWithin(t, used, 0)
	for dir, want := range map[string]string{file: "not a directory", used.DataDir: "in use by another process"} {
		cfg := founding(t, "two", founders, 1)
		cfg.DataDir = dir
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err = n.Start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "data_dir: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestRecovery follows docs/operate.md.
func TestRecovery(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	nodes := startAgreeing(t, e.URL)
	last := nodes[2]
	if _, err := client(nodes[0]).AddBackends(t.Context(), []admin.NewBackend{{Name: "kept", URL: e.alias()}}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last one has it", func() bool { return inState(nodes[2:], "kept", "active") })
	st, err := last.Raft()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		kill(t, n)
	}
	if err := raftstore.Recover(last.cfg.DataDir, []raftstore.Server{{ID: "another", Addr: last.GossipAddr(), Voter: true}}); err == nil || !strings.Contains(err.Error(), st.ID) {
		t.Errorf("recovered for a group that this node is not in: %v", err)
	}
	if err := raftstore.Recover(last.cfg.DataDir, []raftstore.Server{{ID: st.ID, Addr: last.GossipAddr(), Voter: true}}); err != nil {
		t.Fatal(err)
	}
	cfg := last.cfg
	cfg.Gossip = last.GossipAddr()
	again := startNode(t, cfg)
	eventually(t, "a change is taken", func() bool {
		_, err := client(again).Forced().SetBackendState(t.Context(), []string{"kept"}, "drain", "after the loss")
		return err == nil
	})
	if got := states(again); got["kept"] != "draining" || got[last.cfg.Backends[0].Name] != "active" {
		t.Errorf("%v", got)
	}
}

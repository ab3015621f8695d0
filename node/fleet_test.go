package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
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

	"github.com/rs/zerolog"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

func fleetConfig(name string, join []string, urls ...string) config.Config {
	c := testConfig(urls...)
	c.NodeName, c.Gossip, c.Join = name, "127.0.0.1:0", join
	c.Secret = "the secret of a fleet that is a test"
	c.WarmDeadline = time.Minute // a busy machine must not make nodes start without peers
	return c
}

// elsewhere returns a loopback host of its own, where a released port stays free.
func elsewhere() string {
	n := elsewhereCalls.Add(1)
	return fmt.Sprintf("127.%d.%d.%d:0", 64+os.Getpid()%64, n/250%250+1, n%250+1)
}

var elsewhereCalls atomic.Int64

func startFleet(t *testing.T, size int, urls ...string) []*Node {
	t.Helper()
	var nodes []*Node
	var join []string
	for _, name := range []string{"one", "two", "three"}[:size] {
		n := startNode(t, fleetConfig(name, join, urls...))
		nodes = append(nodes, n)
		join = []string{nodes[0].GossipAddr()}
	}
	awaitFleet(t, nodes...)
	return nodes
}

func awaitFleet(t *testing.T, nodes ...*Node) {
	t.Helper()
	eventually(t, "every node is ready and hears every other", func() bool {
		for _, n := range nodes {
			connected := 0
			for _, p := range n.NodeList().Nodes {
				if p.Connected && p.State == "alive" {
					connected++
				}
			}
			if !n.Ready() || connected < len(nodes)-1 {
				return false
			}
		}
		return true
	})
}

// awaitCount waits for the count that gossip updates once a second.
func awaitCount(t *testing.T, nodes ...*Node) {
	t.Helper()
	eventually(t, "every node counts all of them", func() bool {
		return !slices.ContainsFunc(nodes, func(n *Node) bool { return int(n.knowledge.nodes.Load()) != len(nodes) })
	})
}

type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// kill stops a node without a leave message.
func kill(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.gossip.Load().Members().Stop(ctx); err != nil {
		t.Error(err)
	}
	cut, now := context.WithCancel(ctx)
	now()
	_ = n.Stop(cut)
	<-n.stopped
	n.stopErr = nil // leaving failed, which startNode's cleanup must ignore
}

// stateOf is alive, failed, left, or "" if unknown.
func stateOf(n *Node, name string) string {
	for _, p := range n.NodeList().Nodes {
		if p.Name == name {
			return p.State
		}
	}
	return ""
}

// activeAt counts all nodes' requests at the engine.
func activeAt(t *testing.T, n *Node) int64 {
	t.Helper()
	r, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(chatBody("m", "anything")))
	if err != nil {
		t.Fatal(err)
	}
	var active int64
	for _, c := range r.Candidates {
		active += c.Active
	}
	return active
}

func TestAloneNeverGossips(t *testing.T) {
	leakCheck(t)
	n := startNode(t, testConfig("http://127.0.0.1:1"))
	if n.knowledge != nil || n.gossip.Load() != nil || n.GossipAddr() != "" || !n.Ready() {
		t.Errorf("%v %v %q %v", n.knowledge, n.gossip.Load(), n.GossipAddr(), n.Ready())
	}
	if list := n.NodeList(); len(list.Nodes) != 1 || !list.Nodes[0].Self || len(list.Seeds) != 0 {
		t.Errorf("%+v", list)
	}
	if st := n.Status(); st.Fleet != nil {
		t.Errorf("%+v", st.Fleet)
	}
	for path, want := range map[string]int{"/nodes": 200, "/gossip": 404, "/keys": 404} {
		if status, _ := get(t, "http://"+n.AdminAddr()+path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	for series := range scrape(t, n) {
		if strings.Contains(series, "gossip") || strings.Contains(series, "peer") {
			t.Errorf("a node alone exports %s", series)
		}
	}
}

func TestConversationAcrossNodes(t *testing.T) {
	t.Parallel()
	nodes := startFleet(t, 3, startEngine(t), startEngine(t), startEngine(t), startEngine(t))
	awaitCount(t, nodes...)
	for c := range 4 {
		talk := []message{{"user", fmt.Sprintf("Conversation %d. ", c) + strings.Repeat(fmt.Sprintf("About subject %d, at length. ", c), 150)}}
		first, reply, _, _ := turn(t, nodes[c%3], false, talk)
		for i := 1; i < 4; i++ {
			talk = append(talk, message{"assistant", reply}, message{"user", fmt.Sprintf("And number %d?", i)})
			n := nodes[(c+i)%3]
			body, err := json.Marshal(map[string]any{"model": "m", "messages": talk, "max_tokens": 16})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the news of the last turn", func() bool {
				r, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, body)
				return err == nil && r.Rung == "cache" && r.Backend == first && r.MatchedBlocks >= r.Blocks*8/10
			})
			resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				Choices []struct{ Message message }
				Usage   struct {
					Prompt  int `json:"prompt_tokens"`
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			err = json.NewDecoder(resp.Body).Decode(&answer)
			resp.Body.Close()
			if err != nil || len(answer.Choices) == 0 {
				t.Fatalf("%d %v", resp.StatusCode, err)
			}
			route, backend := resp.Header.Get("x-grapevine-route"), resp.Header.Get("x-grapevine-backend")
			if !strings.HasPrefix(route, "cache;") || backend != first || resp.Header.Get("x-grapevine-node") != n.Name() {
				t.Errorf("conversation %d, turn %d: %s by %s at %s, the first was at %s", c, i+1, backend, route, resp.Header.Get("x-grapevine-node"), first)
			}
			if u := answer.Usage; u.Details.Cached < u.Prompt*7/10 {
				t.Errorf("conversation %d, turn %d: the engine had %d of %d tokens cached", c, i+1, u.Details.Cached, u.Prompt)
			}
			reply = answer.Choices[0].Message.Content
		}
	}
	for _, n := range nodes {
		if st := n.Status().Fleet; st == nil || st.Nodes != 3 || st.WarmFraction != 1 {
			t.Errorf("%s: %+v", n.Name(), st)
		}
	}
}

func TestLoadIsTheFleets(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	release := e.holdAnswers()
	defer release()
	nodes := startFleet(t, 3, e.URL)
	ended := make(chan struct{})
	const each = 2
	for _, n := range nodes {
		for range each {
			go func() {
				defer func() { ended <- struct{}{} }()
				resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "slow")))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-e.entered
		}
	}
	for _, n := range nodes {
		eventually(t, "the load of all three", func() bool { return activeAt(t, n) == 3*each })
	}
	kill(t, nodes[2])
	for _, n := range nodes[:2] {
		eventually(t, "the dead node's load is gone", func() bool { return stateOf(n, "three") == "failed" && activeAt(t, n) == 2*each })
	}
	for _, n := range nodes[:2] {
		series := scrape(t, n)
		for name, want := range map[string]float64{`grapevine_members{state="failed"}`: 1, `grapevine_peer_connected{peer="three"}`: 0} {
			if got, ok := series[name]; !ok || got != want {
				t.Errorf("%s: %s: %v (%v), want %v", n.Name(), name, got, ok, want)
			}
		}
		if lag, ok := series[`grapevine_peer_lag_seconds{peer="three"}`]; ok {
			t.Errorf("%s: the news of a dead node is %v s old, it says", n.Name(), lag)
		}
	}
	release()
	for range 3 * each {
		<-ended
	}
	for _, n := range nodes[:2] {
		eventually(t, "nobody has anything to do", func() bool { return activeAt(t, n) == 0 })
	}
}

func facts(n *Node) (count, xor uint64) {
	for _, s := range n.tree.FactDigests(now(), n.backends.Numbers()) {
		count, xor = count+s.Count, xor^s.XOR
	}
	return count, xor
}

func TestRestartedNodeIsWarmBeforeItIsReady(t *testing.T) {
	t.Parallel()
	urls := []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}
	one := startNode(t, fleetConfig("one", nil, urls...))
	cfg := fleetConfig("two", []string{one.GossipAddr()}, urls...)
	cfg.Gossip = elsewhere()
	two := startNode(t, cfg)
	awaitFleet(t, one, two)
	const placements, blocks = 3000, 16 // all anchors: six pages
	for seed := range placements {
		one.tree.Record(one.backends.Roster().List[seed%2].ID, chain(seed, blocks), now(), nil)
	}
	eventually(t, "the second node has the facts live", func() bool {
		have, _ := facts(two)
		return have == placements*blocks
	})
	kill(t, two)
	cfg.Gossip = two.GossipAddr()
	cfg.WarmDeadline = time.Minute // a busy machine could exceed the default
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, again) })
	var seen []string
	again.ready.announce = func(ready bool) {
		if ready {
			have, _ := facts(again)
			want, _ := facts(one)
			if float64(have) < 0.99*float64(want) {
				seen = append(seen, fmt.Sprintf("ready with %d of %d facts, %v warm", have, want, again.gossip.Load().WarmFraction()))
			}
		}
		again.proxy.Ready(ready)
	}
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitFleet(t, one, again)
	if len(seen) > 0 {
		t.Error(seen)
	}
	if st := again.Status(); !st.Ready || st.NotReady != "" || st.Fleet.WarmFraction != 1 {
		t.Errorf("%+v", st)
	}
}

func TestNotReadyWithAReason(t *testing.T) {
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	percent := 17
	n.ready.wait(func() string { return fmt.Sprintf("warming up: %d %%", percent) })
	ask := func() (bool, string) { return n.ready.get() }
	if ready, why := ask(); ready || why != "warming up: 17 %" {
		t.Error(ready, why)
	}
	n.ready.set()
	n.ready.wait(because("too late"))
	if ready, why := ask(); !ready || why != "" {
		t.Error(ready, why)
	}
	n.ready.drain("draining")
	if n.ready.set() {
		t.Error("a node that drains became ready")
	}
	if ready, why := ask(); ready || why != "draining" {
		t.Error(ready, why)
	}
}

func TestRefusedStartFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keyFile := func(name string) string {
		text, _ := admin.NewGossipKey()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := fleetConfig("one", nil)
	first.GossipKeyFile = keyFile("right")
	one := startNode(t, first)
	for name, tc := range map[string]struct {
		change func(*config.Config)
		want   string
	}{
		"secret":  {func(c *config.Config) { c.Secret = "another secret than the fleet's" }, "hashes prompts with another secret"},
		"blocks":  {func(c *config.Config) { c.BlockBytes = 1024 }, "blocks of 512 bytes, this node into 1024"},
		"cluster": {func(c *config.Config) { c.Cluster = "other" }, `another cluster ("grapevine" there, "other" here)`},
		"key":     {func(c *config.Config) { c.GossipKeyFile = keyFile("wrong") }, "has another gossip key"},
		"name":    {func(c *config.Config) { c.NodeName = "one" }, `two nodes are named "one"`},
	} {
		cfg := fleetConfig("two", []string{one.GossipAddr()})
		cfg.GossipKeyFile = first.GossipKeyFile
		tc.change(&cfg)
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n.nameWait = time.Hour // only the taken name is waited for
		if name == "name" {
			n.nameWait = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err = n.Start(ctx)
		cancel()
		var mismatch *member.MismatchError
		if !errors.Is(err, ErrRefused) || !errors.As(err, &mismatch) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), one.GossipAddr()) {
			t.Errorf("%s: %v", name, err)
		}
		if n.Ready() {
			t.Errorf("%s: ready", name)
		}
		if c, err := net.DialTimeout("tcp", n.Addr(), time.Second); err == nil {
			c.Close()
			t.Errorf("%s: the refused node serves", name)
		}
		stopNode(t, n)
	}
	if series := scrape(t, one); series["grapevine_gossip_refused_total"] < 4 || one.Status().Fleet.Refused < 4 || len(one.NodeList().Refusals) == 0 {
		t.Errorf("the first node counts %v refusals, and lists %d", series["grapevine_gossip_refused_total"], len(one.NodeList().Refusals))
	}
	if !one.Ready() || one.knowledge.nodes.Load() != 1 {
		t.Errorf("the first node counts %d", one.knowledge.nodes.Load())
	}
}

func TestUnreachableSeedsAreTriedAgain(t *testing.T) {
	t.Parallel()
	reserved, err := net.Listen("tcp", elsewhere())
	if err != nil {
		t.Fatal(err)
	}
	later := reserved.Addr().String()
	reserved.Close()
	var log lockedLog
	cfg := fleetConfig("one", []string{later})
	cfg.Log = zerolog.New(&log)
	one := startNode(t, cfg)
	eventually(t, "the first node is ready", one.Ready)
	if list := one.NodeList(); len(list.Seeds) != 1 || list.Seeds[0].Error == "" {
		t.Errorf("%+v", list.Seeds)
	}
	if text := log.String(); !strings.Contains(text, "no other node reached yet") || !strings.Contains(text, later) {
		t.Errorf("the log does not say that %s is not reached:\n%s", later, text)
	}
	second := fleetConfig("two", []string{one.GossipAddr()})
	second.Gossip = later
	awaitFleet(t, one, startNode(t, second))
}

func TestFleetIsExported(t *testing.T) {
	t.Parallel()
	nodes := startFleet(t, 2, startEngine(t), startEngine(t))
	turn(t, nodes[0], false, []message{{"user", strings.Repeat(longText, 100)}})
	eventually(t, "the second node has merged the news", func() bool {
		return scrape(t, nodes[1])["grapevine_gossip_changed_records_total"] > 0
	})
	series := scrape(t, nodes[1])
	for name, want := range map[string]float64{
		`grapevine_members{state="alive"}`: 2, `grapevine_members{state="failed"}`: 0, `grapevine_peer_connected{peer="one"}`: 1,
		`grapevine_gossip_seeds{outcome="joined"}`: 1, `grapevine_warm_ratio`: 1, `grapevine_gossip_malformed_total`: 0,
		`grapevine_gossip_violations_total`: 0, `grapevine_gossip_held_back_total`: 0, `grapevine_gossip_slow_streams_total`: 0,
		`grapevine_gossip_dropped_records_total{kind="unknown"}`: 0, `grapevine_gossip_dropped_records_total{kind="late"}`: 0,
	} {
		if got, ok := series[name]; !ok || got != want {
			t.Errorf("%s: %v (%v), want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{`grapevine_peer_lag_seconds{peer="one"}`, `grapevine_peer_received_bytes_total{peer="one"}`,
		`grapevine_gossip_bytes_total{direction="received",frame="batch"}`, `grapevine_gossip_applied_records_total`} {
		if series[name] <= 0 {
			t.Errorf("%s: %v", name, series[name])
		}
	}
	if offset, ok := series[`grapevine_peer_clock_offset_seconds{peer="one"}`]; !ok || math.Abs(offset) > 60 {
		t.Errorf("two nodes of one machine are %v s apart (%v)", offset, ok)
	}
	if posted := scrape(t, nodes[0])[`grapevine_gossip_news_total{kind="add"}`]; posted == 0 {
		t.Error("the first node has posted nothing")
	}
	sent, changed := scrape(t, nodes[0])["grapevine_gossip_sent_records_total"], series["grapevine_gossip_changed_records_total"]
	if sent < changed {
		t.Errorf("%v records sent, %v taken", sent, changed)
	}

	client := admin.NewClient(nodes[1].AdminAddr())
	var list *admin.NodeList
	var err error
	eventually(t, "the first node is connected", func() bool {
		list, err = client.Nodes(t.Context())
		return err == nil && len(list.Nodes) == 2 && list.Nodes[1].Connected && list.Nodes[1].State == "alive"
	})
	if !list.Nodes[0].Self || list.Nodes[1].Name != "one" {
		t.Fatalf("%+v", list)
	}
	if p := list.Nodes[1]; p.Data != nodes[0].Addr() || p.Admin != nodes[0].AdminAddr() || p.Gossip != nodes[0].GossipAddr() {
		t.Errorf("%+v", p)
	}
	st, err := client.Gossip(t.Context())
	if err != nil || st.Node != "two" || st.Peers["one"].News == 0 || st.Stats.AppliedNews == 0 {
		t.Errorf("%+v %v", st, err)
	}
	if st.Facts != nil {
		t.Error("facts were counted without being asked for")
	}
	nodes[1].knowledge.PeerState("one", []byte("nonsense"))
	if got := scrape(t, nodes[1])["grapevine_gossip_malformed_total"]; got != 1 {
		t.Errorf("%v malformed, want the state", got)
	}
	eventually(t, "both trees hold the same", func() bool {
		count, xor := facts(nodes[0])
		_, answer := get(t, "http://"+nodes[1].AdminAddr()+"/gossip?facts=1")
		return count > 0 && strings.Contains(answer, fmt.Sprintf(`"facts":{"count":%d,"xor":"%016x"`, count, xor))
	})
}

func TestSeedsAreThoseOfJoin(t *testing.T) {
	got := countSeeds([]string{"a:1", "dns:b"}, []member.SeedError{
		{Seed: "a:1", Addr: "10.0.0.1:1"},
		{Seed: "dns:b", Addr: "10.0.0.2:1", Err: io.EOF}, {Seed: "dns:b", Addr: "10.0.0.3:1", Err: &member.MismatchError{Field: member.FieldSecret}},
		{Seed: "failed member c", Addr: "10.0.0.4:1", Err: io.EOF}, {Seed: "stream from d", Addr: "10.0.0.5:1"},
	})
	if want := map[string]int{"joined": 1, "unreachable": 1, "refused": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := countSeeds(nil, nil); len(got) != 3 {
		t.Errorf("series that come and go: %v", got)
	}
}

func TestDrainKeepsTheLoadKnown(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	release := e.holdAnswers()
	defer release()
	nodes := startFleet(t, 2, e.URL)
	awaitCount(t, nodes...)
	one, two := nodes[0], nodes[1]
	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+two.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "slow")))
		if err != nil {
			answered <- -1
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	<-e.entered
	eventually(t, "the other node's request is known", func() bool { return activeAt(t, one) == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- two.Stop(context.Background()) }()
	eventually(t, "the data port is closed", func() bool {
		c, err := net.DialTimeout("tcp", two.Addr(), time.Second)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if status, text := get(t, "http://"+two.AdminAddr()+"/readyz"); status != 503 || !strings.Contains(text, "stopping") {
		t.Errorf("/readyz: %d %s", status, text)
	}
	if state, active := stateOf(one, "two"), activeAt(t, one); state != "alive" || active != 1 {
		t.Errorf("while it drains the node is %s and has %d requests", state, active)
	}
	release()
	if status := <-answered; status != 200 {
		t.Errorf("the running request ended with %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	eventually(t, "it has left", func() bool {
		return stateOf(one, "two") == "left" && activeAt(t, one) == 0 && one.knowledge.nodes.Load() == 1
	})
}

// Of a fleet of more than three nodes, three show the series of an engine.
func TestMetricsOfProbedBackends(t *testing.T) {
	leakCheck(t)
	nodes := startFleet(t, 3, "http://127.0.0.3:1", "http://127.0.0.3:2", "http://127.0.0.3:3")
	for _, name := range []string{"four", "five"} {
		nodes = append(nodes, startNode(t, fleetConfig(name, []string{nodes[0].GossipAddr()}, "http://127.0.0.3:1", "http://127.0.0.3:2", "http://127.0.0.3:3")))
	}
	awaitFleet(t, nodes...)
	eventually(t, "three nodes show each engine", func() bool {
		shown := make(map[string]int)
		for _, n := range nodes {
			for name := range scrape(t, n) {
				if strings.Contains(name, `{backend="127.0.0.3:`) {
					shown[name]++
				}
			}
		}
		for name, count := range shown {
			if count != 3 {
				t.Logf("%s: %d nodes", name, count)
				return false
			}
		}
		return len(shown) > 3*20
	})
}

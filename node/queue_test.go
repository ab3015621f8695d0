package node

import (
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/history"
)

// A node with queue_requests lets requests wait, refuses what has no place, and shows both.
func TestQueueAtNode(t *testing.T) {
	begun, answer := make(chan bool, 8), make(chan bool, 8)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			http.NotFound(w, r)
			return
		}
		begun <- true
		<-answer
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
	}))
	defer engine.Close()
	cfg := testConfig(engine.URL)
	cfg.QueueRequests, cfg.QueueWaiting = 1, 1
	n := startNode(t, cfg)
	statuses := make(chan int, 3)
	send := func() {
		body := strings.Replace(chatBody("m", "hello"), "{", `{"stream":true,`, 1)
		resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			statuses <- 0
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		statuses <- resp.StatusCode
	}
	go send()
	<-begun
	go send()
	eventually(t, "one request waits", func() bool { return scrape(t, n)[`grapevine_queue_requests{priority="interactive"}`] == 1 })
	if size := scrape(t, n)[`grapevine_queue_bytes{priority="interactive"}`]; size <= 0 {
		t.Errorf("%v bytes wait", size)
	}
	q := n.Queue()
	if top := q.Priorities[0]; !q.On || q.Requests != 1 || top.Priority != "interactive" || top.Requests != 1 || top.Bytes <= 0 || top.Tokens <= 0 || q.Bytes != top.Bytes || q.MaxRequests != 1 {
		t.Errorf("one request waits, and the queue is %+v", q)
	}
	if len(q.Clients) != 1 || q.Clients[0].Client != "" || q.Clients[0].QueueWaiting.Requests != 1 {
		t.Errorf("one request waits, and the clients are %+v", q.Clients)
	}
	send()
	if got := n.Queue().Priorities[0].RefusedFull; got != 1 {
		t.Errorf("%d requests were refused, want 1", got)
	}
	if status := <-statuses; status != http.StatusTooManyRequests {
		t.Errorf("status %d without a place, want 429", status)
	}
	answer <- true
	answer <- true
	for range 2 {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
	}
	eventually(t, "the wait is counted", func() bool {
		m := scrape(t, n)
		return m[`grapevine_queue_wait_seconds_count{model="other",priority="interactive"}`] == 1 && m[`grapevine_queue_refused_total{priority="interactive",reason="full"}`] == 1 &&
			m[`grapevine_queue_requests{priority="interactive"}`] == 0
	})
}

func TestNoQueueAtNode(t *testing.T) {
	n := startNode(t, testConfig(newFakeEngine(t, "m").URL))
	if q := n.Queue(); q.On || q.Requests != 0 || q.Clients == nil || q.Priorities == nil {
		t.Errorf("without queue_requests: %+v", q)
	}
}

// A node at which nothing waits shows what waits at another, and which node does not report its queue.
func TestAnyNodeShowsTheQueueOfTheFleet(t *testing.T) {
	t.Parallel()
	begun, answer := make(chan bool, 8), make(chan bool, 8)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			http.NotFound(w, r)
			return
		}
		begun <- true
		<-answer
		_, _ = io.WriteString(w, `{"choices":[]}`)
	}))
	defer engine.Close()
	start := func(name string, queue int, join ...string) *Node {
		cfg := fleetConfig(name, join, engine.URL)
		cfg.QueueRequests, cfg.QueueInFlight = queue, 1
		return startNode(t, cfg)
	}
	one := start("one", 5)
	two, three := start("two", 1, one.GossipAddr()), start("three", 0, one.GossipAddr())
	awaitFleet(t, one, two, three)
	done := make(chan bool, 2)
	send := func() {
		status, _, body := chat(t, two, chatBody("m", "hello"))
		if status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
		done <- true
	}
	go send()
	<-begun
	go send()
	eventually(t, "the other node's request", func() bool { return one.Queue().Requests == 1 })
	if status, _, _ := chat(t, two, chatBody("m", "hello")); status != http.StatusTooManyRequests {
		t.Errorf("status %d without a place, want 429", status)
	}
	eventually(t, "the other node's refusal", func() bool { return one.Queue().Priorities[0].RefusedFull == 1 })
	q := one.Queue()
	if !q.On || q.MaxRequests != 6 || q.Bytes <= 0 || q.Tokens <= 0 || q.Priorities[0].Requests != 1 || q.Refused != 1 {
		t.Errorf("sums %+v", q)
	}
	if len(q.Clients) != 1 || q.Clients[0].Client != "" || q.Clients[0].Requests != 1 || q.Clients[0].Bytes != q.Bytes {
		t.Errorf("clients %+v", q.Clients)
	}
	r := q.Routers
	if len(r) != 3 || r[0].Node != "one" || r[1].Node != "three" || r[2].Node != "two" {
		t.Fatalf("routers %+v", r)
	}
	if r[0].Requests != 0 || !r[0].On || r[1].On || r[1].Missing != "" || r[2].Requests != 1 || r[2].MaxRequests != 1 || r[2].Refused != 1 {
		t.Errorf("routers %+v", r)
	}
	eventually(t, "a node without a queue shows it, too", func() bool { q := three.Queue(); return q.On && q.Requests == 1 && len(q.Priorities) == 3 })
	answer <- true
	answer <- true
	<-done
	<-done
	eventually(t, "the end of the waiting", func() bool { return one.Queue().Requests == 0 })
	kill(t, two)
	eventually(t, "a node is missing", func() bool { q := one.Queue(); return q.Routers[2].Missing == "has failed" && q.MaxRequests == 5 })
}

// Figures bring a queue to other nodes as it is, but for fractions of milliseconds and tokens.
func TestQueueInFigures(t *testing.T) {
	own := &admin.QueueStatus{
		QueueTotal: admin.QueueTotal{
			On: true, MaxRequests: 2048, MaxBytes: 1 << 36, TimeoutS: 30, DrainRate: 512000, BacklogS: 41.5, Refused: 28,
			QueueWaiting: admin.QueueWaiting{Requests: 12, Bytes: 1<<33 + 7, Tokens: 1e6 + 3, OldestS: 8.25},
		},
		Priorities: []admin.QueuePriority{
			{Priority: "interactive", QueueWaiting: admin.QueueWaiting{Requests: 1, Bytes: 7, Tokens: 3, OldestS: 0.25}, RefusedFull: 1, RefusedTimeout: 2, RefusedDeadline: 3},
			{Priority: "default", RefusedTimeout: 22},
			{Priority: "batch", QueueWaiting: admin.QueueWaiting{Requests: 11, Bytes: 1 << 33, Tokens: 1e6, OldestS: 8.25}},
		},
		Clients: []admin.QueueClient{
			{Client: "nightly", Priority: "batch", QueueWaiting: admin.QueueWaiting{Requests: 11, Bytes: 1 << 33, Tokens: 1e6, OldestS: 8.25}},
			{Client: "", Priority: "interactive", QueueWaiting: admin.QueueWaiting{Requests: 1, Bytes: 7, Tokens: 3, OldestS: 0.25}},
		},
		More: 4,
	}
	figures := make(map[uint32]uint64)
	for _, f := range appendQueue(nil, own) {
		if _, twice := figures[f.Key]; twice || f.Key < history.OtherKey || f.Key >= 1<<31 {
			t.Errorf("key %x", f.Key)
		}
		figures[f.Key] = uint64(f.High)<<32 | uint64(f.Low)
	}
	got := readQueue(figures, map[uint32]string{shortKey("nightly"): "nightly", shortKey(""): ""})
	slices.SortFunc(got.Clients, func(a, b admin.QueueClient) int { return cmp.Compare(b.Requests, a.Requests) })
	if !reflect.DeepEqual(got, own) {
		t.Errorf("%+v, want %+v", got, own)
	}
	if got := readQueue(figures, nil).Clients[0].Client; !strings.HasSuffix(got, "not a client of this router") {
		t.Errorf("an unknown client is %q", got)
	}
}

func TestQueueSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*config.Config)
		ok     bool
	}{
		"on":            {func(c *config.Config) { c.QueueRequests = 8 }, true},
		"no bound":      {func(c *config.Config) { c.QueueRequests, c.QueueTTFT, c.QueueWaiting = 8, 0, 0 }, false},
		"bodies":        {func(c *config.Config) { c.QueueBytes = c.MaxBody - 1 }, false},
		"body memory":   {func(c *config.Config) { c.MaxBodyMemory, c.QueueBytes = 4*c.MaxBody, 5*c.MaxBody }, false},
		"no time":       {func(c *config.Config) { c.QueueTimeout = 0 }, false},
		"negative":      {func(c *config.Config) { c.QueueInFlight = -1 }, false},
		"negative TTFT": {func(c *config.Config) { c.QueueTTFT = -1 }, false},
	} {
		cfg := config.Default()
		c.change(&cfg)
		n, err := New(cfg)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && n.cfg.QueueRequests != 8 {
			t.Errorf("%s: %d requests", name, n.cfg.QueueRequests)
		}
	}
}

// A reload begins and ends the queue; requests that wait when it ends keep their places.
func TestReloadOfTheQueue(t *testing.T) {
	begun, answer := make(chan bool, 8), make(chan bool, 8)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			http.NotFound(w, r)
			return
		}
		begun <- true
		<-answer
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
	}))
	defer engine.Close()
	defer close(answer) // lets the engine close if the test fails
	n := startNode(t, testConfig(engine.URL))
	statuses := make(chan int, 4)
	send := func() {
		status, _, _ := chat(t, n, strings.Replace(chatBody("m", "hello"), "{", `{"stream":true,`, 1))
		statuses <- status
	}
	reload := func(requests int) {
		t.Helper()
		next := *n.Running()
		next.QueueRequests, next.QueueWaiting = requests, 1
		if _, err := n.Reload(next); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() float64 { return scrape(t, n)[`grapevine_queue_requests{priority="interactive"}`] }
	go send()
	<-begun
	reload(1)
	go send()
	eventually(t, "one request waits", func() bool { return waiting() == 1 })
	reload(2)
	go send()
	eventually(t, "two requests wait", func() bool { return waiting() == 2 })
	reload(0)
	go send()
	<-begun // at once: there is no queue any more
	if n := waiting(); n != 2 {
		t.Errorf("%v requests wait after the queue has ended, want 2", n)
	}
	for range 4 {
		answer <- true
	}
	for range 4 {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
	}
}

// What waits at one node reaches the other. A node at which nothing waited sends nothing.
func TestClaimsReachPeers(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t, "m")
	release := e.holdAnswers()
	defer release()
	var nodes []*Node
	var join []string
	for _, name := range []string{"one", "two"} {
		cfg := fleetConfig(name, join, e.URL)
		cfg.QueueRequests, cfg.QueueInFlight = 8, 1
		nodes = append(nodes, startNode(t, cfg))
		join = []string{nodes[0].GossipAddr()}
	}
	awaitFleet(t, nodes...)
	ended := make(chan int, 3)
	send := func(n *Node) {
		resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "slow")))
		if err != nil {
			ended <- 0
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		ended <- resp.StatusCode
	}
	go send(nodes[0])
	<-e.entered
	go send(nodes[0])
	heard := func(n *Node) float64 {
		return scrape(t, n)[`grapevine_gossip_bytes_total{direction="received",frame="claims"}`]
	}
	eventually(t, "one request waits, and the other node hears of it", func() bool { return heard(nodes[1]) > 0 })
	if heard(nodes[0]) > 0 {
		t.Error("a node sends claims although nothing waits there")
	}
	release()
	for range 2 {
		if status := <-ended; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
	}
}

package node

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func testConfig(urls ...string) config.Config {
	c := config.Default()
	c.Listen, c.Admin, c.NodeName = "127.0.0.1:0", "127.0.0.1:0", "test"
	c.DrainGrace, c.DrainClose = 0, 0
	c.Log = zerolog.Nop()
	c.ResponseHeaders = "all"
	c.ProbePath = config.NoProbes
	for _, u := range urls {
		c.Backends = append(c.Backends, config.Backend{URL: u})
	}
	return c
}

// patientChange is the time limit for changes in tests: a busy machine may need more than 2 s.
const patientChange = 50 * time.Second

// patientRaft keeps leaders in office on a machine that stalls for half a second.
var patientRaft = raftstore.Timers{Heartbeat: 700 * time.Millisecond, Lease: 700 * time.Millisecond, Write: 20 * time.Second}

func startNode(t *testing.T, cfg config.Config) *Node {
	t.Helper()
	return startNodeWithin(t, cfg, patientChange)
}

func startNodeWithin(t *testing.T, cfg config.Config, change time.Duration) *Node {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.raftTimers = patientRaft
	n.raftTimers.Call = change
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNode(t, n) })
	return n
}

func stopNode(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))) // most tests wait for elections and probes
	}
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		if err := leaked(before); err != nil {
			fmt.Fprintln(os.Stderr, "left behind by some test:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leakCheck fails the test if it leaves a goroutine behind. Call it first, so that it runs after
// all other cleanups, and not in parallel tests.
func leakCheck(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := leaked(before); err != nil {
			t.Error(err)
		}
	})
}

func leaked(before goleak.Option) (err error) {
	http.DefaultClient.CloseIdleConnections()
	// memberlist's goroutines end up to a second after its shutdown.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		err = goleak.Find(before,
			// fasthttp starts one clock per process.
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
		if err == nil {
			return nil
		}
	}
	return err
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func chatBody(model, text string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)
}

func chat(t *testing.T, n *Node, body string) (int, string, string) {
	t.Helper()
	resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("x-grapevine-backend"), string(text)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestNewStartsNothing(t *testing.T) {
	leakCheck(t)
	n, err := New(testConfig("http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	if n.Addr() != "" || n.AdminAddr() != "" || n.Ready() {
		t.Fatalf("a node that was not started: %q %q %v", n.Addr(), n.AdminAddr(), n.Ready())
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"strategy":    func(c *config.Config) { c.Strategy = "fastest" },
		"secret_file": func(c *config.Config) { c.SecretFile = "/does/not/exist" },
		"tls_cert":    func(c *config.Config) { c.TLSCert, c.TLSKey = "/does/not/exist", "/does/not/exist" },
		"ca_file":     func(c *config.Config) { c.Backends = []config.Backend{{URL: "https://h", CAFile: "/does/not/exist"}} },
		"tree":        func(c *config.Config) { c.TreeBudget = 1 },
		"backends":    func(c *config.Config) { c.Backends = []config.Backend{{URL: "nonsense"}} },
	} {
		c := testConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStartServeStop(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	n := startNode(t, testConfig(e.URL))
	if status, _, text := chat(t, n, chatBody("m", "hello")); status != 200 || !strings.Contains(text, "yes") {
		t.Fatalf("%d %s", status, text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/status": 200, "/backends": 200, "/none": 404, "/debug/pprof/": 404} {
		if status, _ := get(t, "http://"+n.AdminAddr()+path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	stopNode(t, n)
	if n.Ready() {
		t.Error("ready after Stop")
	}
	for _, addr := range []string{n.Addr(), n.AdminAddr()} {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			t.Errorf("%s still accepts", addr)
		}
	}
}

func TestStartTwice(t *testing.T) {
	n := startNode(t, testConfig())
	if err := n.Start(t.Context()); !errors.Is(err, ErrStarted) {
		t.Fatal(err)
	}
}

func TestStopBeforeStart(t *testing.T) {
	leakCheck(t)
	n, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	stopNode(t, n)
	stopNode(t, n)
	if err := n.Start(t.Context()); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
}

func TestStopConcurrently(t *testing.T) {
	leakCheck(t)
	n := startNode(t, testConfig(newFakeEngine(t).URL))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { stopNode(t, n) })
	}
	wg.Wait()
}

func TestStopRacesStart(t *testing.T) {
	leakCheck(t)
	for range 20 {
		n, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := n.Start(context.Background()); err != nil && !errors.Is(err, ErrStopped) {
				t.Error(err)
			}
		})
		wg.Go(func() { stopNode(t, n) })
		wg.Wait()
		if n.Ready() {
			t.Fatal("ready after Stop")
		}
	}
}

func TestFailedStartUnwinds(t *testing.T) {
	leakCheck(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, which := range []string{"listen", "admin"} {
		cfg := testConfig("http://127.0.0.1:1")
		if which == "listen" {
			cfg.Listen = taken.Addr().String()
		} else {
			cfg.Admin = taken.Addr().String()
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), which) {
			t.Fatalf("%s: %v", which, err)
		}
		if addr := n.AdminAddr(); addr != "" {
			if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
				c.Close()
				t.Errorf("%s: the admin API outlived the failed start", which)
			}
		}
		stopNode(t, n)
	}
}

func TestTwoNodes(t *testing.T) {
	leakCheck(t)
	a, b := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	one, two := startNode(t, testConfig(a.URL)), startNode(t, testConfig(b.URL))
	for range 3 {
		chat(t, one, chatBody("m", "hello"))
	}
	chat(t, two, chatBody("m", "hello"))
	if a.requests.Load() != 3 || b.requests.Load() != 1 {
		t.Fatalf("%d and %d requests, want 3 and 1", a.requests.Load(), b.requests.Load())
	}
	for n, want := range map[*Node]string{one: " 3\n", two: " 1\n"} {
		eventually(t, "the metrics tell the nodes apart", func() bool {
			_, text := get(t, "http://"+n.AdminAddr()+"/metrics")
			return strings.Contains(text, `grapevine_requests_total{code="200",kind="chat"}`+want)
		})
	}
	stopNode(t, one)
	if status, _, _ := chat(t, two, chatBody("m", "still there?")); status != 200 {
		t.Fatal(status)
	}
}

// TestUnreachableBackends: a start waits for no engine, and dead engines cost no client an error.
func TestUnreachableBackends(t *testing.T) {
	leakCheck(t)
	const dead = "http://127.0.0.1:1"
	e := newFakeEngine(t, "m")
	began := time.Now()
	n := startNode(t, testConfig(dead, e.URL, "http://192.0.2.1:1")) // the last drops packets
	if took := time.Since(began); took > 2*time.Second {
		t.Fatalf("the start took %v", took)
	}
	stopBlackHole := n.cfg.ConnectTimeout
	if stopBlackHole > 2*time.Second {
		t.Fatal("this test would take long")
	}
	for i := range 6 {
		if status, _, text := chat(t, n, chatBody("m", fmt.Sprint("prompt ", i))); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
}

func TestDrain(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	release := e.holdAnswers()
	defer release()
	n := startNode(t, testConfig(e.URL))
	result := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "slow")))
		if err != nil {
			result <- -1
			return
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); !bytes.Contains(text, []byte("yes")) {
			result <- -2
			return
		}
		result <- resp.StatusCode
	}()
	<-e.entered

	n.Drain(t.Context(), time.Millisecond)
	if status, _ := get(t, "http://"+n.AdminAddr()+"/readyz"); status != 503 {
		t.Fatalf("/readyz while draining: %d", status)
	}
	if status, _ := get(t, "http://"+n.AdminAddr()+"/healthz"); status != 200 {
		t.Fatalf("/healthz while draining: %d", status)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(t.Context()) }()
	eventually(t, "new connections are refused", func() bool {
		c, err := net.DialTimeout("tcp", n.Addr(), time.Second)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("stopped (%v) with a request running", err)
	default:
	}
	if status, _ := get(t, "http://"+n.AdminAddr()+"/readyz"); status != 503 {
		t.Fatalf("/readyz while stopping: %d", status)
	}
	release()
	if status := <-result; status != 200 {
		t.Fatalf("the running request ended with %d", status)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

func TestForcedStop(t *testing.T) {
	leakCheck(t)
	e := newFakeEngine(t, "m")
	release := e.holdAnswers()
	defer release()
	n := startNode(t, testConfig(e.URL))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "slow")))
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-e.entered
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(ctx) }()
	cancel()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a forced stop returned %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Stop did not return")
	}
	<-ended
	n.stopErr = nil
}

func TestCleanupsUnwindInReverseAndPastFailures(t *testing.T) {
	var c cleanups
	var order []string
	fail := errors.New("broken")
	for _, name := range []string{"one", "two", "three"} {
		c.push(name, func(context.Context) error {
			order = append(order, name)
			if name == "two" {
				return fail
			}
			return nil
		})
	}
	err := c.unwind(t.Context())
	if got := strings.Join(order, " "); got != "three two one" {
		t.Errorf("order: %s", got)
	}
	if !errors.Is(err, fail) || !strings.Contains(err.Error(), "stop two: broken") {
		t.Errorf("error: %v", err)
	}
	if err := c.unwind(t.Context()); err != nil || len(order) != 3 {
		t.Errorf("a second unwind: %v, %v", err, order)
	}
}

package node

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
)

func another(t *testing.T, c *config.Config, s config.Setting) {
	t.Helper()
	var v reflect.Value
	for i := range reflect.TypeFor[config.Config]().NumField() {
		if reflect.TypeFor[config.Config]().Field(i).Tag.Get("yaml") == s.Key {
			v = reflect.ValueOf(c).Elem().Field(i)
		}
	}
	switch s.Key {
	case "log_level":
		c.LogLevel = "error"
		return
	case "log_format":
		c.LogFormat = "console"
		return
	case "access_log":
		c.AccessLog = "errors"
		return
	case "strategy":
		c.Strategy = policy.Random
		return
	case "weights":
		c.Weights = map[string]float64{"load": 3}
		return
	case "probe_path":
		c.ProbePath = "/other"
		return
	case "backends":
		c.Backends = append(c.Backends, config.Backend{URL: "http://127.0.0.3:9", Name: "more", Weight: 1})
		return
	case "rules":
		c.Rules = append(c.Rules, config.Rule{Strategy: "random"})
		return
	case "otlp_endpoint":
		c.OTLPEndpoint = "http://127.0.0.1:10"
		return
	case "otlp_headers_file":
		c.OTLPHeadersFile = filepath.Join(t.TempDir(), "headers")
		if err := os.WriteFile(c.OTLPHeadersFile, []byte("A: b"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	case "trace_share":
		c.TraceShare = 0.5
		return
	case "response_headers":
		c.ResponseHeaders = "route"
		return
	case "pass_paths":
		c.PassPaths = []string{"/other"}
		return
	case "access_log_file":
		c.AccessLogFile = filepath.Join(t.TempDir(), "access.log")
		return
	case "max_body_memory":
		c.MaxBodyMemory = 3 * c.MaxBody
		return
	case "max_body":
		c.MaxBody /= 2
		return
	case "max_connections":
		c.MaxConnections = 7
		return
	case "queue_bytes":
		c.QueueBytes = c.MaxBody
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + int64(time.Second))
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.ValueOf([]string{"x"}))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]float64{"x": 1}))
	default:
		t.Fatalf("%s: no other value of a %s", s.Key, v.Kind())
	}
}

// inForce tells where each setting that a reload applies has its effect. Settings that are read when they are needed are in Running.
var inForce = map[string]func(n *Node) any{
	"pass_paths":           func(n *Node) any { return n.proxy.Tuned().PassPaths },
	"allow_engine_control": func(n *Node) any { return n.proxy.Tuned().AllowEngineControl },
	"response_headers":     func(n *Node) any { return n.proxy.Tuned().ResponseHeaders },
	"max_body":             func(n *Node) any { return n.proxy.Tuned().MaxBody },
	"max_body_memory":      func(n *Node) any { return n.proxy.Tuned().MaxBodyMemory },
	"max_header":           func(n *Node) any { return n.proxy.Tuned().MaxHeader },
	"max_connections":      func(n *Node) any { return n.proxy.Tuned().MaxConns },
	"max_idle":             func(n *Node) any { return n.proxy.Tuned().MaxIdle },
	"max_attempts":         func(n *Node) any { return n.proxy.Tuned().MaxAttempts },

	"queue_requests":  func(n *Node) any { return n.proxy.Tuned().Queue.Limits.Requests },
	"queue_bytes":     func(n *Node) any { return n.proxy.Tuned().Queue.Limits.Bytes },
	"queue_timeout":   func(n *Node) any { return n.proxy.Tuned().Queue.Limits.Wait },
	"queue_ttft":      func(n *Node) any { return n.router.Tuned().Gate.TTFT },
	"queue_waiting":   func(n *Node) any { return n.router.Tuned().Gate.Waiting },
	"queue_in_flight": func(n *Node) any { return n.router.Tuned().Gate.InFlight },
	"slow_start":      func(n *Node) any { return n.router.Tuned().SlowStart },
	"zone_cost":       func(n *Node) any { return n.router.Tuned().ZoneCost },
	// TestReloadChangesRouting shows that requests follow them.
	"strategy":    func(n *Node) any { return n.router.Tuned().Strategy },
	"weights":     func(n *Node) any { return n.router.Tuned().Weights },
	"hash_blocks": func(n *Node) any { return n.router.Tuned().HashBlocks },
	"zone":        func(n *Node) any { return n.router.Tuned().Zone },
	// TestReloadChangesProbes shows that engines are probed by them.
	"probe_interval": func(n *Node) any { return n.health.Probing().Interval },
	"probe_timeout":  func(n *Node) any { return n.health.Probing().Timeout },
	"probe_path":     func(n *Node) any { return n.health.Probing().Path },

	"read_timeout":              func(n *Node) any { return n.proxy.Tuned().Timeouts.Read },
	"keep_alive":                func(n *Node) any { return n.proxy.Tuned().Timeouts.KeepAlive },
	"connect_timeout":           func(n *Node) any { return n.proxy.Tuned().Timeouts.Connect },
	"first_byte_timeout":        func(n *Node) any { return n.proxy.Tuned().Timeouts.FirstByte },
	"stream_first_byte_timeout": func(n *Node) any { return n.proxy.Tuned().Timeouts.StreamFirstByte },
	"idle_timeout":              func(n *Node) any { return n.proxy.Tuned().Timeouts.Idle },
	"header_hold":               func(n *Node) any { return n.proxy.Tuned().Timeouts.HeaderHold },
	"write_timeout":             func(n *Node) any { return n.proxy.Tuned().Timeouts.Write },
	"drain_close":               func(n *Node) any { return n.proxy.Tuned().Timeouts.DrainGrace },
	"drain_grace":               func(n *Node) any { return n.Running().DrainGrace },
	"drain_timeout":             func(n *Node) any { return n.Running().DrainTimeout },

	"log_level":       func(n *Node) any { return n.cfg.LogSwitch.Sample(zerolog.InfoLevel) },
	"log_format":      func(n *Node) any { return n.cfg.LogSwitch.Text() },
	"access_log":      func(n *Node) any { return n.access.Which() },
	"access_log_file": func(n *Node) any { return n.access.Path() },
	"gpu_hour_price":  func(n *Node) any { return n.accounts.Price() },
	"doctor_samples":  func(n *Node) any { return n.doctor.Rate() },
	// TestReloadChangesIntervals shows that engines are asked by them.
	"models_interval":  func(n *Node) any { return n.Running().ModelsInterval },
	"metrics_interval": func(n *Node) any { return n.Running().MetricsInterval },
	"loads_interval":   func(n *Node) any { return n.Running().LoadsInterval },

	"otlp_endpoint":     func(n *Node) any { return n.traces.Target() },
	"otlp_headers_file": func(n *Node) any { return n.traces.Target() },

	"trace_share": func(n *Node) any { return n.proxy.Tuned().TraceShare },
	"pprof":       func(n *Node) any { return n.Running().Pprof },
}

func TestReloadGoesByTheTable(t *testing.T) {
	for _, s := range config.Settings() {
		cfg := testConfig("http://127.0.0.3:1")
		cfg.QueueRequests, cfg.LogSwitch, cfg.OTLPEndpoint = 8, new(config.LogSwitch), "http://127.0.0.1:9"
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		value := inForce[s.Key]
		if (value != nil) != (s.Reload == config.ReloadValue) {
			t.Errorf("%s has reload %q: name its effect in inForce, or do not", s.Key, s.Reload)
			continue
		}
		var before any
		if value != nil {
			before = value(n)
		}
		next := *n.Running()
		another(t, &next, s)
		if keys := n.Running().Differing(next); !slices.Equal(keys, []string{s.Key}) {
			t.Fatalf("%s: the other value differs in %v", s.Key, keys)
		}
		change := admin.SettingChange{Key: s.Key, From: s.Text(n.Running()), To: s.Text(&next)}
		got, err := n.Reload(next)
		want := Reloaded{AtNextStart: []admin.SettingChange{change}}
		if s.Reload == config.ReloadValue {
			want = Reloaded{Applied: []admin.SettingChange{change}}
		}
		if err != nil || !reflect.DeepEqual(got, want) || change.From == change.To {
			t.Errorf("%s: %+v %v, want %+v", s.Key, got, err, want)
		}
		if value != nil && reflect.DeepEqual(value(n), before) {
			t.Errorf("%s is said to be applied, but %v is still in force", s.Key, before)
		}
		if st := n.Status().Reload; st == nil || len(st.Applied) != len(got.Applied) || len(st.AtNextStart) != len(got.AtNextStart) || st.Error != "" {
			t.Errorf("%s: status %+v", s.Key, st)
		}
		if still := n.Running().Differing(next); (len(still) == 0) != (s.Reload == config.ReloadValue) {
			t.Errorf("%s: still differing: %v", s.Key, still)
		}
	}
}

// TestReloadChangesIntervals: engines are asked for their models and metrics as often as the last reload says, and not at all where that is 0.
func TestReloadChangesIntervals(t *testing.T) {
	var asked [2]atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			asked[0].Add(1)
		case "/metrics":
			asked[1].Add(1)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer engine.Close()
	cfg := testConfig(engine.URL)
	cfg.ProbePath, cfg.Events, cfg.ModelsInterval, cfg.MetricsInterval, cfg.LoadsInterval = config.NoProbes, config.EventsOff, 0, time.Hour, 0
	n := startNode(t, cfg)
	set := func(models, metrics time.Duration) {
		t.Helper()
		next := *n.Running()
		next.ModelsInterval, next.MetricsInterval = models, metrics
		if done, err := n.Reload(next); err != nil || len(done.Applied) != 2 {
			t.Fatal(done, err)
		}
	}
	more := func(which int) {
		t.Helper()
		before := asked[which].Load()
		eventually(t, "the engine is asked three times more", func() bool { return asked[which].Load() >= before+3 })
	}
	eventually(t, "the first question", func() bool { return asked[1].Load() == 1 })
	set(5*time.Millisecond, 4*time.Millisecond)
	more(0)
	more(1)
	if _, err := n.Reload(*n.Running()); err != nil { // changes nothing
		t.Fatal(err)
	}
	more(0)
	set(4*time.Millisecond, 0)
	eventually(t, "no question for metrics in thirty rounds", func() bool { // one that was under way may still come
		before := asked[1].Load()
		for range 10 {
			more(0)
		}
		return asked[1].Load() == before
	})
}

// pprof is turned on while the node serves, and max_body bounds what explain reads, too.
func TestReloadReachesTheAdminAPI(t *testing.T) {
	n := startNode(t, testConfig())
	next := *n.Running()
	next.Pprof, next.MaxBody = true, 64<<10
	if _, err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, "http://"+n.AdminAddr()+"/debug/pprof/cmdline"); status != http.StatusOK {
		t.Errorf("pprof: %d", status)
	}
	resp, err := http.Post("http://"+n.AdminAddr()+"/explain", "application/json", strings.NewReader(chatBody("m", strings.Repeat("x", 65<<10))))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body above max_body: %d", resp.StatusCode)
	}
}

func keysOf(changes []admin.SettingChange) (keys []string) {
	for _, c := range changes {
		keys = append(keys, c.Key)
	}
	return keys
}

// Of a backend, only the credentials are applied; any other difference waits for the next start.
func TestReloadOfABackend(t *testing.T) {
	fields := reflect.TypeFor[config.Backend]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		n, err := New(testConfig("http://127.0.0.3:1"))
		if err != nil {
			t.Fatal(err)
		}
		next := *n.Running()
		next.Backends = slices.Clone(next.Backends)
		switch v := reflect.ValueOf(&next.Backends[0]).Elem().Field(i); {
		case name == "APIKeyFile" || name == "CAFile":
			continue // name files, see TestReloadAppliesCA
		case v.CanInt():
			v.SetInt(v.Int() + 1)
		case v.CanFloat():
			v.SetFloat(v.Float() + 1)
		case v.Kind() == reflect.String:
			v.SetString(v.String() + "x")
		default:
			v.Set(reflect.ValueOf([]string{"x"}))
		}
		applied, waiting := []string(nil), []string{"backends"}
		if name == "APIKey" {
			applied, waiting = waiting, nil
		}
		if got, err := n.Reload(next); err != nil || !slices.Equal(keysOf(got.Applied), applied) || !slices.Equal(keysOf(got.AtNextStart), waiting) {
			t.Errorf("%s: %+v %v, want %v and %v", name, got, err, applied, waiting)
		}
	}
}

func TestReloadReachesRequests(t *testing.T) {
	leakCheck(t)
	var mu sync.Mutex
	var key string
	hold := make(chan struct{})
	var slow bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		key = r.Header.Get("Authorization")
		wait := slow
		mu.Unlock()
		if wait {
			<-hold
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer s.Close()
	defer close(hold)
	file := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	var out bytes.Buffer
	var outMu sync.Mutex
	cfg := testConfig()
	cfg.Backends = []config.Backend{{URL: s.URL, APIKeyFile: file, Models: []string{"m"}}}
	cfg.MetricsInterval, cfg.MaxAttempts = 0, 1
	cfg.LogSwitch = new(config.LogSwitch)
	log, err := config.NewLogger(lockedWriter{&outMu, &out}, false, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = log
	n := startNode(t, cfg)
	sent := func() string {
		for {
			mu.Lock()
			key = ""
			mu.Unlock()
			chat(t, n, chatBody("m", "hello"))
			mu.Lock()
			got := key
			mu.Unlock()
			if got != "" { // else it timed out before the engine saw it
				return got
			}
		}
	}
	if got := sent(); got != "Bearer first" {
		t.Fatalf("key %q", got)
	}
	write("second")
	next := *n.Running()
	next.LogLevel, next.FirstByteTimeout = "debug", 300*time.Millisecond
	done, err := n.Reload(next)
	if err != nil || !slices.Equal(keysOf(done.Applied), []string{"first_byte_timeout", "log_level", "backends"}) || done.AtNextStart != nil {
		t.Fatalf("%+v %v", done, err)
	}
	if got := sent(); got != "Bearer second" {
		t.Errorf("after the reload: key %q", got)
	}
	if !logged(&outMu, &out, zerolog.LevelDebugValue) {
		t.Error("no debug line after the reload")
	}
	if state := n.BackendList().Backends[0]; state.Name != n.cfg.Backends[0].Name {
		t.Errorf("%+v", state)
	}
	mu.Lock()
	slow = true
	mu.Unlock()
	if status, _, _ := chat(t, n, chatBody("m", "slowly")); status != http.StatusGatewayTimeout {
		t.Errorf("status %d of a request beyond the new first_byte_timeout", status)
	}

	mu.Lock()
	slow = false
	mu.Unlock()
	write("two words")
	next.LogLevel = "info"
	if _, err := n.Reload(next); err == nil || !strings.Contains(err.Error(), "api_key_file") || n.Running().LogLevel != "debug" {
		t.Errorf("a bad key: %v, level %s", err, n.Running().LogLevel)
	}
	if got := sent(); got != "Bearer second" {
		t.Errorf("after a reload that failed: key %q", got)
	}
}

func logged(mu *sync.Mutex, out *bytes.Buffer, level string) bool {
	mu.Lock()
	defer mu.Unlock()
	return strings.Contains(out.String(), `"level":"`+level+`"`)
}

type lockedWriter struct {
	mu  *sync.Mutex
	out *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

// TestReloadIsAllOrNothing: without the new API keys, the new max_attempts is not applied either.
func TestReloadIsAllOrNothing(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	engine := func() string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	n, err := New(testConfig(engine(), engine()))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = n.proxy.Serve(ln)
	}()
	defer func() {
		_ = n.proxy.Shutdown(t.Context())
		<-served
	}()
	n.backends.Roster().Rules = []rules.Rule{{Strategy: "of-no-release"}} // makes every new view fail
	next := *n.Running()
	next.Backends = slices.Clone(next.Backends)
	next.Backends[0].APIKey, next.MaxAttempts = "another", 1
	if _, err := n.Reload(next); err == nil {
		t.Fatal("the reload did not fail")
	}
	resp, err := http.Post("http://"+ln.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "hello")))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if asked.Load() != 2 || n.Running().MaxAttempts == 1 {
		t.Errorf("%d engines were asked, max_attempts is %d", asked.Load(), n.Running().MaxAttempts)
	}
}

func TestReloadAppliesCA(t *testing.T) {
	leakCheck(t)
	secure, _ := newSecureEngine(t, "m")
	file := newAuthority(t, "another").file("ca")
	cfg := testConfig()
	cfg.Backends = []config.Backend{{URL: secure.URL, CAFile: file}}
	cfg.ModelsInterval = 50 * time.Millisecond
	probing(&cfg)
	n := startNode(t, cfg)
	served := func() bool {
		status, _, _ := chat(t, n, chatBody("m", "hello"))
		return status == http.StatusOK
	}
	reload := func(next config.Config) {
		t.Helper()
		if done, err := n.Reload(next); err != nil || !slices.Equal(keysOf(done.Applied), []string{"backends"}) || done.AtNextStart != nil {
			t.Fatalf("%+v %v", done, err)
		}
	}
	if served() {
		t.Fatal("an engine of another CA serves requests")
	}

	writePEM(t, file, "CERTIFICATE", secure.Certificate().Raw)
	reload(*n.Running())
	eventually(t, "requests by the new CA", served)
	eventually(t, "probes and model lists by it", func() bool {
		b := n.BackendList().Backends[0]
		return b.State == "active" && !b.Health.Failing && slices.Equal(b.Models, []string{"m"})
	})

	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reload(*n.Running()); err == nil || !strings.Contains(err.Error(), "ca_file") {
		t.Errorf("a reload with a bad ca_file: %v", err)
	}
	if !served() {
		t.Error("a bad ca_file ended the use of the old CA")
	}

	next := *n.Running()
	next.Backends = slices.Clone(next.Backends)
	next.Backends[0].CAFile = ""
	reload(next)
	if served() {
		t.Error("a connection that the old CA verified serves requests")
	}
	if b := n.BackendList().Backends[0]; !slices.Equal(b.Models, []string{"m"}) {
		t.Errorf("models %v of the same engine after the reload", b.Models)
	}
}

// A reload reaches requests and connections that begin after it, also on a connection that was open before.
func TestReloadReachesTheDataPort(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	defer engine.Close()
	cfg := testConfig(engine.URL)
	cfg.ResponseHeaders = "none"
	n := startNode(t, cfg)
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer kept.CloseIdleConnections()
	send := func(path, body string) *http.Response {
		t.Helper()
		resp, err := kept.Post("http://"+n.Addr()+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp
	}
	long := chatBody("m", strings.Repeat("x", 100<<10))
	if resp := send("/v1/chat/completions", long); resp.StatusCode != http.StatusOK || resp.Header.Get("x-grapevine-route") != "" {
		t.Fatalf("status %d, header %v", resp.StatusCode, resp.Header)
	}
	if resp := send("/classify", "{}"); resp.StatusCode != http.StatusNotFound {
		t.Fatalf("status %d of a path that is not served", resp.StatusCode)
	}
	next := *n.Running()
	next.ResponseHeaders, next.PassPaths, next.ReadTimeout = "route", []string{"/classify"}, 100*time.Millisecond
	if _, err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	if resp := send("/v1/chat/completions", long); resp.StatusCode != http.StatusOK || resp.Header.Get("x-grapevine-route") == "" {
		t.Errorf("after the reload: status %d, header %v", resp.StatusCode, resp.Header)
	}
	if resp := send("/classify", "{}"); resp.StatusCode != http.StatusOK {
		t.Errorf("after the reload: status %d of a path to pass", resp.StatusCode)
	}
	slow, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	_, _ = io.WriteString(slow, "POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 9\r\n\r\n{")
	_ = slow.SetReadDeadline(time.Now().Add(20 * time.Second)) // read_timeout was 30 s
	if _, err := io.ReadAll(slow); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a new connection waits longer than the new read_timeout for its request")
	}

	next.MaxBody, next.MaxConnections = 64<<10, 1
	if _, err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one connection", func() bool { return n.proxy.Connections() == 1 })
	second, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	_ = second.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := second.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection beyond the new max_connections stays open")
	}
	if resp := send("/v1/chat/completions", long); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d of a body beyond the new max_body", resp.StatusCode)
	}
}

func TestReloadRefusedInStatus(t *testing.T) {
	n, err := New(testConfig("http://127.0.0.3:1"))
	if err != nil {
		t.Fatal(err)
	}
	if st := n.Status().Reload; st != nil {
		t.Errorf("before any reload: %+v", st)
	}
	next := *n.Running()
	next.MaxAttempts, next.Secret = 7, "0123456789abcdefsecret"
	if _, err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	n.ReloadRefused(errors.New("a mistake"))
	st := n.Status().Reload
	if st.Error != "a mistake" || len(st.Applied) != 1 || st.Applied[0].String() != "max_attempts: 3 -> 7" ||
		len(st.AtNextStart) != 1 || st.AtNextStart[0].String() != "secret: (empty) -> (hidden)" {
		t.Errorf("%+v", st)
	}
	if _, err := n.Reload(*n.Running()); err != nil {
		t.Fatal(err)
	}
	if st := n.Status().Reload; st.Error != "" || len(st.Applied)+len(st.AtNextStart) > 0 {
		t.Errorf("after a reload without differences: %+v", st)
	}
}

// TestReloadChangesRouting: requests follow the strategy, the weights and the zone of the last reload; rules of before stay.
func TestReloadChangesRouting(t *testing.T) {
	engines := []string{startEngine(t), startEngine(t)}
	cfg := testConfig()
	for i, zone := range []string{"a", "b"} {
		cfg.Backends = append(cfg.Backends, config.Backend{URL: engines[i], Name: zone, Labels: []string{"zone=" + zone}, Models: []string{"m"}})
	}
	cfg.ZoneCost, cfg.Rules = time.Hour, []config.Rule{{Path: "/v1/completions", Strategy: policy.Random}}
	n := startNode(t, cfg)
	set := func(change func(*config.Config)) {
		t.Helper()
		next := *n.Running()
		change(&next)
		if done, err := n.Reload(next); err != nil || len(done.Applied) == 0 || done.AtNextStart != nil {
			t.Fatalf("%+v %v", done, err)
		}
	}
	explain := func(path string) *admin.Receipt {
		t.Helper()
		r, err := n.Explain(path, func(string) []byte { return nil }, []byte(chatBody("m", "hello")))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, zone := range []string{"a", "b", "a"} {
		set(func(c *config.Config) { c.Zone = zone })
		r := explain("/v1/chat/completions")
		if r.Strategy != policy.Prefix || r.Backend != zone || r.Candidates[1].ZoneS != 3600 {
			t.Errorf("in zone %s: strategy %s chooses %s, another zone costs %v s", zone, r.Strategy, r.Backend, r.Candidates[1].ZoneS)
		}
	}
	set(func(c *config.Config) { c.Zone = "" })
	if r := explain("/v1/chat/completions"); r.Candidates[0].ZoneS+r.Candidates[1].ZoneS != 0 {
		t.Errorf("without a zone: %+v", r.Candidates)
	}
	for _, weight := range []float64{3, 5} {
		set(func(c *config.Config) {
			c.Strategy, c.Weights = policy.Weighted, map[string]float64{"load": weight}
		})
		if r := explain("/v1/chat/completions"); r.Strategy != policy.Weighted || r.Candidates[0].Cost != -weight {
			t.Errorf("weight %v: strategy %s, cost %v", weight, r.Strategy, r.Candidates[0].Cost)
		}
	}
	set(func(c *config.Config) { c.Strategy = policy.RoundRobin })
	served := make(map[string]int)
	for range 6 {
		_, name, _ := chat(t, n, chatBody("m", "hello"))
		served[name]++
	}
	if served["a"] != 3 || served["b"] != 3 || n.Status().Strategy != policy.RoundRobin {
		t.Errorf("round robin served %v, and the status names %s", served, n.Status().Strategy)
	}
	if r := explain("/v1/completions"); r.Strategy != policy.Random {
		t.Errorf("a rule's requests are routed by %s", r.Strategy)
	}
	next := *n.Running()
	next.Weights, next.ZoneCost = map[string]float64{"luck": 1}, time.Second
	if _, err := n.Reload(next); err == nil || n.Running().ZoneCost != time.Hour || n.router.Tuned().ZoneCost != time.Hour {
		t.Errorf("an unknown scorer: %v, zone_cost %v", err, n.router.Tuned().ZoneCost)
	}
}

// TestReloadChangesProbes: engines are probed as the last reload says, and what probes found is forgotten where none follow.
func TestReloadChangesProbes(t *testing.T) {
	var well, sick atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/well":
			well.Add(1)
		case "/sick":
			sick.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer engine.Close()
	cfg := testConfig(engine.URL)
	cfg.ProbePath, cfg.ProbeInterval, cfg.ProbeTimeout = "/well", time.Hour, 20*time.Second
	n := startNode(t, cfg)
	set := func(path string, interval time.Duration) {
		t.Helper()
		next := *n.Running()
		next.ProbePath, next.ProbeInterval = path, interval
		if done, err := n.Reload(next); err != nil || len(done.Applied) == 0 || done.AtNextStart != nil {
			t.Fatalf("%+v %v", done, err)
		}
	}
	failing := func() bool { return n.BackendList().Backends[0].Health.Failing }
	eventually(t, "the first probe", func() bool { return well.Load() > 0 })
	set("/well", 10*time.Millisecond) // the next was due in an hour
	eventually(t, "three probes more", func() bool { return well.Load() > 3 })
	set("/sick", 10*time.Millisecond)
	eventually(t, "the engine fails by its new path", failing)
	set(config.NoProbes, 10*time.Millisecond)
	if failing() {
		t.Error("without probes the engine is still failing")
	}
	set("/well", 11*time.Millisecond)
	before := well.Load()
	eventually(t, "probes again", func() bool { return well.Load() > before+3 && !failing() })
	if got := sick.Load(); got < 2 {
		t.Errorf("%d probes at /sick found it failing", got)
	}
}

// TestReloadChangesTheLogsForm: lines are JSON or text as the last reload says.
func TestReloadChangesTheLogsForm(t *testing.T) {
	var out bytes.Buffer
	cfg := testConfig()
	cfg.LogSwitch = new(config.LogSwitch)
	log, err := config.NewLogger(&out, false, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = log
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"auto", "console", "json", "console"} {
		next := *n.Running()
		next.LogFormat = format
		if _, err := n.Reload(next); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		n.log.Info().Msg("a line")
		if json := strings.HasPrefix(out.String(), "{"); json == (format == "console") || !strings.Contains(out.String(), "a line") {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}

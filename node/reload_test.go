package node

import (
	"bytes"
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

	"grapevine/node/config"
	"grapevine/proxy/policy"
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
	case "access_log":
		c.AccessLog = "errors"
		return
	case "backends":
		c.Backends = append(c.Backends, config.Backend{URL: "http://127.0.0.3:9", Name: "more", Weight: 1})
		return
	case "rules":
		c.Rules = append(c.Rules, config.Rule{Strategy: "random"})
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

func TestReloadGoesByTheTable(t *testing.T) {
	for _, s := range config.Settings() {
		n, err := New(testConfig("http://127.0.0.3:1"))
		if err != nil {
			t.Fatal(err)
		}
		next := *n.Running()
		another(t, &next, s)
		if keys := n.Running().Differing(next); !slices.Equal(keys, []string{s.Key}) {
			t.Fatalf("%s: the other value differs in %v", s.Key, keys)
		}
		got, err := n.Reload(next)
		want := Reloaded{AtNextStart: []string{s.Key}}
		if s.Reload == config.ReloadValue {
			want = Reloaded{Applied: []string{s.Key}}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", s.Key, got, err, want)
		}
		if still := n.Running().Differing(next); (len(still) == 0) != (s.Reload == config.ReloadValue) {
			t.Errorf("%s: still differing: %v", s.Key, still)
		}
	}
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
		want := Reloaded{AtNextStart: []string{"backends"}}
		if name == "APIKey" {
			want = Reloaded{Applied: []string{"backends"}}
		}
		if got, err := n.Reload(next); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, want)
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
	cfg.Level = new(config.LogLevel)
	log, err := config.NewLogger(lockedWriter{&outMu, &out}, false, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log = log
	n := startNode(t, cfg)
	sent := func() string {
		chat(t, n, chatBody("m", "hello"))
		mu.Lock()
		defer mu.Unlock()
		return key
	}
	if got := sent(); got != "Bearer first" {
		t.Fatalf("key %q", got)
	}
	write("second")
	next := *n.Running()
	next.LogLevel, next.FirstByteTimeout = "debug", 300*time.Millisecond
	done, err := n.Reload(next)
	if err != nil || !slices.Equal(done.Applied, []string{"first_byte_timeout", "log_level", "backends"}) || done.AtNextStart != nil {
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
	n.backends.Roster().Rules = []policy.Rule{{Strategy: "of-no-release"}} // makes every new view fail
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
		if done, err := n.Reload(next); err != nil || !slices.Equal(done.Applied, []string{"backends"}) || done.AtNextStart != nil {
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

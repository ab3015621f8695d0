package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// asProgram makes the test binary run as the program: real processes, signals and exit codes.
const asProgram = "GRAPEVINE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if flag.Parse(); flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "the tests were started as the program: %q, without %s\n", flag.Args(), asProgram)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

type result struct {
	code     int
	out, err string
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GRAPEVINE_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// Under the race detector a process would linger for a second.
	cmd.Env = append(cmd.Env, asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

func grapevine(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return finish(t, command(t, args...), stdin)
}

func finish(t *testing.T, cmd *exec.Cmd, stdin string) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func TestHelpGolden(t *testing.T) {
	for _, command := range []string{"", "serve", "explain", "doctor", "backends", "nodes", "status", "version",
		"keys", "keys generate", "keys list", "keys install", "keys use", "keys remove",
		"backends list", "backends add", "backends drain", "backends resume", "backends remove", "backends label", "rules", "rules show", "rules add", "rules remove", "rules check", "rules apply", "clients", "clients list", "clients new", "clients check",
		"raft", "raft status", "raft transfer", "raft inspect", "raft recover", "prefixes", "prefixes hot"} {
		name, args := "grapevine", []string{"--help"}
		if command != "" {
			name, args = strings.ReplaceAll(command, " ", "-"), append(strings.Fields(command), "--help")
		}
		got := grapevine(t, "", args...)
		if got.code != 0 || got.err != "" {
			t.Errorf("%s --help: exit %d, stderr %q", command, got.code, got.err)
		}
		file := filepath.Join("testdata", "help", name+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got.out), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.out != string(want) {
			t.Errorf("%s --help changed; if that is meant: go test ./cmd/grapevine -run Golden -update\n%s", command, got.out)
		}
	}
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	size := write("size.yaml", "max_body: 10QB\n")
	headers := write("headers", "Authorization: Bearer x\nno colon\n")
	good, bad := write("good.yaml", "strategy: session\n"), write("bad.yaml", "pprof: true\nstrategyy: session\n")
	for _, tc := range []struct {
		name string
		args []string
		code int
		out  string // in stdout; "" for an empty one
		err  string // in stderr; "" for an empty one
	}{
		{"version", []string{"version"}, 0, "grapevine dev (go1.", ""},
		{"version flag", []string{"--version"}, 0, "grapevine dev (go1.", ""},
		{"no command", nil, 2, "", "expected one of"},
		{"unknown command", []string{"sevre"}, 2, "", "unexpected argument sevre"},
		{"unknown subcommand", []string{"backends", "ad", "x"}, 2, "", "unexpected argument ad: the commands of grapevine backends are list, add, drain, resume, label, remove\nSee grapevine backends --help."},
		{"default subcommand", []string{"raft", "x"}, 2, "", "unexpected argument x: the commands of grapevine raft are status, transfer, inspect, recover\nSee grapevine raft --help."},
		{"unknown flag", []string{"serve", "--bakend", "x"}, 2, "", "did you mean \"--backend\"?\nSee grapevine serve --help."},
		{"flag of a subcommand", []string{"backends", "drain", "--now"}, 2, "", "See grapevine backends drain --help."},
		{"bad size in a file", []string{"serve", "--check-config", "--config", size}, 2, "", `max_body: "10QB" is not a size in bytes`},
		{"bad flag value", []string{"serve", "--max-body", "3 furlongs"}, 2, "", `"3 furlongs" is not a size in bytes`},
		{"bad backend", []string{"serve", "--backend", "gpu1:8000"}, 2, "", "write http://host:port"},
		{"bad strategy", []string{"serve", "--check-config", "--strategy", "fastest"}, 2, "", `strategy: "fastest" is unknown`},
		{"check", []string{"serve", "--check-config", "--config", good}, 0, "configuration is valid: 0 backends, strategy session\n", ""},
		{"check bad", []string{"serve", "--check-config", "--config", bad}, 2, "", bad + ":2: strategyy: unknown key: did you mean strategy?"},
		{"no such file", []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, 2, "", "none.yaml"},
		{"no secret file", []string{"serve", "--check-config", "--secret-file", filepath.Join(dir, "none")}, 2, "", "secret_file"},
		{"bad headers of a collector", []string{"serve", "--check-config", "--otlp-endpoint", "http://127.0.0.1:4318", "--otlp-headers-file", headers}, 2, "", headers + ": line 2: want Name: value"},
		{"headers without a collector", []string{"serve", "--check-config", "--otlp-headers-file", headers}, 2, "", "set otlp_endpoint, too"},
		{"address in use", []string{"serve", "--listen", "203.0.113.1:1", "--admin", "127.0.0.1:0", "--log-level", "error"}, 1, "", "listen: "},
		{"no router", []string{"status", "--admin", "127.0.0.1:1"}, 1, "", "is the router running"},
		{"no such body", []string{"explain", filepath.Join(dir, "none.json")}, 2, "", "none.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := grapevine(t, "", tc.args...)
			if got.code != tc.code {
				t.Errorf("exit %d, want %d", got.code, tc.code)
			}
			if !strings.Contains(got.out, tc.out) || tc.out == "" && got.out != "" {
				t.Errorf("stdout: %q, want %q", got.out, tc.out)
			}
			if !strings.Contains(got.err, tc.err) || tc.err == "" && got.err != "" {
				t.Errorf("stderr: %q, want %q", got.err, tc.err)
			}
		})
	}
}

func TestSourcesOfSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("strategy: session\nbackends: [http://a, http://b, http://c]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"default", nil, nil, "0 backends, strategy prefix"},
		{"file", nil, []string{"--config", file}, "3 backends, strategy session"},
		{"file by variable", []string{"GRAPEVINE_CONFIG=" + file}, nil, "3 backends, strategy session"},
		{"variable", []string{"GRAPEVINE_STRATEGY=random", "GRAPEVINE_BACKENDS=http://a http://b,weight=2"}, nil, "2 backends, strategy random"},
		{"variable above file", []string{"GRAPEVINE_STRATEGY=random"}, []string{"--config", file}, "3 backends, strategy random"},
		{"flag above variable", []string{"GRAPEVINE_STRATEGY=random"}, []string{"--strategy", "weighted"}, "0 backends, strategy weighted"},
		{"flag above file", nil, []string{"--config", file, "--backend", "http://z"}, "1 backends, strategy session"},
		{"a flag that says the default", nil, []string{"--config", file, "--strategy", "prefix"}, "3 backends, strategy prefix"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := command(t, append([]string{"serve", "--check-config"}, tc.args...)...)
			cmd.Env = append(cmd.Env, tc.env...)
			if got := finish(t, cmd, ""); got.code != 0 || !strings.Contains(got.out, tc.want) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %q", got.code, got.out, got.err, tc.want)
			}
		})
	}
}

func TestServe(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := serve(t, "--drain-grace", "1ms", "--backend", "http://127.0.0.1:1,name=one,models=m")
		var st struct {
			Ready    bool
			Backends int
		}
		got := grapevine(t, "", "status", "--admin", p.admin, "--json")
		if err := json.Unmarshal([]byte(got.out), &st); err != nil || got.code != 0 || !st.Ready || st.Backends != 1 {
			t.Errorf("status: %+v %v", got, err)
		}
		if got := grapevine(t, "", "backends", "--admin", p.admin); got.code != 0 || !strings.Contains(got.out, "one") {
			t.Errorf("backends: %+v", got)
		}
		body := `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
		if got := grapevine(t, body, "explain", "--admin", p.admin); got.code != 0 || !strings.HasPrefix(got.out, "one\n") {
			t.Errorf("explain: %+v", got)
		}
		if got := grapevine(t, strings.Replace(body, `"m"`, `"x"`, 1), "explain", "--admin", p.admin); got.code != 1 || !strings.Contains(got.err, "model") {
			t.Errorf("explain of an unknown model: %+v", got)
		}
		p.signal(t, sig)
		if code := p.wait(t); code != 0 {
			t.Errorf("%v: exit %d\n%s", sig, code, p.log.String())
		}
	}
}

// TestDrainBySignals: one SIGTERM lets a running request end; a second cuts it. A stalled machine
// may need three tries.
func TestDrainBySignals(t *testing.T) {
	if got := drainBySignals(t, false); got != http.StatusOK {
		t.Errorf("the running request was answered %d, want 200", got)
	}
	got := 0
	for range 3 {
		if got = drainBySignals(t, true); got != 0 {
			break
		}
	}
	if got != http.StatusServiceUnavailable {
		t.Errorf("the request that was cut was answered %d, want 503", got)
	}
}

// drainBySignals returns the status of a request that runs during the drain; 0 if none came.
func drainBySignals(t *testing.T, forced bool) (status int) {
	t.Helper()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // the router asks for metrics and loads
			http.NotFound(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		select {
		case <-release:
			_, _ = io.WriteString(w, `{"choices":[]}`)
		case <-r.Context().Done():
		}
	}))
	defer engine.Close()
	p := serve(t, "--drain-grace", "3s", "--probe-path", "-", "--backend", engine.URL+",models=m")
	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+p.data+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	<-entered
	p.signal(t, syscall.SIGTERM)
	eventually(t, "not ready while serving", func() bool {
		resp, err := http.Get("http://" + p.data + "/readyz")
		if err != nil {
			t.Fatalf("the data port refused within the grace: %v", err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	eventually(t, "no new connections", func() bool {
		c, err := net.DialTimeout("tcp", p.data, time.Second)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	wantCode := 0
	if forced {
		p.signal(t, syscall.SIGTERM)
		wantCode = exitFailed
	} else {
		close(release)
	}
	status = <-answered
	if code := p.wait(t); code != wantCode {
		t.Errorf("forced %v: exit %d, want %d\n%s", forced, code, wantCode, p.log.String())
	}
	return status
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

type process struct {
	cmd         *exec.Cmd
	log         *watchedLog
	data, admin string // addresses
}

func serve(t *testing.T, args ...string) *process {
	t.Helper()
	return serveWith(t, nil, args...)
}

func serveWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := newProcess(t, env, args...)
	p.start(t)
	return p
}

func newProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{log: &watchedLog{found: make(chan []string, 1)}}
	p.cmd = command(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain-close", "0s", "--log-format", "json"}, args...)...)
	p.cmd.Stderr = p.log
	p.cmd.Env = append(p.cmd.Env, env...)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case found := <-p.log.found:
		p.data, p.admin = found[1], found[2]
	case <-time.After(time.Minute):
		t.Fatalf("it does not say that it serves: %s", p.log.String())
	}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (p *process) wait(t *testing.T) int {
	t.Helper()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

type watchedLog struct {
	lockedBuffer
	found chan []string
}

var servingLine = regexp.MustCompile(`"listen":"([^"]+)","admin":"([^"]+)".*"message":"serving"`)

func (w *watchedLog) Write(p []byte) (int, error) {
	n, err := w.lockedBuffer.Write(p)
	if m := servingLine.FindStringSubmatch(w.String()); m != nil {
		select {
		case w.found <- m:
		default:
		}
	}
	return n, err
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/proxy/clients"
)

// restarts is what TestReplaceUnderLoad does: a little of it in every run, all of it with make test-restart.
func restarts() (times int, stream time.Duration) {
	if os.Getenv("GRAPEVINE_RESTART") == "full" {
		return 20, 30 * time.Second
	}
	return 4, 2 * time.Second
}

const eventEvery = 100 * time.Millisecond

// streamingEngine streams for as long as the test says, or answers at once.
func streamingEngine(t *testing.T, lasts time.Duration) string {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodGet:
			http.NotFound(w, r)
		case !strings.Contains(string(body), `"stream":true`):
			_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":900,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":800}}}`)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			tick := time.NewTicker(eventEvery)
			defer tick.Stop()
			for end := time.Now().Add(lasts); time.Now().Before(end); {
				_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"x"}}]}`+"\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		}
	}))
	t.Cleanup(engine.Close)
	return engine.URL
}

// holdingEngine begins a stream at once, and ends it when let is called; other answers are whole at once.
func holdingEngine(t *testing.T) (url string, let func()) {
	t.Helper()
	var mu sync.Mutex
	hold := make(chan struct{})
	let = func() {
		mu.Lock()
		defer mu.Unlock()
		close(hold)
		hold = make(chan struct{})
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		until := hold
		mu.Unlock()
		switch {
		case r.Method == http.MethodGet:
			http.NotFound(w, r)
		case !strings.Contains(string(body), `"stream":true`):
			_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":900,"completion_tokens":1}}`)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"x"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-until:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		}
	}))
	t.Cleanup(engine.Close)
	t.Cleanup(let)
	return engine.URL, let
}

// clientsFile has clients whose keys are their names: four requests of "limited" may be in flight, "metered" may use 3,000 tokens
// in a minute, and "free" is also who has no key.
func clientsFile(t *testing.T) string {
	t.Helper()
	text := "anonymous: free\nclients:\n  - {name: free}\n"
	for name, limit := range map[string]string{"limited": "in_flight: 4", "metered": "tokens_per_minute: 3000"} {
		text += fmt.Sprintf("  - {name: %s, key_sha256: %x, %s}\n", name, clients.HashKey([]byte(name)), limit)
	}
	file := filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const held = "held" // the prompt of a stream

// as asks as a client on a connection of its own, and returns the answer's status once the answer has begun, and its rest.
func as(t *testing.T, client, addr, text string) (status int, rest io.ReadCloser) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"held","stream":%v,%s%s"}]}`, text == held, prompt, text)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, http.NoBody
	}
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+client)
	resp, err := http.DefaultClient.Do(req)
	if err == nil && resp.StatusCode == http.StatusOK && text == held {
		_, err = resp.Body.Read(make([]byte, 1))
	}
	if err != nil {
		t.Error(err)
		return 0, http.NoBody
	}
	return resp.StatusCode, resp.Body
}

func statusOf(t *testing.T, client, addr, text string) int {
	t.Helper()
	status, rest := as(t, client, addr, text)
	_, _ = io.Copy(io.Discard, rest)
	_ = rest.Close()
	return status
}

// holdLimit has all the requests in flight that the client "limited" may have, and returns how they end.
func holdLimit(t *testing.T, addr string) (end func()) {
	t.Helper()
	var rest []io.ReadCloser
	eventually(t, "the client has as many requests as it may have", func() bool {
		status, body := as(t, "limited", addr, held)
		if status != http.StatusOK {
			_ = body.Close()
			return len(rest) == 4
		}
		rest = append(rest, body)
		return false
	})
	return func() {
		for _, body := range rest {
			if text, err := io.ReadAll(body); err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
				t.Errorf("a request that ran during the replacement: %q, %v", text, err)
			}
			_ = body.Close()
		}
	}
}

// TestReplaceKeepsLimits: the new process counts what the old one's requests use of clients' limits, to their end.
func TestReplaceKeepsLimits(t *testing.T) {
	m := newServiceManager(t, "")
	engine, let := holdingEngine(t)
	p := serveWith(t, m.env, "--backend", engine+",name=one,models=held", "--drain-grace", "0s", "--drain-close", "500ms", "--clients-file", clientsFile(t))
	m.await(t, "READY=1")
	end := holdLimit(t, p.data)
	long := strings.Repeat("and so on ", 400)
	used := 0
	for statusOf(t, "metered", p.data, long) == http.StatusOK {
		if used++; used > 3 {
			t.Fatalf("%d requests of 1,000 tokens, of 3,000", used)
		}
	}
	pid := replace(t, m, p.cmd.Process.Pid)
	for range 20 {
		if limited, metered := statusOf(t, "limited", p.data, "x"), statusOf(t, "metered", p.data, long); limited != 429 || metered != 429 {
			t.Fatalf("after the replacement: %d with all requests in flight, %d with all tokens used", limited, metered)
		}
	}
	let()
	end()
	eventually(t, "the old process's requests end", func() bool { return statusOf(t, "limited", p.data, "x") == http.StatusOK })
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	reap(t, pid)
	if code := p.wait(t); code != 0 || t.Failed() {
		t.Errorf("the first process: exit %d\n%s", code, p.log.String())
	}
}

// keepConnections returns clients that each have a connection to a router, and say whether it carried their request.
func keepConnections(t *testing.T, addr string, count int) (ask []func(text string) (resp *http.Response, kept bool)) {
	t.Helper()
	for range count {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		ask = append(ask, func(text string) (*http.Response, bool) {
			kept := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { kept = c.Reused }})
			body := fmt.Sprintf(`{"model":"held","stream":%v,%s%s"}]}`, text == held, prompt, text)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer limited")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			return resp, kept
		})
	}
	for _, first := range ask {
		eventually(t, "a request on a new connection", func() bool {
			resp, _ := first("x")
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	}
	return ask
}

// TestReplaceIdle: clients that used nothing at the switch stay within their limits while both processes admit, and the new one counts
// what the old one has admitted since on kept connections.
func TestReplaceIdle(t *testing.T) {
	m := newServiceManager(t, "")
	engine, let := holdingEngine(t)
	p := serveWith(t, m.env, "--backend", engine+",name=one,models=held", "--drain-grace", "0s", "--drain-close", "5s", "--clients-file", clientsFile(t))
	m.await(t, "READY=1")
	asks := keepConnections(t, p.data, 8)
	pid := replace(t, m, p.cmd.Process.Pid)
	atOld, atEither := 0, 0
	var rest []io.Closer
	for _, ask := range asks {
		resp, kept := ask(held)
		rest = append(rest, resp.Body)
		if resp.StatusCode == http.StatusOK && kept {
			atOld++
		}
		status, body := as(t, "limited", p.data, held)
		rest = append(rest, body)
		if status == http.StatusOK {
			atEither++
		}
	}
	// Each alone would grant four. The bound itself is tested in virtual time: here it depends on when their reports arrive.
	if atOld == 0 || atOld+atEither >= 4+4 {
		t.Errorf("%d streams on kept connections and %d on new ones, of 4", atOld, atEither)
	}
	for n := atOld + atEither; n < 4; {
		eventually(t, "all four", func() bool {
			status, body := as(t, "limited", p.data, held)
			rest = append(rest, body)
			if status == http.StatusOK {
				n++
			}
			return status == http.StatusOK
		})
	}
	eventually(t, "both count all streams, also those of the old process", func() bool {
		for range 20 {
			if statusOf(t, "limited", p.data, "x") != 429 {
				return false
			}
		}
		return true
	})
	let()
	for _, body := range rest {
		_ = body.Close()
	}
	eventually(t, "they end", func() bool { return statusOf(t, "limited", p.data, "x") == http.StatusOK })
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	reap(t, pid)
	if code := p.wait(t); code != 0 || t.Failed() {
		t.Errorf("the first process: exit %d\n%s", code, p.log.String())
	}
}

// load sends requests to a router until end, and collects what fails. Nothing is sent twice.
type load struct {
	url      string
	stop     chan struct{}
	done     sync.WaitGroup
	streams  atomic.Int64
	answers  atomic.Int64
	mu       sync.Mutex
	failures []error
}

const prompt = `"messages":[{"role":"user","content":"`

// startLoad has clients ask for short answers, every other one on a connection of its own each time.
func startLoad(t *testing.T, addr string, clients int) *load {
	t.Helper()
	l := &load{url: "http://" + addr + "/v1/chat/completions", stop: make(chan struct{})}
	for i := range clients {
		body := fmt.Sprintf(`{"model":"m",%sanswer %d %s"}]}`, prompt, i, strings.Repeat("and so on ", 400))
		l.done.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: 2 * time.Minute}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-l.stop:
					return
				default:
					l.ask(client, body, &l.answers)
				}
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

// stream asks for a stream that lasts as long as the engine likes.
func (l *load) stream() {
	l.done.Go(func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}
		l.ask(client, `{"model":"m","stream":true,`+prompt+`stream"}]}`, &l.streams)
	})
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.done.Wait()
}

func (l *load) ask(client *http.Client, body string, count *atomic.Int64) {
	if err := ask(client, l.url, body); err != nil {
		l.mu.Lock()
		l.failures = append(l.failures, fmt.Errorf("at %v: %w", time.Now().Format(time.StampMilli), err))
		l.mu.Unlock()
		return
	}
	count.Add(1)
}

func ask(client *http.Client, url, body string) error {
	resp, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("cut after %d bytes: %w", len(text), err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, text)
	case strings.Contains(body, `"stream":true`) && !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		return fmt.Errorf("the stream has no end after %d bytes", len(text))
	}
	return nil
}

var mainPID = regexp.MustCompile(`MAINPID=(\d+)`)

// replace has the router replaced, as an upgrade does, and returns the new process.
func replace(t *testing.T, m *serviceManager, pid int) (next int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	next, err := strconv.Atoi(mainPID.FindStringSubmatch(m.await(t, "MAINPID="))[1])
	if err != nil {
		t.Fatal(err)
	}
	m.await(t, "READY=1")
	return next
}

// reap waits for a process that a router has started as its sibling, and so as this test's child.
func reap(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || status.ExitStatus() != 0 {
			t.Errorf("process %d: %v, exit %d", pid, err, status.ExitStatus())
		}
		return
	}
}

// TestReplaceUnderLoad: a router that is alone is replaced again and again while it serves. No request is refused,
// none is cut, and the last process has inherited the agreed state and the caches.
func TestReplaceUnderLoad(t *testing.T) {
	times, lasts := restarts()
	m := newServiceManager(t, "30000000")
	p := serveWith(t, m.env, "--backend", streamingEngine(t, lasts)+",name=one,models=m", "--data-dir", filepath.Join(t.TempDir(), "raft"), "--secret", fleetSecret,
		"--drain-close", "500ms", "--metrics-listen", "127.0.0.1:0")
	m.await(t, "READY=1")
	l := startLoad(t, p.data, 4)
	eventually(t, "answers", func() bool { return l.answers.Load() > 20 })

	pid, pids := p.cmd.Process.Pid, []int{}
	for range times {
		l.stream()
		l.stream()
		before := l.answers.Load()
		pid = replace(t, m, pid)
		pids = append(pids, pid)
		eventually(t, "the new process answers", func() bool { return l.answers.Load() > before+20 })
	}
	if got := grapevine(t, "", "status", "--admin", p.admin); got.code != 0 || !strings.Contains(got.out, "ready") {
		t.Errorf("%+v", got)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil { // the streams of all processes still run
		t.Fatal(err)
	}
	close(l.stop)
	for _, pid := range pids {
		reap(t, pid)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("the first process: exit %d", code)
	}
	l.done.Wait()
	t.Logf("%d replacements: %d streams of %v and %d short answers, %d failed", times, l.streams.Load(), lasts, l.answers.Load(), len(l.failures))
	for _, err := range l.failures {
		t.Error(err)
	}
	if t.Failed() {
		t.Log(p.log.String())
	}
}

// TestReplace: the new process knows what the old one knew, a program that cannot serve changes nothing, and a
// process that no service manager follows is not replaced.
func TestReplace(t *testing.T) {
	m := newServiceManager(t, "")
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	engine := streamingEngine(t, time.Second)
	write := func(more string) {
		t.Helper()
		text := fmt.Sprintf("secret: %s\ndrain_grace: 0s\nbackends: [{url: '%s', name: one, models: [m]}]\n%s", fleetSecret, engine, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := "data_dir: " + filepath.Join(dir, "raft") + "\n"
	write(good)
	p := serveWith(t, m.env, "--config", file)
	m.await(t, "READY=1")
	body := fmt.Sprintf(`{"model":"m",%s%s"}]}`, prompt, strings.Repeat("and so on ", 400))
	if err := ask(http.DefaultClient, "http://"+p.data+"/v1/chat/completions", body); err != nil {
		t.Fatal(err)
	}
	serves := func() {
		t.Helper()
		var why struct {
			MatchedBlocks int `json:"matched_blocks"`
		}
		got := grapevine(t, body, "explain", "--admin", p.admin, "--json")
		if err := json.Unmarshal([]byte(got.out), &why); err != nil || why.MatchedBlocks == 0 {
			t.Errorf("it does not know where the prompt is: %+v", got)
		}
		eventually(t, "changes are taken", func() bool {
			return grapevine(t, "", "backends", "drain", "one", "--force", "--admin", p.admin).code == 0 &&
				grapevine(t, "", "backends", "resume", "one", "--admin", p.admin).code == 0
		})
		if err := ask(http.DefaultClient, "http://"+p.data+"/v1/chat/completions", body); err != nil {
			t.Error(err)
		}
	}
	serves()

	refused := func(reason string) {
		t.Helper()
		p.signal(t, syscall.SIGUSR2)
		eventually(t, reason, func() bool {
			return regexp.MustCompile(`"event":"replace_failed".*` + regexp.QuoteMeta(reason)).MatchString(p.log.String())
		})
		serves()
	}
	write("strategyy: session\n")
	refused("strategyy: unknown key")
	write("data_dir: /dev/null/raft\n")
	refused("/dev/null/raft") // found out when the old process has released its own

	write(good)
	pid := replace(t, m, p.cmd.Process.Pid)
	serves()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	reap(t, pid)
	if code := p.wait(t); code != 0 {
		t.Errorf("the first process: exit %d", code)
	}
	if t.Failed() {
		t.Log(p.log.String())
	}
}

func TestNoReplacementWithoutServiceManager(t *testing.T) {
	p := serve(t, "--drain-grace", "0s")
	p.signal(t, syscall.SIGUSR2)
	eventually(t, "it says why", func() bool { return strings.Contains(p.log.String(), "NOTIFY_SOCKET is not set") })
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log.String())
	}
}

// TestReplaceInAFleet: the fleet takes the new process for the node that it replaces, at the same addresses. Meanwhile and afterwards
// all nodes count what the old process's requests use of clients' limits.
func TestReplaceInAFleet(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if got := grapevine(t, "", "keys", "generate", "--out", key); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	free := make([]string, 3)
	for i := range free {
		free[i] = freePort(t, fmt.Sprintf("127.78.0.%d", i+1)) // where no other socket of the test is
	}
	engine := streamingEngine(t, time.Second)
	holding, let := holdingEngine(t)
	file := clientsFile(t)
	managers, fleet := make([]*serviceManager, 3), make([]*process, 3)
	for i := range fleet {
		name := fmt.Sprintf("node-%d", i+1)
		own := filepath.Join(dir, name+".key")
		if err := os.WriteFile(own, text, 0o600); err != nil {
			t.Fatal(err)
		}
		managers[i] = newServiceManager(t, "")
		fleet[i] = newProcess(t, managers[i].env, "--node-name", name, "--gossip", free[i], "--secret", fleetSecret, "--gossip-key-file", own, "--drain-grace", "0s", "--drain-close", "500ms",
			"--data-dir", filepath.Join(dir, name), "--backend", engine+",name=one,models=m", "--backend", holding+",name=two,models=held", "--clients-file", file, "--founder", free[0], "--founder", free[1], "--founder", free[2])
		if err := fleet[i].cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range fleet {
		select {
		case found := <-p.log.found:
			p.data, p.admin = found[1], found[2]
		case <-time.After(time.Minute):
			t.Fatalf("it does not serve: %s", p.log.String())
		}
		managers[i].await(t, "READY=1")
	}
	whole := func() {
		t.Helper()
		for _, p := range fleet {
			eventually(t, "all see all, and a change is taken", func() bool {
				var list admin.NodeList
				got := grapevine(t, "", "nodes", "--admin", p.admin, "--json")
				if json.Unmarshal([]byte(got.out), &list) != nil || len(list.Nodes) != 3 {
					return false
				}
				for _, n := range list.Nodes[1:] {
					if !n.Connected {
						return false
					}
				}
				return grapevine(t, "", "backends", "label", "one", "a=b", "--admin", p.admin).code == 0
			})
		}
	}
	whole()
	var pids []int
	for i, p := range fleet {
		l := startLoad(t, p.data, 2)
		l.stream()
		eventually(t, "answers", func() bool { return l.answers.Load() > 20 })
		end := holdLimit(t, p.data)
		eventually(t, "all count these requests", func() bool {
			return !slices.ContainsFunc(fleet, func(p *process) bool { return statusOf(t, "limited", p.data, "x") == http.StatusOK })
		})
		asking, asked := make(chan struct{}), make(chan int)
		go func() {
			admitted := 0
			for {
				for _, p := range fleet {
					if statusOf(t, "limited", p.data, "x") == http.StatusOK {
						admitted++
					}
				}
				select {
				case <-asking:
					asked <- admitted
					return
				default:
				}
			}
		}()
		began := time.Now()
		pids = append(pids, replace(t, managers[i], p.cmd.Process.Pid))
		t.Logf("node %d: replaced within %v", i+1, time.Since(began))
		before := l.answers.Load()
		eventually(t, "answers", func() bool { return l.answers.Load() > before+20 })
		l.end()
		for _, err := range l.failures {
			t.Error(err)
		}
		whole()
		close(asking)
		if admitted := <-asked; admitted > 0 {
			t.Errorf("node %d: %d requests of a client were admitted that had all its requests in flight in the old process", i+1, admitted)
		}
		let()
		end()
		for _, p := range fleet {
			eventually(t, "the old process's requests have ended", func() bool { return statusOf(t, "limited", p.data, "x") == http.StatusOK })
		}
	}
	for i, p := range fleet {
		if err := syscall.Kill(pids[i], syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		reap(t, pids[i])
		if code := p.wait(t); code != 0 {
			t.Errorf("exit %d\n%s", code, p.log.String())
		}
	}
	if t.Failed() {
		for _, p := range fleet {
			t.Log(p.log.String())
		}
	}
}

func freePort(t *testing.T, ip string) string {
	t.Helper()
	ln, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
)

func TestRequestHeadersOnTheirWay(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	req := "POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: client\r\n" +
		"Authorization: Bearer secret\r\nuser-agent: Py/1\r\nX-Multi: a\r\nX-Multi: b\r\ncookie: c=d\r\n" +
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: v=1\r\n" +
		"Connection: keep-alive, X-Gone, x-also-gone\r\nX-Gone: 1\r\nX-Also-Gone: 2\r\nKeep-Alive: timeout=5\r\n" +
		"TE: trailers\r\nUpgrade: websocket\r\nProxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nAccept-Encoding: gzip\r\n" +
		"X-Request-ID: my-id\r\nX-Empty:\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	rp := r.raw(req).want(t, 200)
	raw := string(b.requests()[0].raw)
	for _, want := range []string{
		"POST /v1/chat/completions?x=1 HTTP/1.1\r\n", "Host: " + b.addr + "\r\n", "Authorization: Bearer secret\r\n", "user-agent: Py/1\r\n",
		"X-Multi: a\r\nX-Multi: b\r\n", "cookie: c=d\r\n", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
		"tracestate: v=1\r\n", "X-Request-Id: my-id\r\n", "X-Empty: \r\n", "Content-Length: 2\r\n", "X-Forwarded-For: 127.0.0.1\r\n",
	} {
		if !strings.Contains(raw, want) {
			t.Errorf("lacks %q:\n%s", want, raw)
		}
	}
	for _, gone := range []string{"connection", "keep-alive", "x-gone", "x-also-gone", "\nte:", "upgrade", "proxy-", "accept-encoding", "client"} {
		if strings.Contains(strings.ToLower(raw), gone) {
			t.Errorf("has %q:\n%s", gone, raw)
		}
	}
	if got := rp.Header.Get("X-Request-Id"); got != "my-id" {
		t.Errorf("request id %q", got)
	}
	if rec := r.record(0); string(rec.ID) != "my-id" || string(rec.Path) != "/v1/chat/completions" || string(rec.Method) != "POST" {
		t.Errorf("record %+v", rec)
	}
}

func TestRequestIDs(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	seen := make(map[string]bool)
	for i, given := range []string{"", strings.Repeat("a", maxRequestID+1), "two words", "q\"uote"} {
		rp := r.raw(request("POST", "/v1/x", "{}", "X-Request-Id: "+given)).want(t, 200)
		id := rp.Header.Get("X-Request-Id")
		if len(id) != 32 || seen[id] {
			t.Errorf("%q: minted %q", given, id)
		}
		seen[id] = true
		if got := b.requests()[i].Header["X-Request-Id"]; len(got) != 1 || got[0] != id {
			t.Errorf("forwarded %q, echoed %q", got, id)
		}
	}
}

func TestResponseHeadersOnTheirWay(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		return c.send("HTTP/1.1 200 Fine\r\nServer: uvicorn\r\nX-Multi: a\r\nX-Multi: b\r\nSet-Cookie: a=b; Path=/\r\nSet-Cookie: c=d\r\n" +
			"Connection: X-Gone, content-length\r\nX-Gone: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\nTrailer: X-T\r\nProxy-Authenticate: Basic\r\n" +
			"Content-Type: application/json\r\nx-should-retry: true\r\nContent-Length: 2\r\n\r\n{}")
	})
	r := newRig(t, []string{b.addr})
	c := r.dial()
	_, err := io.WriteString(c, chat(false))
	must(t, err)
	rp := readReply(t, bufio.NewReader(c), "POST").want(t, 200, "{}")
	h := rp.Header
	if h.Get("Server") != "uvicorn" || fmt.Sprint(h["X-Multi"]) != "[a b]" || fmt.Sprint(h["Set-Cookie"]) != "[a=b; Path=/ c=d]" ||
		h.Get("X-Should-Retry") != "true" || h.Get("Content-Type") != "application/json" || h.Get("Date") == "" {
		t.Errorf("headers %v", h)
	}
	for _, gone := range []string{"Connection", "X-Gone", "Keep-Alive", "Upgrade", "Trailer", "Proxy-Authenticate"} {
		if h.Get(gone) != "" {
			t.Errorf("%s: %s", gone, h.Get(gone))
		}
	}
	if rp.ContentLength != 2 {
		t.Errorf("a backend took the framing away: length %d", rp.ContentLength)
	}
}

func TestRouteHeaderAndLearning(t *testing.T) {
	long := strings.Repeat("the same long conversation ", 400)
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, long)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		return c.send(jsonReply(200, `{"usage":{"prompt_tokens":2700,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2600}}}`))
	})
	other := newBackend(t, false, b.script())
	r := newRig(t, []string{b.addr, other.addr}, withStrategy("prefix"))
	first := r.raw(request("POST", "/v1/chat/completions", body)).want(t, 200)
	second := r.raw(request("POST", "/v1/chat/completions", body)).want(t, 200)
	var matched, predicted int
	if _, err := fmt.Sscanf(second.Header.Get("X-Grapevine-Route"), "cache;matched=%d;predicted=%d", &matched, &predicted); err != nil ||
		matched < 1000 || predicted < 1000 || predicted > matched {
		t.Errorf("route %q after %q", second.Header.Get("X-Grapevine-Route"), first.Header.Get("X-Grapevine-Route"))
	}
	if first.Header.Get("X-Grapevine-Backend") != second.Header.Get("X-Grapevine-Backend") {
		t.Error("the second turn went elsewhere")
	}
	rec := r.record(1)
	if rec.Decision.Rung != policy.Cache || rec.Decision.MatchedBlocks == 0 || rec.PromptBytes < len(long) || rec.CachedTokens != 2600 || string(rec.Model) != "m" {
		t.Errorf("record %+v", rec)
	}
	if rec.Overhead <= 0 || rec.Queue < rec.Overhead/2 || rec.TTFT < rec.Queue || rec.Total < rec.TTFT {
		t.Errorf("times %v %v %v %v", rec.Overhead, rec.Queue, rec.TTFT, rec.Total)
	}
}

func (b *backend) script() script {
	return func(c *upstreamSide, _ seenRequest) bool {
		return c.send(jsonReply(200, `{"usage":{"prompt_tokens":2700,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2600}}}`))
	}
}

func TestSessionHeaders(t *testing.T) {
	for _, tc := range []struct{ headers, want string }{
		{"X-Session-Id: a\r\n", "a"},
		{"x_session_id: a\r\n", "a"},
		{"session_id: codex\r\nX-Session-ID: a\r\n", "a"},
		{"session_id: codex\r\n", "codex"},
		{"thread-id: t\r\n", "t"},
		{"X-Claude-Code-Session-Id: c\r\nsession-id: codex\r\n", "c"},
		{"x-session-affinity: o\r\nx-claude-code-session-id: c\r\n", "o"},
		{"X-Session-Id:\r\nthread-id: t\r\n", "t"},
		{"X-Other: a\r\n", ""},
		{"x-claude-code-agent-id: helper\r\nx-claude-code-session-id: c\r\nx-claude-code-parent-agent-id: p\r\n", "c\nhelper"},
		{"x-claude-code-agent-id: helper\r\n", ""},
		{"X-Claude-Code-Agent-Id:\r\nX-Claude-Code-Session-Id: c\r\n", "c"},
		{"x-session-id: a\r\nx-parent-session-id: p\r\n", "a"},
		{"session_id: root\r\nthread_id: t\r\n", "t"},
	} {
		var h requestHead
		h.scan([]byte(tc.headers+"\r\n"), scanOptions{plainAnswer: true})
		if key := h.conversation(); string(key) != tc.want || h.fault != "" {
			t.Errorf("%q: %q %s", tc.headers, key, h.fault)
		}
		of, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: a\r\n" + strings.ReplaceAll(tc.headers, "_", "-") + "\r\n")))
		must(t, err)
		if key := sessionOf(func(name string) []byte { return []byte(of.Header.Get(name)) }); string(key) != tc.want {
			t.Errorf("%q: explained as %q", tc.headers, key)
		}
	}
	var addrs []string
	for range 4 {
		addrs = append(addrs, newBackend(t, false, answering).addr)
	}
	r := newRig(t, addrs, withStrategy("session"))
	for _, s := range []string{"one", "two", "three"} {
		pinned := ""
		for range 5 {
			rp := r.raw(request("POST", "/v1/chat/completions", `{"messages":[]}`, "X-Session-Id: "+s)).want(t, 200)
			if got := rp.Header.Get("X-Grapevine-Backend"); pinned != "" && got != pinned {
				t.Errorf("session %s went to %s and %s", s, pinned, got)
			} else {
				pinned = got
			}
		}
	}
}

func TestTargetHeadersReplaceTheClients(t *testing.T) {
	b := newBackend(t, false, answering)
	e := newExchange(&Proxy{cfg: Config{Hasher: mustHasher(t)}})
	e.conn, e.tuned = &clientConn{}, &Config{}
	e.head.scan([]byte("Authorization: Bearer client\r\nX-A: b\r\nConnection: X-A\r\n\r\n"), scanOptions{plainAnswer: true})
	e.ownKey = true
	e.head.id = []byte("id")
	e.target = []byte("/v1/x")
	ctx := newContext("POST", "/v1/x")
	e.ctx = ctx
	got := string(e.appendRequest(nil, &Target{Addr: b.addr, Host: "engine", BasePath: "/base", Header: [][2]string{{"authorization", "Bearer engine"}}}, 3))
	want := "POST /base/v1/x HTTP/1.1\r\nHost: engine\r\nauthorization: Bearer engine\r\nX-Request-Id: id\r\nContent-Length: 3\r\n\r\n"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The last address is the connection's, after the client's own values.
func TestForwardedForIsWhatTheRouterSaw(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	for headers, want := range map[string]string{
		"X-A: b":                   "127.0.0.1",
		"X-Forwarded-For: 1.1.1.1": "1.1.1.1, 127.0.0.1",
		"X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\nx-forwarded-for: 3.3.3.3":                         "1.1.1.1, 2.2.2.2, 3.3.3.3, 127.0.0.1",
		"X-Forwarded-For: 1.1.1.1\r\nX_Forwarded_For: 8.8.8.8":                                  "1.1.1.1, 127.0.0.1",
		"X_Forwarded_For: 8.8.8.8\r\nX-Forwarded_For: 8.8.8.8":                                  "127.0.0.1",
		"Connection: X-Forwarded-For\r\nX-Forwarded-For: 1.1.1.1":                               "1.1.1.1, 127.0.0.1",
		"X-Forwarded-For:\r\nX-Forwarded-For: 1.1.1.1\r\nX-Other_Name: 8.8.8.8\r\nx_b: 8.8.8.8": "1.1.1.1, 127.0.0.1",
	} {
		before := len(b.requests())
		r.raw(request("POST", "/v1/chat/completions", inference, headers)).want(t, 200)
		req := b.requests()[before]
		if got := req.Header["X-Forwarded-For"]; len(got) != 1 || got[0] != want {
			t.Errorf("%q: %q, want %q", headers, got, want)
		}
		if strings.Contains(string(req.raw), "8.8.8.8") {
			t.Errorf("%q: an alias went on:\n%s", headers, req.raw)
		}
	}
}

func TestSteeringHeadersAreRemoved(t *testing.T) {
	b := newBackend(t, false, answering)
	steering := []string{"X-data-parallel-rank: 3", "x-override-bootstrap-host: 10.0.0.1", "X-Override-Disagg-Prefill-Dp-Rank: 1",
		"x-override-rid: a", "X-OVERRIDE-" + strings.Repeat("a", 50) + ": 1", "x-prefiller-host-port: 10.0.0.1:80", "x-encoder-hosts-ports: a:1",
		"x-data-parallel-host-port: a:1", "X_Data_Parallel_Rank: 3", "x-override-" + strings.Repeat("a_", 30) + ": 1"}
	for _, allowed := range []bool{false, true} {
		r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.AllowEngineControl = allowed }))
		before := len(b.requests())
		body := `{"kv_transfer_params":{},"messages":[]}`
		r.raw(request("POST", "/v1/chat/completions", body, append(steering, "X-Data: kept", "X-Over: kept")...)).want(t, 200)
		req := b.requests()[before]
		for _, h := range steering {
			name, _, _ := strings.Cut(h, ":")
			if passed := strings.Contains(string(req.raw), name+":"); passed != (allowed && !strings.Contains(name, "_")) {
				t.Errorf("allowed %v: %s passed: %v", allowed, name, passed)
			}
		}
		if req.Header.Get("X-Data") != "kept" || req.Header.Get("X-Over") != "kept" || strings.Contains(req.body, "kv_transfer_params") != allowed {
			t.Errorf("allowed %v: %s\n%s", allowed, req.raw, req.body)
		}
	}
}

// By default clients learn no names, addresses or matches.
func TestResponseHeadersTellWhatIsConfigured(t *testing.T) {
	for shown, want := range map[string][3]bool{"none": {}, "route": {true, false, false}, "all": {true, true, true}} {
		headers, err := ParseResponseHeaders(shown)
		must(t, err)
		r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) { c.ResponseHeaders = headers }))
		for _, req := range []string{chat(false), request("POST", "/v1/models", "")} {
			rp := r.raw(req)
			for i, name := range []string{"X-Grapevine-Route", "X-Grapevine-Node", "X-Grapevine-Backend"} {
				// Local answers have neither route nor backend.
				if got := rp.Header.Get(name) != ""; got != (want[i] && (rp.StatusCode == 200 || name == "X-Grapevine-Node")) {
					t.Errorf("%s, %d: %s %v", shown, rp.StatusCode, name, got)
				}
			}
			if rp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%s: no request id", shown)
			}
		}
	}
	var zero Config
	if zero.ResponseHeaders != NoHeaders {
		t.Error("something is told by default")
	}
	if _, err := ParseResponseHeaders("some"); err == nil {
		t.Error("some is taken")
	}
}

func TestDescribeReadsAsTheProxyDoes(t *testing.T) {
	var picked policy.Request
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	inner := r.proxy.cfg.Picker
	r.proxy.cfg.Picker = pickerFunc{inner, func(q *policy.Request) {
		picked = *q
		picked.Model, picked.Session = append([]byte(nil), q.Model...), append([]byte(nil), q.Session...)
		picked.Hashes = append([]prefixtree.Hash(nil), q.Hashes...)
	}}
	body := fmt.Sprintf(`{"model":"m","max_tokens":7,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("text ", 1000))
	r.raw(request("POST", "/v1/chat/completions", body, "X-Session-Id: s")).want(t, 200)
	header := http.Header{"X-Session-Id": {"s"}}
	var q policy.Request
	must(t, r.proxy.Describe([]byte("/v1/chat/completions"), func(n string) []byte { return []byte(header.Get(n)) }, []byte(body), &q))
	if string(q.Model) != "m" || string(q.Session) != "s" || fmt.Sprint(q.Hashes) != fmt.Sprint(picked.Hashes) || len(q.Hashes) == 0 ||
		q.PromptBytes != picked.PromptBytes || q.OutputHint != picked.OutputHint || string(q.Path) != "/v1/chat/completions" ||
		string(picked.Model) != "m" || string(picked.Session) != "s" {
		t.Errorf("described %+v\npicked %+v", q, picked)
	}
	if err := r.proxy.Describe([]byte("/v1/completions"), nil, []byte("{"), &q); err == nil || len(q.Hashes) != 0 {
		t.Errorf("truncated: %v, %d hashes", err, len(q.Hashes))
	}
}

type pickerFunc struct {
	Picker
	look func(q *policy.Request)
}

func (p pickerFunc) Pick(q *policy.Request, a *policy.Attempt) (Target, error) {
	p.look(q)
	return p.Picker.Pick(q, a)
}

// scan passes on no hop-by-hop header.
func FuzzScan(f *testing.F) {
	f.Add([]byte("Host: a\r\nConnection: x-a, close\r\nX-A: b\r\n\r\n"))
	f.Add([]byte("Transfer-Encoding : chunked\r\nContent-Length:\r\n 5\r\n"))
	f.Add([]byte(":\r\n\r\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var h requestHead
		h.scan(raw, scanOptions{plainAnswer: true})
		if h.fault != "" {
			return
		}
		for line := range strings.Lines(string(h.block)) {
			name, _, ok := strings.Cut(line, ":")
			if !ok || !strings.HasSuffix(line, "\r\n") {
				t.Fatalf("line %q", line)
			}
			switch strings.ToLower(name) {
			case "connection", "transfer-encoding", "content-length", "host", "upgrade", "te", "trailer", "keep-alive", "expect":
				t.Fatalf("passed on %q", line)
			}
		}
	})
}

func TestPanicCostsOneRequest(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	fail := true
	r.proxy.cfg.Picker = pickerFunc{r.proxy.cfg.Picker, func(*policy.Request) {
		if fail {
			panic("defect")
		}
	}}
	r.raw(chat(false)).want(t, 500, `"code":"internal_error"`)
	fail = false
	r.raw(chat(false)).want(t, 200)
}

// panicking is a Picker whose clock panics once when armed.
type panicking struct {
	Picker
	armed atomic.Bool
}

func (p *panicking) Now() prefixtree.Time {
	if p.armed.CompareAndSwap(true, false) {
		panic("defect")
	}
	return p.Picker.Now()
}

// A panic while streaming or recording costs one response and is logged.
func TestPanicAfterTheHandler(t *testing.T) {
	for name, spoil := range map[string]func(p *Proxy, picker *panicking){
		"stream":   func(_ *Proxy, picker *panicking) { picker.armed.Store(true) },
		"observer": func(p *Proxy, _ *panicking) { p.cfg.Observer = func(*Record) { panic("defect") } },
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			begun := make(chan struct{})
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				c.send(sseHead + chunk(": begun\n\n"))
				<-begun
				return c.send(chunk(event("a")) + chunkEnd)
			})
			r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Log = zerolog.New(&log) }))
			picker := &panicking{Picker: r.proxy.cfg.Picker}
			r.proxy.cfg.Picker = picker
			c := r.dial()
			_, err := io.WriteString(c, chat(true))
			must(t, err)
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, nil)
			must(t, err)
			spoil(r.proxy, picker)
			close(begun)
			if _, err := io.ReadAll(resp.Body); (err != nil) != (name == "stream") {
				t.Errorf("body: %v", err)
			}
			r.settled()
			if !strings.Contains(log.String(), "defect") {
				t.Errorf("log %q", log.String())
			}
		})
	}
}

// The panic costs one connection and is logged.
func TestPanicOutsideARequest(t *testing.T) {
	var log syncBuffer
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) { c.Log = zerolog.New(&log) }))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- r.proxy.Serve(brokenListener{ln}) }()
	c, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, chat(false))
	must(t, err)
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a connection that cannot be served", n)
	}
	eventually(t, "logged", func() bool { return strings.Contains(log.String(), "broken reader") })
	r.raw(chat(false)).want(t, 200)
	must(t, r.proxy.Shutdown(t.Context()))
	must(t, <-served)
}

type brokenListener struct{ net.Listener }

func (l brokenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return brokenConn{c}, err
}

type brokenConn struct{ net.Conn }

func (brokenConn) Read([]byte) (int, error) { panic("broken reader") }

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{Picker: &routed{}, Hasher: mustHasher(t)}
	for name, spoil := range map[string]func(*Config){
		"picker":   func(c *Config) { c.Picker = nil },
		"hasher":   func(c *Config) { c.Hasher = nil },
		"header":   func(c *Config) { c.MaxHeader = 100 },
		"body":     func(c *Config) { c.MaxBody = -1 },
		"timeouts": func(c *Config) { c.Timeouts.Idle = -1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), ErrConfig.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}

func TestAcceptErrors(t *testing.T) {
	r := newRig(t, nil)
	ln := &failingListener{errs: []error{&net.OpError{Op: "accept", Err: errTooMany}, io.ErrUnexpectedEOF}}
	if err := r.proxy.Serve(ln); err == nil || !ln.closed || len(ln.errs) != 0 {
		t.Errorf("Serve: %v, %d errors left", err, len(ln.errs))
	}
}

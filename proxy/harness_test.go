package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp refreshes its Date header forever.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.refreshServerDate"),
		// net/http delays closing a connection by half a second.
		goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// routed is a Picker over the real policy, without the fleet.
type routed struct {
	router  *policy.Router
	targets map[prefixtree.Backend]Target
	stopped prefixtree.Time // the policy's stopped time, if not 0
}

func (r *routed) Now() prefixtree.Time {
	if r.stopped != 0 {
		return r.stopped
	}
	return prefixtree.Time(time.Now().UnixMilli())
}

func (r *routed) PickPrefill(q *policy.Request, decode, a *policy.Attempt) (Target, bool) {
	if !r.router.PickPrefill(q, r.Now(), decode, a) {
		return Target{}, false
	}
	return r.targets[a.Decision().Backend], true
}

func (r *routed) Pick(q *policy.Request, a *policy.Attempt) (Target, error) {
	if err := r.router.Pick(q, r.Now(), a); err != nil {
		return Target{}, err
	}
	return r.targets[a.Decision().Backend], nil
}

type rig struct {
	t      testing.TB
	proxy  *Proxy
	router *policy.Router
	addr   string
	tls    bool

	mu      sync.Mutex
	records []Record
}

type rigOption func(*rigConfig)

type rigConfig struct {
	Config
	strategy string
	models   map[string][]string // backend address -> models
	stopped  prefixtree.Time
	gate     policy.Gate
	limits   queue.Limits // of a queue; zero: none
	roles    string       // a letter per backend: p prefill, d decode, b both; P and D: pairs
}

func withTimeouts(f func(*Timeouts)) rigOption { return func(c *rigConfig) { f(&c.Timeouts) } }

func withConfig(f func(*Config)) rigOption { return func(c *rigConfig) { f(&c.Config) } }

func withStrategy(s string) rigOption { return func(c *rigConfig) { c.strategy = s } }

func withRoles(letters string) rigOption { return func(c *rigConfig) { c.roles = letters } }

// withQueue lets each backend hold so many requests.
func withQueue(inFlight int, l queue.Limits) rigOption {
	return func(c *rigConfig) { c.gate, c.limits = policy.Gate{InFlight: inFlight}, l }
}

func withModels(m map[string][]string) rigOption { return func(c *rigConfig) { c.models = m } }

// withStoppedClock keeps avoided backends avoided.
func withStoppedClock() rigOption { return func(c *rigConfig) { c.stopped = 1_700_000_000_000 } }

func withTLS() rigOption {
	return func(c *rigConfig) { c.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}} }
}

// The prefix "tls://" of a backend marks TLS.
func newRig(t testing.TB, backends []string, options ...rigOption) *rig {
	t.Helper()
	r := &rig{t: t}
	cfg := rigConfig{strategy: "round-robin"}
	cfg.Log = zerolog.Nop()
	if os.Getenv("GV_LOG") != "" {
		cfg.Log = zerolog.New(os.Stderr)
	}
	cfg.NodeName = "n1"
	cfg.ResponseHeaders, cfg.PassPaths = AllHeaders, []string{"/"}
	cfg.Timeouts = Timeouts{Watch: 20 * time.Millisecond, DrainGrace: -1}
	for _, o := range options {
		o(&cfg)
	}
	hasher, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	must(t, err)
	tree, err := prefixtree.New(prefixtree.Config{Budget: 4 << 20})
	must(t, err)
	r.router, err = policy.NewRouter(policy.Config{Strategy: cfg.strategy, BlockBytes: hasher.BlockBytes(), Gate: cfg.gate}, tree)
	must(t, err)
	picker := &routed{router: r.router, targets: make(map[prefixtree.Backend]Target), stopped: cfg.stopped}
	var entries []policy.Backend
	secure := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	for i, addr := range backends {
		target := Target{ID: prefixtree.Backend(i), Name: "b" + strconv.Itoa(i), Addr: addr}
		if rest, ok := strings.CutPrefix(addr, "tls://"); ok {
			target.Addr, target.TLS = rest, secure
		}
		entry := policy.Backend{ID: target.ID, Generation: 1, Name: target.Name, State: policy.Active, Models: cfg.models[addr]}
		if cfg.roles != "" {
			entry.Role = map[byte]policy.Role{'b': policy.Both, 'p': policy.Prefill, 'd': policy.Decode}[cfg.roles[i]|0x20]
			entry.Paired = cfg.roles[i] < 'a'
			if target.Role = entry.Role; entry.Paired {
				target.Bootstrap = 8998
			}
		}
		picker.targets[target.ID] = target
		entries = append(entries, entry)
	}
	view, err := policy.NewView(entries, nil)
	must(t, err)
	r.router.SetView(view)
	cfg.Picker, cfg.Hasher, cfg.Roles = picker, hasher, r.router.Roles
	if cfg.limits.Requests > 0 {
		cfg.Queue = Queue{Limits: cfg.limits, Router: r.router}
	}
	cfg.Observer = func(rec *Record) {
		kept := *rec
		kept.ID, kept.Model, kept.Path, kept.Method = bytes.Clone(rec.ID), bytes.Clone(rec.Model), bytes.Clone(rec.Path), bytes.Clone(rec.Method)
		if rec.Decision != nil {
			d := *rec.Decision
			d.Candidates = slices.Clone(d.Candidates)
			kept.Decision = &d
		}
		r.mu.Lock()
		r.records = append(r.records, kept)
		r.mu.Unlock()
	}
	r.tls = cfg.TLS != nil
	r.proxy, err = New(cfg.Config)
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.proxy.Serve(ln) }()
	r.proxy.Ready(true)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = r.proxy.Shutdown(ctx)
		if err := <-served; err != nil && !errors.Is(err, ErrClosed) { // ErrClosed: the test ended before Serve began
			t.Errorf("Serve: %v", err)
		}
		r.settled()
	})
	return r
}

// settled waits until every count is zero.
func (r *rig) settled() {
	r.t.Helper()
	eventually(r.t, "no request in flight", func() bool {
		if r.proxy.InFlight() != 0 {
			return false
		}
		for _, p := range clients.Priorities() {
			if requests, bytes := r.proxy.Queued(p); requests != 0 || bytes != 0 {
				return false
			}
		}
		for _, b := range r.router.View().Backends {
			if tokens, active := r.router.Load(b.ID); tokens != 0 || active != 0 {
				return false
			}
		}
		return true
	})
	if n := r.router.Stats().DoubleEnds; n != 0 {
		r.t.Errorf("%d attempts ended twice", n)
	}
}

// expire makes the timeout of u's request pass.
func (r *rig) expire(u *upstreamSide) {
	p := r.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.mu.Lock()
		if c.up != nil && c.up.raw.LocalAddr().String() == u.RemoteAddr().String() {
			c.deadline.Store(1)
		}
		c.mu.Unlock()
	}
}

func (r *rig) record(n int) Record {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("record %d", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.records) > n
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.records[n]
}

func (r *rig) dial() net.Conn {
	r.t.Helper()
	raw, err := net.Dial("tcp", r.addr)
	must(r.t, err)
	var c net.Conn = raw
	if r.tls {
		c = tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
	}
	must(r.t, c.SetDeadline(time.Now().Add(time.Minute))) // only against hangs
	r.t.Cleanup(func() { raw.Close() })
	return c
}

func tcpOf(c net.Conn) *net.TCPConn {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	return c.(*net.TCPConn)
}

func request(method, path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: grapevine\r\n", method, path)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if method != http.MethodGet && method != http.MethodHead || body != "" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

func chat(stream bool) string { return chatOf("hello", stream) }

func chatOf(content string, stream bool) string {
	return request("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":%q}]}`, stream, content))
}

type reply struct {
	*http.Response
	body string
	err  error // of reading the body
}

// raw uses a new connection.
func (r *rig) raw(req string) reply {
	r.t.Helper()
	c := r.dial()
	defer c.Close()
	_, err := io.WriteString(c, req)
	must(r.t, err)
	return readReply(r.t, bufio.NewReader(c), "POST")
}

func readReply(t testing.TB, br *bufio.Reader, method string) reply {
	t.Helper()
	rp, err := tryReply(br, method)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	return rp
}

func tryReply(br *bufio.Reader, method string) (reply, error) {
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		return reply{}, err
	}
	body, err := io.ReadAll(resp.Body)
	return reply{resp, string(body), err}, nil
}

func (rp reply) want(t testing.TB, status int, parts ...string) reply {
	t.Helper()
	if rp.Response == nil {
		t.Fatal("no response")
	}
	if rp.StatusCode != status {
		t.Fatalf("status %d, want %d; body %q", rp.StatusCode, status, rp.body)
	}
	for _, p := range parts {
		if !strings.Contains(rp.body, p) {
			t.Fatalf("body %q lacks %q", rp.body, p)
		}
	}
	return rp
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// backend is a scripted engine.
type backend struct {
	t    testing.TB
	ln   net.Listener
	addr string

	mu       sync.Mutex
	conns    map[net.Conn]bool
	accepted int
	seen     []seenRequest
	closed   sync.WaitGroup
}

type seenRequest struct {
	*http.Request
	body string
	raw  []byte // the head
}

// script answers one request; false closes the connection.
type script func(c *upstreamSide, req seenRequest) (keep bool)

type upstreamSide struct {
	net.Conn
	begun int // requests so far, including this one
}

func newBackend(t testing.TB, secure bool, s script) *backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &backend{t: t, ln: ln, addr: ln.Addr().String(), conns: make(map[net.Conn]bool)}
	if secure {
		b.addr = "tls://" + b.addr
	}
	b.closed.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if secure {
				c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}})
			}
			b.mu.Lock()
			b.conns[c] = true
			b.accepted++
			b.mu.Unlock()
			b.closed.Go(func() { b.serve(c, s) })
		}
	})
	t.Cleanup(b.stop)
	return b
}

func (b *backend) stop() {
	b.ln.Close()
	b.mu.Lock()
	for c := range b.conns {
		closeRaw(c)
	}
	b.mu.Unlock()
	b.closed.Wait()
}

func closeRaw(c net.Conn) {
	if s, ok := c.(*tls.Conn); ok {
		s.NetConn().Close()
		return
	}
	c.Close()
}

func (b *backend) serve(c net.Conn, s script) {
	defer func() {
		closeRaw(c)
		b.mu.Lock()
		delete(b.conns, c)
		b.mu.Unlock()
	}()
	for begun := 1; ; begun++ {
		var head bytes.Buffer
		br := bufio.NewReader(io.TeeReader(c, &head))
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		seen := seenRequest{req, string(body), bytes.Clone(head.Bytes())}
		b.mu.Lock()
		b.seen = append(b.seen, seen)
		b.mu.Unlock()
		side := &upstreamSide{Conn: c, begun: begun}
		if !s(side, seen) {
			return
		}
	}
}

// closedByPeer waits until the proxy closes the connection.
func (u *upstreamSide) closedByPeer(limit time.Duration) (time.Duration, error) {
	start := time.Now()
	_ = u.SetReadDeadline(start.Add(limit))
	var one [1]byte
	_, err := u.Read(one[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	if err == nil {
		return 0, errors.New("bytes instead of a close")
	}
	return time.Since(start), nil
}

func (b *backend) requests() []seenRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]seenRequest(nil), b.seen...)
}

func (b *backend) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accepted
}

func (u *upstreamSide) send(s string) bool {
	_, err := io.WriteString(u, s)
	return err == nil
}

const (
	okBody   = `{"id":"1","choices":[{"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":11,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`
	sseHead  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunkEnd = "0\r\n\r\n"
)

func jsonReply(status int, body string, headers ...string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		status, http.StatusText(status), len(body), strings.Join(append(headers, ""), "\r\n"), body)
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

func event(content string) string {
	return "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + content + "\"}}]}\n\n"
}

func answering(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(200, okBody)) }

var certificate, roots = func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}()

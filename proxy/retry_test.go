package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine/proxy/policy"
)

// resetting closes with an RST.
func resetting(c *upstreamSide, _ seenRequest) bool {
	if s, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = s.SetLinger(0)
	}
	return false
}

// hanging answers nothing until the proxy gives up.
func hanging(c *upstreamSide, _ seenRequest) bool {
	_, _ = c.closedByPeer(20 * time.Second)
	return false
}

var refusals atomic.Uint32

// refusing is an address nobody listens at: a port that the system gives to nobody who asks for any. One that was listened
// at and closed may be given to the next listener.
func refusing() string { return fmt.Sprintf("127.0.0.1:%d", 1+refusals.Add(1)%4) }

func TestFailingBackendCostsNoError(t *testing.T) {
	unavailable := func(status int) script {
		return func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(status, `{"detail":"no"}`)) }
	}
	partial := func(s string) script {
		return func(c *upstreamSide, _ seenRequest) bool { c.send(s); return false }
	}
	bad := map[string]struct {
		script script
		failed policy.Failure
	}{
		"killed":           {nil, policy.Connect},
		"hung":             {hanging, policy.Timeout},
		"resetting":        {resetting, policy.Reset},
		"502":              {unavailable(502), policy.Status5xx},
		"503":              {unavailable(503), policy.Status5xx},
		"504":              {unavailable(504), policy.Status5xx},
		"half a head":      {partial("HTTP/1.1 200 OK\r\nContent-"), policy.Reset},
		"nonsense":         {partial("SSH-2.0-OpenSSH\r\n\r\n"), policy.Reset},
		"half a body":      {partial("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), policy.Reset},
		"stream of none":   {partial(sseHead), policy.Reset},
		"malformed stream": {partial(sseHead + "zz\r\n"), policy.Reset},
		"switching":        {partial("HTTP/1.1 101 Switching Protocols\r\n\r\n"), policy.Reset},
	}
	for name, tc := range bad {
		for _, secure := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/tls=%v/stream=%v", name, secure, stream), func(t *testing.T) {
					t.Parallel()
					addr := refusing()
					if tc.script != nil {
						addr = newBackend(t, secure, tc.script).addr
					}
					good := newBackend(t, secure, func(c *upstreamSide, _ seenRequest) bool {
						if stream {
							return c.send(sseHead + chunk(event("hi")) + chunkEnd)
						}
						return c.send(jsonReply(200, okBody))
					})
					r := newRig(t, []string{addr, good.addr}, withStoppedClock(), withTimeouts(func(t *Timeouts) {
						t.Connect = 20 * time.Second
						if name == "hung" { // long enough for the good one on a busy machine
							t.FirstByte, t.StreamFirstByte = 3*time.Second, 3*time.Second
						}
					}))
					var failures []policy.Failure
					for i := range 4 {
						r.raw(chat(stream)).want(t, 200, "hi")
						rec := r.record(i)
						if rec.Attempts > 2 || rec.Failed != policy.None || rec.Backend != "b1" {
							t.Fatalf("record %+v", rec)
						}
						if rec.Attempts == 2 {
							failures = append(failures, tc.failed)
						}
					}
					// The failing one was tried, once, and then left alone.
					if len(failures) != 1 {
						t.Errorf("tried %d times", len(failures))
					}
				})
			}
		}
	}
}

func TestConcurrentFailover(t *testing.T) {
	// Every engine of three but one goes bad in its own way under load; no client sees it.
	var broken atomic.Bool
	flaky := func(bad script) script {
		return func(c *upstreamSide, req seenRequest) bool {
			if broken.Load() {
				return bad(c, req)
			}
			return answering(c, req)
		}
	}
	a, b, good := newBackend(t, false, flaky(resetting)), newBackend(t, false, flaky(hanging)), newBackend(t, false, answering)
	r := newRig(t, []string{a.addr, b.addr, good.addr}, withTimeouts(func(t *Timeouts) { t.FirstByte = 4 * time.Second }))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for i := range 50 {
				if i == 20 {
					broken.Store(true)
				}
				if _, err := io.WriteString(c, chat(false)); err != nil {
					t.Error(err)
					return
				}
				if rp := readReply(t, br, "POST"); rp.StatusCode != 200 {
					t.Errorf("status %d: %s", rp.StatusCode, rp.body)
				}
			}
		})
	}
	wg.Wait()
}

func TestAllFail(t *testing.T) {
	overloaded := func(c *upstreamSide, _ seenRequest) bool {
		return c.send(jsonReply(503, `{}`, "Retry-After: 7"))
	}
	for name, tc := range map[string]struct {
		script           script
		status           int
		code, retry      string
		after, anthropic string
	}{
		"killed":     {nil, 502, "upstream_unreachable", "", "", "api_error"},
		"hung":       {hanging, 504, "upstream_timeout", "false", "", "timeout_error"},
		"resetting":  {resetting, 502, "upstream_broken", "false", "", "api_error"},
		"overloaded": {overloaded, 503, "upstream_unavailable", "", "7", "overloaded_error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs := []string{refusing(), refusing()}
			if tc.script != nil {
				addrs = []string{newBackend(t, false, tc.script).addr, newBackend(t, false, tc.script).addr}
			}
			r := newRig(t, addrs, withTimeouts(func(t *Timeouts) {
				if name == "hung" {
					t.FirstByte = time.Second
				}
			}))
			rp := r.raw(chat(false)).want(t, tc.status, `"code":"`+tc.code+`"`, `"param":null`, "backends tried: 2")
			if rp.Header.Get("X-Should-Retry") != tc.retry || rp.Header.Get("Retry-After") != tc.after {
				t.Errorf("headers %v", rp.Header)
			}
			rp = r.raw(request("POST", "/v1/messages", `{"model":"m","messages":[],"max_tokens":1}`)).
				want(t, tc.status, `{"type":"error","error":{"type":"`+tc.anthropic+`"`)
			if strings.Contains(rp.body, "param") {
				t.Errorf("not Anthropic's shape: %s", rp.body)
			}
		})
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	var addrs []string
	for range 6 {
		addrs = append(addrs, newBackend(t, false, resetting).addr)
	}
	r := newRig(t, addrs, withConfig(func(c *Config) { c.MaxAttempts = 4 }))
	r.raw(chat(false)).want(t, 502, "backends tried: 4")
	if rec := r.record(0); rec.Attempts != 4 || rec.Status != 502 {
		t.Errorf("record %+v", rec)
	}
}

func TestNobodyToAsk(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withModels(map[string][]string{b.addr: {"other"}}))
	r.raw(chat(false)).want(t, 404, `"code":"model_not_found"`, `\"m\"`)
	r.raw(request("POST", "/v1/messages", `{"model":"m"}`)).want(t, 404, `"type":"not_found_error"`)
	if rec := r.record(0); rec.Attempts != 0 || rec.Decision != nil || rec.Status != 404 {
		t.Errorf("record %+v", rec)
	}
	view, err := policy.NewView([]policy.Backend{{ID: 0, Name: "b0", State: policy.Down}}, nil)
	must(t, err)
	r.router.SetView(view)
	rp := r.raw(chat(false)).want(t, 503, `"code":"no_backend"`)
	if rp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestEnginesErrorsPassThrough(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		switch req.Header.Get("X-Want") {
		case "400":
			return c.send(jsonReply(400, `{"error":{"code":"context_length_exceeded"}}`))
		case "429":
			return c.send(jsonReply(429, `{"error":"slow down"}`))
		}
		return c.send(jsonReply(500, `{"error":"bug"}`))
	})
	other := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr, other.addr}, withModels(map[string][]string{b.addr: {"m"}, other.addr: {"n"}}))
	with := func(want string) string {
		return request("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, "X-Want: "+want)
	}
	r.raw(with("400")).want(t, 400, "context_length_exceeded")
	if rp := r.raw(with("429")).want(t, 429, "slow down"); rp.Header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", rp.Header)
	}
	r.raw(with("500")).want(t, 500, "bug")
	for i, want := range []policy.Failure{policy.Client4xx, policy.Client4xx, policy.Status5xx} {
		if rec := r.record(i); rec.Failed != want || rec.Attempts != 1 {
			t.Errorf("record %+v", rec)
		}
	}
}

// A backend that closes idle connections, as uvicorn does after 5 s, at the very moment they are used again.
func TestStaleConnectionsAreNotFailures(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			// The engine reads the second request on a connection and closes without a byte: what a request meets that
			// crosses with the close.
			b := newBackend(t, secure, func(c *upstreamSide, _ seenRequest) bool {
				return c.begun == 1 && c.send(jsonReply(200, okBody))
			})
			r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.UpstreamIdle = time.Minute }))
			c := r.dial()
			br := bufio.NewReader(c)
			const requests = 20
			for i := range requests {
				_, err := io.WriteString(c, chat(i%2 == 0))
				must(t, err)
				readReply(t, br, "POST").want(t, 200)
				if rec := r.record(i); rec.Failed != policy.None || rec.Attempts != 1 || rec.Resent != min(i, 1) {
					t.Fatalf("request %d: %+v", i, rec)
				}
			}
			if n := r.router.Stats(); n.Outcomes["reset"] != 0 {
				t.Errorf("counted against the backend: %v", n.Outcomes)
			}
		})
	}
}

func TestClosedIdleConnectionIsDiscarded(t *testing.T) {
	var keep atomic.Bool
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(jsonReply(200, okBody))
		return keep.Load() // false: closes right after the response, without having said so
	})
	r := newRig(t, []string{b.addr})
	for i := range 5 {
		r.raw(chat(false)).want(t, 200)
		eventually(t, "the backend has closed", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.conns) == 0 })
		if rec := r.record(i); rec.Resent != 0 {
			t.Errorf("request %d was sent on a closed connection", i)
		}
	}
	// Bytes that nobody asked for make a connection unfit as well: they would be taken for the next response.
	said := make(chan bool, 5)
	chatty := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		keep := c.send(jsonReply(200, okBody)) && (c.begun > 1 || c.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"))
		said <- true
		return keep
	})
	r = newRig(t, []string{chatty.addr})
	for range 5 {
		r.raw(chat(false)).want(t, 200, okBody)
		<-said // what comes too late to be seen is the engine's to answer for
	}
}

func TestUnusedUpstreamConnectionsAreClosed(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.UpstreamIdle = 100 * time.Millisecond }))
	r.raw(chat(false)).want(t, 200)
	eventually(t, "closed by the proxy", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.conns) == 0 })
}

func TestUpstreamConnectionsAreReused(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.UpstreamIdle = time.Minute }))
	for range 20 {
		r.raw(chat(false)).want(t, 200)
	}
	if n := b.connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	closing := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		return c.send(jsonReply(200, okBody, "Connection: close"))
	})
	r = newRig(t, []string{closing.addr})
	for range 3 {
		rp := r.raw(chat(false)).want(t, 200)
		if rp.Close {
			t.Error("the backend's Connection: close reached the client")
		}
	}
	if n := closing.connections(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

func TestEarlyAnswerToALargeRequest(t *testing.T) {
	// The engine refuses by the head alone and closes, megabytes unread.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			br := bufio.NewReader(c)
			_, _ = br.ReadString('\n')
			_, _ = io.WriteString(c, jsonReply(413, `{"error":"too long"}`, "Connection: close"))
			_ = c.(*net.TCPConn).CloseWrite()
			time.Sleep(50 * time.Millisecond)
			c.Close()
		}
	}()
	r := newRig(t, []string{ln.Addr().String()})
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 16<<20) + `"}]}`
	rp := r.raw(request("POST", "/v1/chat/completions", body))
	if rp.StatusCode != 413 && rp.StatusCode != 502 { // 502 if the RST overtook the answer, which the kernel may let happen
		t.Errorf("status %d", rp.StatusCode)
	}
}

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

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
)

func resetting(c *upstreamSide, _ seenRequest) bool {
	if s, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = s.SetLinger(0)
	}
	return false
}

// hanging never answers. Its requests time out at once, so that other engines' timeouts can be
// long.
type hanging struct{ rig *rig }

func (h *hanging) answer(c *upstreamSide, _ seenRequest) bool {
	h.rig.expire(c)
	_, _ = c.closedByPeer(20 * time.Second)
	return false
}

var refusals atomic.Uint32

// refusing returns an address without a listener: a port below those that the system assigns.
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
		failed books.Failure
	}{
		"killed":           {nil, books.Connect},
		"hung":             {nil, books.Timeout}, // each subtest makes its own script
		"resetting":        {resetting, books.Reset},
		"502":              {unavailable(502), books.Status5xx},
		"503":              {unavailable(503), books.Status5xx},
		"504":              {unavailable(504), books.Status5xx},
		"half a head":      {partial("HTTP/1.1 200 OK\r\nContent-"), books.Reset},
		"nonsense":         {partial("SSH-2.0-OpenSSH\r\n\r\n"), books.Reset},
		"half a body":      {partial("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), books.Reset},
		"stream of none":   {partial(sseHead), books.Reset},
		"malformed stream": {partial(sseHead + "zz\r\n"), books.Reset},
		"switching":        {partial("HTTP/1.1 101 Switching Protocols\r\n\r\n"), books.Reset},
	}
	for name, tc := range bad {
		for _, secure := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/tls=%v/stream=%v", name, secure, stream), func(t *testing.T) {
					t.Parallel()
					tc := tc // the subtests run in parallel
					addr, hung := refusing(), &hanging{}
					if name == "hung" {
						tc.script = hung.answer
					}
					if tc.script != nil {
						addr = newBackend(t, secure, tc.script).addr
					}
					good := newBackend(t, secure, func(c *upstreamSide, _ seenRequest) bool {
						if stream {
							return c.send(sseHead + chunk(event("hi")) + chunkEnd)
						}
						return c.send(jsonReply(200, okBody))
					})
					r := newRig(t, []string{addr, good.addr}, withStoppedClock(), withTimeouts(func(t *Timeouts) { t.Connect = 20 * time.Second }))
					hung.rig = r
					var failures []books.Failure
					for i := range 8 {
						r.raw(chatOf(fmt.Sprint("prompt ", i), stream)).want(t, 200, "hi")
						rec := r.record(i)
						if rec.Attempts > 2 || rec.Failed != books.None || rec.Backend != "b1" {
							t.Fatalf("record %+v", rec)
						}
						if rec.Attempts == 2 {
							failures = append(failures, tc.failed)
						}
					}
					// One refused connection or two failed requests.
					want := 2
					if tc.failed == books.Connect {
						want = 1
					}
					if len(failures) != want {
						t.Errorf("tried %d times", len(failures))
					}
				})
			}
		}
	}
}

func TestConcurrentFailover(t *testing.T) {
	hung := &hanging{}
	for name, bad := range map[string]script{"resetting": resetting, "hanging": hung.answer} {
		t.Run(name, func(t *testing.T) { failOver(t, bad, hung) })
	}
}

func failOver(t *testing.T, bad script, hung *hanging) {
	var broken atomic.Bool
	flaky := func(bad script) script {
		return func(c *upstreamSide, req seenRequest) bool {
			if broken.Load() {
				return bad(c, req)
			}
			return answering(c, req)
		}
	}
	a, b, c := newBackend(t, false, flaky(bad)), newBackend(t, false, answering), newBackend(t, false, answering)
	r := newRig(t, []string{a.addr, b.addr, c.addr})
	hung.rig = r
	var wg sync.WaitGroup
	for client := range 8 {
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
				if _, err := io.WriteString(c, chatOf(fmt.Sprint(client, " ", i), false)); err != nil {
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
	hung := &hanging{}
	for name, tc := range map[string]struct {
		script           script
		status           int
		code, retry      string
		after, anthropic string
	}{
		"killed":     {nil, 502, "upstream_unreachable", "", "", "api_error"},
		"hung":       {hung.answer, 504, "upstream_timeout", "false", "", "timeout_error"},
		"resetting":  {resetting, 502, "upstream_broken", "false", "", "api_error"},
		"overloaded": {overloaded, 503, "upstream_unavailable", "", "7", "overloaded_error"},
	} {
		t.Run(name, func(t *testing.T) {
			addrs := []string{refusing(), refusing()}
			if tc.script != nil {
				addrs = []string{newBackend(t, false, tc.script).addr, newBackend(t, false, tc.script).addr}
			}
			r := newRig(t, addrs)
			hung.rig = r
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

// A request that no engine received tries MaxAttempts; one that was received moves once if it is
// inference.
func TestAttemptsAreBounded(t *testing.T) {
	var engines []*backend
	var addrs, refuse []string
	for range 6 {
		b := newBackend(t, false, resetting)
		engines, addrs, refuse = append(engines, b), append(addrs, b.addr), append(refuse, refusing())
	}
	seen := func() (n int) {
		for _, b := range engines {
			n += len(b.requests())
		}
		return n
	}
	four := withConfig(func(c *Config) { c.MaxAttempts = 4 })
	newRig(t, refuse, four).raw(chat(false)).want(t, 502, "backends tried: 4")
	r := newRig(t, addrs, four)
	r.raw(chat(false)).want(t, 502, "backends tried: 2")
	if rec := r.record(0); rec.Attempts != 2 || rec.Status != 502 || seen() != 2 {
		t.Errorf("%d engines have seen it; record %+v", seen(), rec)
	}
	for _, path := range []string{"/anything", "/v1/batches"} {
		before := seen()
		r.raw(request("POST", path, `{"run":"once"}`)).want(t, 502, "backends tried: 1")
		if n := seen() - before; n != 1 {
			t.Errorf("%s was done %d times", path, n)
		}
	}
}

// Requests not known as inference are sent once and count against no engine.
func TestPassedOnIsNotRepeated(t *testing.T) {
	var broken atomic.Bool
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		if broken.Load() {
			return resetting(c, req)
		}
		return c.send(jsonReply(503, `{"error":"mine"}`))
	})
	r := newRig(t, []string{b.addr, b.addr})
	for range 5 {
		r.raw(request("POST", "/anything", "{}")).want(t, 503, "mine")
	}
	broken.Store(true)
	for i := range 5 {
		before := len(b.requests())
		r.raw(request("POST", "/anything", "{}")).want(t, 502)
		if n := len(b.requests()) - before; n != 1 {
			t.Errorf("request %d was done %d times", i, n)
		}
	}
	for id := range 2 {
		if _, avoided := r.router.Avoided(prefixtree.Backend(id), prefixtree.Time(time.Now().UnixMilli())); avoided {
			t.Errorf("engine %d is left alone", id)
		}
	}
}

// A prompt that every engine resets reaches two of eight, and none is avoided for it.
func TestBadRequestHarmsNobody(t *testing.T) {
	var engines []*backend
	var addrs []string
	deadly := func(c *upstreamSide, req seenRequest) bool {
		if strings.Contains(req.body, "deadly") {
			return resetting(c, req)
		}
		return c.send(jsonReply(200, okBody))
	}
	for range 8 {
		b := newBackend(t, false, deadly)
		engines, addrs = append(engines, b), append(addrs, b.addr)
	}
	seen := func() (n int) {
		for _, b := range engines {
			for _, req := range b.requests() {
				if strings.Contains(req.body, "deadly") {
					n++
				}
			}
		}
		return n
	}
	r := newRig(t, addrs)
	avoided := func() (n int) {
		for id := range engines {
			if _, avoid := r.router.Avoided(prefixtree.Backend(id), prefixtree.Time(time.Now().UnixMilli())); avoid {
				n++
			}
		}
		return n
	}
	var wg sync.WaitGroup
	for client := range 12 {
		wg.Go(func() {
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for turn := range 30 {
				if _, err := io.WriteString(c, chatOf(fmt.Sprint("conversation ", client, " turn ", turn), false)); err != nil {
					t.Error(err)
					return
				}
				readReply(t, br, "POST").want(t, 200)
			}
		})
	}
	rp := r.raw(chatOf("deadly", false)).want(t, 502, "backends tried: 2")
	if rp.Header.Get("X-Should-Retry") != "false" || seen() < 2 {
		t.Errorf("headers %v, sent %d times", rp.Header, seen())
	}
	if n := avoided(); n > 0 {
		t.Errorf("one bad request: %d of 8 engines are left alone", n)
	}
	before := seen()
	for range 3 {
		rp := r.raw(chatOf("deadly", false)).want(t, 502, `"code":"upstream_broken"`, "does not send it to another")
		if rp.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("headers %v", rp.Header)
		}
	}
	if n := seen() - before; n > 0 {
		t.Errorf("a prompt that broke two engines was sent %d times more", n)
	}
	for i := range 40 { // similar prompts
		r.raw(chatOf(fmt.Sprint("deadly ", i), false)).want(t, 502)
		if n := avoided(); n > 0 {
			t.Fatalf("%d of 8 engines are left alone", n)
		}
	}
	wg.Wait()
}

func TestBrokenIsBoundedAndForgets(t *testing.T) {
	var b broken
	start := time.Unix(1_800_000_000, 0)
	for i := range uint64(2 * brokeKept) {
		b.add(i+1, start)
	}
	if b.has(1, start) || !b.has(2*brokeKept, start) || b.has(2*brokeKept, start.Add(brokeFor)) {
		t.Error("it holds what it should not, or does not hold what it should")
	}
}

// 429 moves the request on and pauses that engine; if all answer it, the client gets the shortest
// wait.
func TestBusyEngineIsPassedOver(t *testing.T) {
	full := func(wait string) *backend {
		return newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			return c.send(jsonReply(429, `{"error":"full, wait `+wait+`"}`, "Retry-After: "+wait))
		})
	}
	a, idle := full("2"), newBackend(t, false, answering)
	r := newRig(t, []string{a.addr, idle.addr}, withStoppedClock())
	for i := range 15 {
		r.raw(chatOf(fmt.Sprint(i), i%2 == 0)).want(t, 200)
		if rec := r.record(i); rec.Failed != books.None || rec.Backend != "b1" {
			t.Errorf("record %+v", rec)
		}
	}
	if n := len(a.requests()); n != 1 {
		t.Errorf("the one that is busy was asked %d times", n)
	}
	r = newRig(t, []string{full("7").addr, full("3").addr, full("9").addr, full("5").addr}, withStoppedClock())
	if rp := r.raw(chat(false)).want(t, 429, "full, wait "); rp.Header.Get("Retry-After") != "3" {
		t.Errorf("headers %v", rp.Header)
	}
	if rec := r.record(0); rec.Attempts != 4 || rec.Failed != books.Busy {
		t.Errorf("record %+v", rec)
	}
	r.raw(chat(false)).want(t, 429, "full, wait ")
	if rec := r.record(1); rec.Attempts != 1 {
		t.Errorf("all are known to be busy, and %d are asked", rec.Attempts)
	}
	// The proxy does not wait for a 429 body of unknown length.
	r = newRig(t, []string{newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		return c.send("HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\n\r\n")
	}).addr})
	if rp := r.raw(chat(false)).want(t, 429, "backends_busy"); rp.Header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", rp.Header)
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
	for i, want := range []books.Failure{books.Client4xx, books.Busy, books.Status5xx} {
		if rec := r.record(i); rec.Failed != want || rec.Attempts != 1 {
			t.Errorf("record %+v", rec)
		}
	}
}

func TestStaleConnectionsAreNotFailures(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			// As when a request crosses with the close.
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
				if rec := r.record(i); rec.Failed != books.None || rec.Attempts != 1 || rec.Resent != min(i, 1) {
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
		return keep.Load() // false: closes after the response without announcing it
	})
	r := newRig(t, []string{b.addr})
	for i := range 5 {
		r.raw(chat(false)).want(t, 200)
		eventually(t, "the backend has closed", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.conns) == 0 })
		if rec := r.record(i); rec.Resent != 0 {
			t.Errorf("request %d was sent on a closed connection", i)
		}
	}
	// Unread bytes would be taken for the next response.
	said := make(chan bool, 5)
	chatty := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		keep := c.send(jsonReply(200, okBody)) && (c.begun > 1 || c.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"))
		said <- true
		return keep
	})
	r = newRig(t, []string{chatty.addr})
	for range 5 {
		r.raw(chat(false)).want(t, 200, okBody)
		<-said // later bytes cannot be detected
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
	// The engine refuses by the head alone and closes.
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
	if rp.StatusCode != 413 && rp.StatusCode != 502 { // 502 if the RST overtook the answer
		t.Errorf("status %d", rp.StatusCode)
	}
}

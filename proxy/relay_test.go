package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"grapevine.example/proxy/books"
)

func streaming(events <-chan string) script {
	return func(c *upstreamSide, _ seenRequest) bool {
		if !c.send(sseHead) {
			return false
		}
		for ev := range events {
			if !c.send(chunk(ev)) {
				return false
			}
		}
		return c.send(chunkEnd)
	}
}

func TestStreamIsFlushedChunkByChunk(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			events := make(chan string)
			b := newBackend(t, secure, streaming(events))
			var opts []rigOption
			if secure {
				opts = append(opts, withTLS())
			}
			r := newRig(t, []string{b.addr}, opts...)
			c := r.dial()
			_, err := io.WriteString(c, chat(true))
			must(t, err)
			events <- event("0")
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, nil)
			must(t, err)
			body := bufio.NewReader(resp.Body)
			for i := range 10 {
				// The next event is sent only after this one was read.
				want := event(fmt.Sprint(i))
				got := make([]byte, len(want))
				_, err = io.ReadFull(body, got)
				must(t, err)
				if string(got) != want {
					t.Fatalf("event %d: %q", i, got)
				}
				if i < 9 {
					events <- event(fmt.Sprint(i + 1))
				}
			}
			close(events)
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Fatalf("after the stream: %q, %v", rest, err)
			}
			_, err = io.WriteString(c, request("GET", "/healthz", ""))
			must(t, err)
			readReply(t, br, "GET").want(t, 200)
			rec := r.record(0)
			if rec.TTFT <= 0 || rec.Status != 200 || rec.Failed != books.None || !rec.Stream {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

func TestUsageIsInjectedAndStripped(t *testing.T) {
	const usage = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		out := event("a") + event("b")
		if strings.Contains(req.body, `"include_usage":true`) {
			out += usage
		}
		return c.send(sseHead + chunk(out+"data: [DONE]\n\n") + chunkEnd)
	})
	r := newRig(t, []string{b.addr})
	rp := r.raw(chat(true)).want(t, 200)
	if want := event("a") + event("b") + "data: [DONE]\n\n"; rp.body != want {
		t.Errorf("got  %q\nwant %q", rp.body, want)
	}
	if rec := r.record(0); rec.PromptTokens != 20 || rec.CachedTokens != 16 || rec.OutputTokens != 2 {
		t.Errorf("record %+v", rec)
	}
	asked := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`
	rp = r.raw(request("POST", "/v1/chat/completions", asked)).want(t, 200)
	if !strings.Contains(rp.body, usage) {
		t.Errorf("usage is missing: %q", rp.body)
	}
	if got := b.requests()[1].body; got != asked {
		t.Errorf("the body was changed: %q", got)
	}
}

func TestBrokenStreamEndsWithAnErrorEvent(t *testing.T) {
	half := event("whole") + `data: {"choi`
	cases := map[string]struct{ path, want string }{
		"openai":    {"/v1/chat/completions", "data: {\"error\":{\"message\":\"the backend closed the connection before the end of its response\",\"type\":\"server_error\",\"param\":null,\"code\":\"upstream_broken\"}}\n\n"},
		"responses": {"/v1/responses", "event: error\ndata: {\"type\":\"error\",\"code\":\"upstream_broken\","},
		"anthropic": {"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"the backend closed the connection before the end of its response\"}}\n\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				c.send(sseHead + chunk(half))
				return false
			})
			other := newBackend(t, false, answering)
			r := newRig(t, []string{b.addr, other.addr})
			c := r.dial()
			_, err := io.WriteString(c, request("POST", tc.path, `{"model":"m","stream":true,"messages":[],"input":"x","max_tokens":1}`))
			must(t, err)
			br := bufio.NewReader(c)
			rp := readReply(t, br, "POST").want(t, 200)
			if rp.err != nil || !strings.HasPrefix(rp.body, event("whole")+tc.want) {
				t.Errorf("body %q, %v", rp.body, rp.err)
			}
			if _, err := br.ReadByte(); err != io.EOF {
				t.Errorf("connection: %v, want EOF", err)
			}
			if rec := r.record(0); rec.Failed != books.Reset || !rec.Broken || rec.Attempts != 1 {
				t.Errorf("record %+v", rec)
			}
			if n := len(other.requests()); n != 0 {
				t.Errorf("%d requests were sent again after the first byte", n)
			}
		})
	}
}

func TestBrokenBodyIsCutOff(t *testing.T) {
	big := strings.Repeat("x", bufferedBody+1)
	for name, tc := range map[string]struct{ head, body string }{
		"chunked":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk("some")},
		"known length": {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", 2*len(big)), big},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				c.send(tc.head + tc.body)
				return false
			})
			r := newRig(t, []string{b.addr})
			rp := r.raw(chat(false)).want(t, 200)
			if rp.err == nil {
				t.Error("the client took a broken response for a whole one")
			}
			if rec := r.record(0); rec.Failed != books.Reset || !rec.Broken {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

func TestIdleStreamTimesOut(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(sseHead + chunk(event("a")))
		_, err := c.closedByPeer(20 * time.Second)
		if err != nil {
			t.Errorf("upstream: %v", err)
		}
		return false
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.Idle = 150 * time.Millisecond }))
	start := r.proxy.clock.Load() // see TestHeaderHold
	r.raw(chat(true)).want(t, 200, event("a"), `"code":"upstream_timeout"`)
	if d := time.Duration(r.proxy.clock.Load() - start); d < 150*time.Millisecond {
		t.Errorf("gave up after %v, before the time was up", d)
	}
	if rec := r.record(0); rec.Failed != books.Timeout {
		t.Errorf("record %+v", rec)
	}
}

func TestSlowStreamOutlivesEveryTimeout(t *testing.T) {
	t.Parallel()
	const events = 35
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(sseHead)
		for range events {
			c.send(chunk(event("a")))
			time.Sleep(100 * time.Millisecond)
		}
		return c.send(chunkEnd)
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) {
		t.Read, t.KeepAlive, t.StreamFirstByte, t.FirstByte = 3*time.Second, 3*time.Second, 3*time.Second, 3*time.Second
		t.Idle, t.Write, t.HeaderHold = 3*time.Second, 3*time.Second, 50*time.Millisecond
	}))
	if rp := r.raw(chat(true)).want(t, 200); rp.body != strings.Repeat(event("a"), events) {
		t.Errorf("body %q", rp.body)
	}
}

func TestHeaderHold(t *testing.T) {
	go1 := make(chan bool)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(sseHead)
		<-go1
		return c.send(chunk(event("late")) + chunkEnd)
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.HeaderHold = 100 * time.Millisecond }))
	c := r.dial()
	start := r.proxy.clock.Load() // the clock by which the proxy holds, which a busy machine moves late
	_, err := io.WriteString(c, chat(true))
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil) // only the head has been sent
	must(t, err)
	if d := time.Duration(r.proxy.clock.Load() - start); d <= 100*time.Millisecond || d > 10*time.Second { // the default is 15 s
		t.Errorf("head came after %v", d)
	}
	close(go1)
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != event("late") {
		t.Errorf("body %q, %v", body, err)
	}
}

// The proxy changes the length of an event stream.
func TestEventStreamOfGivenLength(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2}}` + "\n\n"
	whole := event("a") + usage + "data: [DONE]\n\n"
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n", len(whole))
	for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
		req := strings.Replace(chat(true), "HTTP/1.1", version, 1)
		b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool { return c.send(head + whole) })
		r := newRig(t, []string{b.addr})
		if rp := r.raw(req).want(t, 200); rp.err != nil || rp.body != event("a")+"data: [DONE]\n\n" {
			t.Errorf("%s: %q, %v", version, rp.body, rp.err)
		}
		if rec := r.record(0); rec.Failed != books.None || rec.Broken || rec.PromptTokens != 20 {
			t.Errorf("%s: record %+v", version, rec)
		}
		b = newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			c.send(head + event("a"))
			return false
		})
		r = newRig(t, []string{b.addr})
		rp := r.raw(req).want(t, 200, event("a"), "upstream_broken")
		if rp.err != nil || !strings.HasSuffix(rp.body, "}\n\n") {
			t.Errorf("%s, broken: %q, %v", version, rp.body, rp.err)
		}
	}
}

// Its events cannot be found, so bytes pass at once.
func TestCompressedEventStreamIsNotHeld(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("\x1f\x8bsqueezed"))
		_, _ = c.closedByPeer(20 * time.Second)
		return false
	})
	r := newRig(t, []string{b.addr})
	c := r.dial()
	_, err := io.WriteString(c, request("GET", "/events", "", "Accept-Encoding: gzip"))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(10*time.Second))) // a head is held for 15 s
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	got := make([]byte, len("\x1f\x8bsqueezed"))
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A plain close would look like the end of the body.
func TestHTTP10BrokenBodyIsReset(t *testing.T) {
	for _, secure := range []bool{false, true} {
		sent := make(chan struct{})
		b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			c.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(`{"half`))
			<-sent
			return false
		})
		var opts []rigOption
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{b.addr}, opts...)
		c := r.dial()
		_, err := io.WriteString(c, "GET /x HTTP/1.0\r\nHost: a\r\n\r\n")
		must(t, err)
		br := bufio.NewReader(c)
		resp, err := http.ReadResponse(br, nil)
		must(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, len(`{"half`)))
		must(t, err)
		close(sent)
		if rest, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("TLS %v: ends like a whole body, after %q", secure, rest)
		}
	}
}

func TestHTTP10StreamEndsWithTheConnection(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		return c.send(sseHead + chunk(event("a")) + chunk(event("b")) + chunkEnd)
	})
	r := newRig(t, []string{b.addr})
	c := r.dial()
	_, err := io.WriteString(c, strings.Replace(chat(true), "HTTP/1.1", "HTTP/1.0", 1))
	must(t, err)
	all, err := io.ReadAll(c)
	must(t, err)
	head, body, _ := strings.Cut(string(all), "\r\n\r\n")
	if body != event("a")+event("b") || strings.Contains(strings.ToLower(head), "chunked") || !strings.Contains(head, "Connection: close") {
		t.Errorf("response %q", all)
	}
}

func TestLargeBodiesAreStreamedThrough(t *testing.T) {
	filler := strings.Repeat("0123456789abcdef", 1<<16)
	body := `{"data":"` + filler + `","usage":{"prompt_tokens":7,"total_tokens":7}}`
	for name, head := range map[string]string{
		"length":   fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)),
		"chunked":  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
		"to close": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				if name != "chunked" {
					c.send(head + body)
					return name == "length"
				}
				c.send(head)
				for rest := body; len(rest) > 0; {
					n := min(len(rest), 10_000)
					c.send(chunk(rest[:n]))
					rest = rest[n:]
				}
				return c.send(chunkEnd)
			})
			r := newRig(t, []string{b.addr})
			rp := r.raw(request("POST", "/v1/embeddings", `{"model":"m","input":"x"}`)).want(t, 200)
			if rp.err != nil || rp.body != body {
				t.Errorf("%d bytes, want %d, %v", len(rp.body), len(body), rp.err)
			}
			if rec := r.record(0); rec.PromptTokens != 7 || rec.ResponseBytes != int64(len(body)) {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

func TestBodilessResponses(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		switch req.URL.Path {
		case "/none":
			return c.send("HTTP/1.1 204 No Content\r\n\r\n")
		case "/same":
			return c.send("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n")
		case "/early":
			return c.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + jsonReply(200, "{}"))
		}
		return c.send("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n") // for HEAD
	})
	r := newRig(t, []string{b.addr})
	c := r.dial()
	br := bufio.NewReader(c)
	for _, tc := range []struct {
		method, path string
		status       int
		length       string
		body         string
	}{
		{"HEAD", "/big", 200, "12345", ""},
		{"GET", "/none", 204, "", ""},
		{"GET", "/same", 304, "99", ""},
		{"GET", "/early", 200, "2", "{}"},
	} {
		_, err := io.WriteString(c, request(tc.method, tc.path, ""))
		must(t, err)
		rp := readReply(t, br, tc.method).want(t, tc.status)
		if rp.Header.Get("Content-Length") != tc.length || rp.body != tc.body {
			t.Errorf("%s %s: length %q, body %q", tc.method, tc.path, rp.Header.Get("Content-Length"), rp.body)
		}
	}
	if n := b.connections(); n != 1 {
		t.Errorf("%d backend connections, want 1", n)
	}
}

func TestChunksThatArriveTogetherLeaveTogether(t *testing.T) {
	var in strings.Builder
	for i := range 50 {
		in.WriteString(chunk(fmt.Sprint("piece ", i, ";")))
	}
	in.WriteString("0\r\nX-Trailer: t\r\n\r\nNEXT")
	br := bufio.NewReaderSize(strings.NewReader(in.String()), 16<<10)
	var b bodyReader
	b.reset(br, lengthChunked)
	view, err := b.next()
	must(t, err)
	if n := bytes.Count(view, []byte(";")); n != 50 {
		t.Errorf("%d pieces in one read, want 50", n)
	}
	if _, err := b.next(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	if rest, _ := io.ReadAll(br); string(rest) != "NEXT" {
		t.Errorf("left over: %q", rest)
	}
}

func FuzzChunkedBody(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), uint8(3))
	f.Add([]byte("5;ext=1\r\nhello\r\nA \r\n0123456789\r\n0\r\nT: x\r\n\r\nrest"), uint8(1))
	f.Add([]byte("fffffffffffffff\r\n"), uint8(200))
	f.Add([]byte("5\nhello"), uint8(7))
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		// Results agree, however the bytes are cut, and with net/http.
		read := func(step int) (string, error, int) {
			br := bufio.NewReaderSize(&dribble{in, max(step, 1)}, 16<<10)
			var b bodyReader
			b.reset(br, lengthChunked)
			var out []byte
			for {
				view, err := b.next()
				if err == io.EOF {
					rest, _ := io.ReadAll(br)
					return string(out), nil, len(rest)
				}
				if err != nil {
					return string(out), err, 0
				}
				if len(view) == 0 {
					t.Fatal("empty view")
				}
				out = append(out, view...)
			}
		}
		whole, err, rest := read(len(in))
		cut, cutErr, cutRest := read(int(step))
		if (err == nil) != (cutErr == nil) || err == nil && (whole != cut || rest != cutRest) {
			t.Fatalf("whole %q %v, cut by %d %q %v", whole, err, step, cut, cutErr)
		}
		if err != nil {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(in))), nil)
		must(t, err)
		theirs, err := io.ReadAll(resp.Body)
		if err == nil && string(theirs) != whole {
			t.Fatalf("ours %q, net/http's %q", whole, theirs)
		}
	})
}

type dribble struct {
	rest []byte
	step int
}

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.rest[:min(d.step, len(d.rest))])
	d.rest = d.rest[n:]
	return n, nil
}

func TestEventsEnd(t *testing.T) {
	for in, want := range map[string]int{
		"":                       0,
		"data: x":                0,
		"data: x\n":              0,
		"data: x\n\n":            9,
		"data: x\r\n\r\n":        11,
		"data: x\n\ndata":        9,
		"data: x\r\n\r\nda":      11,
		": ping\n":               7,
		": ping":                 0,
		"data: x\n\n: ping\n":    16,
		"data: x\n\n: ping\nda":  16,
		"event: a\ndata: x\n":    0,
		"\n\n":                   2,
		"data: x\n\n\n\ndata: y": 11,
	} {
		if got := eventsEnd([]byte(in)); got != want {
			t.Errorf("eventsEnd(%q) = %d, want %d", in, got, want)
		}
	}
}

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
)

// Each request that a smuggler would send is refused and its connection closed, or has a single
// meaning.
func TestFraming(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	impatient := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.Read = time.Second }))
	const host = "Host: a\r\n"
	smuggled := "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	post := func(headers, body string) string { return "POST /v1/x HTTP/1.1\r\n" + host + headers + "\r\n" + body }
	for name, tc := range map[string]struct {
		raw    string
		status int // 0 means 400
	}{
		"length and coding":           {post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+smuggled), 0},
		"coding and length":           {post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"+smuggled), 0},
		"length and coding, big":      {post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunk("hello")+chunkEnd), 0},
		"identity and length":         {post("Transfer-Encoding: identity\r\nContent-Length: 5\r\n", "hello"), 0},
		"identity":                    {post("Transfer-Encoding: identity\r\n", ""), 0},
		"two lengths":                 {post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), 0},
		"same length twice":           {post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), 0},
		"list of lengths":             {post("Content-Length: 5, 5\r\n", "hello"), 0},
		"signed length":               {post("Content-Length: +5\r\n", "hello"), 0},
		"negative length":             {post("Content-Length: -5\r\n", "hello"), 0},
		"hex length":                  {post("Content-Length: 0x5\r\n", "hello"), 0},
		"length of 2^64":              {post("Content-Length: 18446744073709551616\r\n", ""), 0},
		"unknown coding":              {post("Transfer-Encoding: xchunked\r\n", chunkEnd), 0},
		"coding list":                 {post("Transfer-Encoding: gzip, chunked\r\n", chunkEnd), 0},
		"two codings":                 {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunkEnd), 0},
		"coding with a tab":           {post("Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n", chunkEnd), 0},
		"coding in 1.0":               {"POST /v1/x HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + chunkEnd, 0},
		"space before colon":          {post("Content-Length : 5\r\n", "hello"), 0},
		"space in name":               {post("X Y: 5\r\n", ""), 0},
		"folded line":                 {post("X-A: b\r\n c\r\n", ""), 0},
		"folded coding":               {post("Transfer-Encoding:\r\n chunked\r\n", chunkEnd), 0},
		"NUL in value":                {post("X-A: b\x00c\r\n", ""), 0},
		"bare CR in value":            {post("X-A: b\rc\r\n", ""), 0},
		"chunk size 0x2":              {post("Transfer-Encoding: chunked\r\n", "0x2\r\nab\r\n0\r\n\r\n"), 0},
		"chunk size with bare LF":     {post("Transfer-Encoding: chunked\r\n", "2\nab\r\n0\r\n\r\n"), 0},
		"LF in chunk extension":       {post("Transfer-Encoding: chunked\r\n", "2;a\nb\r\nab\r\n0\r\n\r\n"), 0},
		"chunk of 2^64-1":             {post("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\nab"), 0},
		"chunk longer than said":      {post("Transfer-Encoding: chunked\r\n", "2\r\nabc\r\n0\r\n\r\n"), 0},
		"forbidden trailer":           {post("Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n", chunkEnd), 0},
		"no host":                     {"GET / HTTP/1.1\r\n\r\n", 0},
		"two hosts":                   {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 0},
		"absolute form, another host": {"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", 0},
		"asterisk":                    {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 0},
		"authority form":              {"CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", 405},
		"trace":                       {"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405},
		"HTTP/1.2":                    {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
		"HTTP/2 preface":              {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
		"no version":                  {"GET /\r\n\r\n", 0},
		"nonsense":                    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 0},
		"bare LF lines":               {"GET / HTTP/1.1\nHost: a\n\n", 408},
		"bare LF behind a header":     {"GET / HTTP/1.1\r\nHost: a\nX-A: b\r\n\r\n", 0},
		"1.0 after 1.1":               {"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.0\r\nHost: a\r\n\r\n", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := r
			if tc.status == 408 { // this case waits for the short Read timeout
				r = impatient
			}
			c := r.dial()
			defer c.Close()
			_, err := io.WriteString(c, tc.raw)
			must(t, err)
			br := bufio.NewReader(c)
			if tc.status == -1 {
				readReply(t, br, "GET").want(t, 200)
			}
			want := tc.status
			if want <= 0 {
				want = 400
			}
			rp := readReply(t, br, "POST").want(t, want, `"error":{`, `"message"`)
			if !rp.Close {
				t.Error("the connection is not closed")
			}
			if rest, err := io.ReadAll(br); err == nil && len(rest) > 0 {
				t.Errorf("more after the refusal: %q", rest)
			}
		})
	}
	t.Cleanup(func() {
		for _, req := range b.requests() {
			t.Errorf("reached the backend: %q", req.raw)
		}
	})
}

func TestFramingThatIsServed(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	for name, tc := range map[string]struct{ raw, target, body string }{
		"chunked":       {"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("he") + chunk("llo") + chunkEnd, "/v1/x", "hello"},
		"chunked case":  {"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunk("hello") + chunkEnd, "/v1/x", "hello"},
		"body of a GET": {"GET /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "/v1/x", "hello"},
		"absolute form": {"GET http://a/v1/x?q=1 HTTP/1.1\r\nHost: a\r\n\r\n", "/v1/x?q=1", ""},
		"odd query":     {"GET /v1/x?q=%00/../ HTTP/1.1\r\nHost: a\r\n\r\n", "/v1/x?q=%00/../", ""},
		"empty chunked": {"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkEnd, "/v1/x", ""},
		"expect":        {"POST /v1/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", "/v1/x", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(b.requests())
			c := r.dial()
			defer c.Close()
			_, err := io.WriteString(c, tc.raw)
			must(t, err)
			br := bufio.NewReader(c)
			rp := readReply(t, br, "GET")
			if rp.StatusCode == 100 {
				rp = readReply(t, br, "GET")
			}
			rp.want(t, 200)
			got := b.requests()[before]
			if got.RequestURI != tc.target || got.body != tc.body {
				t.Errorf("backend got %s %q", got.RequestURI, got.body)
			}
			if len(got.TransferEncoding) > 0 || got.Header.Get("Expect") != "" {
				t.Errorf("hop-by-hop headers went on: %q", got.raw)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.MaxBody = 1 << 20 }))
	big := strings.Repeat("x", 1<<20+1)
	head := "POST /v1/messages HTTP/1.1\r\nHost: a\r\n"
	for name, tc := range map[string]struct {
		raw    string
		status int
		code   string
	}{
		"body":         {head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(big)), 413, "body_too_large"},
		"chunked body": {head + "Transfer-Encoding: chunked\r\n\r\n" + chunk(big[:1<<19]) + chunk(big[:1<<19]) + chunk("x"), 413, "body_too_large"},
		"one header":   {head + "X-Big: " + big[:20<<10] + "\r\n\r\n", 431, "headers_too_large"},
		"many headers": {head + strings.Repeat("X-A: b\r\n", 3000) + "\r\n", 431, "headers_too_large"},
		"target":       {"GET /" + big[:20<<10] + " HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			// The path is unknown by then, so the error must suit both APIs.
			rp := r.raw(tc.raw).want(t, tc.status, `"type":"error"`, `"code":"`+tc.code+`"`, `"param":null`)
			if !rp.Close {
				t.Error("connection is kept")
			}
		})
	}
	if n := len(b.requests()); n != 0 {
		t.Errorf("%d requests reached the backend", n)
	}
	r.raw(request("POST", "/v1/x", big[:1<<20])).want(t, 200)
}

// A 100 MiB body is refused at its head; clients that keep sending still read the answer.
func TestHugeBody(t *testing.T) {
	const size = 100 << 20
	for _, secure := range []bool{false, true} {
		var opts []rigOption
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{newBackend(t, false, answering).addr}, opts...)
		c := r.dial()
		piece := []byte(strings.Repeat("x", 1<<20))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
		must(t, err)
		for range size / len(piece) {
			_, err = c.Write(piece)
			must(t, err)
		}
		rp := readReply(t, bufio.NewReader(c), "POST").want(t, 413, "body_too_large")
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
			t.Errorf("%d bytes were allocated to refuse it", grown)
		}
		if !rp.Close {
			t.Error("connection is kept")
		}
	}
}

// An announced Content-Length allocates nothing.
func TestAnnouncedBodiesCostLittle(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const clients = 100
	for range clients {
		c := r.dial()
		_, err := fmt.Fprintf(c, "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", DefaultMaxBody, strings.Repeat("x", 10<<10))
		must(t, err)
	}
	eventually(t, "bodies begun", func() bool {
		r.proxy.mu.Lock()
		defer r.proxy.mu.Unlock()
		begun := 0
		for _, c := range r.proxy.conns {
			if c.state.Load() == connReading {
				begun++
			}
		}
		return begun == clients
	})
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > clients*2*firstPiece {
		t.Errorf("%d bytes allocated for %d clients", grown, clients)
	}
}

// The answer to Expect is 413, without 100 before it.
func TestExpectedBodyThatIsTooLarge(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) { c.MaxBody = 1 << 20 }))
	c := r.dial()
	_, err := fmt.Fprintf(c, "POST /v1/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", 1<<20+1)
	must(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	must(t, err)
	if !strings.HasPrefix(line, "HTTP/1.1 413 ") {
		t.Errorf("answered %q", line)
	}
}

// A client that just sends its first request would take a 408 for its answer.
func TestSilentConnectionIsClosedSilently(t *testing.T) {
	r := newRig(t, nil, withTimeouts(func(t *Timeouts) { t.Read = 100 * time.Millisecond }))
	got, err := io.ReadAll(r.dial())
	if len(got) > 0 || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestMalformedRequestBehindAnother(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	br := bufio.NewReader(c)
	_, err := io.WriteString(c, request("GET", "/healthz", "")+"nonsense\r\n\r\n")
	must(t, err)
	readReply(t, br, "GET").want(t, 200)
	readReply(t, br, "GET").want(t, 400, "bad_request")
}

// Only the request line may end in a bare LF (RFC 9112, 2.2); the engine receives CR LF.
func TestRequestLineEndsInLF(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	const body = `{"model":"m","messages":[]}`
	for name, tc := range map[string]struct {
		raw    string
		status int
	}{
		"request line":            {strings.Replace(request("POST", "/v1/chat/completions", body), "\r\n", "\n", 1), 200},
		"request line and header": {strings.Replace(request("POST", "/v1/chat/completions", body), "\r\n", "\n", 2), 400},
		"CR within":               {strings.Replace(request("POST", "/v1/chat/completions", body), " HTTP", "\r HTTP", 1), 400},
		"LF within":               {strings.Replace(request("POST", "/v1/chat/completions", body), " HTTP", "\n HTTP", 1), 400},
	} {
		if rp := r.raw(tc.raw); rp.StatusCode != tc.status {
			t.Errorf("%s: status %d, want %d", name, rp.StatusCode, tc.status)
		}
	}
	seen := b.requests()
	if len(seen) != 1 {
		t.Fatalf("%d requests reached the engine", len(seen))
	}
	if line, _, _ := strings.Cut(string(seen[0].raw), "\n"); line != "POST /v1/chat/completions HTTP/1.1\r" || seen[0].body != body {
		t.Errorf("the engine received %q, %q", line, seen[0].body)
	}
}

// An incomplete body reaches no engine.
func TestBodiesThatBreakOff(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr})
	const head, coded = "POST /v1/x HTTP/1.1\r\nHost: a\r\n", "Transfer-Encoding: chunked\r\n\r\n"
	for name, raw := range map[string]string{
		"length, nothing":     head + "Content-Length: 5\r\n\r\n",
		"length":              head + "Content-Length: 5\r\n\r\nhel",
		"length, large":       head + "Content-Length: 50000\r\n\r\n" + strings.Repeat("x", 40000),
		"chunks, nothing":     head + coded,
		"chunks, in a size":   head + coded + "5",
		"chunks, in a chunk":  head + coded + "5\r\nhel",
		"chunks, in its end":  head + coded + "5\r\nhello\r",
		"chunks, after one":   head + coded + "5\r\nhello\r\n",
		"chunks, not the end": head + coded + "5\r\nhello\r\n0",
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial()
			defer c.Close()
			_, err := io.WriteString(c, raw)
			must(t, err)
			must(t, tcpOf(c).CloseWrite())
			readReply(t, bufio.NewReader(c), "POST").want(t, 400, "bad_request")
		})
	}
	if seen := b.requests(); len(seen) > 0 {
		t.Errorf("reached the backend: %q", seen[0].raw)
	}
}

// Around the buffer's growth steps.
func TestBodiesOfEverySize(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.MaxBody = 4 << 20 }))
	c := r.dial()
	br := bufio.NewReader(c)
	n := 0
	for _, size := range []int{0, 1, 8 << 10, firstChunks, firstPiece, 2 * firstPiece, 4 << 20} {
		for _, d := range []int{-1, 0, 1} {
			body := strings.Repeat("0123456789abcdef", (size+d+16)/16)[:max(size+d, 0)]
			if len(body) > 4<<20 {
				continue
			}
			var coded strings.Builder
			coded.WriteString("POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
			for rest := body; len(rest) > 0; {
				piece := min(len(rest), 10_000)
				coded.WriteString(chunk(rest[:piece]))
				rest = rest[piece:]
			}
			coded.WriteString(chunkEnd)
			for _, raw := range []string{request("POST", "/v1/x", body), coded.String()} {
				_, err := io.WriteString(c, raw)
				must(t, err)
				readReply(t, br, "POST").want(t, 200)
				if got := b.requests()[n].body; got != body {
					t.Fatalf("%d bytes became %d", len(body), len(got))
				}
				n++
			}
		}
	}
}

func TestStrangeBodiesReachTheEngineUnchanged(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withStrategy("prefix"), withConfig(func(c *Config) { c.AllowEngineControl = true }))
	for name, body := range map[string]string{
		"empty":           "",
		"truncated":       `{"model":"m","messages":[{"role":"user","content":"he`,
		"not JSON":        "hello",
		"invalid UTF-8":   "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
		"deep":            `{"model":"m","messages":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"deep objects":    `{"model":"m","x":` + strings.Repeat(`{"a":`, 50_000) + "1" + strings.Repeat("}", 50_000) + `}`,
		"wrong types":     `{"model":7,"messages":"x","stream":7}`,
		"NULs":            "\x00\x00\x00",
		"large":           `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("long ", 400_000) + `"}]}`,
		"duplicate names": `{"model":"a","model":"m","messages":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			before := len(b.requests())
			r.raw(request("POST", "/v1/chat/completions", body)).want(t, 200)
			if got := b.requests()[before]; got.body != body {
				t.Errorf("%d bytes reached the engine, other than the %d sent", len(got.body), len(body))
			}
		})
	}
}

func TestSlowLoris(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withTimeouts(func(t *Timeouts) { t.Read = time.Second }))
	for name, start := range map[string]string{
		"request line":  "GE",
		"headers":       "POST /v1/x HTTP/1.1\r\nHost: a\r\n",
		"body":          "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
		"chunked body":  "POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
		"after another": request("GET", "/healthz", "") + "POST /v1/x HTTP/1.1\r\nHost: a\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := r.dial()
			defer c.Close()
			_, err := io.WriteString(c, start)
			must(t, err)
			begun := time.Now()
			stop := make(chan bool)
			go func() { // single bytes must not extend the timeout
				defer close(stop)
				for {
					time.Sleep(20 * time.Millisecond)
					if _, err := io.WriteString(c, "x"); err != nil {
						return
					}
				}
			}()
			br := bufio.NewReader(c)
			if strings.HasPrefix(start, "GET /healthz") {
				readReply(t, br, "GET").want(t, 200)
			}
			rp := readReply(t, br, "POST").want(t, 408, "request_timeout")
			if d := time.Since(begun); d > 10*time.Second {
				t.Errorf("cut after %v", d)
			}
			if !rp.Close {
				t.Error("connection is kept")
			}
			c.Close()
			<-stop
		})
	}
}

// pass makes d pass for all read deadlines, and waits until the watch has checked them.
func (r *rig) pass(d time.Duration) {
	for _, c := range r.proxy.openConns() {
		if by := c.readBy.Load(); by != 0 {
			c.readBy.CompareAndSwap(by, by-int64(d))
		}
	}
	seen := r.proxy.Sweeps()
	eventually(r.t, "two sweeps", func() bool { return r.proxy.Sweeps() > seen+1 })
}

// readableFor waits until the only connection has more than d to its read deadline.
func (r *rig) readableFor(d time.Duration) {
	eventually(r.t, "a later read deadline", func() bool {
		conns := r.proxy.openConns()
		return len(conns) == 1 && conns[0].readBy.Load()-r.proxy.clock.Load() > int64(d)
	})
}

// Read limits neither a steady upload, an idle connection nor a long wait.
func TestReadTimeoutSparesTheHonest(t *testing.T) {
	const read = 2 * time.Minute
	waiting, answer := make(chan bool), make(chan bool)
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		if req.URL.Path == "/v1/slow" {
			waiting <- true
			<-answer
		}
		return c.send(jsonReply(200, okBody))
	})
	for name, use := range map[string]func(r *rig, c net.Conn){
		"steady upload": func(r *rig, c net.Conn) { // takes more than Read in total, less per bodyCredit
			const piece = bodyCredit + 4<<10
			req := request("POST", "/v1/x", strings.Repeat("x", 4*bodyCredit))
			for ; len(req) > piece; req = req[piece:] {
				_, err := io.WriteString(c, req[:piece])
				must(t, err)
				r.readableFor(read / 2)
				r.pass(read * 3 / 4)
			}
			_, err := io.WriteString(c, req)
			must(t, err)
		},
		"slow engine": func(r *rig, c net.Conn) {
			_, err := io.WriteString(c, request("POST", "/v1/slow", ""))
			must(t, err)
			<-waiting
			r.pass(2 * read)
			answer <- true
		},
		"idle before the second request": func(r *rig, c net.Conn) {
			_, err := io.WriteString(c, request("GET", "/healthz", ""))
			must(t, err)
			readReply(t, bufio.NewReader(c), "GET").want(t, 200)
			r.readableFor(2 * read)
			r.pass(2 * read)
			_, err = io.WriteString(c, chat(false))
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.Read = read }))
			c := r.dial()
			use(r, c)
			readReply(t, bufio.NewReader(c), "POST").want(t, 200)
		})
	}
}

func TestProxyProtocol(t *testing.T) {
	b := newBackend(t, false, answering)
	for _, secure := range []bool{false, true} {
		opts := []rigOption{withConfig(func(c *Config) { c.ProxyProtocol = true })}
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{b.addr}, opts...)
		for version := byte(1); version <= 2; version++ {
			raw, err := net.Dial("tcp", r.addr)
			must(t, err)
			defer raw.Close()
			header := proxyproto.HeaderProxyFromAddrs(version, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711}, raw.RemoteAddr())
			_, err = header.WriteTo(raw)
			must(t, err)
			c := raw
			if secure {
				c = tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
			}
			_, err = io.WriteString(c, request("POST", "/v1/x", "{}", "X-Forwarded-For: 198.51.100.1"))
			must(t, err)
			readReply(t, bufio.NewReader(c), "POST").want(t, 200)
			seen := b.requests()
			if got := seen[len(seen)-1].Header.Get("X-Forwarded-For"); got != "198.51.100.1, 203.0.113.9" {
				t.Errorf("v%d: X-Forwarded-For %q", version, got)
			}
		}
		raw, err := net.Dial("tcp", r.addr)
		must(t, err)
		defer raw.Close()
		_, _ = io.WriteString(raw, request("GET", "/healthz", ""))
		if rest, _ := io.ReadAll(raw); len(rest) > 0 {
			t.Errorf("answered %q", rest)
		}
	}
}

// A PROXY header needs no usable address.
func TestProxyProtocolOfEveryFamily(t *testing.T) {
	b := newBackend(t, false, answering)
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.ProxyProtocol = true }))
	const local, proxied = 0x20, 0x21
	for _, command := range []byte{local, proxied} {
		for family := range 256 {
			raw, err := net.Dial("tcp", r.addr)
			must(t, err)
			must(t, raw.SetDeadline(time.Now().Add(20*time.Second)))
			const addresses = 216 // size of the largest family, Unix
			header := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), command, byte(family), 0, addresses)
			header = append(header, make([]byte, addresses)...)
			_, err = raw.Write(append(header, request("GET", "/healthz", "", "Connection: close")...))
			must(t, err)
			if got, _ := io.ReadAll(raw); len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.1 200 ")) {
				t.Errorf("command %#x, family %#x: %q", command, family, got)
			}
			raw.Close()
		}
	}
}

func TestTLSClientsGetHTTP11(t *testing.T) {
	r := newRig(t, []string{newBackend(t, true, answering).addr}, withTLS())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("https://"+r.addr+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
	must(t, err)
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != okBody || resp.ProtoMajor != 1 {
		t.Errorf("%s %q %v", resp.Proto, body, err)
	}
	raw, err := net.Dial("tcp", r.addr)
	must(t, err)
	defer raw.Close()
	_, _ = io.WriteString(raw, request("GET", "/healthz", ""))
	_, _ = io.ReadAll(raw)
}

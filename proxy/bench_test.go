//go:build unix

package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

func fixed(b *testing.B, answer string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	b.Cleanup(func() { ln.Close() })
	reply := []byte(answer)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReaderSize(c, 64<<10)
				for {
					if err := skipMessage(br); err != nil {
						return
					}
					if _, err := c.Write(reply); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func skipMessage(br *bufio.Reader) error {
	length := 0
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			for _, d := range bytes.TrimSpace(rest) {
				length = 10*length + int(d-'0')
			}
		}
		if len(bytes.TrimSpace(line)) == 0 {
			_, err = br.Discard(length)
			return err
		}
	}
}

// Subtract "direct", client and backend alone; "queue" has a queue in which nothing waits; "httputil" is the standard library's proxy.
// cpu-us/op covers the whole process.
func BenchmarkForward(b *testing.B) {
	for _, size := range []int{1 << 10, 128 << 10} {
		prompt := strings.Repeat("All work and no play makes Jack a dull boy. ", size/44+1)[:size]
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, prompt)
		answer := jsonReply(200, okBody)
		req := []byte(request("POST", "/v1/chat/completions", body, "Authorization: Bearer sk-0123456789", "User-Agent: OpenAI/Python 2.8.0"))
		for name, serve := range map[string]func(b *testing.B, backend string) string{
			"direct": func(_ *testing.B, backend string) string { return backend },
			"proxy":  func(b *testing.B, backend string) string { return serveProxy(b, backend, policy.Gate{}) },
			"queue": func(b *testing.B, backend string) string {
				return serveProxy(b, backend, policy.Gate{InFlight: 1 << 20})
			},
			"httputil": serveHTTPUtil,
		} {
			b.Run(fmt.Sprintf("%s/body=%dKiB", name, size>>10), func(b *testing.B) {
				addr := serve(b, fixed(b, answer))
				b.ReportAllocs()
				drive(b, addr, req)
			})
		}
	}
}

func serveProxy(b *testing.B, backend string, gate policy.Gate) string {
	hasher, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	must(b, err)
	tree, err := prefixtree.New(prefixtree.Config{Budget: 16 << 20})
	must(b, err)
	router, err := policy.NewRouter(policy.Config{BlockBytes: hasher.BlockBytes(), Gate: gate}, tree)
	must(b, err)
	view, err := policy.NewView([]policy.Backend{{ID: 0, Generation: 1, Name: "b0"}}, nil)
	must(b, err)
	router.SetView(view)
	var waiting Queue
	if gate != (policy.Gate{}) {
		waiting = Queue{Limits: roomy, Router: router}
	}
	p, err := New(Config{
		Queue:    waiting,
		Picker:   &routed{router: router, targets: map[prefixtree.Backend]Target{0: {Name: "b0", Addr: backend}}},
		Hasher:   hasher,
		Log:      zerolog.Nop(),
		NodeName: "n1",
		Observer: func(*Record) {},
		Timeouts: Timeouts{DrainGrace: -1},
	})
	must(b, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	go p.Serve(ln)
	b.Cleanup(func() { _ = p.Shutdown(b.Context()) })
	return ln.Addr().String()
}

func serveHTTPUtil(b *testing.B, backend string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	h := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: backend})
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	h.Transport = transport
	s := &http.Server{Handler: h}
	go s.Serve(ln)
	b.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	return ln.Addr().String()
}

func drive(b *testing.B, addr string, req []byte) {
	const conns = 16
	var wg sync.WaitGroup
	start := cpuTime(b)
	b.ResetTimer()
	for i := range conns {
		n := b.N / conns
		if i < b.N%conns {
			n++
		}
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for range n {
				if _, err := c.Write(req); err != nil {
					b.Error(err)
					return
				}
				if err := skipMessage(br); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/float64(b.N), "cpu-us/op")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkStream(b *testing.B) {
	next := make(chan bool)
	backend := newBackend(b, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(sseHead)
		one := chunk(event("token"))
		for range next {
			if !c.send(one) {
				return false
			}
		}
		return c.send(chunkEnd)
	})
	addr := serveProxy(b, backend.addr, policy.Gate{})
	c, err := net.Dial("tcp", addr)
	must(b, err)
	defer c.Close()
	_, err = io.WriteString(c, chat(true))
	must(b, err)
	next <- true
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(b, err)
	buf := make([]byte, len(event("token")))
	_, err = io.ReadFull(resp.Body, buf)
	must(b, err)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		next <- true
		if _, err := io.ReadFull(resp.Body, buf); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/float64(b.N), "cpu-us/op")
	close(next)
	_, _ = io.ReadAll(resp.Body)
}

func BenchmarkSweep(b *testing.B) {
	for _, active := range []bool{false, true} {
		b.Run(fmt.Sprintf("active=%v", active), func(b *testing.B) {
			const conns = 1000
			p, err := New(Config{Picker: &routed{}, Hasher: mustHasher(b)})
			must(b, err)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			must(b, err)
			defer ln.Close()
			for key := range uint64(conns) {
				peer, err := net.Dial("tcp", ln.Addr().String())
				must(b, err)
				defer peer.Close()
				raw, err := ln.Accept()
				must(b, err)
				defer raw.Close()
				c := &clientConn{Conn: raw, proxy: p, raw: raw}
				if active {
					c.state.Store(connActive)
				}
				p.conns[key] = c
			}
			b.ReportAllocs()
			for b.Loop() {
				p.sweep()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/conns, "ns/conn")
		})
	}
}

// BenchmarkIdleQueue is the choice and the end of a request of one of 10,000 clients, with a queue in which nothing
// waits and without one. The difference is what the queue costs.
func BenchmarkIdleQueue(b *testing.B) {
	var list []*clients.Client
	for i := range 10_000 {
		list = append(list, &clients.Client{Name: fmt.Sprint("client-", i), Weight: 1, Priority: clients.Default})
	}
	for _, queued := range []bool{false, true} {
		b.Run(fmt.Sprintf("queue=%v", queued), func(b *testing.B) {
			options := []rigOption{withStrategy("prefix")}
			if queued {
				options = append(options, withQueue(64, roomy))
			}
			r := newRig(b, []string{"127.0.0.1:1", "127.0.0.1:2"}, options...)
			e := newExchange(r.proxy)
			e.ctx, e.conn, e.tuned = new(fasthttp.RequestCtx), &clientConn{proxy: r.proxy}, r.proxy.Tuned()
			hashes := []prefixtree.Hash{1, 2, 3, 4}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e.client = list[i%len(list)]
				e.rec.Kind, e.rec.Attempts = prompt.Chat, 0
				e.query.Hashes, e.query.PromptBytes, e.query.OutputHint = hashes, 4*prefixtree.DefaultBlockBytes, 100
				if f, bad := e.readWishes(); bad {
					b.Fatal(f)
				}
				if _, settled, err := e.pickInTurn(); settled || err != nil {
					b.Fatal(settled, err)
				}
				e.usage.PromptTokens, e.usage.OutputTokens = 100, 100
				e.end(books.None)
				e.learnOutput()
			}
		})
	}
}

package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func drained(r *rig, limit time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		done <- r.proxy.Shutdown(ctx)
	}()
	return done
}

func TestDrainOrder(t *testing.T) {
	t.Parallel()
	events := make(chan string)
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		if strings.Contains(req.body, `"stream":true`) {
			return streaming(events)(c, req)
		}
		return answering(c, req)
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.DrainGrace = 3 * time.Second }))
	stream, idle := r.dial(), r.dial()
	silent, half := r.dial(), r.dial()
	_, err := io.WriteString(half, "POST /v1/x HTTP/1.1\r\nHost:")
	must(t, err)
	_, err = io.WriteString(stream, chat(true))
	must(t, err)
	events <- event("a")
	resp, err := http.ReadResponse(bufio.NewReader(stream), nil)
	must(t, err)
	idleReader := bufio.NewReader(idle)
	_, err = io.WriteString(idle, request("GET", "/readyz", ""))
	must(t, err)
	readReply(t, idleReader, "GET").want(t, 200, "ready")

	// Not ready, but everything is served.
	r.proxy.Ready(false)
	for range 2 {
		_, err = io.WriteString(idle, request("GET", "/readyz", ""))
		must(t, err)
		if rp := readReply(t, idleReader, "GET").want(t, 503); rp.Close {
			t.Error("connection closed before the drain")
		}
		_, err = io.WriteString(idle, chat(false))
		must(t, err)
		readReply(t, idleReader, "POST").want(t, 200)
	}

	// Connection: close, but new connections are accepted.
	done := drained(r, time.Minute)
	eventually(t, "draining", r.proxy.draining.Load)
	if rp := r.raw(chat(false)).want(t, 200); !rp.Close {
		t.Error("no Connection: close while draining")
	}
	// Listener and idle connections close; the stream goes on.
	eventually(t, "listener closed", func() bool {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	for _, c := range []net.Conn{idle, silent} {
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("idle connection: %v", err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("drained with a stream open: %v", err)
	default:
	}
	events <- event("b")
	close(events)
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != event("a")+event("b") {
		t.Errorf("stream %q, %v", body, err)
	}
	half.Close()
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if n := r.proxy.Connections(); n != 0 {
		t.Errorf("%d connections left", n)
	}
}

// A stalled machine may use up forceGrace.
func inForceGrace(t *testing.T, test func() error) {
	t.Helper()
	var err error
	for range 3 {
		if err = test(); err == nil {
			return
		}
		t.Logf("once more: %v", err)
	}
	t.Error(err)
}

func TestDrainDeadlineInterrupts(t *testing.T) {
	inForceGrace(t, func() error { return drainDeadlineInterrupts(t) })
}

func drainDeadlineInterrupts(t *testing.T) error {
	sent := make(chan bool, 2)
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		if strings.Contains(req.body, `"stream":true`) {
			c.send(sseHead + chunk(event("a")))
		}
		sent <- true
		if _, err := c.closedByPeer(30 * time.Second); err != nil {
			t.Errorf("upstream: %v", err)
		}
		return false
	})
	r := newRig(t, []string{b.addr})
	stream, plain := r.dial(), r.dial()
	_, err := io.WriteString(stream, chat(true))
	must(t, err)
	_, err = io.WriteString(plain, chat(false))
	must(t, err)
	<-sent
	<-sent
	told, err := http.ReadResponse(bufio.NewReader(stream), nil)
	must(t, err)
	first := make([]byte, len(event("a")))
	_, err = io.ReadFull(told.Body, first)
	must(t, err)
	start := time.Now()
	done := drained(r, 200*time.Millisecond)
	rest, errStream := io.ReadAll(told.Body)
	rp, errPlain := tryReply(bufio.NewReader(plain), "POST")
	if err := errors.Join(errStream, errPlain, rp.err); err != nil {
		<-done
		return err
	}
	if told.StatusCode != 200 || string(first) != event("a") || !strings.Contains(string(rest), `"code":"shutting_down"`) {
		t.Errorf("status %d, %q and %q", told.StatusCode, first, rest)
	}
	rp.want(t, 503, `"code":"shutting_down"`)
	if rp.Header.Get("Retry-After") == "" || !rp.Close {
		t.Errorf("headers %v", rp.Header)
	}
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if d := time.Since(start); d > 10*time.Second { // a third of what the engine would take
		t.Errorf("took %v", d)
	}
	return nil
}

func TestSecondShutdownForces(t *testing.T) {
	inForceGrace(t, func() error { return secondShutdownForces(t) })
}

func secondShutdownForces(t *testing.T) error {
	sent := make(chan bool, 1)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		sent <- true
		_, _ = c.closedByPeer(30 * time.Second)
		return false
	})
	r := newRig(t, []string{b.addr})
	c := r.dial()
	_, err := io.WriteString(c, chat(false))
	must(t, err)
	<-sent
	first := drained(r, time.Minute)
	eventually(t, "draining", r.proxy.draining.Load)
	second := drained(r, time.Minute)
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("second Shutdown: %v", err)
	}
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first Shutdown: %v", err)
	}
	rp, err := tryReply(bufio.NewReader(c), "POST")
	if err != nil {
		return err
	}
	rp.want(t, 503)
	return nil
}

func TestDrainDoesNotWaitForTheSilent(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr})
	var held []net.Conn
	for range 20 {
		held = append(held, r.dial()) // never sends a byte
	}
	eventually(t, "accepted", func() bool { return r.proxy.Connections() == len(held) })
	start := time.Now()
	if err := <-drained(r, 30*time.Second); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if d := time.Since(start); d >= arrivalGrace {
		t.Errorf("took %v", d)
	}
}

// The kernel has accepted the client's connection, so no other process could answer it.
func TestDrainAnswersWhatWasAccepted(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withTimeouts(func(t *Timeouts) { t.DrainGrace = -1 }))
	c := r.dial()
	eventually(t, "accepted", func() bool { return r.proxy.Connections() == 1 })
	done := drained(r, 30*time.Second)
	eventually(t, "the listener is closed", func() bool {
		r.proxy.mu.Lock()
		defer r.proxy.mu.Unlock()
		return len(r.proxy.listeners) == 0
	})
	_, err := io.WriteString(c, chat(false))
	must(t, err)
	if rp := readReply(t, bufio.NewReader(c), "POST").want(t, 200, okBody); !rp.Close {
		t.Error("the connection stays open")
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownWithoutServe(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.proxy.cfg
	cfg.Timeouts.DrainGrace = -1
	p, err := New(cfg)
	must(t, err)
	must(t, p.Shutdown(context.Background()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	if err := p.Serve(ln); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

// Every accepted request gets one whole answer.
func TestDrainUnderLoad(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		time.Sleep(2 * time.Millisecond)
		return answering(c, req)
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.DrainGrace = 100 * time.Millisecond }))
	var wg sync.WaitGroup
	var answered sync.Map
	for i := range 16 {
		wg.Go(func() {
			for {
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					return // the listener is closed
				}
				br := bufio.NewReader(c)
				for {
					if _, err := io.WriteString(c, chat(false)); err != nil {
						break
					}
					resp, err := http.ReadResponse(br, nil)
					if err != nil {
						break // the request met a closing idle connection
					}
					body, err := io.ReadAll(resp.Body)
					if err != nil || resp.StatusCode != 200 || string(body) != okBody {
						t.Errorf("status %d, body %q, %v", resp.StatusCode, body, err)
					}
					answered.Store(i, true)
					if resp.Close {
						break
					}
				}
				c.Close()
			}
		})
	}
	eventually(t, "load", func() bool { n := 0; answered.Range(func(any, any) bool { n++; return true }); return n == 16 })
	if err := <-drained(r, 30*time.Second); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	wg.Wait()
}

// A request read while the drain closes its connection reaches no engine.
func TestForestalledRequestIsNotServed(t *testing.T) {
	p := &Proxy{conns: make(map[uint64]*clientConn)}
	near, far := net.Pipe()
	defer far.Close()
	c := &clientConn{Conn: meanwhile{near, func() {
		if p.closeIdle(connIdle) {
			t.Error("the connection is not among those of the proxy")
		}
	}}, raw: near, proxy: p}
	p.conns[c.key] = c
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(far, "GET / HTTP/1.1\r\n\r\n")
		sent <- err
	}()
	if n, err := c.Read(make([]byte, 64)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d bytes of a request were taken from a connection that the drain has closed: %v", n, err)
	}
	must(t, <-sent)
}

// meanwhile runs do between reading and returning.
type meanwhile struct {
	net.Conn
	do func()
}

func (c meanwhile) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.do()
	return n, err
}

package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"grapevine.example/proxy/books"
)

type departure struct {
	stream bool
	begin  func(c *upstreamSide) // what the engine does before it hangs
	read   bool                  // the client waits for the response to begin
}

// The kernel's report alone, without the watch, ends the engine's request.
func TestClientLeaves(t *testing.T) {
	leave := map[string]func(c net.Conn){
		"fin": func(c net.Conn) { c.Close() },
		"rst": func(c net.Conn) { _ = tcpOf(c).SetLinger(0); tcpOf(c).Close() },
		"half-close": func(c net.Conn) {
			_ = tcpOf(c).CloseWrite()
		},
		// A peeking read would miss it.
		"pipelined fin":        func(c net.Conn) { _, _ = io.WriteString(c, chat(false)); tcpOf(c).Close() },
		"pipelined half-close": func(c net.Conn) { _, _ = io.WriteString(c, chat(false)); _ = tcpOf(c).CloseWrite() },
	}
	points := map[string]departure{
		"not streamed":               {false, func(*upstreamSide) {}, false},
		"before the head":            {true, func(*upstreamSide) {}, false},
		"before the first event":     {true, func(c *upstreamSide) { c.send(sseHead) }, false},
		"mid-stream":                 {true, func(c *upstreamSide) { c.send(sseHead + chunk(event("a"))) }, true},
		"half of an unstreamed body": {false, func(c *upstreamSide) { c.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf") }, false},
	}
	for how, go1 := range leave {
		for when, point := range points {
			for over, options := range map[string][]rigOption{
				"plain": nil,
				"tls":   {withTLS()},
				"proxy": {withConfig(func(c *Config) { c.ProxyProtocol = true })},
			} {
				t.Run(how+"/"+when+"/"+over, func(t *testing.T) {
					t.Parallel()
					clientLeaves(t, go1, point, over, options)
				})
			}
		}
	}
}

func clientLeaves(t *testing.T, leave func(c net.Conn), point departure, over string, options []rigOption) {
	t.Helper()
	begun, ended := make(chan bool, 8), make(chan error, 8)
	b := newBackend(t, over == "tls", func(c *upstreamSide, _ seenRequest) bool {
		point.begin(c)
		begun <- true
		_, err := c.closedByPeer(20 * time.Second)
		ended <- err
		return false
	})
	r := newRig(t, []string{b.addr}, append(options, withTimeouts(func(t *Timeouts) { t.Watch = time.Hour }))...)
	c := r.dial()
	first := chat(point.stream)
	if over == "proxy" {
		first = "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n" + first
	}
	_, err := io.WriteString(c, first)
	must(t, err)
	<-begun
	if point.read {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, len(event("a"))))
		must(t, err)
	}
	start := time.Now()
	leave(c)
	if err := <-ended; err != nil {
		t.Fatalf("upstream: %v", err)
	}
	t.Logf("after %v", time.Since(start))
	rec := r.record(0)
	if rec.Failed != books.ClientGone {
		t.Errorf("record %+v", rec)
	}
	if !point.read && rec.Status != StatusClientGone {
		t.Errorf("status %d", rec.Status)
	}
}

// Early bytes or a close_notify alone do not count as leaving.
func TestClientStays(t *testing.T) {
	release := make(chan bool)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		<-release
		return c.send(jsonReply(200, okBody))
	})
	r := newRig(t, []string{b.addr})
	t.Cleanup(func() { close(release) })
	c := r.dial()
	_, err := io.WriteString(c, chat(false)+chat(false)+chat(false))
	must(t, err)
	br := bufio.NewReader(c)
	for range 3 {
		time.Sleep(100 * time.Millisecond) // several sweeps
		release <- true
		readReply(t, br, "POST").want(t, 200)
	}
}

func TestClientThatDoesNotReadIsCut(t *testing.T) {
	ended := make(chan error, 1)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(sseHead)
		ev := chunk(event(string(make([]byte, 8<<10))))
		for {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(c, ev); err != nil {
				ended <- nil
				return false
			}
		}
	})
	r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.Write = 200 * time.Millisecond }))
	c := r.dial()
	_ = tcpOf(c).SetReadBuffer(4 << 10)
	_, err := io.WriteString(c, chat(true))
	must(t, err)
	<-ended
	if rec := r.record(0); rec.Failed != books.ClientGone {
		t.Errorf("record %+v", rec)
	}
	// A FIN would wait behind unread megabytes.
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("cut by %v, want a reset", err)
	}
}

// The dial is not cut short, but nothing is sent after it.
func TestClientLeavesDuringTheRetry(t *testing.T) {
	second := make(chan bool, 1)
	a := newBackend(t, false, resetting)
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		second <- true
		_, _ = c.closedByPeer(20 * time.Second)
		return false
	})
	r := newRig(t, []string{a.addr, b.addr})
	c := r.dial()
	_, err := io.WriteString(c, chat(false))
	must(t, err)
	<-second // the first has failed
	c.Close()
	if rec := r.record(0); rec.Failed != books.ClientGone || rec.Attempts != 2 {
		t.Errorf("record %+v", rec)
	}
}

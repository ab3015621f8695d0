package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// upload sends all but the body's last byte.
func upload(c net.Conn, size int) {
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
	piece := bytes.Repeat([]byte("x"), 64<<10)
	for size--; size > 0; size -= len(piece) {
		if _, err := c.Write(piece[:min(size, len(piece))]); err != nil {
			return
		}
	}
}

// Stalled uploads stay within MaxBodyMemory, others get 503, an ordinary prompt passes.
func TestBodiesShareOneMemory(t *testing.T) {
	const size, limit, clients = 4 << 20, 12 << 20, 12
	var log syncBuffer
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) {
		c.MaxBody, c.MaxBodyMemory, c.Log = size, limit, zerolog.New(&log)
	}))
	refused := make(chan reply, clients)
	var conns []net.Conn
	for range clients {
		c := r.dial()
		conns = append(conns, c)
		go upload(c, size)
		go func() {
			if rp, err := tryReply(bufio.NewReader(c), "POST"); err == nil {
				refused <- rp
			}
		}()
	}
	for range clients - limit/size { // no more than three bodies fit
		rp := (<-refused).want(t, 503, "body_memory")
		if rp.Header.Get("Retry-After") == "" || !rp.Close {
			t.Errorf("header %v", rp.Header)
		}
		if used, _ := r.proxy.BodyMemory(); used > limit {
			t.Errorf("bodies hold %d bytes of %d", used, limit)
		}
	}
	eventually(t, "an upload that fits is held", func() bool { used, _ := r.proxy.BodyMemory(); return used >= size })
	if _, n := r.proxy.BodyMemory(); n < clients-limit/size {
		t.Errorf("%d were refused", n)
	}
	r.raw(request("POST", "/v1/chat/completions", `{"messages":[]}`+strings.Repeat(" ", retainBody-16))).want(t, 200)
	if n := strings.Count(log.String(), "max_body_memory"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "no body is held", func() bool { used, _ := r.proxy.BodyMemory(); return used == 0 })
}

func TestLargestBodyFitsAlone(t *testing.T) {
	const size = 4 << 20
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) { c.MaxBody, c.MaxBodyMemory = size, BodyMemoryShare*size }))
	c := r.dial()
	br := bufio.NewReader(c)
	for range 3 {
		_, err := io.WriteString(c, request("POST", "/v1/x", strings.Repeat("x", size)))
		must(t, err)
		readReply(t, br, "POST").want(t, 200)
	}
	chunked := "POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(strings.Repeat("x", size)) + chunkEnd
	_, err := io.WriteString(c, chunked)
	must(t, err)
	readReply(t, br, "POST").want(t, 200)
}

// Kept buffers leave room for the largest body.
func TestIdleConnectionsKeepLittle(t *testing.T) {
	const size = 4 << 20
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withConfig(func(c *Config) { c.MaxBody, c.MaxBodyMemory = size, BodyMemoryShare*size }))
	for range 60 {
		c := r.dial()
		_, err := io.WriteString(c, request("POST", "/v1/x", strings.Repeat("x", retainBody-1)))
		must(t, err)
		readReply(t, bufio.NewReader(c), "POST").want(t, 200)
	}
	eventually(t, "the last request is over", func() bool { return r.proxy.InFlight() == 0 })
	if used, _ := r.proxy.BodyMemory(); used == 0 || used > BodyMemoryShare*size/16+retainBody {
		t.Errorf("idle connections keep %d bytes", used)
	}
	r.raw(request("POST", "/v1/x", strings.Repeat("x", size))).want(t, 200)
}

// Earlier bytes of a body earn no time beyond Read.
func TestStalledBodyEnds(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr}, withTimeouts(func(t *Timeouts) { t.Read = time.Second }))
	c := r.dial()
	upload(c, 16<<20)
	rp := readReply(t, bufio.NewReader(c), "POST").want(t, 408, "request_timeout")
	if !rp.Close {
		t.Error("connection is kept")
	}
	eventually(t, "the body is not held", func() bool { used, _ := r.proxy.BodyMemory(); return used == 0 })
}

// One warning names the remedy.
func TestWarnsOfClientsThatSpeakSomethingElse(t *testing.T) {
	for want, option := range map[string]rigOption{
		"proxy_protocol: false": withConfig(func(c *Config) { c.ProxyProtocol = true }),
		"https://":              withTLS(),
	} {
		var log syncBuffer
		r := newRig(t, nil, option, withConfig(func(c *Config) { c.Log = zerolog.New(&log) }))
		for range 3 {
			c, err := net.Dial("tcp", r.addr)
			must(t, err)
			_, err = io.WriteString(c, chat(false))
			must(t, err)
			_, _ = io.Copy(io.Discard, c) // closed, or reset
			c.Close()
		}
		if got := log.String(); strings.Count(got, want) != 1 || !strings.Contains(got, `"level":"warn"`) {
			t.Errorf("log %q, want one warning with %q", got, want)
		}
	}
}

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// The backend answers at once with a fixed completion, or streams one at a fixed pace. It uses bare
// connections and costs a few microseconds per request, because on two cores a slower one would be
// the bottleneck and hide the differences. Its own process keeps its CPU time apart.
const (
	headerMode   = "X-Bench-Chunks" // number of chunks to stream; absent: one JSON answer
	headerPeriod = "X-Bench-Period"
	stampKey     = `"content":"` // precedes the time at which a chunk was written, nanoseconds since the epoch
)

// maxHead bounds a request's header and maxBody its body; the backend closes the connection beyond.
const (
	maxHead = 64 << 10
	maxBody = 64 << 20
)

// serveBackend serves until SIGTERM ends the process.
func serveBackend(addrs []string) error {
	for _, a := range addrs {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			return fmt.Errorf("backend: %w", err)
		}
		go acceptLoop(ln)
	}
	select {}
}

func acceptLoop(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			b := &backendConn{c: c, r: bufio.NewReaderSize(c, maxHead)}
			for b.serveOne() == nil {
			}
		}()
	}
}

type backendConn struct {
	c   net.Conn
	r   *bufio.Reader
	out []byte
}

type requestHead struct {
	path   string
	length int
	chunks int
	period time.Duration
}

func (b *backendConn) serveOne() error {
	h, err := b.readHead()
	if err != nil {
		return err
	}
	if h.chunks > 0 {
		body := make([]byte, h.length)
		if _, err := io.ReadFull(b.r, body); err != nil {
			return err
		}
		return b.stream(h, bytes.Contains(body, []byte(`"include_usage"`)))
	}
	if _, err := b.r.Discard(h.length); err != nil {
		return err
	}
	b.out = appendAnswer(b.out[:0], h)
	_, err = b.c.Write(b.out)
	return err
}

// readHead reads a request line and header. It knows only headers that the tested proxies send, all
// of which send a length, and skips the rest.
func (b *backendConn) readHead() (h requestHead, err error) {
	for first := true; ; first = false {
		line, err := b.r.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		if first {
			_, path, _ := bytes.Cut(line, []byte(" "))
			path, _, _ = bytes.Cut(path, []byte(" "))
			h.path = string(path)
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			if h.length, err = strconv.Atoi(string(value)); err != nil || h.length < 0 || h.length > maxBody {
				return h, fmt.Errorf("bad content-length %q", value)
			}
		case equalFold(name, "transfer-encoding"):
			return h, fmt.Errorf("chunked request body: the proxies under test are expected to send a length")
		case equalFold(name, headerMode):
			h.chunks, _ = strconv.Atoi(string(value))
		case equalFold(name, headerPeriod):
			h.period, _ = time.ParseDuration(string(value))
		}
	}
}

func equalFold(name []byte, known string) bool {
	return len(name) == len(known) && strings.EqualFold(string(name), known)
}

func (b *backendConn) stream(h requestHead, usage bool) error {
	b.out = append(b.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	if _, err := b.c.Write(b.out); err != nil {
		return err
	}
	start := time.Now()
	var event []byte
	for i := range h.chunks {
		time.Sleep(time.Until(start.Add(time.Duration(i+1) * h.period)))
		event = fmt.Appendf(event[:0], `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{`+
			stampKey+`%d"},"finish_reason":null}]}`+"\n\n", time.Now().UnixNano())
		if err := b.writeChunk(event); err != nil {
			return err
		}
	}
	event = event[:0]
	if usage {
		event = fmt.Appendf(event, `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],`+
			`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
			h.length/4, h.chunks, h.length/4+h.chunks, h.length/4)
	}
	event = append(event, "data: [DONE]\n\n"...)
	if err := b.writeChunk(event); err != nil {
		return err
	}
	_, err := b.c.Write([]byte("0\r\n\r\n"))
	return err
}

func (b *backendConn) writeChunk(p []byte) error {
	b.out = fmt.Appendf(b.out[:0], "%x\r\n%s\r\n", len(p), p)
	_, err := b.c.Write(b.out)
	return err
}

// appendAnswer writes the fixed answer. Its cached tokens are plausible for a repeated prompt,
// because the client cycles through a fixed set of bodies and routers learn from the count.
func appendAnswer(dst []byte, h requestHead) []byte {
	var body []byte
	switch {
	case strings.HasPrefix(h.path, "/v1/models"):
		body = []byte(`{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}`)
	case strings.HasPrefix(h.path, "/metrics"):
		body = []byte("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
	case strings.HasPrefix(h.path, "/v1/"):
		n := h.length / 4
		body = fmt.Appendf(make([]byte, 0, 512), `{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},`+
			`"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, n, n+1, n)
	default:
		body = []byte("ok")
	}
	dst = fmt.Appendf(dst, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	return append(dst, body...)
}

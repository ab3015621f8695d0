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

	"github.com/valyala/fasthttp"
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
	c    net.Conn
	r    *bufio.Reader
	head fasthttp.RequestHeader
	out  []byte
}

func (b *backendConn) serveOne() error {
	if err := b.head.Read(b.r); err != nil {
		return err
	}
	length := b.head.ContentLength()
	if length == -1 || length > maxBody {
		return fmt.Errorf("a chunked body or one above %d bytes: the proxies under test are expected to send a length", maxBody)
	}
	length = max(0, length) // it is negative without a body
	chunks, _ := strconv.Atoi(string(b.head.Peek(headerMode)))
	if chunks > 0 {
		body := make([]byte, length)
		if _, err := io.ReadFull(b.r, body); err != nil {
			return err
		}
		return b.stream(chunks, length, bytes.Contains(body, []byte(`"include_usage"`)))
	}
	if _, err := b.r.Discard(length); err != nil {
		return err
	}
	b.out = appendAnswer(b.out[:0], string(b.head.RequestURI()), length)
	_, err := b.c.Write(b.out)
	return err
}

func (b *backendConn) stream(chunks, length int, usage bool) error {
	period, err := time.ParseDuration(string(b.head.Peek(headerPeriod)))
	if err != nil {
		return err
	}
	b.out = append(b.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	if _, err := b.c.Write(b.out); err != nil {
		return err
	}
	start := time.Now()
	var event []byte
	for i := range chunks {
		time.Sleep(time.Until(start.Add(time.Duration(i+1) * period)))
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
			length/4, chunks, length/4+chunks, length/4)
	}
	event = append(event, "data: [DONE]\n\n"...)
	if err := b.writeChunk(event); err != nil {
		return err
	}
	_, err = b.c.Write([]byte("0\r\n\r\n"))
	return err
}

func (b *backendConn) writeChunk(p []byte) error {
	b.out = fmt.Appendf(b.out[:0], "%x\r\n%s\r\n", len(p), p)
	_, err := b.c.Write(b.out)
	return err
}

// appendAnswer writes the fixed answer. Its cached tokens are plausible for a repeated prompt,
// because the client cycles through a fixed set of bodies and routers learn from the count.
func appendAnswer(dst []byte, path string, length int) []byte {
	var body []byte
	switch {
	case strings.HasPrefix(path, "/v1/models"):
		body = []byte(`{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}`)
	case strings.HasPrefix(path, "/metrics"):
		body = []byte("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
	case strings.HasPrefix(path, "/v1/"):
		n := length / 4
		body = fmt.Appendf(make([]byte, 0, 512), `{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},`+
			`"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, n, n+1, n)
	default:
		body = []byte("ok")
	}
	dst = fmt.Appendf(dst, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	return append(dst, body...)
}

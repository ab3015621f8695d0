//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The backend answers at once with a fixed completion, or streams one at a fixed pace. It uses bare
// connections and costs a few microseconds per request, because on two cores a slower one would be
// the bottleneck and hide the differences. Its own process keeps its CPU time apart.
const (
	headerMode   = "x-bench-chunks" // number of chunks to stream; absent: one JSON answer
	headerPeriod = "x-bench-period"
	stampKey     = `"content":"` // precedes the time at which a chunk was written, nanoseconds since the epoch
)

// maxHead bounds a request's header and maxBody its body; the backend closes the connection beyond.
const (
	maxHead = 64 << 10
	maxBody = 64 << 20
)

func serveBackend(addrs []string) error {
	var wg sync.WaitGroup
	listeners := make([]net.Listener, 0, len(addrs))
	for _, a := range addrs {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			return fmt.Errorf("backend: %w", err)
		}
		listeners = append(listeners, ln)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	for _, ln := range listeners {
		wg.Go(func() { acceptLoop(ln) })
	}
	<-stop
	for _, ln := range listeners {
		ln.Close()
	}
	wg.Wait()
	return nil
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
	c         net.Conn
	r         *bufio.Reader
	out, body []byte
}

type requestHead struct {
	path    string
	length  int
	chunked bool
	chunks  int
	period  time.Duration
}

func (b *backendConn) serveOne() error {
	h, err := b.readHead()
	if err != nil {
		return err
	}
	if h.chunks > 0 {
		usage, err := b.readStreamBody(h)
		if err != nil {
			return err
		}
		return b.stream(h, usage)
	}
	if err := b.discard(h); err != nil {
		return err
	}
	b.out = appendAnswer(b.out[:0], h)
	_, err = b.c.Write(b.out)
	return err
}

// readHead reads a request line and header. It knows only headers that the tested proxies send and
// skips the rest.
func (b *backendConn) readHead() (requestHead, error) {
	var h requestHead
	line, err := b.r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if f := bytes.Fields(line); len(f) >= 2 {
		h.path = string(f[1])
	}
	for {
		line, err = b.r.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return h, fmt.Errorf("bad header line %q", line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			h.length, err = strconv.Atoi(string(value))
			if err != nil || h.length < 0 || h.length > maxBody {
				return h, fmt.Errorf("bad content-length %q", value)
			}
		case equalFold(name, "transfer-encoding"):
			h.chunked = true
		case equalFold(name, headerMode):
			h.chunks, _ = strconv.Atoi(string(value))
		case equalFold(name, headerPeriod):
			h.period, _ = time.ParseDuration(string(value))
		}
	}
}

func equalFold(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}

func (b *backendConn) discard(h requestHead) error {
	if h.chunked {
		return fmt.Errorf("chunked request body: the proxies under test are expected to send a length")
	}
	_, err := b.r.Discard(h.length)
	return err
}

func (b *backendConn) readStreamBody(h requestHead) (usage bool, err error) {
	if h.chunked {
		return false, fmt.Errorf("chunked request body")
	}
	if cap(b.body) < h.length {
		b.body = make([]byte, h.length)
	}
	b.body = b.body[:h.length]
	if _, err := io.ReadFull(b.r, b.body); err != nil {
		return false, err
	}
	return bytes.Contains(b.body, []byte(`"include_usage"`)), nil
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
		event = append(event[:0], `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{`+stampKey...)
		event = strconv.AppendInt(event, time.Now().UnixNano(), 10)
		event = append(event, `"},"finish_reason":null}]}`+"\n\n"...)
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
	b.out = strconv.AppendInt(b.out[:0], int64(len(p)), 16)
	b.out = append(b.out, "\r\n"...)
	b.out = append(b.out, p...)
	b.out = append(b.out, "\r\n"...)
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
		var buf [512]byte
		body = append(buf[:0], `{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":`...)
		body = strconv.AppendInt(body, int64(h.length/4), 10)
		body = append(body, `,"completion_tokens":1,"total_tokens":`...)
		body = strconv.AppendInt(body, int64(h.length/4+1), 10)
		body = append(body, `,"prompt_tokens_details":{"cached_tokens":`...)
		body = strconv.AppendInt(body, int64(h.length/4), 10)
		body = append(body, `}}}`...)
	default:
		body = []byte("ok")
	}
	dst = append(dst, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

package proxy

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/proxy/books"
)

var mixSeed = flag.Uint64("mix.seed", 0, "seed of TestEveryCountReturnsToZero; 0 takes a new one")

// After any mix of outcomes nothing is outstanding, and each request has one record.
func TestEveryCountReturnsToZero(t *testing.T) {
	seed := *mixSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-mix.seed=%d", seed)
	const engines, clients, perClient = 4, 12, 40
	var addrs []string
	for i := range engines {
		addrs = append(addrs, newBackend(t, i == 0, moody(seed+uint64(i))).addr)
	}
	r := newRig(t, addrs, withStrategy("least-request"), withTimeouts(func(t *Timeouts) {
		t.Read = 200 * time.Millisecond
		t.FirstByte, t.StreamFirstByte, t.Idle, t.HeaderHold, t.Connect = 80*time.Millisecond, 80*time.Millisecond, 80*time.Millisecond, 30*time.Millisecond, time.Second
	}))
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := make(map[int]int)
	for i := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
		wg.Go(func() {
			for range perClient {
				status := erratic(r, rng)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.settled()
	failed := make(map[books.Failure]int)
	attempts := 0
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make(map[string]bool)
	for i := range r.records {
		failed[r.records[i].Failed]++
		attempts += r.records[i].Attempts
		if ids[string(r.records[i].ID)] {
			t.Errorf("two records of one request")
		}
		ids[string(r.records[i].ID)] = true
	}
	t.Logf("statuses %v (0: left), ends %v, %d attempts", statuses, failed, attempts)
	if len(r.records) == 0 || failed[books.None] == 0 || failed[books.ClientGone] == 0 {
		t.Error("the mix is no mix")
	}
}

// erratic makes one request and may leave at a random point; 0 means no status.
func erratic(r *rig, rng *rand.Rand) int {
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		return -1
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	req := chat(rng.IntN(2) == 0)
	switch rng.IntN(12) {
	case 0:
		req = request("POST", "/v1/chat/completions", `{"model":`)
	case 1:
		req = request("POST", "/v1/messages", `{"model":"m","stream":true,"messages":[]}`)
	case 2:
		req = "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + chunkEnd
	case 3:
		req = strings.Replace(req, "HTTP/1.1", "HTTP/1.0", 1)
	case 4:
		req = req[:rng.IntN(len(req))]
	case 5:
		req += req
	}
	if _, err := io.WriteString(c, req); err != nil {
		return 0
	}
	leave := rng.IntN(3) == 0
	if leave {
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
		switch rng.IntN(3) {
		case 0:
			_ = c.(*net.TCPConn).SetLinger(0)
		case 1:
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}
		return 0
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// moody is an engine that fails in every way.
func moody(seed uint64) script {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	return func(c *upstreamSide, req seenRequest) bool {
		stream := strings.Contains(req.body, `"stream":true`)
		time.Sleep(time.Duration(draw(20)) * time.Millisecond)
		switch draw(16) {
		case 0:
			return false
		case 1:
			return resetting(c, req)
		case 2:
			_, _ = c.closedByPeer(time.Second)
			return false
		case 3:
			return c.send(jsonReply(503, "{}"))
		case 4:
			return c.send(jsonReply(500, "{}"))
		case 5:
			return c.send(jsonReply(400, "{}"))
		case 6:
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			return false
		case 7:
			c.send(sseHead + chunk(event("a")) + chunk("data: ha"))
			return false
		case 8:
			c.send(sseHead)
			time.Sleep(50 * time.Millisecond) // longer than the header hold
		case 9:
			c.send(jsonReply(200, okBody))
			return false // stale once pooled
		case 10:
			c.send(sseHead + chunk(event("a")))
			_, _ = c.closedByPeer(time.Second)
			return false
		}
		if !stream {
			return c.send(jsonReply(200, okBody))
		}
		if !c.send(sseHead) {
			return false
		}
		for i := range draw(8) {
			time.Sleep(time.Duration(draw(10)) * time.Millisecond)
			if !c.send(chunk(event(fmt.Sprint(i)))) {
				return false
			}
		}
		return c.send(chunk("data: [DONE]\n\n") + chunkEnd)
	}
}

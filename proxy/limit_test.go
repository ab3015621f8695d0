package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
)

func withLimits(book *clients.Book, m *clients.Meter) rigOption {
	return withConfig(func(c *Config) {
		c.Clients, c.Meter, c.PassPaths = book, m, nil
		c.PromptTokens = func(*policy.Request) int { return 100 }
	})
}

// A request beyond its client's limit is refused in the caller's dialect, with when to come again; what was not used is given back.
func TestClientLimits(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		c.send(jsonReply(200, `{"usage":{"prompt_tokens":300,"completion_tokens":100}}`))
		return true
	})
	limited := &clients.Client{Name: "limited", TokensPerMinute: 1000}
	few := &clients.Client{Name: "few", InFlight: 1}
	m := clients.NewMeter()
	r := newRig(t, []string{b.addr}, withLimits(newBook(t, "", limited, few, &clients.Client{Name: "free"}), m))
	post := func(key, path, rest string) reply {
		return r.raw(request("POST", path, `{"model":"m","messages":[]`+rest+`}`, "Authorization: Bearer key-of-"+key))
	}
	for range 2 {
		began := m.Now()
		res := post("limited", "/v1/chat/completions", `,"max_tokens":500`).want(t, 200)
		left, err := strconv.Atoi(res.Header.Get("X-Ratelimit-Remaining-Tokens"))
		leaked := int(1000 * (m.Now() - began) / time.Minute)
		if err != nil || left > 400+leaked || res.Header.Get("X-Ratelimit-Limit-Tokens") != "1000" || res.Header.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("headers %v", res.Header)
		}
	}
	answered := map[int64]bool{}
	for path, class := range map[string]string{"/v1/chat/completions": "rate_limit_exceeded", "/v1/messages": "rate_limit_error", "/v1/responses": "rate_limit_exceeded"} {
		res := post("limited", path, `,"input":"x","max_tokens":900,"max_output_tokens":900`).want(t, 429)
		var got struct {
			Error struct{ Code, Type, Message string }
		}
		must(t, json.Unmarshal([]byte(res.body), &got))
		if got.Error.Type != "rate_limit_error" || got.Error.Code != class && path != "/v1/messages" || !strings.Contains(got.Error.Message, "1000 tokens per minute") {
			t.Errorf("%s: %s", path, res.body)
		}
		// 800 tokens are used, all but what leaked meanwhile, and the request needs the whole limit.
		answered[int64(len(res.body))] = true
		wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
		ms, err2 := strconv.Atoi(res.Header.Get("Retry-After-Ms"))
		if err != nil || err2 != nil || wait > 48 || wait*1000 < ms || ms < (wait-1)*1000 || res.Header.Get("X-Ratelimit-Reset-Tokens") == "" {
			t.Errorf("headers %v", res.Header)
		}
	}
	if n := len(b.requests()); n != 2 {
		t.Errorf("an engine received %d requests", n)
	}
	if rec := r.record(2); rec.Status != 429 || rec.Limit != "tokens" || rec.Client != "limited" || rec.Attempts != 0 || !answered[rec.ResponseBytes] || rec.Total == 0 {
		t.Errorf("record %+v", rec)
	}
	if h := post("few", "/v1/chat/completions", "").want(t, 200).Header; h.Get("X-Ratelimit-Remaining-Requests") != "0" || h.Get("X-Ratelimit-Limit-Requests") != "1" {
		t.Errorf("headers %v", h)
	}
	for name := range post("free", "/v1/chat/completions", "").want(t, 200).Header {
		if strings.Contains(strings.ToLower(name), "ratelimit") {
			t.Errorf("a client without limits gets %s", name)
		}
	}
}

// However requests end, their clients hold nothing then.
func TestClientLimitsReturnAll(t *testing.T) {
	ends := map[string]func(c *upstreamSide) bool{
		"whole": func(c *upstreamSide) bool {
			c.send(jsonReply(200, `{"usage":{"prompt_tokens":6,"completion_tokens":4}}`))
			return true
		},
		"no usage": func(c *upstreamSide) bool { c.send(jsonReply(200, `{}`)); return true },
		"stream": func(c *upstreamSide) bool {
			c.send(sseHead + chunk(event("a")) + chunk("data: [DONE]\n\n") + "0\r\n\r\n")
			return true
		},
		"broken off": func(c *upstreamSide) bool { c.send(sseHead + chunk(event("a"))); return false },
		"reset":      func(c *upstreamSide) bool { return false },
		"client error": func(c *upstreamSide) bool {
			c.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")
			return true
		},
		"busy": func(c *upstreamSide) bool {
			c.send("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")
			return true
		},
		"hangs": func(c *upstreamSide) bool { _, _ = c.closedByPeer(20 * time.Second); return false },
	}
	want := map[string]int64{"whole": 10, "no usage": 120, "stream": 120, "broken off": 120, "hangs": 0, "reset": 0, "client error": 0, "busy": 0}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool { return end(c) })
			c := &clients.Client{Name: "c", TokensPerMinute: 1000, InFlight: 100}
			m := clients.NewMeter()
			r := newRig(t, []string{b.addr}, withLimits(newBook(t, "", c), m), withTimeouts(func(t *Timeouts) { t.FirstByte, t.StreamFirstByte = time.Second, time.Second }))
			body := fmt.Sprintf(`{"model":"m","messages":[],"max_tokens":20,"stream":%v}`, name == "stream" || name == "broken off")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { r.raw(request("POST", "/v1/chat/completions", body, "Authorization: Bearer key-of-c")) })
			}
			wg.Wait()
			eventually(t, "all requests ended", func() bool { return r.proxy.InFlight() == 0 })
			s := m.Standing(c, 0, clients.Admitted, m.Now())
			if most := 3 * want[name]; s.InFlight != 0 || s.TokensUsed > most || most > 0 && s.TokensUsed == 0 {
				t.Errorf("%+v, want at most %d tokens", s, most)
			}
		})
	}
}

// A client that leaves while its engine computes is charged the prompt, and no request in flight.
func TestClientLimitsWhenClientLeaves(t *testing.T) {
	b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
		_, _ = c.closedByPeer(20 * time.Second)
		return false
	})
	c := &clients.Client{Name: "c", TokensPerMinute: 1000, InFlight: 1}
	m := clients.NewMeter()
	r := newRig(t, []string{b.addr}, withLimits(newBook(t, "", c), m))
	conn := r.dial()
	_, err := io.WriteString(conn, request("POST", "/v1/chat/completions", `{"model":"m","messages":[],"max_tokens":800}`, "Authorization: Bearer key-of-c"))
	must(t, err)
	eventually(t, "the engine has the request", func() bool { return len(b.requests()) == 1 })
	r.raw(request("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, "Authorization: Bearer key-of-c")).want(t, 429, "may have 1 requests in flight")
	conn.Close()
	eventually(t, "all requests ended", func() bool { return r.proxy.InFlight() == 0 })
	if s := m.Standing(c, 0, clients.Admitted, m.Now()); s.InFlight != 0 || s.TokensUsed > 100 {
		t.Errorf("%+v", s)
	}
}

func TestAppendReset(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 120 * time.Millisecond: "120ms", time.Second: "1s", 7540 * time.Millisecond: "7.5s", 6 * time.Minute: "6m0s", 61 * time.Second: "1m1s"} {
		if got := string(appendReset(nil, d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine/events"
)

// room is what tells SGLang's engines where to meet.
type room struct {
	Host   string `json:"bootstrap_host"`
	Port   int    `json:"bootstrap_port"`
	Number int64  `json:"bootstrap_room"`
}

func roomOf(t *testing.T, req seenRequest) (r room) {
	t.Helper()
	must(t, json.Unmarshal([]byte(req.body), &r))
	return r
}

// meeting makes the decode engine's reply wait for the prefill engine, and the other way round.
type meeting struct{ prefilling, decoding chan bool }

func newMeeting() *meeting { return &meeting{make(chan bool, 100), make(chan bool, 100)} }

func (m *meeting) prefill(c *upstreamSide, _ seenRequest) bool {
	m.prefilling <- true
	return within(m.decoding) && c.send(jsonReply(200, strings.Replace(prefillBody, `,"kv_transfer_params":`+params, "", 1)))
}

func (m *meeting) decode(c *upstreamSide, req seenRequest) bool {
	m.decoding <- true
	return within(m.prefilling) && replying(c, req)
}

// within waits for a value of c, or its end, at most 30 s.
func within(c <-chan bool) bool {
	select {
	case <-c:
		return true
	case <-time.After(30 * time.Second):
		return false
	}
}

// ended waits for the end of a connection; see waiting.
func ended(t *testing.T, closed <-chan error) {
	t.Helper()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("no connection was closed within 30 s")
	}
}

// waiting ends with the connection.
func waiting(closed chan<- error) script {
	return func(c *upstreamSide, req seenRequest) bool {
		if strings.Contains(req.body, `"stream":true`) && !strings.Contains(req.body, `"max_tokens":1,`) && !c.send(sseHead) {
			return false
		}
		_, err := c.closedByPeer(20 * time.Second)
		closed <- err
		return false
	}
}

// first runs s once, and then later.
func first(s, later script) script {
	var n atomic.Int64
	return func(c *upstreamSide, req seenRequest) bool {
		if n.Add(1) == 1 {
			return s(c, req)
		}
		return later(c, req)
	}
}

func TestPair(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream=", stream), func(t *testing.T) {
			m := newMeeting()
			p, d := newBackend(t, false, m.prefill), newBackend(t, false, m.decode)
			r := newRig(t, []string{p.addr, d.addr}, withRoles("PD"), withStrategy("prefix"))
			for i := range 3 {
				rp := r.raw(chatOf("short", stream)).want(t, 200, "hi")
				if got := rp.Header.Get(headerPrefill); got != "b0" || rp.Header.Get(headerBackend) != "b1" {
					t.Errorf("headers name %q and %q", got, rp.Header.Get(headerBackend))
				}
				rec := r.record(i)
				if rec.Backend != "b1" || rec.Prefill.Backend != "b0" || rec.Prefill.Failed != books.None || rec.CachedTokens != 100 || rec.Attempts != 1 || rec.Failed != books.None {
					t.Errorf("record %+v", rec)
				}
			}
			rooms := make(map[int64]bool)
			first, second := p.requests(), d.requests()
			if len(first) != 3 || len(second) != 3 {
				t.Fatalf("%d requests for prefill, %d for decode", len(first), len(second))
			}
			for i := range first {
				a, b := roomOf(t, first[i]), roomOf(t, second[i])
				if a != b || a.Host != "127.0.0.1" || a.Port != 8998 || rooms[a.Number] || a.Number < 0 {
					t.Errorf("the engines meet at %+v and %+v", a, b)
				}
				rooms[a.Number] = true
				if strings.Contains(first[i].body, "stream\":true") || !strings.Contains(first[i].body, `"max_tokens":1,`) || strings.Contains(first[i].body, "kv_transfer_params") {
					t.Errorf("prefill is asked for %s", first[i].body)
				}
			}
		})
	}
}

// If either engine fails, the other part is canceled and another engine serves the whole request.
func TestPairFails(t *testing.T) {
	for _, tc := range []struct {
		name            string
		prefill, decode script // nil: waits for the other one
		failed          books.Failure
	}{
		{"prefill resets", resetting, nil, books.Reset},
		{"prefill 500", denying(500), nil, books.Transfer},
		{"prefill 429", denying(429), nil, books.Busy},
		{"decode resets", nil, resetting, books.Transfer},
		{"decode 500", nil, denying(500), books.Transfer},
		{"decode 400", nil, denying(400), books.Transfer},
		{"decode 429", nil, denying(429), books.Transfer},
		{"decode streams an error", nil, failedStream, books.Transfer},
	} {
		for _, stream := range []bool{false, true} {
			for _, roles := range []string{"PDb", "PDPD"} {
				if roles == "PDPD" && !strings.Contains(tc.name, "reset") && !strings.Contains(tc.name, "429") {
					continue // an engine that lives is asked again
				}
				t.Run(fmt.Sprintf("%s/stream=%v/%s", tc.name, stream, roles), func(t *testing.T) {
					t.Parallel()
					closed, arrived := make(chan error, 10), make(chan bool)
					wait := func(c *upstreamSide, req seenRequest) bool {
						close(arrived)
						return waiting(closed)(c, req)
					}
					fail := func(s script) script {
						return func(c *upstreamSide, req seenRequest) bool {
							return within(arrived) && s(c, req)
						}
					}
					m := newMeeting()
					prefill, decode := tc.prefill, tc.decode
					if prefill == nil {
						prefill, decode = first(wait, m.prefill), fail(decode)
					} else {
						prefill, decode = fail(prefill), first(wait, m.decode)
					}
					others := []script{replying}
					if roles == "PDPD" {
						others = []script{m.prefill, m.decode}
					}
					addrs, engines := []string(nil), []*backend(nil)
					for _, s := range append([]script{prefill, decode}, others...) {
						b := newBackend(t, false, s)
						addrs, engines = append(addrs, b.addr), append(engines, b)
					}
					r := newRig(t, addrs, withRoles(roles), withStrategy("prefix"))
					// The first choice are b0 and b1.
					r.router.SetPeerLoad("other", []books.PeerLoad{{Backend: 2, Active: 60, PrefillTokens: 1 << 20}, {Backend: 3, Active: 60, PrefillTokens: 1 << 20}}[:len(addrs)-2], 0)
					r.raw(chatOf("short", stream)).want(t, 200, "hi")
					ended(t, closed)
					rec := r.record(0)
					if rec.Failed != books.None || rec.Status != 200 || roles == "PDb" && rec.Prefill.Failed != tc.failed {
						t.Errorf("record: prefill %v, %v, status %d", rec.Prefill.Failed, rec.Failed, rec.Status)
					}
					for i := range 2 {
						n := len(engines[i].requests())
						if roles == "PDb" && n != 1 {
							t.Errorf("engine %d: %d requests", i, n)
						}
						if _, avoided := r.router.Avoided(prefixtree.Backend(i), prefixtree.Time(time.Now().UnixMilli())); avoided && !strings.Contains(tc.name, "429") {
							t.Errorf("engine %d is avoided", i)
						}
					}
				})
			}
		}
	}
}

// Engines that refuse their parts, but live, are asked a bounded number of times.
func TestPairsRefuse(t *testing.T) {
	p, d := newBackend(t, false, denying(500)), newBackend(t, false, denying(500))
	r := newRig(t, []string{p.addr, d.addr}, withRoles("PD"), withStrategy("prefix"))
	r.raw(chatOf("short", false)).want(t, 502, "upstream_broken", "KV cache")
	if n := r.record(0).Attempts; n != maxPairs {
		t.Errorf("%d attempts", n)
	}
	// An engine whose part is canceled at once may not read it.
	eventually(t, "as many connections to each engine", func() bool { return p.connections() == maxPairs && d.connections() == maxPairs })
}

// The prompt of a pair has no stamp, and so the client's session, also after a reply that had one.
func TestPairKeepsTheSession(t *testing.T) {
	arrived, closed := make(chan bool, maxPairs), make(chan error, maxPairs)
	p := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		arrived <- true
		return waiting(closed)(c, req)
	})
	d := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool { return within(arrived) && denying(500)(c, req) })
	r := newRig(t, []string{p.addr, d.addr}, withRoles("PD"), withStrategy("prefix"), withConfig(func(c *Config) { c.Stamper = &stamping{where: events.InHeader} }))
	r.raw(request("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"short"}]}`, "X-Session-Id: client")).want(t, 502)
	prompts, replies := p.requests(), d.requests()
	if len(prompts) != maxPairs || len(replies) != maxPairs {
		t.Fatalf("%d prompts, %d replies", len(prompts), len(replies))
	}
	for i := range prompts {
		if a, b := prompts[i].Header.Get("X-Session-Id"), replies[i].Header.Get("X-Session-Id"); a != "client" || b != testStamp {
			t.Errorf("pair %d: sessions %q and %q", i, a, b)
		}
	}
}

// Without a prefill backend that can be reached there is no pair.
func TestNoPair(t *testing.T) {
	d := newBackend(t, false, replying)
	dead := newBackend(t, false, replying)
	dead.stop()
	r := newRig(t, []string{dead.addr, d.addr}, withRoles("PD"), withStrategy("prefix"))
	rp := r.raw(chatOf("short", false)).want(t, 503, "no_backend", "no prefill backend")
	if rp.Header.Get("Retry-After") == "" || len(d.requests()) != 0 {
		t.Errorf("Retry-After %q, %d requests for decode", rp.Header.Get("Retry-After"), len(d.requests()))
	}
	r.raw(request("POST", "/v1/chat/completions", `{"n":2,"messages":[{"role":"user","content":"x"}]}`)).want(t, 503, "no_backend_role")
}

// A client that leaves ends both parts.
func TestLeavePair(t *testing.T) {
	closed := make(chan error, 2)
	p, d := newBackend(t, false, waiting(closed)), newBackend(t, false, waiting(closed))
	r := newRig(t, []string{p.addr, d.addr}, withRoles("PD"), withStrategy("prefix"))
	c := r.dial()
	_, err := io.WriteString(c, chatOf("short", true))
	must(t, err)
	eventually(t, "both parts are sent", func() bool { return len(p.requests()) == 1 && len(d.requests()) == 1 })
	c.Close()
	ended(t, closed)
	ended(t, closed)
	if rec := r.record(0); rec.Status != StatusClientGone || rec.Failed != books.ClientGone {
		t.Errorf("status %d, %v", rec.Status, rec.Failed)
	}
}

// A prefill backend that fails after the reply has begun changes nothing, nor does one that keeps
// its answer.
func TestPairFailsLate(t *testing.T) {
	for _, stream := range []bool{false, true} {
		begun, gone := make(chan bool), make(chan bool, 1)
		closed := make(chan error, 1)
		p := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
			if !stream {
				return waiting(closed)(c, req)
			}
			gone <- within(begun)
			return false
		})
		d := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
			if !stream {
				return replying(c, req)
			}
			c.send(sseHead + chunk(event("hi")))
			return within(gone) && c.send(chunk(event("there"))+chunk("data: [DONE]\n\n")+chunkEnd)
		})
		r := newRig(t, []string{p.addr, d.addr}, withRoles("PD"), withStrategy("prefix"))
		c := r.dial()
		_, err := io.WriteString(c, chatOf("short", stream))
		must(t, err)
		if stream {
			var first [256]byte
			_, err := c.Read(first[:])
			must(t, err)
			close(begun)
		}
		if rec := r.record(0); rec.Failed != books.None || rec.Broken {
			t.Errorf("stream %t: %v, broken %t", stream, rec.Failed, rec.Broken)
		}
		if !stream {
			ended(t, closed)
		}
		c.Close()
	}
}

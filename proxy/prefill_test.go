package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

const params = `{"do_remote_prefill":true,"remote_block_ids":[1,2 ,3],"later":{"x":"}"}}`

const prefillBody = `{"id":"2","choices":[{"message":{"content":"x"},"finish_reason":"length"}],"kv_transfer_params":` + params +
	`,"usage":{"prompt_tokens":9000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":100}}}`

var longText = strings.Repeat("a long prompt ", 4000)

// newSplitRig has a prefill engine, a decode engine with many running requests and another one.
func newSplitRig(t *testing.T, prefill, decode script, options ...rigOption) (r *rig, p, d *backend) {
	t.Helper()
	p, d = newBackend(t, false, prefill), newBackend(t, false, decode)
	r = newRig(t, []string{p.addr, d.addr}, append(options, withRoles("pd"), withStrategy("prefix"))...)
	r.router.SetPeerLoad("other", []books.PeerLoad{{Backend: 1, Active: 60}}, 0)
	return r, p, d
}

func prefilling(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(200, prefillBody)) }

// replying streams if asked to.
func replying(c *upstreamSide, req seenRequest) bool {
	if strings.Contains(req.body, `"stream":true`) {
		return c.send(sseHead + chunk(event("hi")) + chunk("data: [DONE]\n\n") + chunkEnd)
	}
	return c.send(jsonReply(200, okBody))
}

// denying answers with an error of this status.
func denying(status int, headers ...string) script {
	return func(c *upstreamSide, _ seenRequest) bool {
		return c.send(jsonReply(status, `{"error":{"message":"no"}}`, headers...))
	}
}

// failedStream begins with an error event.
func failedStream(c *upstreamSide, _ seenRequest) bool {
	return c.send(sseHead + chunk("data: {\"error\":{\"message\":\"no KV\"}}\n\n") + chunk("data: [DONE]\n\n") + chunkEnd)
}

func transferOf(t *testing.T, req seenRequest) string {
	t.Helper()
	var m map[string]json.RawMessage
	must(t, json.Unmarshal([]byte(req.body), &m))
	return string(m["kv_transfer_params"])
}

func TestPrefillElsewhere(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream=", stream), func(t *testing.T) {
			r, p, d := newSplitRig(t, prefilling, replying)
			rp := r.raw(chatOf(longText, stream)).want(t, 200, "hi")
			if got := rp.Header.Get(headerPrefill); got != "b0" || rp.Header.Get(headerBackend) != "b1" {
				t.Errorf("headers name %q and %q", got, rp.Header.Get(headerBackend))
			}
			first, second := p.requests(), d.requests()
			if len(first) != 1 || len(second) != 1 {
				t.Fatalf("%d requests for prefill, %d for decode", len(first), len(second))
			}
			var asked struct {
				Stream    bool `json:"stream"`
				MaxTokens int  `json:"max_tokens"`
				Transfer  struct {
					Decode  bool `json:"do_remote_decode"`
					Prefill bool `json:"do_remote_prefill"`
				} `json:"kv_transfer_params"`
			}
			must(t, json.Unmarshal([]byte(first[0].body), &asked))
			if asked.Stream || asked.MaxTokens != 1 || !asked.Transfer.Decode || asked.Transfer.Prefill {
				t.Errorf("prefill is asked for %+v", asked)
			}
			if got := transferOf(t, second[0]); got != params {
				t.Errorf("decode gets %s, want it verbatim", got)
			}
			if a, b := first[0].Header.Get("X-Request-Id"), second[0].Header.Get("X-Request-Id"); a == "" || a != b {
				t.Errorf("request ids %q and %q", a, b)
			}
			rec := r.record(0)
			if rec.Backend != "b1" || rec.Prefill.Backend != "b0" || rec.Prefill.Failed != books.None || rec.CachedTokens != 100 || rec.Attempts != 1 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Requests that two engines cannot share, or that are cheaper at one, go to the decode engine alone.
func TestPrefillHere(t *testing.T) {
	r, p, d := newSplitRig(t, prefilling, replying)
	r.raw(chatOf("short", false)).want(t, 200, "hi")
	r.raw(request("POST", "/v1/chat/completions", `{"n":2,"messages":[{"role":"user","content":"`+longText+`"}]}`)).want(t, 200, "hi")
	r.raw(request("POST", "/v1/messages", `{"max_tokens":2,"messages":[{"role":"user","content":"`+longText+`"}]}`)).want(t, 200, "hi")
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests for prefill", n)
	}
	for _, req := range d.requests() {
		if transferOf(t, req) != "" {
			t.Error("a request says where to fetch")
		}
	}
	if rec := r.record(0); rec.Prefill.Backend != "" {
		t.Errorf("record %+v", rec.Prefill)
	}
}

// Whatever goes wrong with either part, the client gets one whole answer, and parameters are used at
// most once.
func TestSplitFails(t *testing.T) {
	body := func(text string) script {
		return func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(200, text)) }
	}
	cut := func(text string) script {
		return func(c *upstreamSide, _ seenRequest) bool { c.send(text); return false }
	}
	for _, tc := range []struct {
		name            string
		prefill, decode script // nil: as it should be
		failed          books.Failure
	}{
		{"prefill resets", resetting, nil, books.Reset},
		{"prefill is cut off", cut("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), nil, books.Reset},
		{"prefill 500", denying(500), nil, books.Status5xx},
		{"prefill 503", denying(503), nil, books.Status5xx},
		{"prefill 429", denying(429, "Retry-After: 3"), nil, books.Busy},
		{"prefill 400", denying(400), nil, books.Client4xx},
		{"no parameters", body(okBody), nil, books.Transfer},
		{"null parameters", body(`{"kv_transfer_params":null}`), nil, books.Transfer},
		{"not JSON", body(`nonsense`), nil, books.Transfer},
		{"decode 500", nil, denying(500), books.Transfer},
		{"decode 503", nil, denying(503), books.Transfer},
		{"decode 400", nil, denying(400), books.Transfer},
		{"decode streams an error", nil, failedStream, books.Transfer},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", tc.name, stream), func(t *testing.T) {
				t.Parallel()
				prefill := script(prefilling)
				if tc.prefill != nil {
					prefill = tc.prefill
				}
				r, p, d := newSplitRig(t, prefill, func(c *upstreamSide, req seenRequest) bool {
					if tc.decode != nil && transferOf(t, req) != "" {
						return tc.decode(c, req)
					}
					return replying(c, req)
				})
				r.raw(chatOf(longText, stream)).want(t, 200, "hi")
				rec := r.record(0)
				if rec.Prefill.Failed != tc.failed || rec.Failed != books.None || rec.Status != 200 {
					t.Errorf("record: prefill %v, %v, status %d", rec.Prefill.Failed, rec.Failed, rec.Status)
				}
				fetched := 0
				for _, req := range d.requests() {
					if transferOf(t, req) != "" {
						fetched++
					}
				}
				if n := len(p.requests()); n != 1 || tc.decode == nil && fetched != 0 || tc.decode != nil && fetched != 1 {
					t.Errorf("%d requests for prefill; parameters used %d times", n, fetched)
				}
				if _, avoided := r.router.Avoided(1, prefixtree.Time(time.Now().UnixMilli())); avoided {
					t.Error("the decode engine is avoided")
				}
			})
		}
	}
}

// A decode engine that breaks off is left for another one, without the parameters.
func TestDecodeBreaks(t *testing.T) {
	for name, bad := range map[string]script{"resets": resetting, "half a head": func(c *upstreamSide, _ seenRequest) bool { c.send("HTTP/1.1 2"); return false }} {
		t.Run(name, func(t *testing.T) {
			p := newBackend(t, false, prefilling)
			fetched := make(chan string, 10)
			decode := func(c *upstreamSide, req seenRequest) bool {
				if got := transferOf(t, req); got != "" {
					fetched <- got
					return bad(c, req)
				}
				return replying(c, req)
			}
			d, e := newBackend(t, false, decode), newBackend(t, false, decode)
			r := newRig(t, []string{p.addr, d.addr, e.addr}, withRoles("pdd"), withStrategy("prefix"))
			r.router.SetPeerLoad("other", []books.PeerLoad{{Backend: 1, Active: 60}, {Backend: 2, Active: 60}}, 0)
			r.raw(chatOf(longText, true)).want(t, 200, "hi")
			if rec := r.record(0); rec.Attempts != 2 || len(fetched) != 1 {
				t.Errorf("%d attempts, parameters used %d times", rec.Attempts, len(fetched))
			}
			if a, b := len(d.requests()), len(e.requests()); a != 1 || b != 1 {
				t.Errorf("%d and %d requests", a, b)
			}
		})
	}
}

// A request that broke both engines goes to no third.
func TestSplitBreaksTwo(t *testing.T) {
	r, p, d := newSplitRig(t, resetting, resetting)
	r.raw(chatOf(longText, false)).want(t, 502, "upstream_broken")
	if a, b := len(p.requests()), len(d.requests()); a != 1 || b != 1 {
		t.Errorf("%d and %d requests", a, b)
	}
}

// The decode part is never sent over a pooled connection: if that was stale, it would be sent twice.
func TestDecodeConnectsAnew(t *testing.T) {
	r, _, d := newSplitRig(t, prefilling, replying)
	r.raw(chat(false)).want(t, 200, "hi")
	before := d.connections()
	r.raw(chatOf(longText, false)).want(t, 200, "hi")
	if got := d.connections(); got != before+1 {
		t.Errorf("%d connections, want %d", got, before+1)
	}
}

// A client that leaves during the prefill ends it.
func TestLeaveDuringPrefill(t *testing.T) {
	closed := make(chan error, 1)
	r, p, d := newSplitRig(t, waiting(closed), replying)
	c := r.dial()
	_, err := io.WriteString(c, chatOf(longText, true))
	must(t, err)
	eventually(t, "the prompt is sent", func() bool { return len(p.requests()) == 1 })
	c.Close()
	ended(t, closed)
	if rec := r.record(0); rec.Status != StatusClientGone || len(d.requests()) != 0 {
		t.Errorf("status %d, %d requests for decode", rec.Status, len(d.requests()))
	}
}

func TestNoRole(t *testing.T) {
	p := newBackend(t, false, prefilling)
	r := newRig(t, []string{p.addr}, withRoles("p"))
	rp := r.raw(chat(false)).want(t, http.StatusServiceUnavailable, "no_backend_role", "needs role both or decode", "Add such a backend")
	if rp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	r.raw(request("POST", "/tokenize", `{"prompt":"x"}`)).want(t, 200)
}

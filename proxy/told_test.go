package proxy

import (
	"testing"
	"time"

	"grapevine.example/proxy/books"
)

// After a stream's own end, a backend that hangs or breaks off causes no error event.
func TestNothingFollowsTheEnd(t *testing.T) {
	for api, tc := range map[string]struct{ path, text, end string }{
		"openai":    {"/v1/chat/completions", event("a"), "data: [DONE]\n\n"},
		"responses": {"/v1/responses", "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n", "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{}}\n\n"},
		"anthropic": {"/v1/messages", "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
	} {
		for how, after := range map[string]func(c *upstreamSide){
			"breaks off": func(*upstreamSide) {},
			"breaks off within an event": func(c *upstreamSide) {
				c.send(chunk("data: {\"cho"))
			},
			"hangs": func(c *upstreamSide) {
				if _, err := c.closedByPeer(20 * time.Second); err != nil {
					t.Errorf("upstream: %v", err)
				}
			},
		} {
			t.Run(api+" "+how, func(t *testing.T) {
				b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
					c.send(sseHead + chunk(tc.text) + chunk(tc.end))
					after(c)
					return false
				})
				r := newRig(t, []string{b.addr}, withTimeouts(func(t *Timeouts) { t.Idle = 150 * time.Millisecond }))
				rp := r.raw(request("POST", tc.path, `{"model":"m","stream":true,"messages":[],"input":"x","max_tokens":1}`)).want(t, 200)
				if rp.err != nil || rp.body != tc.text+tc.end {
					t.Errorf("body %q, %v", rp.body, rp.err)
				}
				if rec := r.record(0); rec.Failed != books.None || rec.Broken {
					t.Errorf("record %+v", rec)
				}
			})
		}
	}
}

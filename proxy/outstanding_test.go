package proxy

import (
	"fmt"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
)

// A stream's prefill ends with its first token, any other's when its answer begins.
func TestWhatIsOutstanding(t *testing.T) {
	const compressed = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, tc := range map[string]struct {
		request, answer string
		whole           bool
		waits           bool // when the answer has begun
	}{
		"chat, streamed":      {chat(true), sseHead + chunk("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n"), false, true},
		"chat, whole":         {chat(false), "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{", true, false},
		"compressed":          {chat(true), compressed + chunk("?"), false, false},
		"compressed question": {request("POST", "/v1/chat/completions", "?", "Content-Encoding: gzip"), sseHead + chunk(event("a")), true, false},
		"another path":        {request("POST", "/v1/audio/speech", `{"stream":true}`), sseHead + chunk(event("a")), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			answer, end := make(chan struct{}), make(chan struct{})
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				select {
				case <-answer:
					c.send(tc.answer)
					<-end
				case <-end:
				}
				return false
			})
			r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.AllowEngineControl = true }))
			outstanding := func(later time.Duration) books.PeerLoad {
				loads := r.router.OwnLoads(nil, (&routed{}).Now()+prefixtree.Time(later.Milliseconds()))
				if len(loads) == 0 {
					return books.PeerLoad{}
				}
				return loads[0]
			}
			defer close(end)
			c := r.dial()
			_, err := fmt.Fprint(c, tc.request)
			must(t, err)
			eventually(t, "a request under way", func() bool { return outstanding(0).Active == 1 })
			if l := outstanding(time.Hour); tc.whole != (l.PrefillTokens == 0) || l.Active != 1 {
				t.Errorf("an hour without an answer: %+v", l)
			}
			close(answer)
			if !tc.waits {
				eventually(t, "an answer that has begun", func() bool { return outstanding(0).PrefillTokens == 0 })
			} else {
				_, err = c.Read(make([]byte, 1)) // the response has begun
				must(t, err)
				if l := outstanding(time.Hour); l.PrefillTokens == 0 {
					t.Errorf("before the first token: %+v", l)
				}
			}
			if l := outstanding(0); l.Active != 1 {
				t.Errorf("while it is being answered: %+v", l)
			}
		})
	}
}

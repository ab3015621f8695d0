package proxy

import (
	"strings"
	"sync"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/policy"
)

const testStamp = "gv1.stamp"

// stamping is a Stamper whose backends all read session ids at one place.
type stamping struct {
	where events.Carrier

	mu    sync.Mutex
	sent  int
	ended []engine.Usage
}

func (s *stamping) Stamp(dst []byte, _ prefixtree.Backend, q *policy.Request, inBody bool) ([]byte, uint64, events.Carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.where == events.NoCarrier || s.where == events.InBody && !inBody || len(q.Marks) == 0 {
		return dst, 0, events.NoCarrier
	}
	s.sent++
	return append(dst, testStamp...), 7, s.where
}

func (s *stamping) Ended(_ prefixtree.Backend, id uint64, u engine.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 7 {
		s.ended = append(s.ended, u)
	}
}

func TestStamps(t *testing.T) {
	const member = `"session_id":"` + testStamp + `",`
	for _, c := range []struct {
		name, path, body string
		where            events.Carrier
		want             string // the body that the engine gets; "" for the client's
		stamped          bool
	}{
		{"header", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"}]}`, events.InHeader, "", true},
		{"header of a message", "/v1/messages", `{"model":"m","messages":[{"role":"user","content":"a"}]}`, events.InHeader, "", true},
		{"body", "/v1/chat/completions", ` {"model":"m","messages":[{"role":"user","content":"a"}]}`, events.InBody,
			` {` + member + `"model":"m","messages":[{"role":"user","content":"a"}]}`, true},
		{"edited body", "/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"a"}]}`, events.InBody,
			`{` + member + `"stream_options":{"include_usage":true},"stream":true,"messages":[{"role":"user","content":"a"}]}`, true},
		{"body with its first member cut", "/v1/completions", `{"kv_transfer_params":1,"prompt":"a"}`, events.InBody, `{` + member + `"prompt":"a"}`, true},
		{"body that SGLang reads no session from", "/v1/messages", `{"messages":[{"role":"user","content":"a"}]}`, events.InBody, "", false},
		{"own session", "/v1/chat/completions", `{"session_id":"x","messages":[{"role":"user","content":"a"}]}`, events.InHeader, "", false},
		{"session_params", "/generate", `{"text":"a","session_params":{"id":"x"}}`, events.InBody, "", false},
		{"no events", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`, events.NoCarrier, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBackend(t, false, func(u *upstreamSide, _ seenRequest) bool { return u.send(jsonReply(200, okBody)) })
			s := &stamping{where: c.where}
			r := newRig(t, []string{b.addr}, withConfig(func(cfg *Config) { cfg.Stamper = s }))
			r.raw(request("POST", c.path, c.body, "X-Session-ID: client", "x_session_id: client", "Connection: x-other")).want(t, 200)
			got := b.requests()[0]
			if c.want == "" {
				c.want = c.body
			}
			if got.body != c.want || got.ContentLength != int64(len(c.want)) {
				t.Errorf("the engine got %q of %d bytes, want %q", got.body, got.ContentLength, c.want)
			}
			sessions := append(got.Header["X-Session-Id"], got.Header["X_session_id"]...)
			if c.stamped && c.where == events.InHeader && (len(sessions) != 1 || sessions[0] != testStamp) {
				t.Errorf("sessions %q, want the stamp alone", sessions)
			}
			if (!c.stamped || c.where != events.InHeader) && len(sessions) == 0 {
				t.Error("the client's session was dropped")
			}
			rec := r.record(0)
			s.mu.Lock()
			defer s.mu.Unlock()
			if noted := s.sent > 0; noted != c.stamped {
				t.Errorf("a stamp was noted: %v, sent: %v", noted, c.stamped)
			}
			if ended := len(s.ended) > 0; ended != (c.stamped && rec.PromptTokens > 0) {
				t.Errorf("stamped %v, ended %v with %d prompt tokens", c.stamped, s.ended, rec.PromptTokens)
			}
		})
	}
}

// Each attempt has a stamp of its own, since only the engine that computed the prompt names it.
func TestRetriesAreStamped(t *testing.T) {
	var seen [2]*backend
	for i := range seen {
		seen[i] = newBackend(t, false, func(u *upstreamSide, _ seenRequest) bool { return u.send(jsonReply(503, "{}")) })
	}
	s := &stamping{where: events.InBody}
	r := newRig(t, []string{seen[0].addr, seen[1].addr}, withConfig(func(cfg *Config) { cfg.Stamper = s }))
	r.raw(chat(false)).want(t, 503)
	for _, req := range append(seen[0].requests(), seen[1].requests()...) {
		if strings.Count(req.body, testStamp) != 1 {
			t.Errorf("the engine got %q", req.body)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != 2 || len(s.ended) != 0 {
		t.Errorf("%d stamps, %d ended; want 2 and 0", s.sent, len(s.ended))
	}
}

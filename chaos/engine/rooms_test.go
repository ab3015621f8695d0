package engine

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func pairOf(t *testing.T, cfg ServerConfig) (p, d *live) {
	t.Helper()
	cfg.Part = PartPrefill
	p = startServer(t, cfg)
	cfg.Part = PartDecode
	return p, startServer(t, cfg)
}

func (p *live) room(number int) string {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf(`"bootstrap_host":%q,"bootstrap_port":%s,"bootstrap_room":%d,`, host, port, number)
}

func TestPart(t *testing.T) {
	p, d := pairOf(t, transferring(fastConfig()))
	alone := startServer(t, fastConfig())
	for i := range 3 {
		text := strings.Repeat(fmt.Sprint("text ", i, " "), 2000)
		var want, got, prompt completion
		alone.ok("/v1/chat/completions", asking(text, 20, ""), &want)
		done := make(chan bool)
		ask := asking(text, 20, p.room(i))
		go func() { p.ok("/v1/chat/completions", ask, &prompt); close(done) }()
		d.ok("/v1/chat/completions", ask, &got)
		<-done
		if got.Choices[0] != want.Choices[0] || prompt.Usage.CompletionTokens != 1 {
			t.Errorf("reply %q, want %q; %d tokens of the prefill", got.Choices[0].Message.Content, want.Choices[0].Message.Content, prompt.Usage.CompletionTokens)
		}
		// A used room brings the reply to another prompt.
		if d.ok("/v1/chat/completions", ask, &got); got.Choices[0] == want.Choices[0] {
			t.Error("a used room gives the right reply")
		}
	}
	if s := d.Stats(); s.PrefillTokens > 6*16 {
		t.Errorf("the decode engine computed %d tokens", s.PrefillTokens)
	}
	for _, s := range []*live{p, d} {
		if resp, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(asking("x", 1, ""))); err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("a request without a room: %v, %v", resp, err)
		} else {
			resp.Body.Close()
		}
	}
}

// A part whose other part does not come, or leaves, fails.
func TestPartAlone(t *testing.T) {
	cfg := transferring(fastConfig())
	cfg.Lease = 20 * time.Millisecond
	p, d := pairOf(t, cfg)
	for i, s := range []*live{p, d} {
		resp, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(asking("x", 1, p.room(i))))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("status %d, %s", resp.StatusCode, body)
		}
	}
	p, _ = pairOf(t, transferring(fastConfig()))
	ctx, leave := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(asking("x", 1, p.room(7))))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		_, err := p.client.Do(req)
		left <- err
	}()
	eventually(t, "the request arrives", func() bool { return p.Stats().Requests > 0 })
	leave()
	if <-left == nil {
		t.Error("a canceled request is answered")
	}
	eventually(t, "the engine notices", func() bool { return p.Stats().Departed > 0 })
}

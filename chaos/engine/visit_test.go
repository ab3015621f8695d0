package engine

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

type visitors struct {
	mu   sync.Mutex
	seen []Visit
}

func (v *visitors) watch(one Visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = append(v.seen, one)
}

func (v *visitors) of(id string) (out []Visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.seen {
		if one.ID == id {
			out = append(out, one)
		}
	}
	return out
}

func (v *visitors) await(t *testing.T, id string, n int) []Visit {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got := v.of(id); len(got) == n {
			return got
		}
	}
	t.Fatalf("%s: observed %+v, want %d times", id, v.of(id), n)
	return nil
}

func TestWatch(t *testing.T) {
	var seen visitors
	cfg := fastConfig()
	cfg.Watch = seen.watch
	l := startServer(t, cfg)
	ask := func(ctx context.Context, id string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"hello there","max_tokens":3}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Id", id)
		resp, err := l.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := ask(t.Context(), "served"); err != nil {
		t.Fatal(err)
	}
	got := seen.await(t, "served", 2)
	if !got[0].Ended.IsZero() || got[1].Ended.Before(got[1].Began) || got[1].Departed || got[0].Began != got[1].Began || got[1].Engine != l.Addr() {
		t.Errorf("served: %+v", got)
	}
	if err := l.Inject(Fault{Kind: "hang"}); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- ask(ctx, "left") }()
	seen.await(t, "left", 1)
	leave()
	if err := <-left; err == nil {
		t.Error("a hung engine answered")
	}
	if got := seen.await(t, "left", 2); !got[1].Departed {
		t.Errorf("left: %+v", got)
	}
	if err := l.Inject(Fault{Kind: "none"}); err != nil {
		t.Fatal(err)
	}
	if resp, err := l.client.Get(l.url + "/metrics"); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
	}
	if n := len(seen.seen); n != 4 {
		t.Errorf("observed %d requests, want 4: inference alone", n)
	}
}

func TestReplies(t *testing.T) {
	l := startServer(t, fastConfig())
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"one \"quoted\" word"}]}`},
		{"/v1/completions", `{"model":"m","prompt":"two","max_tokens":5}`},
		{"/v1/completions", `{"model":"lora","prompt":"two","max_tokens":5}`},
	} {
		want, err := Replies(fastConfig(), c.path, []byte(c.body))
		if err != nil || len(want) != 1 {
			t.Fatalf("%s: %q, %v", c.path, want, err)
		}
		var got struct {
			Choices []struct {
				Text    string
				Message struct{ Content string }
			}
		}
		status, answer := l.post(c.path, c.body)
		if err := json.Unmarshal(answer, &got); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", c.path, status, answer, err)
		}
		if text := got.Choices[0].Text + got.Choices[0].Message.Content; text != string(want[0]) {
			t.Errorf("%s: %q came, %q was foretold", c.path, text, want[0])
		}
	}
	for _, bad := range []string{"/v1/nothing", "/v1/completions"} {
		if _, err := Replies(fastConfig(), bad, []byte(`{"model":"m"}`)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func (l *live) inject(f Fault) {
	l.t.Helper()
	if err := l.Inject(f); err != nil {
		l.t.Fatal(err)
	}
}

// try sends a chat request and reads the answer to its end.
func (l *live) try(more string) (status int, body string, err error) {
	resp, err := l.client.Post(l.url+"/v1/chat/completions", "application/json", strings.NewReader(chat(more, "Hello, how are you?")))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestFaultReset(t *testing.T) {
	l := startServer(t, fastConfig())
	l.inject(Fault{Kind: "reset", Count: 1})
	if _, _, err := l.try(""); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("before the header: %v", err)
	}
	if status, _, err := l.try(""); status != http.StatusOK || err != nil {
		t.Errorf("after the count: %d, %v", status, err)
	}
	l.inject(Fault{Kind: "reset", AfterBytes: 1000})
	status, body, err := l.try(`,"stream":true,"max_tokens":100`)
	if status != http.StatusOK || len(body) != 1000 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("mid-stream: %d, %d bytes, %v", status, len(body), err)
	}
	l.inject(Fault{Kind: "none"})
	if status, _, err := l.try(""); status != http.StatusOK || err != nil {
		t.Errorf("after none: %d, %v", status, err)
	}
	eventually(t, "idle", func() bool { s := l.Stats(); return s.Running == 0 && s.Faulted == 2 })
}

func TestFaultHang(t *testing.T) {
	l := startServer(t, fastConfig())
	l.inject(Fault{Kind: "hang"})
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, l.url+"/health", nil)
	hung := make(chan error, 1)
	go func() {
		_, err := l.client.Do(req)
		hung <- err
	}()
	eventually(t, "health hangs too", func() bool { return l.Stats().Faulted == 1 })
	l.inject(Fault{Kind: "hang", Count: 1})
	if resp, err := l.client.Get(l.url + "/health"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a counted hang strikes health: %v", err)
	} else {
		resp.Body.Close()
	}
	select {
	case err := <-hung:
		t.Errorf("answered: %v", err)
	default:
	}
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFault503SlowAmnesia(t *testing.T) {
	l := startServer(t, fastConfig())
	l.inject(Fault{Kind: "503", Count: 1})
	resp, err := l.client.Post(l.url+"/v1/messages", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), "overloaded_error") {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	l.inject(Fault{Kind: "slow", Factor: 50}) // 10 ms a step
	start := time.Now()
	if status, _, err := l.try(`,"max_tokens":11`); status != http.StatusOK || err != nil || time.Since(start) < 90*time.Millisecond {
		t.Errorf("slow: %d, %v in %v", status, err, time.Since(start))
	}
	l.inject(Fault{Kind: "none"})
	ask := []byte(chat("", "Hello, how are you?"))
	if truth, err := l.Cached("/v1/chat/completions", ask); err != nil || truth.CachedTokens == 0 {
		t.Errorf("truth %+v, %v", truth, err)
	}
	l.inject(Fault{Kind: "amnesia"})
	if truth, err := l.Cached("chat", ask); err != nil || truth.CachedTokens != 0 {
		t.Errorf("after amnesia %+v, %v", truth, err)
	}
}

func TestFaultDie(t *testing.T) {
	s, err := NewServer(fastConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+ln.Addr().String()+"/emulator/fault", "application/json", strings.NewReader(`{"kind":"die"}`))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v", err)
	}
	resp.Body.Close()
	if err := <-served; !errors.Is(err, ErrDied) {
		t.Errorf("Serve: %v", err)
	}
	if conn, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

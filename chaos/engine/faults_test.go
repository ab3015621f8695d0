package engine

import (
	"context"
	"encoding/json"
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
	l.inject(Fault{Kind: "slow", Factor: 50})
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

func TestFaultLie(t *testing.T) {
	l := startServer(t, fastConfig())
	counts := func() (prompt, cached int) {
		t.Helper()
		status, body, err := l.try("")
		var a struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Total   int `json:"total_tokens"`
				Reply   int `json:"completion_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(body), &a)
		}
		if status != http.StatusOK || err != nil || a.Usage.Total != a.Usage.Prompt+a.Usage.Reply {
			t.Fatalf("%d %s, %v", status, body, err)
		}
		return a.Usage.Prompt, a.Usage.Details.Cached
	}
	counts()
	prompt, cached := counts()
	if cached == 0 {
		t.Fatal("nothing is cached")
	}
	for _, factor := range []float64{3, 0.25} {
		l.inject(Fault{Kind: "lie", Factor: factor})
		if p, c := counts(); p != int(factor*float64(prompt)) || c != prompt-cached {
			t.Errorf("factor %v: %d tokens, %d cached; the truth is %d, %d", factor, p, c, prompt, cached)
		}
		if truth, err := l.Cached("chat", []byte(chat("", "Hello, how are you?"))); err != nil || truth.PromptTokens != prompt || truth.CachedTokens != cached {
			t.Errorf("factor %v: the truth is %+v, %v", factor, truth, err)
		}
	}
	l.inject(Fault{Kind: "none"})
	for path, key := range map[string]string{"/v1/messages": "input_tokens", "/v1/responses": "input_tokens"} {
		ask := func() string {
			t.Helper()
			resp, err := l.client.Post(l.url+path, "application/json", strings.NewReader(`{"model":"m","max_tokens":2,"input":"Hello there, you",`+
				`"messages":[{"role":"user","content":"Hello there, you"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			_, rest, ok := strings.Cut(string(body), `"`+key+`":`)
			if resp.StatusCode != http.StatusOK || !ok {
				t.Fatalf("%s: %s %s", path, resp.Status, body)
			}
			return rest[:strings.IndexAny(rest, ",}")]
		}
		ask()
		truth := ask()
		l.inject(Fault{Kind: "lie", Factor: 5})
		if lie := ask(); lie == truth {
			t.Errorf("%s: reports %s, as without the lie", path, lie)
		}
		l.inject(Fault{Kind: "none"})
		if again := ask(); again != truth {
			t.Errorf("%s: reports %s after the faults, %s before", path, again, truth)
		}
	}
	if p, c := counts(); p != prompt || c != cached {
		t.Errorf("after none: %d tokens, %d cached", p, c)
	}
	if l.Inject(Fault{Kind: "lie"}) == nil {
		t.Error("a lie without a factor")
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
		t.Error("the port still accepts connections")
	}
}

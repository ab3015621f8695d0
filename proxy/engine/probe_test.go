package engine

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func newProber(url string) *Prober {
	return &Prober{
		Client: &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		URL: url,
	}
}

func TestProbeAnswers(t *testing.T) {
	var status atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" || r.Method != http.MethodGet {
			t.Errorf("%s with %v", r.Method, r.Header)
		}
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(int(status.Load()))
	}))
	defer s.Close()
	p := newProber(s.URL)
	p.Key = "k"
	for code, want := range map[int]Ailment{200: Alive, 204: Alive, 307: Alive, 401: Alive, 404: Alive, 429: Alive, 500: Sick, 503: Sick} {
		status.Store(int64(code))
		got, err := p.Probe(t.Context(), "/health")
		if got != want || (err == nil) != (want == Alive) {
			t.Errorf("%d: %d, %v", code, got, err)
		}
	}
}

func TestProbeWithoutHealthPath(t *testing.T) {
	var health, models atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			models.Add(1)
		default:
			health.Add(1)
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer s.Close()
	p := newProber(s.URL)
	for range 3 {
		if got, err := p.Probe(t.Context(), "/health"); got != Alive {
			t.Fatal(got, err)
		}
	}
	if health.Load() != 1 || models.Load() != 3 {
		t.Errorf("asked %d times for the path that is not there, %d for the models", health.Load(), models.Load())
	}
}

func TestProbeAilments(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := closed.Addr().String()
	_ = closed.Close()
	if got, err := newProber("http://"+addr).Probe(t.Context(), "/health"); got != Refused || err == nil {
		t.Errorf("closed port: %d, %v", got, err)
	}
	for what, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"no route": func(_ context.Context, network, _ string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}
		},
		"black hole": func(ctx context.Context, network, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
		},
	} {
		p := newProber("http://engine.test:8000")
		p.Client.Transport = &http.Transport{DialContext: dial}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if got, err := p.Probe(ctx, "/health"); got != NoRoute || err == nil {
			t.Errorf("%s: %d, %v", what, got, err)
		}
		cancel()
	}

	release := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer hung.Close()
	defer close(release)
	// Long enough to connect on a busy machine.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := newProber(hung.URL).Probe(ctx, "/health"); got != Silent || err == nil {
		t.Errorf("hung: %d, %v", got, err)
	}
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, but no process speaks TLS
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := newProber("https://"+deaf.Addr().String()).Probe(ctx, "/health"); got != Silent || err == nil {
		t.Errorf("deaf: %d, %v", got, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := newProber(hung.URL).Probe(ctx, "/health"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	lost := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer lost.Close()
	if got, err := newProber(lost.URL).Probe(t.Context(), "/health"); got != Broken || err == nil {
		t.Errorf("lost: %d, %v", got, err)
	}
}

func TestProbeNamesTLS(t *testing.T) {
	answer := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	secure, plain := httptest.NewUnstartedServer(answer), httptest.NewServer(answer)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	defer plain.Close()
	for name, url := range map[string]string{"unknown authority": secure.URL, "no TLS": strings.Replace(plain.URL, "http:", "https:", 1)} {
		p := Prober{Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, URL: url}
		if got, err := p.Probe(t.Context(), "/health"); got != Untrusted || err == nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

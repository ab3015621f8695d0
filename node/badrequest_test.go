package node

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// newFragileEngine resets "deadly" requests and answers 500 to "unlucky" ones; probes succeed.
func newFragileEngine(t *testing.T) *httptest.Server {
	t.Helper()
	e := newFakeEngine(t, "m")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
			return
		case strings.Contains(string(text), "deadly"):
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			return
		case strings.Contains(string(text), "unlucky"):
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(text)))
		e.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestBadRequestsTakeNoEngineAway: resets make no healthy engine avoided, 500s at most one of
// eight.
func TestBadRequestsTakeNoEngineAway(t *testing.T) {
	t.Parallel()
	const engines = 8
	var urls []string
	for range engines {
		urls = append(urls, newFragileEngine(t).URL)
	}
	cfg := testConfig(urls...)
	probing(&cfg)
	n := startNode(t, cfg)
	avoided := func() (count int) {
		for _, u := range n.backends.Roster().List {
			if _, avoid := n.router.Avoided(u.ID, now()); avoid {
				count++
			}
		}
		return count
	}
	eventually(t, "all engines are probed", func() bool { return scrape(t, n)[`grapevine_probes_total{found="ok"}`] >= engines })
	var stop atomic.Bool
	var turns atomic.Int64
	var clients sync.WaitGroup
	for client := range 12 {
		clients.Go(func() {
			conversation := fmt.Sprint("conversation ", client)
			for turn := 0; !stop.Load(); turn++ {
				if turn%40 == 0 {
					conversation = fmt.Sprint("conversation ", client, " from turn ", turn)
				}
				conversation += strings.Repeat(" and so on", 20)
				code, _, text := chat(t, n, chatBody("m", conversation))
				if code != http.StatusOK {
					t.Errorf("a good client is answered %d: %s", code, text)
				}
				turns.Add(1)
			}
		})
	}
	defer clients.Wait()
	defer stop.Store(true)
	worst := 0
	attack := func(text string) {
		t.Helper()
		before := turns.Load()
		if code := chatCode(t, n, text); code < 500 {
			t.Errorf("%s is answered %d", text, code)
		}
		worst = max(worst, avoided())
		eventually(t, "good clients go on", func() bool { worst = max(worst, avoided()); return turns.Load() > before+12 })
	}
	attack("deadly")
	for i := range 60 {
		attack(fmt.Sprint("deadly ", i))
	}
	if worst > 0 {
		t.Errorf("%d of %d engines were left alone for requests that every engine resets", worst, engines)
	}
	for i := range 60 {
		attack(fmt.Sprint("unlucky ", i))
	}
	if worst > 1 {
		t.Errorf("%d of %d engines were left alone for one client's requests", worst, engines)
	}
}

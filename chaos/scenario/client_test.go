package scenario

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
)

func server(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, client *http.Client) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices a client that leaves
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		w.Header().Set("X-Grapevine-Node", "node-1")
		w.Header().Set("X-Grapevine-Backend", "engine-1")
		answer(w, r)
	}))
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		s.Close()
	})
	return s.URL, &http.Client{Transport: transport}
}

func chunk(text string) string {
	return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%q}}]}`+"\n\n", text)
}

const (
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	done       = "data: [DONE]\n\n"
)

func hangUp(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

func TestOutcomes(t *testing.T) {
	stream := func(parts ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, p := range parts {
				_, _ = io.WriteString(w, p)
				w.(http.Flusher).Flush()
			}
		}
	}
	status := func(code int, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	for _, c := range []struct {
		what   string
		answer func(http.ResponseWriter, *http.Request)
		whole  bool
		want   Outcome
		usage  bool
	}{
		{"whole stream", stream(": hello\n\n", chunk("abcd"), chunk("efgh"), usageChunk, done), false, Complete, true},
		{"counts that the client did not ask for", stream(chunk("abcd"), chunk("efgh"), usageChunk, done), false, Foreign, false},
		{"no counts, as asked", stream(chunk("abcd"), chunk("efgh"), done), false, Complete, false},
		{"no counts", stream(chunk("abcd"), chunk("efgh"), done), false, Truncated, true},
		{"whole answer", status(200, `{"choices":[{"message":{"content":"abcdefgh"}}]}`), true, Complete, false},
		{"too short", stream(chunk("abcd"), done), false, Truncated, false},
		{"a short answer", status(200, `{"choices":[{"message":{"content":"abcd"}}]}`), true, Truncated, false},
		{"no end", stream(chunk("abcd"), chunk("efgh")), false, Truncated, false},
		{"too long", stream(chunk("abcd"), chunk("efghi"), done), false, Foreign, false},
		{"other bytes", stream(chunk("abcd"), chunk("efgx"), done), false, Foreign, false},
		{"twice", stream(chunk("abcd"), chunk("abcd"), done), false, Foreign, false},
		{"after the end", stream(chunk("abcd"), chunk("efgh"), done, chunk("abcd")), false, Foreign, false},
		{"the answer to another", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", "other")
			stream(chunk("abcd"), chunk("efgh"), done)(w, r)
		}, false, Foreign, false},
		{"an error event", stream(chunk("abcd"), `data: {"error":{"message":"gone","type":"x"}}`+"\n\n", done), false, ErrorEvent, false},
		{"more after an error event", stream(chunk("abcd"), `data: {"error":{"message":"gone","type":"x"}}`+"\n\n", chunk("efgh"), done), false, Foreign, false},
		{"an error event after the end", stream(chunk("abcd"), chunk("efgh"), done, `data: {"error":{"message":"gone","type":"x"}}`+"\n\n"), false, Foreign, false},
		{"no JSON", stream("data: {\n\n"), false, Malformed, false},
		{"no stream", status(200, "hello"), false, Malformed, false},
		{"no answer", status(200, "hello"), true, Malformed, false},
		{"an error as an answer", status(200, `{"error":{"message":"m"}}`), true, Malformed, false},
		{"refused", status(503, `{"error":{"message":"no","type":"t"}}`), false, Refused, false},
		{"refused without a reason", status(502, "Bad Gateway"), false, Malformed, false},
		{"hung up before", func(w http.ResponseWriter, _ *http.Request) { hangUp(w) }, false, Unanswered, false},
		{"hung up within", func(w http.ResponseWriter, r *http.Request) {
			stream(chunk("abcd"))(w, r)
			hangUp(w)
		}, false, Broken, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			url, client := server(t, c.answer)
			a := &Attempt{ID: "x"}
			send(t.Context(), client, newLedger(), url, a, &payload{path: "/v1/chat/completions", want: []byte("abcdefgh"), stream: !c.whole, usage: c.usage}, stays)
			if a.Outcome != c.want || a.End < a.Sent || a.Conn == "" {
				t.Errorf("%+v, want %s", a, c.want)
			}
			if (a.Outcome == Complete || a.Outcome == Departed) == a.failed() || a.failed() && a.Detail == "" {
				t.Errorf("failed is %v: %q", a.failed(), a.Detail)
			}
			if c.what == "whole stream" && (a.Prompt != 9 || a.Cached != 4 || a.Output != 2 || a.First < a.Head || a.Node != "node-1" || a.Backend != "engine-1" || a.Text != 8) {
				t.Errorf("%+v", a)
			}
		})
	}
}

func TestDepartures(t *testing.T) {
	gone := make(chan string, 64)
	url, client := server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("abcd"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		gone <- r.Header.Get("X-Request-Id")
	})
	for _, by := range []departure{{bytes: 2}, {bytes: -1, after: 20 * time.Millisecond}} {
		a := &Attempt{}
		for try := 0; a.Text == 0; try++ { // a client that leaves after a time may do so before the answer begins
			a = &Attempt{ID: fmt.Sprint(by.bytes, "-", try)}
			send(t.Context(), client, newLedger(), url, a, &payload{path: "/", want: []byte("abcdefgh"), stream: true}, by)
			if a.Outcome != Departed || a.Text != 0 && a.Text != 4 || a.failed() {
				t.Fatalf("%+v", a)
			}
			by.after *= 2
		}
		for id := ""; id != a.ID; {
			select {
			case id = <-gone:
			case <-time.After(10 * time.Second):
				t.Fatal("the server did not notice that the client left")
			}
		}
	}
}

func TestConversations(t *testing.T) {
	texts := make(map[string]bool)
	play := func(seed uint64) (bodies []string) {
		for id := range 12 {
			c := newConversation(id, seed, Load{}.withDefaults().Opening, "head ", "")
			before := ""
			for range 3 {
				p, err := c.next(engineConfig(), 8)
				if err != nil || len(p.want) != 8*engine.TokenBytes {
					t.Fatalf("%v, a reply of %d bytes", err, len(p.want))
				}
				if !strings.Contains(string(p.body), modelName) || len(p.body) <= len(before) {
					t.Fatalf("%s", p.body)
				}
				before = string(p.body)
				bodies = append(bodies, before)
				c.said(p.want)
			}
		}
		return bodies
	}
	for _, b := range play(1) {
		if texts[b] {
			t.Error("two requests are alike")
		}
		texts[b] = true
	}
	if !reflect.DeepEqual(play(1), play(1)) || reflect.DeepEqual(play(1), play(2)) {
		t.Error("the seed does not decide")
	}
}

func TestTrafficTriesAgain(t *testing.T) {
	calls := make(chan string, 100)
	url, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		calls <- id
		if strings.HasSuffix(id, "-2") {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, chunk("no such bytes"))
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	})
	l := newLedger()
	var d net.Dialer
	tr := newTraffic(Load{Departing: 1e-9}, 1, url, engineConfig(), d.DialContext, l)
	client := tr.client(false)
	defer client.CloseIdleConnections()
	c := newConversation(0, 1, Load{}.withDefaults().Opening, "head", chatStream)
	if tr.turn(client, c, &memory{}) {
		t.Error("it went on after a failure")
	}
	attempts, _ := l.take(math.MaxInt64)
	if ended, failed := l.count(); ended != 3 || failed != 3 {
		t.Errorf("%d ended, %d failed", ended, failed)
	}
	if len(attempts) != 3 || attempts[2].Outcome != Foreign || !attempts[2].Last || attempts[0].Last || attempts[1].Outcome != Refused {
		t.Fatalf("%d attempts, the last %+v", len(attempts), attempts[len(attempts)-1])
	}
	for i, a := range attempts {
		if id := <-calls; id != a.ID || a.Request != 0 || a.Try != i {
			t.Errorf("attempt %d: %+v, the server got %s", i, a, id)
		}
	}
	for try := range 2 {
		if p := pauseBefore(try, rand.New(rand.NewPCG(1, 1))); p > 500*time.Millisecond<<try || p < 375*time.Millisecond<<try {
			t.Errorf("pause %d is %v", try, p)
		}
	}
}

func TestFloodsEndTheirRequests(t *testing.T) {
	flooding, stop := context.WithCancel(t.Context())
	url, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
		stop()
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	})
	l := newLedger()
	var d net.Dialer
	tr := newTraffic(Load{Departing: 1e-9}, 1, url, engineConfig(), d.DialContext, l)
	tr.flood(flooding, 1000, 16)
	tr.work.Wait()
	attempts, _ := l.take(math.MaxInt64)
	tries := make(map[int]int)
	for _, a := range attempts {
		if tries[a.Request]++; a.Last != (a.Try == sdkRetries) {
			t.Errorf("%+v", a)
		}
	}
	for r, n := range tries {
		if n != 1+sdkRetries {
			t.Errorf("request %d was tried %d times", r, n)
		}
	}
	if len(tries) == 0 {
		t.Error("nothing was sent")
	}
}

func TestTrafficEndsByItself(t *testing.T) {
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	url, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-goOn
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
	})
	l := newLedger()
	var d net.Dialer
	tr := newTraffic(Load{Rate: 100, Departing: 1e-9}, 1, url, engineConfig(), d.DialContext, l)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- tr.play(ctx) }()
	<-began
	stop()
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	attempts, _ := l.take(math.MaxInt64)
	if len(attempts) == 0 {
		t.Error("nothing was sent")
	}
	for _, a := range attempts {
		if a.Outcome != Refused {
			t.Errorf("%+v", a)
		}
	}
}

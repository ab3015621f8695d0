package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/node/config"
	"grapevine.example/proxy/books"
)

// roleEngines are emulated engines whose transfers take long enough to be interrupted.
func roleEngines(t *testing.T, roles ...string) (list []*engine.Server, own []config.Backend) {
	t.Helper()
	return enginesLike(t, func(string) engine.ServerConfig { return roleEngine }, roles...)
}

// pairEngines are SGLang's.
func pairEngines(t *testing.T, roles ...string) (list []*engine.Server, own []config.Backend) {
	t.Helper()
	list, own = enginesLike(t, func(role string) engine.ServerConfig {
		cfg := roleEngine
		cfg.Transfer, cfg.Part = false, engine.Part(role)
		return cfg
	}, roles...)
	for i := range own {
		if _, port, err := net.SplitHostPort(list[i].Addr()); err != nil {
			t.Fatal(err)
		} else if own[i].BootstrapPort, err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
	}
	return list, own
}

func enginesLike(t *testing.T, like func(role string) engine.ServerConfig, roles ...string) (list []*engine.Server, own []config.Backend) {
	t.Helper()
	for i, role := range roles {
		s := emulated(t, like(role))
		list = append(list, s)
		own = append(own, config.Backend{URL: "http://" + s.Addr(), Name: fmt.Sprintf("%s-%d", role, i), Role: role})
	}
	return list, own
}

var roleEngine = engine.ServerConfig{
	Config: engine.Config{PrefillRate: 400_000, DecodeStep: 2 * time.Millisecond}, Models: []string{"m"},
	Transfer: true, TransferStart: 100 * time.Millisecond,
}

// question has a prompt of its own, of 8,000 tokens.
func question(i int, stream bool) []byte {
	text := strings.Repeat(fmt.Sprintf("question %d of many ", i), 32_000/20)
	body, err := json.Marshal(map[string]any{
		"model": "m", "messages": []message{{"user", text}}, "max_tokens": 40, "stream": stream,
	})
	if err != nil {
		panic(err)
	}
	return body
}

// asked is what a client saw of one answer.
type asked struct {
	status  int
	prefill string
	text    string
	whole   bool
	err     error
}

// oneShot keeps no connections: the router closes one after the last chunk of a broken stream, just when a
// client may use it again.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func askFor(url string, body []byte, stream bool) (a asked) {
	resp, err := oneShot.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return asked{err: err}
	}
	defer resp.Body.Close()
	a.status, a.prefill = resp.StatusCode, resp.Header.Get("x-grapevine-prefill")
	type choices struct {
		Choices []struct{ Message, Delta message }
	}
	if !stream || a.status != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		var c choices
		if a.err = err; json.Unmarshal(text, &c) == nil && len(c.Choices) == 1 {
			a.text, a.whole = c.Choices[0].Message.Content, true
		}
		return a
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var c choices
		switch {
		case !ok:
		case data == "[DONE]":
			a.whole = true
		case json.Unmarshal([]byte(data), &c) == nil:
			for _, c := range c.Choices {
				a.text += c.Delta.Content
			}
		}
	}
	a.err = lines.Err()
	return a
}

// explain says where the prompt would be computed, and both times.
func TestExplainPrefill(t *testing.T) {
	_, own := roleEngines(t, "prefill", "decode")
	cfg := testConfig()
	cfg.Backends = own
	n := startNode(t, cfg)
	r, err := explain(t, n, "/v1/chat/completions", nil, string(question(1, true)))
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Prefill; r.Backend != "decode-1" || p == nil || p.Backend != "prefill-0" || p.Elsewhere || p.RemoteS <= p.AloneS || p.AloneS <= 0 {
		t.Errorf("an idle decode engine: %s, %+v", r.Backend, p)
	}
	n.router.SetPeerLoad("other", []books.PeerLoad{{Backend: 0, Active: 40}, {Backend: 1, Active: 40}}, 0)
	if r, err = explain(t, n, "/v1/chat/completions", nil, string(question(1, true))); err != nil || r.Prefill == nil || !r.Prefill.Elsewhere {
		t.Errorf("a busy one: %+v, %v", r.Prefill, err)
	}
	if r, err = explain(t, n, "/v1/messages", nil, string(question(1, true))); err != nil || r.Prefill != nil {
		t.Errorf("a request that cannot be split: %+v, %v", r.Prefill, err)
	}
}

// Either side dies in mid-transfer, under load. Every answer is that to its own prompt, and none
// fails before its first byte.
func TestKillInTransfer(t *testing.T) { killInTransfer(t, roleEngines) }

// The same with SGLang's protocol, where no engine can serve a request alone.
func TestKillInPair(t *testing.T) { killInTransfer(t, pairEngines) }

func killInTransfer(t *testing.T, start func(*testing.T, ...string) ([]*engine.Server, []config.Backend)) {
	for _, side := range []string{"none", "prefill", "decode"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", side, stream), func(t *testing.T) {
				engines, own := start(t, "prefill", "prefill", "decode", "decode")
				cfg := testConfig()
				cfg.Backends = own
				n := startNode(t, cfg)
				var next, split atomic.Int64
				var clients sync.WaitGroup
				const questions = 120
				for range 16 {
					clients.Go(func() {
						for i := int(next.Add(1)); i <= questions; i = int(next.Add(1)) {
							body := question(i, stream)
							want, err := engine.Replies(roleEngine, "chat", body)
							if err != nil {
								t.Error(err)
								return
							}
							a := askFor("http://"+n.Addr(), body, stream)
							if a.prefill != "" {
								split.Add(1)
							}
							broken := stream && side == "decode" && len(a.text) > 0 // its engine died
							switch {
							case a.status != http.StatusOK, !a.whole && !broken:
								t.Errorf("question %d: status %d, whole %t, %v, text %q", i, a.status, a.whole, a.err, a.text)
							case a.whole && a.text != string(want[0]), !strings.HasPrefix(string(want[0]), a.text):
								t.Errorf("question %d has the answer %q, want %q", i, a.text, want[0])
							}
						}
					})
				}
				if side != "none" {
					eventually(t, "many transfers have begun", func() bool { return engines[0].Stats().Given+engines[1].Stats().Given > 20 })
					victim := engines[0]
					if side == "decode" {
						victim = engines[2]
					}
					_ = victim.Close()
				}
				clients.Wait()
				if split.Load() < 20 {
					t.Errorf("%d of %d requests were split", split.Load(), questions)
				}
				t.Logf("%d of %d split", split.Load(), questions)
			})
		}
	}
}

package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine/chaos/engine"
)

func startEngine(t *testing.T) string {
	t.Helper()
	s, err := engine.NewServer(engine.ServerConfig{
		Config: engine.Config{PrefillRate: 1e6, DecodeStep: time.Millisecond}, Models: []string{"m"}, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.Serve(ln); err != nil {
			t.Errorf("engine: %v", err)
		}
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return "http://" + ln.Addr().String()
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func turn(t *testing.T, n *Node, stream bool, conversation []message) (backend, reply string, cached, prompt int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "messages": conversation, "max_tokens": 16, "stream": stream})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	backend = resp.Header.Get("x-grapevine-backend")
	type usage struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	var answer struct {
		Choices []struct{ Message, Delta message }
		Usage   *usage
	}
	if !stream {
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		return backend, answer.Choices[0].Message.Content, answer.Usage.Details.Cached, answer.Usage.Prompt
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		answer.Choices, answer.Usage = nil, nil
		if err := json.Unmarshal([]byte(data), &answer); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if answer.Usage != nil {
			t.Error("the usage that the router asked for reached a client that had not")
		}
		for _, c := range answer.Choices {
			reply += c.Delta.Content
		}
	}
	return backend, reply, -1, -1
}

func TestConversationStays(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(startEngine(t), startEngine(t), startEngine(t), startEngine(t)))
	used := make(map[string]bool)
	const conversations, turns = 16, 3
	for c := range conversations {
		talk := []message{{"user", fmt.Sprintf("Conversation %d. ", c) + strings.Repeat(fmt.Sprintf("About subject %d, at length. ", c), 150)}}
		first := ""
		for i := range turns {
			stream := i%2 == 1
			backend, reply, cached, prompt := turn(t, n, stream, talk)
			if first == "" {
				first, used[backend] = backend, true
			}
			if backend != first {
				t.Errorf("conversation %d, turn %d went to %s, the first to %s", c, i+1, backend, first)
			}
			if !stream && i > 0 && cached < prompt*8/10 {
				t.Errorf("conversation %d, turn %d: %d of %d prompt tokens cached", c, i+1, cached, prompt)
			}
			if reply == "" {
				t.Fatalf("conversation %d, turn %d: no reply", c, i+1)
			}
			talk = append(talk, message{"assistant", reply}, message{"user", fmt.Sprintf("And number %d?", i+1)})
		}
	}
	if len(used) < 2 { // one in a billion by chance
		t.Errorf("%d conversations use %d of 4 idle engines", conversations, len(used))
	}
	eventually(t, "every count is back at zero", func() bool {
		series := scrape(t, n)
		for name, v := range series {
			if strings.HasPrefix(name, "grapevine_backend_active_requests") && v != 0 || strings.HasPrefix(name, "grapevine_backend_prefill_tokens") && v != 0 {
				return false
			}
		}
		return series["grapevine_requests_in_flight"] == 0 && series[`grapevine_requests_total{code="200",kind="chat"}`] == conversations*turns
	})
	series := scrape(t, n)
	if cached, prompt := series[`grapevine_tokens_total{model="m",type="cached"}`], series[`grapevine_tokens_total{model="m",type="prompt"}`]; cached < prompt/2 {
		t.Errorf("%v of %v prompt tokens were cached", cached, prompt)
	}
	if series[`grapevine_decisions_total{rung="cache",strategy="prefix"}`] < conversations*(turns-1) {
		t.Errorf("decisions by cache: %v", series[`grapevine_decisions_total{rung="cache",strategy="prefix"}`])
	}
}

func TestExplainShowsThePlacement(t *testing.T) {
	leakCheck(t)
	n := startNode(t, testConfig(startEngine(t), startEngine(t)))
	talk := []message{{"user", strings.Repeat(longText, 150)}}
	backend, reply, _, _ := turn(t, n, false, talk)
	talk = append(talk, message{"assistant", reply}, message{"user", "Go on."})
	body, err := json.Marshal(map[string]any{"model": "m", "messages": talk})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request has ended", func() bool { return n.proxy.InFlight() == 0 })
	r, err := explain(t, n, "/v1/chat/completions", nil, string(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.Backend != backend || r.Rung != "cache" || r.MatchedBlocks < 10 || r.PredictedTokens < r.PromptTokens*8/10 {
		t.Fatalf("the first turn went to %s, the receipt of the second is %+v", backend, r)
	}
}

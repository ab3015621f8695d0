package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Only the engine that answered a turn stores it, and any other would answer the next with 404. Each
// turn goes to another router; one of the three is killed on the way.
func TestResponsesOverThreeRouters(t *testing.T) {
	t.Parallel()
	const conversations, turns, killBefore = 1000, 5, 3
	nodes := startFleet(t, 3, startEngine(t), startEngine(t), startEngine(t), startEngine(t))
	routers := nodes
	last := make([]answered, conversations)
	var lost, moved atomic.Int64
	for turn := range turns {
		if turn == killBefore {
			kill(t, nodes[1])
			routers = []*Node{nodes[0], nodes[2]}
		}
		var clients sync.WaitGroup
		for w := range 8 {
			clients.Go(func() {
				for c := w; c < conversations; c += 8 {
					r := respond(t, routers[(c+turn)%len(routers)], last[c].id, fmt.Sprintf("Question %d of talk %d", turn, c), (c+turn)%2 == 0)
					if r.status != http.StatusOK {
						lost.Add(1)
					} else if turn > 0 && r.backend != last[c].backend {
						moved.Add(1)
					}
					last[c] = r
				}
			})
		}
		clients.Wait()
	}
	used := map[string]int{}
	for _, r := range last {
		used[r.backend]++
	}
	t.Logf("%d turns of each of %d conversations: %d lost, %d at another engine; conversations by engine: %v", turns, conversations, lost.Load(), moved.Load(), used)
	if lost.Load() > 0 || moved.Load() > 0 || len(used) != 4 {
		t.Errorf("%d turns did not find their conversation, %d went to another engine; engines: %v", lost.Load(), moved.Load(), used)
	}
	one := last[7]
	for path, want := range map[string]int{"": 200, "/cancel": 400} { // only a background response can be canceled
		method := map[string]string{"": "GET", "/cancel": "POST"}[path]
		req, err := http.NewRequest(method, "http://"+nodes[2].Addr()+"/v1/responses/"+one.id+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || resp.Header.Get("x-grapevine-backend") != one.backend {
			t.Errorf("%s %s: %d from %s, want %d from %s", method, path, resp.StatusCode, resp.Header.Get("x-grapevine-backend"), want, one.backend)
		}
	}
}

type answered struct {
	id, backend string
	status      int
}

// respond asks for a response, after previous unless that is "". Safe for concurrent use.
func respond(t *testing.T, n *Node, previous, input string, stream bool) answered {
	body := map[string]any{"model": "m", "max_output_tokens": 2, "stream": stream, "input": input}
	if previous != "" {
		body["previous_response_id"] = previous
	}
	request, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
		return answered{}
	}
	resp, err := http.Post("http://"+n.Addr()+"/v1/responses", "application/json", bytes.NewReader(request))
	if err != nil {
		t.Error(err)
		return answered{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
		return answered{}
	}
	if _, events, found := strings.Cut(string(text), "data: "); found {
		first, _, _ := strings.Cut(events, "\n")
		text = []byte(first)
	}
	var answer struct {
		ID       string
		Response struct{ ID string } // of a stream's first event
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Errorf("%v in %.200q", err, text)
	}
	return answered{answer.ID + answer.Response.ID, resp.Header.Get("x-grapevine-backend"), resp.StatusCode}
}

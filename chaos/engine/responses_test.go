package engine

import (
	"fmt"
	"strings"
	"testing"
)

func TestResponsesGoOn(t *testing.T) {
	l := startServer(t, fastConfig())
	type answer struct {
		ID       string
		Previous string `json:"previous_response_id"`
		Output   []struct{ Content []struct{ Text string } }
		Usage    struct {
			Input   int `json:"input_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	text := strings.Repeat("A long beginning. ", 100)
	var first, second, same answer
	l.ok("/v1/responses", `{"model":"m","input":"`+text+`","request_id":"resp_a","max_output_tokens":8}`, &first)
	if first.ID != "resp_a" || first.Previous != "" {
		t.Errorf("%+v", first)
	}
	events := l.events("/v1/responses", `{"model":"m","input":[{"role":"user","content":"And?"}],"previous_response_id":"resp_a","request_id":"resp_b","max_output_tokens":8,"stream":true}`)
	for _, e := range events[:2] {
		if !strings.Contains(e, `"id":"resp_b"`) || !strings.Contains(e, `"previous_response_id":"resp_a"`) {
			t.Errorf("event %s", e)
		}
	}
	l.get("/v1/responses/resp_b", 200, &second)
	// The same conversation in one request has the same prompt.
	l.ok("/v1/responses", fmt.Sprintf(`{"model":"m","store":false,"request_id":"resp_c","max_output_tokens":8,"input":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"And?"}]}`,
		text, first.Output[0].Content[0].Text), &same)
	if second.Usage.Input != same.Usage.Input || second.Usage.Details.Cached < first.Usage.Input*8/10 {
		t.Errorf("prompt of %d tokens, %d cached; the whole has %d", second.Usage.Input, second.Usage.Details.Cached, same.Usage.Input)
	}
	if status, body := l.post("/v1/responses/resp_b/cancel", ""); status != 400 || !strings.Contains(string(body), "synchronous") {
		t.Errorf("%d %s", status, body)
	}
	for _, path := range []string{"/v1/responses/resp_c", "/v1/responses/resp_d"} { // not to be stored, unknown
		l.get(path, 404, nil)
		if status, _ := l.post(path+"/cancel", ""); status != 404 {
			t.Errorf("%s/cancel: %d", path, status)
		}
	}
}

func TestStoredResponsesAreBounded(t *testing.T) {
	var s responseStore
	for i := range 2*maxStored + 2 {
		s.put(fmt.Sprint(i/2), storedResponse{}) // each twice
	}
	if len(s.byID) != maxStored || len(s.order) != maxStored {
		t.Errorf("%d responses, %d in order", len(s.byID), len(s.order))
	}
	if _, err := s.get("0", ""); err == nil {
		t.Error("the oldest is still there")
	}
}

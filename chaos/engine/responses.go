package engine

import (
	"time"
)

// response is the object of OpenAI's Responses API. The server stores none, so it never finds a
// previous_response_id.
type response struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	CreatedAt         int64          `json:"created_at"`
	Status            string         `json:"status"`
	Background        bool           `json:"background"`
	Error             any            `json:"error"`
	IncompleteDetails any            `json:"incomplete_details"`
	Instructions      *string        `json:"instructions"`
	MaxOutputTokens   *int           `json:"max_output_tokens"`
	Model             string         `json:"model"`
	Output            []responseItem `json:"output"`
	ParallelToolCalls bool           `json:"parallel_tool_calls"`
	Previous          *string        `json:"previous_response_id"`
	Temperature       float64        `json:"temperature"`
	ToolChoice        string         `json:"tool_choice"`
	Tools             []any          `json:"tools"`
	TopP              float64        `json:"top_p"`
	Truncation        string         `json:"truncation"`
	Usage             *responseUsage `json:"usage"`
	Metadata          map[string]any `json:"metadata"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Type    string         `json:"type"`
	Status  string         `json:"status"`
	Role    string         `json:"role"`
	Content []responsePart `json:"content"`
}

type responsePart struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations []any  `json:"annotations"`
	Logprobs    []any  `json:"logprobs"`
}

type responseUsage struct {
	InputTokens   int            `json:"input_tokens"`
	InputDetails  map[string]int `json:"input_tokens_details"`
	OutputTokens  int            `json:"output_tokens"`
	OutputDetails map[string]int `json:"output_tokens_details"`
	TotalTokens   int            `json:"total_tokens"`
}

func (t *told) response(status string) response {
	r := response{
		ID: t.id, Object: "response", CreatedAt: t.created, Status: status, Model: t.c.model,
		MaxOutputTokens: t.c.fields.MaxOutputTokens, Output: []responseItem{}, ParallelToolCalls: true,
		Temperature: 1, TopP: 1, ToolChoice: "auto", Tools: []any{}, Truncation: "disabled", Metadata: map[string]any{},
	}
	if text := t.c.fields.Instructions; text.given {
		s := string(text.text)
		r.Instructions = &s
	}
	return r
}

func (t *told) finished(item string) response {
	r := t.response("completed")
	if t.c.asked {
		r.Status, r.IncompleteDetails = "incomplete", map[string]string{"reason": "max_output_tokens"}
	}
	u := t.s.usage(t.c, t.f)
	r.Usage = &responseUsage{
		InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens,
		OutputDetails: map[string]int{"reasoning_tokens": 0}, TotalTokens: u.TotalTokens,
	}
	if u.Details != nil {
		r.Usage.InputDetails = map[string]int{"cached_tokens": u.Details.CachedTokens, "cache_write_tokens": 0}
	}
	r.Output = append(r.Output, t.item(item, r.Status, t.part()))
	return r
}

func (t *told) part() responsePart {
	return responsePart{Type: "output_text", Text: string(t.f.seats[0].reply), Annotations: []any{}, Logprobs: []any{}}
}

func (t *told) item(id, status string, parts ...responsePart) responseItem {
	if parts == nil {
		parts = []responsePart{}
	}
	return responseItem{ID: id, Type: "message", Status: status, Role: "assistant", Content: parts}
}

func (s *Server) responsesAnswer(c *call, f *flight) any {
	t := told{c: c, f: f, s: s, id: s.id("resp_"), created: time.Now().Unix()}
	return t.finished(s.id("msg_"))
}

type responsesScript struct {
	told
	itemID   string
	sequence int
}

func newResponsesScript(t told) *responsesScript {
	t.id = t.s.id("resp_")
	return &responsesScript{told: t, itemID: t.s.id("msg_")}
}

func (t *responsesScript) event(dst []byte, kind string, body map[string]any) []byte {
	body["type"] = kind
	body["sequence_number"] = t.sequence
	t.sequence++
	dst = append(append(append(dst, "event: "...), kind...), "\ndata: "...)
	return append(append(dst, mustJSON(body)...), "\n\n"...)
}

func (t *responsesScript) begin(dst []byte) []byte {
	r := t.response("in_progress")
	dst = t.event(dst, "response.created", map[string]any{"response": r})
	dst = t.event(dst, "response.in_progress", map[string]any{"response": r})
	dst = t.event(dst, "response.output_item.added", map[string]any{"output_index": 0, "item": t.item(t.itemID, "in_progress")})
	part := t.part()
	part.Text = ""
	return t.event(dst, "response.content_part.added", t.at(map[string]any{"part": part}))
}

func (t *responsesScript) at(body map[string]any) map[string]any {
	body["item_id"], body["output_index"], body["content_index"] = t.itemID, 0, 0
	return body
}

func (t *responsesScript) text(dst []byte, i, from, to int) []byte {
	return t.event(dst, "response.output_text.delta", t.at(map[string]any{"delta": string(t.piece(i, from, to)), "logprobs": []any{}}))
}

func (t *responsesScript) stop(dst []byte, i int) []byte {
	part := t.part()
	dst = t.event(dst, "response.output_text.done", t.at(map[string]any{"text": part.Text, "logprobs": []any{}}))
	dst = t.event(dst, "response.content_part.done", t.at(map[string]any{"part": part}))
	return t.event(dst, "response.output_item.done", map[string]any{"output_index": 0, "item": t.item(t.itemID, "completed", part)})
}

func (t *responsesScript) end(dst []byte) []byte {
	r := t.finished(t.itemID)
	return t.event(dst, "response."+r.Status, map[string]any{"response": r})
}

func (t *responsesScript) fail(dst []byte, err *apiError) []byte {
	return t.event(dst, "error", map[string]any{"code": "server_error", "message": err.message, "param": nil})
}

package engine

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// maxStored bounds the responses that a server stores; real ones store all until they end.
const maxStored = 16 << 10

// responseStore has the latest responses by id. The zero value is empty.
type responseStore struct {
	mu    sync.Mutex
	byID  map[string]storedResponse
	order []string // oldest first
}

type storedResponse struct {
	answer   object
	messages []message // with the answer, without the instructions
}

func (s *responseStore) put(id string, r storedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[string]storedResponse)
	}
	if _, known := s.byID[id]; !known {
		s.order = append(s.order, id)
	}
	s.byID[id] = r
	if len(s.order) > maxStored {
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *responseStore) get(id, param string) (storedResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.byID[id]
	if !ok {
		return r, &apiError{status: http.StatusNotFound, param: param, message: fmt.Sprintf("Response with id '%s' not found.", id)}
	}
	return r, nil
}

func (s *responseStore) conversation(id string) ([]message, error) {
	r, err := s.get(id, "previous_response_id")
	return r.messages, err
}

func (s *Server) retrieve(_ http.ResponseWriter, r *http.Request, _ []byte) (any, error) {
	stored, err := s.stored.get(r.PathValue("id"), "response_id")
	if err != nil {
		return nil, err
	}
	return stored.answer, nil
}

func (s *Server) cancelResponse(_ http.ResponseWriter, r *http.Request, _ []byte) (any, error) {
	if _, err := s.stored.get(r.PathValue("id"), "response_id"); err != nil {
		return nil, err
	}
	return nil, badRequest("response_id", "Cannot cancel a synchronous response.")
}

// response returns OpenAI's Responses object.
func (t *responsesScript) response(status string) object {
	var instructions, previous any
	if id := t.c.fields.Previous; id != "" {
		previous = id
	}
	if text := t.c.fields.Instructions; text.given {
		instructions = string(text.text)
	}
	return object{
		"id": t.id, "object": "response", "created_at": t.created, "status": status, "background": false, "error": nil,
		"incomplete_details": nil, "instructions": instructions, "max_output_tokens": t.c.fields.MaxOutputTokens, "model": t.c.model,
		"output": []object{}, "parallel_tool_calls": true, "previous_response_id": previous, "temperature": 1, "tool_choice": "auto",
		"tools": []any{}, "top_p": 1, "truncation": "disabled", "usage": nil, "metadata": object{},
	}
}

// whole also stores the response; it is called once.
func (t *responsesScript) whole() object {
	status := t.c.ended("incomplete", "completed")
	r := t.response(status)
	if t.c.asked {
		r["incomplete_details"] = object{"reason": "max_output_tokens"}
	}
	u := t.usage()
	counts := object{
		"input_tokens": u.PromptTokens, "input_tokens_details": nil, "output_tokens": u.CompletionTokens,
		"output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": u.TotalTokens,
	}
	if u.Details != nil {
		counts["input_tokens_details"] = object{"cached_tokens": u.Details.CachedTokens, "cache_write_tokens": 0}
	}
	reply := t.f.seats[0].reply
	r["usage"], r["output"] = counts, []object{outputItem(t.itemID, status, outputText(reply))}
	if store := t.c.fields.Store; store == nil || *store {
		answer := message{Role: "assistant", Content: content{text: reply, given: true}}
		t.s.stored.put(t.id, storedResponse{r, append(slices.Clip(t.c.fields.Messages), answer)})
	}
	return r
}

func outputText(text []byte) object {
	return object{"type": "output_text", "text": string(text), "annotations": []any{}, "logprobs": []any{}}
}

func outputItem(id, status string, parts ...object) object {
	return object{"id": id, "type": "message", "status": status, "role": "assistant", "content": append([]object{}, parts...)}
}

type responsesScript struct {
	told
	itemID   string
	sequence int
}

func newResponsesScript(t told) *responsesScript {
	t.id = cmp.Or(t.c.fields.RequestID, t.s.id("resp_"))
	return &responsesScript{told: t, itemID: t.s.id("msg_")}
}

func (t *responsesScript) event(dst []byte, kind string, body object) []byte {
	body["sequence_number"] = t.sequence
	t.sequence++
	return typedEvent(dst, kind, body)
}

func (t *responsesScript) begin(dst []byte) []byte {
	r := t.response("in_progress")
	dst = t.event(dst, "response.created", object{"response": r})
	dst = t.event(dst, "response.in_progress", object{"response": r})
	dst = t.event(dst, "response.output_item.added", object{"output_index": 0, "item": outputItem(t.itemID, "in_progress")})
	return t.event(dst, "response.content_part.added", t.at(object{"part": outputText(nil)}))
}

// at adds the place of the only text to an event.
func (t *responsesScript) at(body object) object {
	body["item_id"], body["output_index"], body["content_index"] = t.itemID, 0, 0
	return body
}

func (t *responsesScript) text(dst []byte, i, from, to int) []byte {
	return t.event(dst, "response.output_text.delta", t.at(object{"delta": string(t.piece(i, from, to)), "logprobs": []any{}}))
}

func (t *responsesScript) stop(dst []byte, i int) []byte {
	part := outputText(t.f.seats[i].reply)
	dst = t.event(dst, "response.output_text.done", t.at(object{"text": part["text"], "logprobs": []any{}}))
	dst = t.event(dst, "response.content_part.done", t.at(object{"part": part}))
	return t.event(dst, "response.output_item.done", object{"output_index": 0, "item": outputItem(t.itemID, "completed", part)})
}

func (t *responsesScript) end(dst []byte) []byte {
	r := t.whole()
	return t.event(dst, "response."+r["status"].(string), object{"response": r})
}

func (t *responsesScript) fail(dst []byte, err *apiError) []byte {
	return t.event(dst, "error", object{"code": "server_error", "message": err.message, "param": nil})
}

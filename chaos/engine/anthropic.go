package engine

import (
	"net/http"
	"strconv"
	"time"
)

type anthropicUsage struct {
	InputTokens   int  `json:"input_tokens"`
	CacheCreation *int `json:"cache_creation_input_tokens"`
	CacheRead     *int `json:"cache_read_input_tokens"`
	OutputTokens  int  `json:"output_tokens"`
}

func (s *Server) anthropicUsage(c *call, f *flight) anthropicUsage {
	p, _ := f.state(0)
	cached, known := s.cached(c, f)
	u := anthropicUsage{OutputTokens: p.tokens}
	u.InputTokens, cached = s.faults.told(c.promptTokens(), cached)
	if known {
		u.InputTokens -= cached
		u.CacheRead, u.CacheCreation = &cached, new(int)
	}
	return u
}

type anthropicMessage struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Role         string          `json:"role"`
	Model        string          `json:"model"`
	Content      []anthropicText `json:"content"`
	StopReason   *string         `json:"stop_reason"`
	StopSequence *string         `json:"stop_sequence"`
	Usage        anthropicUsage  `json:"usage"`
}

type anthropicText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func (c *call) stopReason() string {
	if c.asked {
		return "max_tokens"
	}
	return "end_turn"
}

func (s *Server) messagesAnswer(c *call, f *flight) any {
	reason := c.stopReason()
	return anthropicMessage{
		ID: s.id("msg_"), Type: "message", Role: "assistant", Model: c.model,
		Content:    []anthropicText{{Type: "text", Text: string(f.seats[0].reply)}},
		StopReason: &reason, Usage: s.anthropicUsage(c, f),
	}
}

type messagesScript struct{ told }

func newMessagesScript(t told) *messagesScript {
	t.id = t.s.id("msg_")
	return &messagesScript{t}
}

func (t *messagesScript) begin(dst []byte) []byte {
	u := t.s.anthropicUsage(t.c, t.f)
	u.OutputTokens = 0
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	dst = append(dst, mustJSON(anthropicMessage{
		ID: t.id, Type: "message", Role: "assistant", Model: t.c.model, Content: []anthropicText{}, Usage: u,
	})...)
	dst = append(dst, "}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"...)
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

func (t *messagesScript) text(dst []byte, i, from, to int) []byte {
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\""...)
	dst = append(dst, t.piece(i, from, to)...)
	return append(dst, "\"}}\n\n"...)
}

func (t *messagesScript) stop(dst []byte, _ int) []byte {
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"...)
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\""...)
	dst = append(dst, t.c.stopReason()...)
	dst = append(dst, "\",\"stop_sequence\":null},\"usage\":"...)
	dst = append(dst, mustJSON(t.s.anthropicUsage(t.c, t.f))...)
	return append(dst, "}\n\n"...)
}

func (t *messagesScript) end(dst []byte) []byte {
	return append(dst, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

func (t *messagesScript) fail(dst []byte, err *apiError) []byte {
	dst = append(append(dst, "event: error\ndata: "...), mustJSON(anthropicError(err))...)
	return append(dst, "\n\n"...)
}

func anthropicError(e *apiError) any {
	kind := "invalid_request_error"
	switch {
	case e.status == http.StatusNotFound:
		kind = "not_found_error"
	case e.status == http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case e.status == http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case e.status >= 500:
		kind = "api_error"
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": e.message}}
}

func anthropicCard(card modelCard) any {
	return map[string]string{
		"type": "model", "id": card.ID, "display_name": card.ID, "created_at": time.Unix(card.Created, 0).UTC().Format(time.RFC3339),
	}
}

func (s *Server) anthropicModels(w http.ResponseWriter) {
	data := []any{}
	for _, card := range s.cards() {
		data = append(data, anthropicCard(card))
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"data": data, "has_more": false, "first_id": s.cfg.Models[0], "last_id": s.cards()[len(data)-1].ID,
	})
}

type generateScript struct{ told }

func newGenerateScript(t told) *generateScript {
	t.id = t.s.id("")
	return &generateScript{t}
}

func (t *generateScript) begin(dst []byte) []byte { return dst }

func (t *generateScript) text(dst []byte, i, _, to int) []byte {
	if to == t.c.output {
		return dst
	}
	return t.event(dst, i, to, false)
}

func (t *generateScript) stop(dst []byte, i int) []byte { return t.event(dst, i, t.c.output, true) }

func (t *generateScript) event(dst []byte, i, tokens int, finished bool) []byte {
	one := t.s.generated(t.c, t.f, i, t.id, tokens, finished)
	if t.c.several || t.c.n > 1 {
		one["index"] = i
	}
	dst = append(append(dst, "data: "...), mustJSON(one)...)
	return append(dst, "\n\n"...)
}

func (t *generateScript) end(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

func (t *generateScript) fail(dst []byte, err *apiError) []byte {
	dst = append(append(dst, "data: "...), mustJSON(openAIError(err))...)
	return append(dst, "\n\ndata: [DONE]\n\n"...)
}

func (s *Server) generated(c *call, f *flight, i int, id string, tokens int, finished bool) map[string]any {
	p, _ := f.state(i)
	prompt, cached := s.faults.told(f.seats[i].job.PromptTokens, p.cached)
	var reason any
	if finished {
		reason = map[string]any{"type": c.finishReason(), "length": tokens}
	}
	meta := map[string]any{
		"id": id + "-" + strconv.Itoa(i), "finish_reason": reason, "prompt_tokens": prompt,
		"completion_tokens": tokens, "weight_version": "default",
	}
	if !s.cfg.HideCached {
		meta["cached_tokens"] = cached
	}
	return map[string]any{
		"text": string(f.seats[i].reply[:tokens*TokenBytes]), "output_ids": appendIDs([]uint32{}, f.seats[i].reply[:tokens*TokenBytes]), "meta_info": meta,
	}
}

func (s *Server) generateAnswer(c *call, f *flight) any {
	id := s.id("")
	all := make([]any, len(f.seats))
	for i := range all {
		all[i] = s.generated(c, f, i, id, c.output, true)
	}
	if !c.several && c.n == 1 {
		return all[0]
	}
	return all
}

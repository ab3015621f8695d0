package engine

import "net/http"

type object = map[string]any

func (s *Server) anthropicUsage(c *call, f *flight) object {
	p, _ := f.state(0)
	cached, known := s.cached(c, f)
	prompt, cached := s.faults.told(c.promptTokens(), cached)
	if !known {
		return object{"input_tokens": prompt, "output_tokens": p.tokens}
	}
	return object{
		"input_tokens": prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "output_tokens": p.tokens,
	}
}

// anthropicMessage returns a message whose reply is complete, or begins with a nil reason.
func (s *Server) anthropicMessage(c *call, id string, content []object, reason any, usage object) object {
	return object{
		"id": id, "type": "message", "role": "assistant", "model": c.model, "content": content,
		"stop_reason": reason, "stop_sequence": nil, "usage": usage,
	}
}

func (c *call) stopReason() string {
	if c.asked {
		return "max_tokens"
	}
	return "end_turn"
}

func (s *Server) messagesAnswer(c *call, f *flight) any {
	text := object{"type": "text", "text": string(f.seats[0].reply)}
	return s.anthropicMessage(c, s.id("msg_"), []object{text}, c.stopReason(), s.anthropicUsage(c, f))
}

// messagesScript streams events that are named by their type.
type messagesScript struct{ told }

func newMessagesScript(t told) *messagesScript {
	t.id = t.s.id("msg_")
	return &messagesScript{t}
}

func typedEvent(dst []byte, kind string, body object) []byte {
	body["type"] = kind
	return event(append(append(append(dst, "event: "...), kind...), '\n'), body)
}

func (t *messagesScript) begin(dst []byte) []byte {
	u := t.s.anthropicUsage(t.c, t.f)
	u["output_tokens"] = 0
	dst = typedEvent(dst, "message_start", object{"message": t.s.anthropicMessage(t.c, t.id, []object{}, nil, u)})
	dst = typedEvent(dst, "content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
	return typedEvent(dst, "ping", object{})
}

func (t *messagesScript) text(dst []byte, i, from, to int) []byte {
	delta := object{"type": "text_delta", "text": string(t.piece(i, from, to))}
	return typedEvent(dst, "content_block_delta", object{"index": 0, "delta": delta})
}

func (t *messagesScript) stop(dst []byte, _ int) []byte {
	dst = typedEvent(dst, "content_block_stop", object{"index": 0})
	delta := object{"stop_reason": t.c.stopReason(), "stop_sequence": nil}
	return typedEvent(dst, "message_delta", object{"delta": delta, "usage": t.s.anthropicUsage(t.c, t.f)})
}

func (t *messagesScript) end(dst []byte) []byte { return typedEvent(dst, "message_stop", object{}) }

func (t *messagesScript) fail(dst []byte, err *apiError) []byte {
	return typedEvent(dst, "error", anthropicError(err))
}

func anthropicError(e *apiError) object {
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
	return object{"type": "error", "error": object{"type": kind, "message": e.message}}
}

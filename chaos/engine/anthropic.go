package engine

import (
	"cmp"
	"net/http"
)

type object = map[string]any

func (t *told) anthropicUsage() object {
	u := t.usage()
	if u.Details == nil {
		return object{"input_tokens": u.PromptTokens, "output_tokens": u.CompletionTokens}
	}
	cached := u.Details.CachedTokens
	return object{
		"input_tokens": u.PromptTokens - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "output_tokens": u.CompletionTokens,
	}
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

// message returns a message whose reply is complete, or begins with a nil reason.
func (t *messagesScript) message(content []object, reason any, usage object) object {
	return object{
		"id": t.id, "type": "message", "role": "assistant", "model": t.c.model, "content": content,
		"stop_reason": reason, "stop_sequence": nil, "usage": usage,
	}
}

func (t *messagesScript) whole() object {
	text := object{"type": "text", "text": string(t.f.seats[0].reply)}
	return t.message([]object{text}, t.stopReason(), t.anthropicUsage())
}

func (t *messagesScript) stopReason() string { return t.c.ended("max_tokens", "end_turn") }

func (t *messagesScript) begin(dst []byte) []byte {
	u := t.anthropicUsage()
	u["output_tokens"] = 0
	dst = typedEvent(dst, "message_start", object{"message": t.message([]object{}, nil, u)})
	dst = typedEvent(dst, "content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
	return typedEvent(dst, "ping", object{})
}

func (t *messagesScript) text(dst []byte, i, from, to int) []byte {
	delta := object{"type": "text_delta", "text": string(t.piece(i, from, to))}
	return typedEvent(dst, "content_block_delta", object{"index": 0, "delta": delta})
}

func (t *messagesScript) stop(dst []byte, _ int) []byte {
	dst = typedEvent(dst, "content_block_stop", object{"index": 0})
	delta := object{"stop_reason": t.stopReason(), "stop_sequence": nil}
	return typedEvent(dst, "message_delta", object{"delta": delta, "usage": t.anthropicUsage()})
}

func (t *messagesScript) end(dst []byte) []byte { return typedEvent(dst, "message_stop", object{}) }

func (t *messagesScript) fail(dst []byte, err *apiError) []byte {
	return typedEvent(dst, "error", anthropicError(err))
}

func anthropicError(e *apiError) object {
	kinds := map[int]string{
		http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large", http.StatusServiceUnavailable: "overloaded_error",
	}
	return object{"type": "error", "error": object{"type": cmp.Or(kinds[e.status], "invalid_request_error"), "message": e.message}}
}

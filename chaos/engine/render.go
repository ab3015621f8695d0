package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Requests become prompt text as in a chat template: tools, system, then the messages, each between
// markers, and the marker of the assistant's turn. Text that templates drop (ids of tool calls,
// cache_control, sampling parameters) is absent. Parsing uses encoding/json and shares no code with
// the router, so that this truth can judge the router's predictions. Field names therefore match in
// any case.

const imageTokens = 256

type message struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Name      string          `json:"name"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
	Arguments json.RawMessage `json:"arguments"`
	Output    content         `json:"output"`
}

type content struct {
	text  []byte
	given bool
}

type part struct {
	Type     string          `json:"type"`
	Text     *string         `json:"text"`
	ImageURL json.RawMessage `json:"image_url"` // {"url":...} or, in Responses, a string
	Source   json.RawMessage `json:"source"`
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`
	Content  content         `json:"content"`
}

func (c *content) UnmarshalJSON(raw []byte) error {
	c.given = true
	switch raw[0] {
	case 'n':
		c.given = false
		return nil
	case '"':
		text, err := unquote(raw)
		c.text = text
		return err
	case '[':
		var parts []json.RawMessage
		if err := json.Unmarshal(raw, &parts); err != nil {
			return err
		}
		for _, p := range parts {
			if err := c.part(p); err != nil {
				return err
			}
		}
		return nil
	case '{':
		return c.part(raw)
	}
	return errors.New("content must be a string or a list of parts")
}

func (c *content) part(raw []byte) error {
	if raw[0] == '"' {
		text, err := unquote(raw)
		c.text = append(c.text, text...)
		return err
	}
	var p part
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	switch {
	case p.Type == "thinking" || p.Type == "redacted_thinking" || p.Type == "reasoning":
		// Templates drop the reasoning of earlier turns.
	case p.Text != nil:
		c.text = append(c.text, *p.Text...)
	case len(p.ImageURL) > 0:
		c.text = appendImage(c.text, p.ImageURL)
	case p.Type == "image" && len(p.Source) > 0:
		c.text = appendImage(c.text, p.Source)
	case p.Type == "tool_use":
		c.text = append(append(c.text, "<|tool_call|>"...), p.Name...)
		return c.canonical(p.Input)
	case p.Type == "tool_result":
		c.text = append(append(c.text, "<|tool_result|>"...), p.Content.text...)
	default:
		return c.canonical(raw)
	}
	return nil
}

func (c *content) canonical(raw json.RawMessage) (err error) {
	c.text, err = appendCanonical(c.text, raw)
	return err
}

func unquote(raw []byte) ([]byte, error) {
	end := len(raw) - 1
	if inner := raw[1:end:end]; bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil // the JSON was checked before: valid UTF-8 without control characters
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return []byte(s), err
}

func appendImage(dst, raw []byte) []byte {
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:])
	return append(append(dst, "<|image|>"...), strings.Repeat(hash, imageTokens*TokenBytes/len(hash))...)
}

func appendCanonical(dst []byte, raw json.RawMessage) ([]byte, error) {
	if len(raw) == 0 {
		return dst, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return dst, err
	}
	dropCacheControl(v)
	out, err := json.Marshal(v)
	return append(dst, out...), err
}

func dropCacheControl(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "cache_control")
		for _, e := range v {
			dropCacheControl(e)
		}
	case []any:
		for _, e := range v {
			dropCacheControl(e)
		}
	}
}

func present(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null" && string(raw) != "[]"
}

// appendConversation renders tools, system text and messages. open leaves the last message
// unfinished, for the model to continue, instead of opening a new assistant turn.
func appendConversation(dst []byte, tools json.RawMessage, system []byte, messages []message, open bool) ([]byte, error) {
	if present(tools) {
		dst = append(dst, "<|tools|>\n"...)
		var err error
		if dst, err = appendCanonical(dst, tools); err != nil {
			return dst, err
		}
		dst = append(dst, "<|end|>\n"...)
	}
	if len(system) > 0 {
		messages = slices.Concat([]message{{Role: "system", Content: content{text: system}}}, messages)
	}
	for i := range messages {
		m := &messages[i]
		role := m.Role
		switch m.Type {
		case "function_call":
			role = "assistant"
		case "function_call_output":
			role = "tool"
		case "reasoning":
			continue
		}
		if role == "developer" {
			role = "system"
		}
		dst = append(append(dst, "<|"...), role...)
		if m.Name != "" {
			dst = append(append(dst, ' '), m.Name...)
		}
		dst = append(append(append(dst, "|>\n"...), m.Content.text...), m.Output.text...)
		for _, call := range []json.RawMessage{m.ToolCalls, m.Arguments} {
			if !present(call) {
				continue
			}
			var err error
			if dst, err = appendToolCalls(append(dst, "<|tool_call|>"...), call); err != nil {
				return dst, err
			}
		}
		if open && i == len(messages)-1 {
			return dst, nil
		}
		dst = append(dst, "<|end|>\n"...)
	}
	return append(dst, "<|assistant|>\n"...), nil
}

func appendToolCalls(dst []byte, raw json.RawMessage) ([]byte, error) {
	var calls []struct {
		Function json.RawMessage `json:"function"`
	}
	if raw[0] != '[' {
		return appendCanonical(dst, raw)
	}
	if err := json.Unmarshal(raw, &calls); err != nil {
		return dst, err
	}
	for _, c := range calls {
		var err error
		if dst, err = appendCanonical(dst, c.Function); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// texts is one or several prompts: a string, a list of strings, a list of token ids or a list of
// such lists.
type texts [][]byte

func (t *texts) UnmarshalJSON(raw []byte) error {
	*t = nil
	switch {
	case string(raw) == "null":
		return nil
	case raw[0] == '"':
		text, err := unquote(raw)
		*t = texts{text}
		return err
	case raw[0] != '[':
		return errors.New("prompt must be a string, a list of strings or of token ids")
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil {
		if len(ids) > 0 {
			*t = texts{appendText(nil, ids)}
		}
		return nil
	}
	var several []json.RawMessage
	if err := json.Unmarshal(raw, &several); err != nil {
		return err
	}
	for _, one := range several {
		var inner texts
		if err := inner.UnmarshalJSON(one); err != nil {
			return err
		}
		if len(inner) != 1 {
			return errors.New("each prompt of a list must be a string or a list of token ids")
		}
		*t = append(*t, inner[0])
	}
	return nil
}

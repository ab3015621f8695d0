package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"
)

type endpoint uint8

const (
	endpointNone endpoint = iota
	endpointChat
	endpointCompletion
	endpointEmbeddings
	endpointResponses
	endpointMessages
	endpointCountTokens
)

var paths = map[string]endpoint{
	"/v1/chat/completions":      endpointChat,
	"/v1/completions":           endpointCompletion,
	"/v1/embeddings":            endpointEmbeddings,
	"/v1/responses":             endpointResponses,
	"/v1/messages":              endpointMessages,
	"/v1/messages/count_tokens": endpointCountTokens,
}

// endpointOf takes a path or its part after /v1/; chat is short for chat completions, the default.
func endpointOf(name string) endpoint {
	if name == "" || name == "chat" {
		return endpointChat
	}
	return cmp.Or(paths[name], paths["/v1/"+name])
}

func (e endpoint) anthropic() bool { return e == endpointMessages || e == endpointCountTokens }

type apiError struct {
	status  int
	message string
	param   string
	code    string // OpenAI's error code; "" is the status as a number, as in vLLM
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) error {
	return &apiError{status: http.StatusBadRequest, param: param, message: fmt.Sprintf(format, args...)}
}

type fields struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	N                   *int   `json:"n"`
	MaxTokens           *int   `json:"max_tokens"`
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	MaxOutputTokens     *int   `json:"max_output_tokens"`
	CacheSalt           string `json:"cache_salt"`
	Session             string `json:"session_id"`
	XArgs               struct {
		Session string `json:"session_id"`
		Report  string `json:"kv_cache_report_mode"`
	} `json:"vllm_xargs"`

	Messages     []message       `json:"messages"`
	Tools        json.RawMessage `json:"tools"`
	System       content         `json:"system"`
	Instructions content         `json:"instructions"`
	Prompt       texts           `json:"prompt"`
	Input        json.RawMessage `json:"input"`
	Previous     string          `json:"previous_response_id"`
	RequestID    string          `json:"request_id"`
	Store        *bool           `json:"store"`
	Continue     bool            `json:"continue_final_message"`
	Echo         bool            `json:"echo"`
	Transfer     *transferParams `json:"kv_transfer_params"`
	bootstrap
	Dimensions int    `json:"dimensions"`
	Encoding   string `json:"encoding_format"`
}

type call struct {
	endpoint endpoint
	fields   fields
	model    string
	adapter  string
	earlier  []message // of previous_response_id, with its answer
	prompts  [][]byte
	n        int
	output   int
	asked    bool // the request set output, so the reply ends with reason length

	keyTokens int
	session   string // that cache events name; "" for none
}

const (
	maxReplies = 128
	maxPrompts = 2048
)

// parseFor parses a request to an endpoint by name.
func (s *Server) parseFor(name string, body []byte) (*call, error) {
	e := endpointOf(name)
	if e == endpointNone {
		return nil, badRequest("kind", "unknown endpoint %q", name)
	}
	return s.parse(e, body)
}

func (s *Server) parse(e endpoint, body []byte) (*call, error) {
	c := &call{endpoint: e, n: 1, keyTokens: s.cfg.keyTokens()}
	f := &c.fields
	if !utf8.Valid(body) {
		return nil, badRequest("", "There was an error parsing the body: invalid UTF-8")
	}
	if err := json.Unmarshal(body, f); err != nil {
		return nil, parseError(err)
	}
	if err := s.resolve(c); err != nil {
		return nil, err
	}
	var err error
	if e == endpointResponses && f.Previous != "" {
		if c.earlier, err = s.stored.conversation(f.Previous); err != nil {
			return nil, err
		}
	}
	if c.prompts, err = c.render(); err != nil {
		return nil, err
	}
	if len(c.prompts) > maxPrompts {
		return nil, badRequest("", "%d prompts in one request, at most %d", len(c.prompts), maxPrompts)
	}
	if err := s.length(c); err != nil {
		return nil, err
	}
	return c, nil
}

func parseError(err error) error {
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return badRequest("", "There was an error parsing the body: %v at offset %d", err, syntax.Offset)
	case errors.As(err, &typed):
		return badRequest(typed.Field, "Input should be a valid %s, got %s", typed.Type, typed.Value)
	}
	return badRequest("", "There was an error parsing the body: %v", err)
}

func (s *Server) resolve(c *call) error {
	name := c.fields.Model
	switch {
	case name == "": // vLLM takes its only model
		c.model = s.cfg.Models[0]
	case slices.Contains(s.cfg.Models, name):
		c.model = name
	case slices.Contains(s.cfg.Adapters, name):
		c.model, c.adapter = name, name
	default:
		return &apiError{status: http.StatusNotFound, param: "model", message: fmt.Sprintf("The model `%s` does not exist.", name)}
	}
	return nil
}

func (c *call) render() ([][]byte, error) {
	f := &c.fields
	switch c.endpoint {
	case endpointChat:
		return one(c.conversation(nil))
	case endpointMessages, endpointCountTokens:
		if last := len(f.Messages) - 1; last >= 0 && f.Messages[last].Role == "assistant" {
			f.Continue = true
		}
		return one(c.conversation(f.System.text))
	case endpointCompletion:
		if len(f.Prompt) == 0 {
			return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
		}
		return f.Prompt, nil
	case endpointEmbeddings:
		if len(f.Messages) > 0 {
			return one(c.conversation(nil))
		}
		return c.input()
	case endpointResponses:
		return c.responses()
	}
	return nil, &apiError{status: http.StatusNotFound, message: "Not Found"}
}

func one(text []byte, err error) ([][]byte, error) { return [][]byte{text}, err }

func (c *call) conversation(system []byte) ([]byte, error) {
	f := &c.fields
	if len(f.Messages) == 0 {
		return nil, badRequest("messages", "messages: at least one message is required")
	}
	size := 256 + len(system) + len(f.Tools)
	for i := range f.Messages {
		m := &f.Messages[i]
		if m.Role == "" {
			return nil, badRequest(fmt.Sprintf("messages.%d.role", i), "Field required")
		}
		size += 64 + len(m.Content.text) + len(m.ToolCalls)
	}
	text, err := appendConversation(make([]byte, 0, size), f.Tools, system, f.Messages, f.Continue)
	if err != nil {
		return nil, parseError(err)
	}
	return text, nil
}

func (c *call) input() ([][]byte, error) {
	var t texts
	if present(c.fields.Input) {
		if err := t.UnmarshalJSON(c.fields.Input); err != nil {
			return nil, badRequest("input", "%v", err)
		}
	}
	if len(t) == 0 {
		return nil, badRequest("input", "Field required")
	}
	return t, nil
}

func (c *call) responses() ([][]byte, error) {
	f := &c.fields
	switch {
	case !present(f.Input):
		return nil, badRequest("input", "Field required")
	case f.Input[0] == '"':
		f.Messages = []message{{Role: "user"}}
		if err := f.Messages[0].Content.UnmarshalJSON(f.Input); err != nil {
			return nil, badRequest("input", "%v", err)
		}
	default:
		if err := json.Unmarshal(f.Input, &f.Messages); err != nil {
			return nil, badRequest("input", "%v", err)
		}
	}
	for i := range f.Messages {
		if m := &f.Messages[i]; m.Role == "" {
			m.Role = "user"
		}
	}
	f.Messages = slices.Concat(c.earlier, f.Messages)
	return one(c.conversation(f.Instructions.text))
}

func (s *Server) length(c *call) error {
	f := &c.fields
	limit, param := f.MaxTokens, "max_tokens"
	switch c.endpoint {
	case endpointChat:
		if f.MaxCompletionTokens != nil {
			limit, param = f.MaxCompletionTokens, "max_completion_tokens"
		}
	case endpointCompletion, endpointMessages:
	case endpointResponses:
		limit, param = f.MaxOutputTokens, "max_output_tokens"
	case endpointCountTokens:
		return nil
	default:
		limit = new(int)
	}
	if f.N != nil && (c.endpoint == endpointChat || c.endpoint == endpointCompletion) {
		if c.n = *f.N; c.n < 1 || c.n*len(c.prompts) > maxReplies {
			return badRequest("n", "n must be at least 1 and ask for at most %d replies, got %d.", maxReplies, c.n)
		}
	}
	longest := 0
	for _, p := range c.prompts {
		longest = max(longest, tokensIn(len(p)))
	}
	room := s.cfg.MaxModelLen - longest
	least := 1
	if c.endpoint == endpointCompletion {
		least = 0
	}
	switch {
	case limit == nil && c.endpoint == endpointMessages:
		return badRequest("max_tokens", "max_tokens: Field required")
	case limit == nil:
		c.output = min(s.cfg.DefaultOutput, room)
	case c.generates() && *limit < least:
		return badRequest(param, "%s must be at least %d, got %d.", param, least, *limit)
	default:
		c.output, c.asked = *limit, true
	}
	if room < 0 || c.output > room || (c.generates() && room < 1) {
		return &apiError{
			status: http.StatusBadRequest, param: contextParam(c.endpoint), code: "context_length_exceeded",
			message: fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d for the completion). Please reduce the length of the prompt or completion.",
				s.cfg.MaxModelLen, longest+max(c.output, 0), longest, max(c.output, 0)),
		}
	}
	return nil
}

func (c *call) generates() bool {
	return c.endpoint != endpointEmbeddings && c.endpoint != endpointCountTokens
}

func contextParam(e endpoint) string {
	switch e {
	case endpointCompletion:
		return "prompt"
	case endpointChat, endpointMessages, endpointCountTokens:
		return "messages"
	}
	return "input"
}

func (c *call) flight() *flight {
	f := &flight{}
	root := rootKey(c.adapter, c.fields.CacheSalt)
	for _, text := range c.prompts {
		for variant := range c.n {
			s := newSeat(root, text, c.output, variant, c.fields.Stream && c.generates(), c.keyTokens)
			s.call = c
			s.job.Session = c.session
			s.job.Adapter = adapterKey(c.adapter)
			f.seats = append(f.seats, s)
		}
	}
	return f
}

func (c *call) promptTokens() (n int) {
	for _, p := range c.prompts {
		n += tokensIn(len(p))
	}
	return n
}

// ended names the end of a reply: at the length that the request set, or by itself.
func (c *call) ended(atLength, byItself string) string {
	if c.asked {
		return atLength
	}
	return byItself
}

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	endpointGenerate
	endpointTokenize
	endpointDetokenize
	endpointScore
	endpointRerank
	endpointPooling
	endpointClassify
)

var paths = map[string]endpoint{
	"/v1/chat/completions":      endpointChat,
	"/v1/completions":           endpointCompletion,
	"/v1/embeddings":            endpointEmbeddings,
	"/v1/responses":             endpointResponses,
	"/v1/messages":              endpointMessages,
	"/v1/messages/count_tokens": endpointCountTokens,
	"/generate":                 endpointGenerate,
	"/tokenize":                 endpointTokenize,
	"/detokenize":               endpointDetokenize,
	"/score":                    endpointScore,
	"/v1/score":                 endpointScore,
	"/rerank":                   endpointRerank,
	"/v1/rerank":                endpointRerank,
	"/v2/rerank":                endpointRerank,
	"/pooling":                  endpointPooling,
}

func endpointOf(name string) endpoint {
	switch name {
	case "", "chat":
		return endpointChat
	case "completion", "completions":
		return endpointCompletion
	}
	if e, ok := paths[name]; ok {
		return e
	}
	if e, ok := paths["/v1/"+name]; ok {
		return e
	}
	return paths["/"+name]
}

func (e endpoint) anthropic() bool { return e == endpointMessages || e == endpointCountTokens }

type apiError struct {
	status  int
	message string
	param   string
	code    string // OpenAI's error code; "" is the status as a number, as in vLLM
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
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
	LoRAPath            string `json:"lora_path"`

	Messages      []message       `json:"messages"`
	Tools         json.RawMessage `json:"tools"`
	System        content         `json:"system"`
	Instructions  content         `json:"instructions"`
	Prompt        texts           `json:"prompt"`
	Input         json.RawMessage `json:"input"`
	Previous      string          `json:"previous_response_id"`
	Continue      bool            `json:"continue_final_message"`
	Echo          bool            `json:"echo"`
	Dimensions    int             `json:"dimensions"`
	Encoding      string          `json:"encoding_format"`
	Text          json.RawMessage `json:"text"`
	InputIDs      texts           `json:"input_ids"`
	Sampling      sampling        `json:"sampling_params"`
	Tokens        []uint32        `json:"tokens"`
	Text1         texts           `json:"text_1"`
	Text2         texts           `json:"text_2"`
	Queries       texts           `json:"queries"`
	Items         texts           `json:"items"`
	Query         content         `json:"query"`
	Documents     texts           `json:"documents"`
	TopN          int             `json:"top_n"`
	ReturnStrings bool            `json:"return_token_strs"`
}

type sampling struct {
	MaxNewTokens *int `json:"max_new_tokens"`
	N            *int `json:"n"`
}

type call struct {
	endpoint endpoint
	fields   fields
	model    string
	adapter  string
	prompts  [][]byte
	several  bool // SGLang: the prompt was a list, so the answer is one
	n        int
	output   int
	asked    bool // the request set output, so the reply ends with reason length
}

const (
	maxReplies = 128
	maxPrompts = 2048
)

func (s *Server) parse(e endpoint, body []byte) (*call, *apiError) {
	c := &call{endpoint: e, n: 1}
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
	render, err := c.render()
	if err != nil {
		return nil, err
	}
	c.prompts = render
	if len(c.prompts) > maxPrompts {
		return nil, badRequest("", "%d prompts in one request, at most %d", len(c.prompts), maxPrompts)
	}
	if err := s.length(c); err != nil {
		return nil, err
	}
	return c, nil
}

func parseError(err error) *apiError {
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

func (s *Server) resolve(c *call) *apiError {
	name := c.fields.Model
	switch {
	case name == "": // vLLM takes its only model; SGLang's own interface names none
		c.model = s.cfg.Models[0]
	case slices.Contains(s.cfg.Models, name):
		c.model = name
	case slices.Contains(s.cfg.Adapters, name):
		c.model, c.adapter = name, name
	default:
		return &apiError{status: http.StatusNotFound, param: "model", message: fmt.Sprintf("The model `%s` does not exist.", name)}
	}
	if c.fields.LoRAPath != "" {
		c.adapter = c.fields.LoRAPath
	}
	return nil
}

func (c *call) render() ([][]byte, *apiError) {
	f := &c.fields
	switch c.endpoint {
	case endpointChat:
		return one(c.conversation(nil))
	case endpointMessages, endpointCountTokens:
		if last := len(f.Messages) - 1; last >= 0 && f.Messages[last].Role == "assistant" {
			f.Continue = true
		}
		return one(c.conversation(f.System.text))
	case endpointTokenize, endpointPooling:
		if len(f.Messages) > 0 {
			return one(c.conversation(nil))
		}
		if len(f.Prompt) > 0 {
			return f.Prompt, nil
		}
		return c.input()
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
	case endpointGenerate:
		return c.generate()
	case endpointScore:
		return c.pairs()
	case endpointRerank:
		if len(f.Documents) == 0 {
			return nil, badRequest("documents", "documents must not be empty")
		}
		return pair(texts{f.Query.text}, f.Documents), nil
	case endpointDetokenize:
		return [][]byte{appendText(nil, f.Tokens)}, nil
	}
	return nil, &apiError{status: http.StatusNotFound, message: "Not Found"}
}

func one(text []byte, err *apiError) ([][]byte, *apiError) { return [][]byte{text}, err }

func (c *call) conversation(system []byte) ([]byte, *apiError) {
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

func (c *call) input() ([][]byte, *apiError) {
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

func (c *call) responses() ([][]byte, *apiError) {
	f := &c.fields
	if f.Previous != "" {
		return nil, &apiError{status: http.StatusNotFound, param: "previous_response_id", message: fmt.Sprintf("Response with id '%s' not found.", f.Previous)}
	}
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
	return one(c.conversation(f.Instructions.text))
}

func (c *call) generate() ([][]byte, *apiError) {
	f := &c.fields
	prompts := f.InputIDs
	if present(f.Text) {
		if err := prompts.UnmarshalJSON(f.Text); err != nil {
			return nil, badRequest("text", "%v", err)
		}
		c.several = f.Text[0] == '['
	} else {
		c.several = len(prompts) > 1
	}
	if len(prompts) == 0 {
		return nil, badRequest("text", "Either text, input_ids or input_embeds should be provided.")
	}
	return prompts, nil
}

func (c *call) pairs() ([][]byte, *apiError) {
	f := &c.fields
	left, right := f.Text1, f.Text2
	if len(left) == 0 {
		left, right = f.Queries, f.Items
	}
	if len(left) == 0 {
		left = texts{f.Query.text}
		right = append(append(texts(nil), f.Documents...), f.Items...)
	}
	if len(right) == 0 || (len(left) != 1 && len(left) != len(right)) {
		return nil, badRequest("text_2", "text_1 must be one text or as many as text_2")
	}
	return pair(left, right), nil
}

func pair(queries, documents texts) [][]byte {
	out := make([][]byte, len(documents))
	for i, d := range documents {
		q := queries[min(i, len(queries)-1)]
		out[i] = append(append(append(append([]byte(nil), q...), "<|sep|>"...), d...), turnEnd...)
	}
	return out
}

func (s *Server) length(c *call) *apiError {
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
	case endpointGenerate:
		limit, param = f.Sampling.MaxNewTokens, "sampling_params.max_new_tokens"
		f.N = f.Sampling.N
	case endpointCountTokens, endpointTokenize, endpointDetokenize:
		return nil
	default:
		limit = new(int)
	}
	if f.N != nil && (c.endpoint == endpointChat || c.endpoint == endpointCompletion || c.endpoint == endpointGenerate) {
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
	if c.endpoint == endpointCompletion || c.endpoint == endpointGenerate {
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
	switch c.endpoint {
	case endpointChat, endpointCompletion, endpointResponses, endpointMessages, endpointGenerate:
		return true
	}
	return false
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
			f.seats = append(f.seats, newSeat(root, text, c.output, variant, c.fields.Stream && c.generates()))
		}
	}
	for _, s := range f.seats {
		s.flight = f
	}
	return f
}

func (c *call) promptTokens() (n int) {
	for _, p := range c.prompts {
		n += tokensIn(len(p))
	}
	return n
}

func (c *call) finishReason() string {
	if c.asked {
		return "length"
	}
	return "stop"
}

func quoted(name string) string {
	b, _ := json.Marshal(name)
	return strings.TrimSpace(string(b))
}

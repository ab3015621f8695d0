package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
)

type usage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	Details          *usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

func (s *Server) usage(c *call, f *flight) usage {
	cached, known := s.cached(c, f)
	var u usage
	u.PromptTokens, cached = s.faults.told(c.promptTokens(), cached)
	for i := range f.seats {
		p, _ := f.state(i)
		u.CompletionTokens += p.tokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if known {
		u.Details = &usageDetails{CachedTokens: cached}
	}
	return u
}

func (s *Server) cached(c *call, f *flight) (tokens int, known bool) {
	for i := 0; i < len(f.seats); i += c.n { // the other replies to a prompt find the blocks of the first
		p, _ := f.state(i)
		tokens += p.cached
	}
	return tokens, !s.cfg.HideCached && (tokens > 0 || s.cfg.MetricsStyle != StyleSGLang)
}

// openAIAnswer returns what all answers of OpenAI's older interfaces have in common. name is the
// field with the list.
func (s *Server) openAIAnswer(c *call, f *flight, prefix, kind, name string, list []object) object {
	for i := range list {
		list[i]["index"] = i
	}
	return object{
		"id": s.id(prefix), "object": kind, "created": time.Now().Unix(), "model": c.model, name: list, "usage": s.usage(c, f),
	}
}

func (s *Server) chatAnswer(c *call, f *flight) any {
	var choices []object
	for _, seat := range f.seats {
		choices = append(choices, object{
			"message":  object{"role": "assistant", "content": string(seat.reply), "refusal": nil},
			"logprobs": nil, "finish_reason": c.finishReason(), "stop_reason": nil,
		})
	}
	return s.openAIAnswer(c, f, "chatcmpl-", "chat.completion", "choices", choices)
}

func (s *Server) completionAnswer(c *call, f *flight) any {
	var choices []object
	for i, seat := range f.seats {
		text := string(seat.reply)
		if c.fields.Echo {
			text = string(c.prompts[i/c.n]) + text
		}
		choices = append(choices, object{"text": text, "logprobs": nil, "finish_reason": c.finishReason(), "stop_reason": nil})
	}
	return s.openAIAnswer(c, f, "cmpl-", "text_completion", "choices", choices)
}

// embeddingSize is the default length, maxEmbeddingSize the largest that a request may ask for.
const (
	embeddingSize    = 64
	maxEmbeddingSize = 8192
)

func embedding(text []byte, size int) []float32 {
	v := make([]float32, size)
	sum := 0.0
	for i := range v {
		h := xxh3.HashSeed(text, uint64(i)*0x9e3779b97f4a7c15)
		if i == 0 {
			text = binary.LittleEndian.AppendUint64(nil, h)
		}
		x := float64(int64(h)) / (1 << 63)
		v[i] = float32(x)
		sum += x * x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

func (s *Server) embeddingsAnswer(c *call, f *flight) any {
	size := embeddingSize
	if d := c.fields.Dimensions; d > 0 {
		size = min(d, maxEmbeddingSize)
	}
	var data []object
	for _, prompt := range c.prompts {
		v := embedding(prompt, size)
		var value any = v
		if c.fields.Encoding == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			value = base64.StdEncoding.EncodeToString(raw)
		}
		data = append(data, object{"object": "embedding", "embedding": value})
	}
	return s.openAIAnswer(c, f, "embd-", "list", "data", data)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	var cards []object
	card := func(name, root string, parent, length any) {
		cards = append(cards, object{
			"id": name, "object": "model", "created": s.began.Unix(), "owned_by": s.cfg.MetricsStyle, "root": root, "parent": parent,
			"max_model_len": length, "permission": []any{},
		})
	}
	for _, name := range s.cfg.Models {
		card(name, s.cfg.Models[0], nil, s.cfg.MaxModelLen)
	}
	for _, name := range s.cfg.Adapters {
		card(name, name, s.cfg.Models[0], nil)
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": cards})
}

func openAIError(e *apiError) object {
	kind := "BadRequestError"
	switch {
	case e.status == http.StatusNotFound:
		kind = "NotFoundError"
	case e.status == http.StatusServiceUnavailable:
		kind = "ServiceUnavailableError"
	case e.status >= 500:
		kind = "InternalServerError"
	}
	var param, code any = nil, e.status
	if e.param != "" {
		param = e.param
	}
	if e.code != "" {
		code = e.code
	}
	return object{"error": object{"message": e.message, "type": kind, "param": param, "code": code}}
}

// reason is how an API states an error. Those of the driver become the engine's answers.
func reason(err error) *apiError {
	var e *apiError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTooLarge):
		return &apiError{status: http.StatusBadRequest, code: "context_length_exceeded", message: "The request needs more KV cache than the engine has."}
	}
	return &apiError{status: http.StatusServiceUnavailable, message: err.Error()}
}

func writeError(w http.ResponseWriter, to endpoint, err error) {
	e := reason(err)
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if to.anthropic() {
		writeJSON(w, e.status, anthropicError(e))
		return
	}
	writeJSON(w, e.status, openAIError(e))
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	b := mustJSON(body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may have left
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("engine: " + err.Error())
	}
	return b
}

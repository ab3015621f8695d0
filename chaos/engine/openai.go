package engine

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"

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

func (t *told) usage() usage {
	var u usage
	cached := 0
	for i := range t.f.seats {
		p, _ := t.f.state(i)
		u.CompletionTokens += p.tokens
		if i%t.c.n == 0 { // the other replies to a prompt find the blocks of the first
			cached += p.cached
		}
	}
	known := !t.s.cfg.HideCached && (cached > 0 || t.s.cfg.MetricsStyle != StyleSGLang)
	u.PromptTokens, cached = t.s.faults.told(t.c.promptTokens(), cached)
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if known {
		u.Details = &usageDetails{CachedTokens: cached}
	}
	return u
}

// openAIAnswer returns what all answers of OpenAI's older interfaces have in common. name is the
// field with the list.
func (t *told) openAIAnswer(kind, name string, list []object) object {
	for i := range list {
		list[i]["index"] = i
	}
	return object{"id": t.id, "object": kind, "created": t.created, "model": t.c.model, name: list, "usage": t.usage()}
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

func (t *told) embeddings() object {
	size := embeddingSize
	if d := t.c.fields.Dimensions; d > 0 {
		size = min(d, maxEmbeddingSize)
	}
	var data []object
	for _, prompt := range t.c.prompts {
		v := embedding(prompt, size)
		var value any = v
		if t.c.fields.Encoding == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			value = base64.StdEncoding.EncodeToString(raw)
		}
		data = append(data, object{"object": "embedding", "embedding": value})
	}
	t.id = t.s.id("embd-")
	return t.openAIAnswer("list", "data", data)
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
	kinds := map[int]string{http.StatusNotFound: "NotFoundError", http.StatusServiceUnavailable: "ServiceUnavailableError", http.StatusInternalServerError: "InternalServerError"}
	var param, code any = nil, e.status
	if e.param != "" {
		param = e.param
	}
	if e.code != "" {
		code = e.code
	}
	return object{"error": object{"message": e.message, "type": cmp.Or(kinds[e.status], "BadRequestError"), "param": param, "code": code}}
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

package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"sort"
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

type chatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   usage        `json:"usage"`
}

type chatChoice struct {
	Index        int         `json:"index"`
	Message      chatMessage `json:"message"`
	Logprobs     *struct{}   `json:"logprobs"`
	FinishReason string      `json:"finish_reason"`
	StopReason   *string     `json:"stop_reason"`
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

func (s *Server) chatAnswer(c *call, f *flight) any {
	a := chatCompletion{ID: s.id("chatcmpl-"), Object: "chat.completion", Created: time.Now().Unix(), Model: c.model, Usage: s.usage(c, f)}
	for i, seat := range f.seats {
		a.Choices = append(a.Choices, chatChoice{
			Index: i, FinishReason: c.finishReason(), Message: chatMessage{Role: "assistant", Content: string(seat.reply)},
		})
	}
	return a
}

type completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   usage              `json:"usage"`
}

type completionChoice struct {
	Index        int       `json:"index"`
	Text         string    `json:"text"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason string    `json:"finish_reason"`
	StopReason   *string   `json:"stop_reason"`
}

func (s *Server) completionAnswer(c *call, f *flight) any {
	a := completion{ID: s.id("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: c.model, Usage: s.usage(c, f)}
	for i, seat := range f.seats {
		text := string(seat.reply)
		if c.fields.Echo {
			text = string(c.prompts[i/c.n]) + text
		}
		a.Choices = append(a.Choices, completionChoice{Index: i, FinishReason: c.finishReason(), Text: text})
	}
	return a
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

func (s *Server) poolingAnswer(c *call, f *flight) any {
	u := s.usage(c, f)
	switch c.endpoint {
	case endpointScore:
		return s.list(c, u, "score-", func(i int) any {
			return map[string]any{"index": i, "object": "score", "score": score(c.prompts[i])}
		})
	case endpointRerank:
		return s.rerankAnswer(c, u)
	}
	size := embeddingSize
	if d := c.fields.Dimensions; d > 0 {
		size = min(d, maxEmbeddingSize)
	}
	object, field, prefix := "embedding", "embedding", "embd-"
	if c.endpoint == endpointPooling {
		object, field, prefix = "pooling", "data", "pool-"
	}
	return s.list(c, u, prefix, func(i int) any {
		v := embedding(c.prompts[i], size)
		var data any = v
		if c.fields.Encoding == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			data = base64.StdEncoding.EncodeToString(raw)
		}
		return map[string]any{"index": i, "object": object, field: data}
	})
}

func (s *Server) list(c *call, u usage, prefix string, item func(i int) any) any {
	data := make([]any, len(c.prompts))
	for i := range data {
		data[i] = item(i)
	}
	return map[string]any{
		"id": s.id(prefix), "object": "list", "created": time.Now().Unix(), "model": c.model, "data": data, "usage": u,
	}
}

func score(text []byte) float64 { return float64(xxh3.Hash(text)>>11) / (1 << 53) }

func (s *Server) rerankAnswer(c *call, u usage) any {
	type result struct {
		Index    int               `json:"index"`
		Document map[string]string `json:"document"`
		Score    float64           `json:"relevance_score"`
	}
	results := make([]result, len(c.prompts))
	for i := range results {
		results[i] = result{Index: i, Document: map[string]string{"text": string(c.fields.Documents[i])}, Score: score(c.prompts[i])}
	}
	sort.SliceStable(results, func(a, b int) bool { return results[a].Score > results[b].Score })
	if n := c.fields.TopN; n > 0 && n < len(results) {
		results = results[:n]
	}
	return map[string]any{
		"id": s.id("rerank-"), "model": c.model, "results": results,
		"usage": map[string]int{"prompt_tokens": u.PromptTokens, "total_tokens": u.TotalTokens},
	}
}

func (s *Server) tokenize(w http.ResponseWriter, c *call) {
	ids := appendIDs(nil, c.prompts[0])
	answer := map[string]any{"count": len(ids), "max_model_len": s.cfg.MaxModelLen, "tokens": ids, "token_strs": nil}
	if c.fields.ReturnStrings {
		strs := make([]string, 0, len(ids))
		for text := c.prompts[0]; len(text) > 0; text = text[min(TokenBytes, len(text)):] {
			strs = append(strs, string(text[:min(TokenBytes, len(text))]))
		}
		answer["token_strs"] = strs
	}
	writeJSON(w, http.StatusOK, answer)
}

type modelCard struct {
	ID          string   `json:"id"`
	Object      string   `json:"object"`
	Created     int64    `json:"created"`
	OwnedBy     string   `json:"owned_by"`
	Root        string   `json:"root"`
	Parent      *string  `json:"parent"`
	MaxModelLen *int     `json:"max_model_len"`
	Permission  []string `json:"permission"`
}

func (s *Server) cards() []modelCard {
	var cards []modelCard
	root := s.cfg.Models[0]
	for _, name := range s.cfg.Models {
		cards = append(cards, modelCard{ID: name, Root: root, MaxModelLen: &s.cfg.MaxModelLen})
	}
	for _, name := range s.cfg.Adapters {
		cards = append(cards, modelCard{ID: name, Root: name, Parent: &root})
	}
	for i := range cards {
		cards[i].Object, cards[i].OwnedBy, cards[i].Created = "model", string(s.cfg.MetricsStyle), s.began.Unix()
		cards[i].Permission = []string{}
	}
	return cards
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("anthropic-version") != "" {
		s.anthropicModels(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": s.cards()})
}

func (s *Server) modelByName(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("model")
	for _, card := range s.cards() {
		switch {
		case card.ID != name:
		case r.Header.Get("anthropic-version") != "":
			writeJSON(w, http.StatusOK, anthropicCard(card))
			return
		default:
			writeJSON(w, http.StatusOK, card)
			return
		}
	}
	e := endpointChat
	if r.Header.Get("anthropic-version") != "" {
		e = endpointMessages
	}
	s.writeError(w, e, &apiError{status: http.StatusNotFound, param: "model", message: "The model `" + name + "` does not exist."})
}

func openAIError(e *apiError) any {
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
	return map[string]any{"error": map[string]any{"message": e.message, "type": kind, "param": param, "code": code}}
}

func (s *Server) writeError(w http.ResponseWriter, to endpoint, e *apiError) {
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	if to.anthropic() {
		writeJSON(w, e.status, anthropicError(e))
		return
	}
	writeJSON(w, e.status, openAIError(e))
}

const retryAfterSeconds = 1

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

package engine

import (
	"encoding/binary"
	"net/http"
)

// Rendered is the answer of vLLM's POST /v1/chat/completions/render, as far as routers read it: the
// prompt's tokens, which vLLM computes without generating. Routers that match tokens ask for it
// before they choose an engine.
type Rendered struct {
	RequestID string   `json:"request_id"`
	Model     string   `json:"model"`
	TokenIDs  []uint32 `json:"token_ids"`
	CacheSalt string   `json:"cache_salt,omitempty"`
	// Sampling is empty; vLLM repeats the request's parameters.
	Sampling struct{} `json:"sampling_params"`
}

func (s *Server) renderHandler(_ http.ResponseWriter, _ *http.Request, body []byte) (any, error) {
	c, err := s.parse(endpointChat, body)
	if err != nil {
		return nil, err
	}
	return Rendered{RequestID: s.id("chatcmpl-"), Model: c.model, TokenIDs: tokenIDs(c.prompts[0]), CacheSalt: c.fields.CacheSalt}, nil
}

// tokenIDs are the bytes of each token as a number, so that equal ids are equal text.
func tokenIDs(text []byte) []uint32 {
	ids := make([]uint32, 0, tokensIn(len(text)))
	for ; len(text) >= TokenBytes; text = text[TokenBytes:] {
		ids = append(ids, binary.LittleEndian.Uint32(text))
	}
	return ids
}

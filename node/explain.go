package node

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"grapevine/node/hot"
	"grapevine/proxy/policy"
)

// Receipt explains one decision. Token counts are estimates; see policy.Decision.
type Receipt struct {
	Node        string `json:"node"`
	Path        string `json:"path"`
	Model       string `json:"model"`
	PromptBytes int    `json:"prompt_bytes"`
	Blocks      int    `json:"blocks"`
	// Note says how a real request would be treated differently; "" if it would not.
	Note string `json:"note,omitempty"`

	Backend         string `json:"backend"`
	Strategy        string `json:"strategy"`
	Rung            string `json:"rung"`
	PromptTokens    int    `json:"prompt_tokens"`
	MatchedBlocks   int    `json:"matched_blocks"`
	PredictedTokens int    `json:"predicted_tokens"` // expected cached
	Hot             string `json:"hot,omitempty"`    // the prompt's hot anchor
	Replicas        int    `json:"replicas"`         // agreed holders of Hot; 0: none
	Eligible        int    `json:"eligible"`         // candidates in all
	Trial           bool   `json:"trial"`            // the chosen backend failed lately
	LastResort      bool   `json:"last_resort"`      // all backends failed lately
	// Candidates are the chosen backend, then the cheapest, at most policy.MaxConsidered.
	Candidates []Candidate `json:"candidates"`
}

// Candidate is one backend of a receipt.
type Candidate struct {
	Backend       string  `json:"backend"`
	MatchedBlocks int     `json:"matched_blocks"`
	HeldTokens    float64 `json:"held_tokens"`   // of the prompt
	QueuedTokens  float64 `json:"queued_tokens"` // ahead of it
	Active        int64   `json:"active"`        // requests
	Rate          float64 `json:"rate"`          // prefill tokens/s
	AgeS          float64 `json:"age_s"`         // since use of the deepest held block
	Cost          float64 `json:"cost"`          // in the strategy's unit
}

func (r *Receipt) take(d *policy.Decision) {
	r.Backend, r.Strategy, r.Rung = d.Name, d.Strategy, d.Rung.String()
	r.PromptTokens, r.MatchedBlocks, r.PredictedTokens = d.PromptTokens, d.MatchedBlocks, d.PredictedTokens
	r.Eligible, r.Trial, r.LastResort = d.Eligible, d.Trial, d.LastResort
	if r.Replicas = d.Replicas; d.Replicas > 0 {
		r.Hot = hot.AnchorText(d.Hot)
	}
	for _, c := range d.Candidates {
		r.Candidates = append(r.Candidates, Candidate{
			Backend: c.Name, MatchedBlocks: c.MatchedBlocks, HeldTokens: c.HeldTokens, QueuedTokens: c.QueuedTokens,
			Active: c.Active, Rate: c.Rate, AgeS: c.Age.Seconds(), Cost: c.Cost,
		})
	}
}

// Explain decides without sending or recording the request. header returns nil for absent headers.
// Errors: policy.ErrNoBackend, policy.ErrUnknownModel.
func (n *Node) Explain(path string, header func(name string) []byte, body []byte) (*Receipt, error) {
	var q policy.Request
	r := &Receipt{Node: n.name, Path: path}
	if err := n.proxy.Describe([]byte(path), header, body, &q); err != nil {
		r.Note = fmt.Sprintf("refused with 400: %v", err)
		if n.proxy.TakesUnreadable() {
			r.Note = fmt.Sprintf("routed by load: %v", err)
		}
	}
	r.Model, r.PromptBytes, r.Blocks = string(q.Model), q.PromptBytes, len(q.Hashes)
	var d policy.Decision
	decide := func() error { return n.router.Explain(&q, now(), &d) }
	err := decide()
	if errors.Is(err, policy.ErrUnknownModel) && n.backends.Roster().Open {
		r.Note = "no engine has listed this model; one of them is asked all the same"
		err = n.anyModel(&q, decide)
	}
	if err != nil {
		return nil, err
	}
	r.take(&d)
	return r, nil
}

// explain answers POST /explain?path=PATH.
func (n *Node) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(n.cfg.MaxBody)))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			refuse(w, http.StatusRequestEntityTooLarge, "the body is larger than max_body, %s", n.cfg.MaxBody)
		}
		return // or the client left
	}
	if len(body) == 0 {
		refuse(w, http.StatusBadRequest, "there is no body: send that of the request to be explained")
		return
	}
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	if !strings.HasPrefix(path, "/") {
		refuse(w, http.StatusBadRequest, "path %q does not begin with /", path)
		return
	}
	header := func(name string) []byte {
		if v := r.Header.Get(name); v != "" {
			return []byte(v)
		}
		return nil
	}
	receipt, err := n.Explain(path, header, body)
	switch {
	case errors.Is(err, policy.ErrUnknownModel):
		refuse(w, http.StatusNotFound, "%v", err)
	case errors.Is(err, policy.ErrNoBackend):
		refuse(w, http.StatusServiceUnavailable, "%v", err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, "%v", err)
	default:
		answer(w, receipt)
	}
}

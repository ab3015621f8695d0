package node

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"grapevine/proxy/policy"
)

// Receipt explains one decision.
type Receipt struct {
	Node        string `json:"node"`
	Path        string `json:"path"`
	Model       string `json:"model"`
	PromptBytes int    `json:"prompt_bytes"`
	Blocks      int    `json:"blocks"`
	// Note says what would be done differently than the request asks, or could
	// not be understood; "" if nothing.
	Note     string          `json:"note,omitempty"`
	Decision policy.Decision `json:"decision"`
}

// Explain decides where a request would go now, without sending it or leaving
// a trace. header returns the value of a request header, or nil. The errors are
// those of the policy (ErrNoBackend, ErrUnknownModel).
func (n *Node) Explain(path string, header func(name string) []byte, body []byte) (*Receipt, error) {
	var q policy.Request
	r := &Receipt{Node: n.name, Path: path}
	if err := n.proxy.Describe([]byte(path), header, body, &q); err != nil {
		r.Note = fmt.Sprintf("routed by load: %v", err)
	}
	r.Model, r.PromptBytes, r.Blocks = string(q.Model), q.PromptBytes, len(q.Hashes)
	decide := func() error { return n.ask(&q, &r.Decision) }
	err := decide()
	if errors.Is(err, policy.ErrUnknownModel) && n.fleet.open {
		r.Note = "no engine has listed this model; one of them is asked all the same"
		err = n.anyModel(&q, decide)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ask decides without dispatching: the request is booked and given back at
// once, and nothing is recorded of it. What remains is one decision in the
// policy's counters and one turn of a rotation.
func (n *Node) ask(q *policy.Request, d *policy.Decision) error {
	var a policy.Attempt
	at := now()
	if err := n.router.Pick(q, at, &a); err != nil {
		return err
	}
	*d = a.Decision().Clone()
	a.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1, Failed: policy.ClientGone}, at)
	return nil
}

// explain answers POST /explain?path=PATH: where a request with this body and
// these headers would go now, and why. It reads the request with the proxy's
// own code and decides with the policy's; nothing is dispatched, charged or
// recorded.
func (n *Node) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(n.cfg.MaxBody)))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			refuse(w, http.StatusRequestEntityTooLarge, "the body is larger than max_body, %s", n.cfg.MaxBody)
		}
		return // or the client left
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

package node

import (
	"errors"
	"fmt"

	"grapevine/node/admin"
	"grapevine/node/hot"
	"grapevine/proxy/policy"
)

func fillReceipt(r *admin.Receipt, d *policy.Decision) {
	r.Backend, r.Strategy, r.Rung = d.Name, d.Strategy, d.Rung.String()
	r.PromptTokens, r.MatchedBlocks, r.PredictedTokens = d.PromptTokens, d.MatchedBlocks, d.PredictedTokens
	r.Eligible, r.Trial, r.LastResort = d.Eligible, d.Trial, d.LastResort
	if r.Replicas = d.Replicas; d.Replicas > 0 {
		r.Hot = hot.AnchorText(d.Hot)
	}
	for _, c := range d.Candidates {
		r.Candidates = append(r.Candidates, admin.Candidate{
			Backend: c.Name, MatchedBlocks: c.MatchedBlocks, HeldTokens: c.HeldTokens, QueuedTokens: c.QueuedTokens,
			Active: c.Active, Rate: c.Rate, AgeS: c.Age.Seconds(), Cost: c.Cost,
		})
	}
}

// Explain decides without sending or recording the request; header returns nil for absent headers.
// Errors: policy.ErrNoBackend, policy.ErrUnknownModel.
func (n *Node) Explain(path string, header func(name string) []byte, body []byte) (*admin.Receipt, error) {
	var q policy.Request
	r := &admin.Receipt{Node: n.name, Path: path}
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
	fillReceipt(r, &d)
	return r, nil
}

package node

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"grapevine.example/node/admin"
	"grapevine.example/node/hot"
	"grapevine.example/proxy/policy"
)

func fillReceipt(r *admin.Receipt, d *policy.Decision) {
	r.Rule, r.Pool, r.Fallback = d.Rule, d.Pool, d.Fallback
	r.Backend, r.Strategy, r.Rung = d.Name, d.Strategy, d.Rung.String()
	r.PromptTokens, r.MatchedBlocks, r.PredictedTokens = d.PromptTokens, d.MatchedBlocks, d.PredictedTokens
	r.Eligible, r.Trial, r.LastResort, r.Exact = d.Eligible, d.Trial, d.LastResort, d.Exact
	if r.Replicas = d.Replicas; d.Replicas > 0 {
		r.Hot = hot.AnchorText(d.Hot)
	}
	r.Candidates = candidatesOf(d.Candidates)
	if d.Strategy == policy.Prefix {
		r.Why = why(d.Candidates)
	}
}

func candidatesOf(considered []policy.Considered) (list []admin.Candidate) {
	for _, c := range considered {
		list = append(list, admin.Candidate{
			Backend: c.Name, MatchedBlocks: c.MatchedBlocks, HeldTokens: c.HeldTokens, Exact: c.Exact, QueuedTokens: c.QueuedTokens,
			Active: c.Active, Rate: c.Rate, AgeS: c.Age.Seconds(), Cost: c.Cost,
			WaitS: c.Wait, ZoneS: c.Zone, ComputeS: c.Compute, LaterS: c.Later,
		})
	}
	return list
}

func (n *Node) explainPrefill(q *policy.Request, decode *policy.Decision) *admin.PrefillReceipt {
	var d policy.Decision
	elsewhere := n.router.ExplainPrefill(q, now(), decode, &d)
	if d.Name == "" {
		return nil // the request, or the backend, does not allow it
	}
	return &admin.PrefillReceipt{
		Backend: d.Name, Elsewhere: elsewhere, MatchedBlocks: d.MatchedBlocks, PredictedTokens: d.PredictedTokens,
		RemoteS: d.Remote, AloneS: d.Alone, Candidates: candidatesOf(d.Candidates),
	}
}

// worth is the least difference between two costs, in seconds, that why mentions.
const worth = 0.1e-3

// why compares the chosen candidate, the first, with the cheapest that holds more of the prompt or,
// if none does, less. Later shows what an engine lacks; Compute depends on its speed, too.
func why(candidates []policy.Considered) string {
	c := &candidates[0]
	var more, less, cheaper *policy.Considered
	for i := range candidates[1:] {
		switch o := &candidates[1+i]; {
		case o.Cost < c.Cost:
			cheaper = cmp.Or(cheaper, o)
		case o.Later <= c.Later-worth:
			more = cmp.Or(more, o)
		case o.Later >= c.Later+worth:
			less = cmp.Or(less, o)
		}
	}
	text := "the caches of these backends save the same: the wait decides"
	if o := cmp.Or(more, less); o != nil {
		text = trade(c, o)
	}
	if cheaper != nil { // for new work, engines take turns, and one with an excess of active requests gets none (policy)
		text += fmt.Sprintf("; %s looks cheaper, but it is not its turn for new work, or it has many active requests", cheaper.Name)
	}
	return text
}

func trade(c, o *policy.Considered) string {
	var saves, costs []string
	for _, part := range []struct {
		seconds float64
		of      string
	}{{o.Wait - c.Wait, "waiting"}, {o.Zone - c.Zone, "way to another zone"}, {o.Compute - c.Compute, "prefill"}, {o.Later - c.Later, "other requests' time"}} {
		switch {
		case part.seconds >= worth/2:
			saves = append(saves, span(part.seconds)+" of "+part.of)
		case part.seconds <= -worth/2:
			costs = append(costs, span(-part.seconds)+" of "+part.of)
		}
	}
	text := fmt.Sprintf("compared with %s, which holds %.0f tokens, it saves %s", o.Name, o.HeldTokens, listed(saves))
	if len(costs) > 0 {
		text += " for " + listed(costs)
	}
	return text
}

func listed(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
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
	if r.Asked = string(q.Asked); r.Asked == string(q.Model) {
		r.Asked = ""
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
	if n.fleetSize() > 1 {
		if r.LoadFrom, r.LoadAgeS = "nodes", d.LoadAge.Seconds(); d.FromEngines {
			r.LoadFrom = "engines"
		}
	}
	r.Prefill = n.explainPrefill(&q, &d)
	return r, nil
}

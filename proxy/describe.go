package proxy

import (
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// describer is held only while parsing: its scratch grows with the prompts, and requests last
// minutes.
type describer struct {
	parser *prompt.Parser
	prompt prompt.Request
}

func newDescriber(p *Proxy) *describer { return &describer{parser: prompt.NewParser(p.cfg.Hasher)} }

func (d *describer) release(p *Proxy) {
	d.prompt = prompt.Request{}
	p.parsers.Put(d)
}

// describe copies a parsed prompt into q, appending to names and hashes. A session already in q
// wins over the body's.
func describe(q *policy.Request, r *prompt.Request, names []byte, hashes []prefixtree.Hash) ([]byte, []prefixtree.Hash) {
	keep := func(b []byte) []byte {
		from := len(names)
		names = append(names, b...)
		return names[from:len(names):len(names)]
	}
	q.Model, q.LoRA = keep(r.Model), keep(r.LoRA)
	if len(q.Session) == 0 {
		q.Session = keep(r.Session)
	}
	hashes = append(hashes, r.Hashes...)
	q.Hashes, q.PromptBytes, q.OutputHint, q.NonStreaming = hashes, r.PromptBytes, r.MaxTokens, !r.Stream
	return names, hashes
}

// Describe fills q as for a request, to ask the policy for its choice. header returns a request
// header; nil means that body holds its tenant's salt already. The error is the parser's; q then
// has no hashes. Safe for concurrent use.
func (p *Proxy) Describe(path []byte, header func(name string) []byte, body []byte, q *policy.Request) error {
	d := p.parsers.Get().(*describer)
	defer d.release(p)
	*q = policy.Request{Path: path, Header: header}
	o := prompt.Options{Control: p.cfg.AllowEngineControl}
	if header != nil {
		q.Session = sessionOf(header)
		o.Tenant = p.cfg.Tenant.of(nil, p.cfg.Tenant.lines(header))
	}
	err := d.parser.Parse(prompt.KindOf(path), body, o, &d.prompt)
	describe(q, &d.prompt, nil, nil)
	return err
}

package proxy

import (
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// describer reads prompts. It is pooled, and held no longer than that takes: its scratch grows with the prompts it has
// seen, and a request may last for minutes after it.
type describer struct {
	parser *prompt.Parser
	prompt prompt.Request
}

func newDescriber(p *Proxy) *describer { return &describer{parser: prompt.NewParser(p.cfg.Hasher)} }

func (d *describer) release(p *Proxy) {
	d.prompt = prompt.Request{}
	p.parsers.Put(d)
}

// describe copies what a prompt says into a policy request; a session that q has already, named by a header, goes before
// the body's. The copies are appended to names and hashes, which are returned for reuse.
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
	q.Hashes, q.PromptBytes, q.OutputHint, q.Whole = hashes, r.PromptBytes, r.MaxTokens, !r.Stream
	return names, hashes
}

// Describe fills q as the proxy would for a request, to ask the policy what it would do. header returns a request header;
// nil says that the body is one that was sent to an engine, which has its tenant's salt already. The error is that of the
// prompt's parser: q then has no hashes, as for a request that is routed by load.
// What q refers to is the caller's own or a copy. Safe for concurrent use.
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

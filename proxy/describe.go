package proxy

import (
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

// describer is what Describe needs of an exchange.
type describer struct {
	parser *prompt.Parser
	prompt prompt.Request
}

func newDescriber(p *Proxy) *describer { return &describer{parser: prompt.NewParser(p.cfg.Hasher)} }

// Describe fills q as the proxy would for a request, to ask the policy what it would do. header returns a request header,
// and may be nil. The error is that of the prompt's parser: q then has no hashes, as for a request that is routed by load.
// What q refers to is the caller's own or a copy. Safe for concurrent use.
func (p *Proxy) Describe(path []byte, header func(name string) []byte, body []byte, q *policy.Request) error {
	d := p.parsers.Get().(*describer)
	defer p.parsers.Put(d)
	*q = policy.Request{Path: path, Header: header}
	if header != nil {
		q.Session = sessionOf(header)
	}
	err := d.parser.Parse(prompt.KindOf(path), body, &d.prompt)
	describe(q, &d.prompt)
	q.Model = append([]byte(nil), q.Model...)
	q.LoRA = append([]byte(nil), q.LoRA...)
	q.Session = append([]byte(nil), q.Session...)
	q.Hashes = append(q.Hashes[:0:0], q.Hashes...)
	d.prompt = prompt.Request{}
	return err
}

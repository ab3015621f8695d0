package prompt

// PromptBytes returns the root strings, each ended by a zero byte, and the prompt bytes.
func (p *Parser) PromptBytes(k Kind, body []byte) ([]byte, error) {
	if k == Other {
		return nil, nil
	}
	if err := p.scan(k, body, Options{Control: true}); err != nil {
		return nil, err
	}
	var dst []byte
	for _, o := range p.root {
		dst = append(dst, p.tape.bytes(o)...)
		dst = append(dst, 0)
	}
	for _, s := range p.slots {
		for _, o := range p.tape.ops[s.from:s.to] {
			dst = append(dst, p.tape.bytes(o)...)
		}
	}
	return dst, nil
}

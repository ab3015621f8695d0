package prompt

import (
	"bytes"
	"strconv"
)

// Null means absent.
func (p *Parser) control(f field) {
	p.peek()
	c := &p.ctl
	switch f.how {
	case asRoot:
		from := p.pos
		if p.root[f.slot] = p.rootString(); f.slot == rootModel {
			p.model = span{from, p.pos}
		}
	case asStream:
		c.stream = p.truth()
	case asMaxTokens:
		c.max[f.slot] = p.count()
	case asSession:
		c.ownSession = c.ownSession || f.slot == sessionID
		c.session[f.slot] = p.scalar()
	case asSessionObject:
		c.ownSession = c.ownSession || f.slot != sessionUser
		c.session[f.slot] = op{}
		for key := range p.ifObject {
			switch name := p.tape.bytes(key); {
			case f.slot == sessionUser && string(name) == "user_id",
				f.slot != sessionUser && (string(name) == "session_id" || string(name) == "id"):
				c.session[f.slot] = p.scalar()
			default:
				p.skip()
			}
		}
	case asSampling:
		c.max[f.slot] = 0
		for key := range p.ifObject {
			if string(p.tape.bytes(key)) == "max_new_tokens" {
				c.max[f.slot] = p.count()
			} else {
				p.skip()
			}
		}
	case asOptions:
		p.options()
	case asExtraArgs:
		p.extraArgs()
	case asResponseID:
		c.named = true
		p.skip()
	default:
		p.skip()
	}
}

func (p *Parser) rootString() op {
	switch p.peek() {
	case '"':
		return p.word()
	case 'n':
		p.literal()
		return op{}
	}
	at := p.tape.mark()
	p.other()
	return p.tape.flatten(at)
}

func (p *Parser) scalar() op {
	switch c := p.peek(); {
	case c == '"':
		return p.word()
	case c == '-' || c >= '0' && c <= '9':
		from := p.pos
		raw, _ := p.number()
		return op{uint32(from), uint32(len(raw))}
	}
	p.skip()
	return op{}
}

// count returns 0 beyond 2^30.
func (p *Parser) count() int {
	if c := p.peek(); c < '0' || c > '9' {
		p.skip()
		return 0
	}
	raw, whole := p.number()
	n, err := strconv.Atoi(string(raw[:min(len(raw), 11)]))
	if err != nil || !whole || n > 1<<30 {
		return 0
	}
	return n
}

func (p *Parser) fill(r *Request) {
	c := &p.ctl
	r.Model = p.decoded(p.root[rootModel])
	r.LoRA = p.decoded(p.root[rootLoRA])
	r.LoRAs = bytes.HasPrefix(p.tape.bytes(p.root[rootLoRA]), []byte{markOther})
	r.Stream = c.stream
	for _, n := range c.max {
		if r.MaxTokens == 0 {
			r.MaxTokens = n
		}
	}
	for _, o := range c.session {
		if r.Session == nil {
			r.Session = p.decoded(o)
		}
	}
	r.Previous = p.previous()
	p.texts = p.texts[:0]
	for _, o := range p.kept {
		p.texts = append(p.texts, p.decoded(o))
	}
	r.Members = p.texts
}

// previous reads the setting previous_response_id, a single string of the prompt bytes.
func (p *Parser) previous() []byte {
	at := p.slots[slotPrevious]
	if at.to != at.from+1 {
		return nil
	}
	_, id, found := bytes.Cut(p.tape.bytes(p.tape.ops[at.from]), []byte(`":"`))
	if !found {
		return nil
	}
	return bytes.TrimSuffix(id, []byte(`"`))
}

// Canonical escapes are also Go's.
func (p *Parser) decoded(o op) []byte {
	b := p.tape.bytes(o)
	if len(b) == 0 || b[0] == markOther {
		return nil
	}
	if bytes.IndexByte(b, '\\') < 0 {
		return b
	}
	text, _ := strconv.Unquote(`"` + string(b) + `"`)
	return []byte(text)
}

package prompt

// Prompts without a conversation: texts and token ids.

// prompts reads one text or array of token ids, or an array of these. A prompt alone equals an
// array of one.
func (p *Parser) prompts() bool {
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		return ok
	case '"':
		return p.field(markPrompt)
	case '[':
		return p.promptArray(true)
	}
	return p.other()
}

func (p *Parser) promptArray(batch bool) bool {
	if !p.open() {
		return false
	}
	if !batch {
		p.tape.addByte(markTokens)
	}
	ids := !batch // the next id needs no markTokens
	for first := true; ; first = false {
		more, ok := p.next(']', first)
		if !more || !ok {
			return ok
		}
		c := p.peek()
		if c == '-' || c >= '0' && c <= '9' {
			if !ids {
				p.tape.addByte(markTokens)
				ids = true
			}
			ok = p.token()
		} else {
			ids = !batch
			switch {
			case c == '"':
				ok = p.field(markPrompt)
			case c == '[' && batch:
				ok = p.promptArray(false)
			default:
				ok = p.other()
			}
		}
		if !ok {
			return false
		}
	}
}

// token writes an id of 28 bits as four bytes above 0x7f, which need no separator and cannot look
// like markers.
func (p *Parser) token() bool {
	b, i := p.body, p.pos
	id := uint32(0)
	for i < len(b) && b[i]-'0' <= 9 && i < p.pos+9 {
		id = 10*id + uint32(b[i]-'0')
		i++
	}
	if i < len(b) && i > p.pos && id < 1<<28 && endsNumber(b[i]) && (b[p.pos] != '0' || i == p.pos+1) {
		p.pos = i
		p.tape.add4(byte(0x80|id>>21), byte(0x80|id>>14), byte(0x80|id>>7), byte(0x80|id))
		return true
	}
	p.tape.addByte(markOther)
	if !p.jsonNumber() {
		return false
	}
	p.tape.addByte(',')
	return true
}

func endsNumber(c byte) bool {
	switch c {
	case ',', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}

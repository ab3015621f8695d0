package prompt

// prompts reads one text or array of token ids, or an array of these, behind a mark (0 for none). A
// prompt alone equals an array of one.
func (p *Parser) prompts(mark byte) {
	from := p.tape.mark()
	if mark != 0 {
		p.tape.addByte(mark)
	}
	at := p.tape.mark()
	switch p.peek() {
	case '[':
		p.promptArray(true)
	case '"', 'n':
		p.field(markPrompt)
	default:
		p.other()
	}
	if len(p.tape.ops) == at {
		p.tape.cut(from)
	}
}

func (p *Parser) promptArray(batch bool) {
	if !batch {
		p.tape.addByte(markTokens)
	}
	ids := !batch // the next id needs no markTokens
	for range p.array {
		c := p.peek()
		if c == '-' || c >= '0' && c <= '9' {
			if !ids {
				p.tape.addByte(markTokens)
				ids = true
			}
			p.token()
			continue
		}
		ids = !batch
		switch {
		case c == '"':
			p.field(markPrompt)
		case c == '[' && batch:
			p.promptArray(false)
		default:
			p.other()
		}
	}
}

// token writes an id of 28 bits as four bytes above 0x7f, which cannot look like markers.
func (p *Parser) token() {
	b, i := p.body, p.pos
	id := uint32(0)
	for i < len(b) && b[i]-'0' <= 9 && i < p.pos+9 {
		id = 10*id + uint32(b[i]-'0')
		i++
	}
	if i < len(b) && i > p.pos && id < 1<<28 && endsNumber(b[i]) && (b[p.pos] != '0' || i == p.pos+1) {
		p.pos = i
		p.tape.add([]byte{byte(0x80 | id>>21), byte(0x80 | id>>14), byte(0x80 | id>>7), byte(0x80 | id)})
		return
	}
	p.tape.addByte(markOther)
	p.jsonNumber()
	p.tape.addByte(',')
}

func endsNumber(c byte) bool {
	switch c {
	case ',', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}

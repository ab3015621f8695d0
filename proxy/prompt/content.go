package prompt

// A string equals one text part; null, an empty array and one empty text are no content. A nested
// part has a markNested per level instead of end markers.

// billing begins a block that Claude Code puts before its system prompt. It changes with each
// request, so it is left out, as in vLLM (vllm-project/vllm#36829).
const billing = "x-anthropic-billing-header"

func (p *Parser) content() bool {
	start := p.tape.mark()
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		return ok
	case '"':
		if p.pos+1 < len(p.body) && p.body[p.pos+1] == '"' {
			p.pos += 2
			return true
		}
		p.nested()
		p.tape.addByte(markText)
		return p.text(true)
	case '[':
	default:
		p.nested()
		return p.other()
	}
	if !p.open() {
		return false
	}
	parts, blank := 0, false
	for first := true; ; first = false {
		more, ok := p.next(']', first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		from := p.tape.mark()
		if !p.part() {
			return false
		}
		if p.inSystem && p.kind.anthropic() && p.isBilling(from) {
			p.tape.cut(from)
			continue
		}
		parts++
		blank = p.blank
	}
	if parts == 1 && blank {
		p.tape.cut(start)
	}
	p.blank = false
	return true
}

func (k Kind) anthropic() bool { return k == Messages || k == CountTokens }

func (p *Parser) isBilling(from int) bool {
	at := -1 // -1: at the part's marker
	for _, o := range p.tape.ops[from:] {
		for _, c := range p.tape.bytes(o) {
			switch {
			case at < 0 && c != markText, at >= 0 && c != billing[at]:
				return false
			}
			if at++; at == len(billing) {
				return true
			}
		}
	}
	return false
}

func (p *Parser) nested() {
	for range p.level {
		p.tape.addByte(markNested)
	}
}

type partFields struct {
	start int // on the tape
	kind  op
	f     [partCount]span
}

const (
	partNest = iota
	partMark
	partText
	partRefusal
	partThinking
	partID
	partUseID
	partName
	partFailed
	partInput
	partContent

	partCount
)

// part sets p.blank if the part is an empty text.
func (p *Parser) part() bool {
	start := p.tape.mark()
	p.nested()
	p.blank = false
	switch p.peek() {
	case '"': // vLLM accepts strings as parts
		p.tape.addByte(markText)
		p.blank = p.pos+1 < len(p.body) && p.body[p.pos+1] == '"'
		return p.text(true)
	case '{':
	default:
		return p.other()
	}
	s := partFields{start: start}
	s.f[partNest] = p.tape.since(start)
	base := len(p.members)
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		key, more, ok := p.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if !p.partMember(key, &s) {
			return false
		}
	}
	return p.settle(base, true) && p.renderPart(&s, base)
}

func (p *Parser) partMember(key op, s *partFields) bool {
	from, at, ok := p.tape.mark(), 0, false
	switch string(p.tape.bytes(key)) {
	case "type":
		if p.peek() != '"' {
			s.kind = op{}
			return p.skip()
		}
		s.kind, ok = p.word()
		return ok
	case "text":
		at, ok = partText, p.field(markText)
	case "refusal":
		at, ok = partRefusal, p.field(markRefusal)
	case "thinking":
		at, ok = partThinking, p.field(markReasoning)
	case "id":
		at, ok = partID, p.field(markID)
	case "tool_use_id":
		at, ok = partUseID, p.field(markID)
	case "name":
		at, ok = partName, p.field(markName)
	case "is_error":
		at, ok = partFailed, p.failed()
	case "input":
		at, ok = partInput, p.arguments()
	case "content":
		p.level++
		at, ok = partContent, p.content()
		p.level--
	case "cache_control", "signature", "annotations", "logprobs":
		return p.skip() // not in any prompt
	case "image_url", "audio_url", "video_url":
		return p.urlMember(key)
	default:
		return p.extra(key)
	}
	s.f[at] = p.tape.since(from)
	return ok
}

func (p *Parser) failed() bool {
	is, ok := p.truth()
	if is {
		p.tape.addByte(markFailed)
	}
	return ok
}

func (p *Parser) urlMember(key op) bool {
	if p.peek() != '{' {
		return p.extra(key)
	}
	from := p.tape.mark()
	p.memberName(key)
	start := p.tape.mark()
	var url span
	base := len(p.members)
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		name, more, ok := p.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if string(p.tape.bytes(name)) != "url" {
			if !p.extra(name) {
				return false
			}
			continue
		}
		at := p.tape.mark()
		if !p.json(true) {
			return false
		}
		url = p.tape.since(at)
	}
	if !p.settle(base, true) {
		return false
	}
	p.arrangeMembers(start, base, url)
	p.remember(key, from)
	return true
}

// renderPart orders a part's members by its type.
func (p *Parser) renderPart(s *partFields, base int) bool {
	has := func(i int) bool { return s.f[i].from != s.f[i].to }
	kind := p.tape.bytes(s.kind)
	switch string(kind) {
	case "text", "input_text", "output_text", "reasoning_text", "summary_text":
		p.renderText(s, base)
		return true
	case "":
		if has(partText) {
			p.renderText(s, base)
			return true
		}
	case "refusal":
		p.keep(s, base, 0, partRefusal)
		return true
	case "thinking":
		p.keep(s, base, 0, partThinking)
		return true
	case "tool_use":
		p.keep(s, base, markCall, partID, partName, partInput)
		return true
	case "tool_result":
		p.keep(s, base, markResult, partUseID, partFailed, partContent)
		return true
	}
	p.media.reset()
	for i := partMark; i < partCount; i++ {
		p.feed(s.f[i])
	}
	for _, m := range p.members[base:] {
		p.feed(m.at)
	}
	p.members = p.members[:base]
	p.tape.cut(s.f[partNest].to)
	p.tape.addByte(markMedia)
	p.tape.add(p.tape.bytes(s.kind))
	p.tape.addByte(':')
	p.addDigest()
	return true
}

func (p *Parser) renderText(s *partFields, base int) {
	text := s.f[partText]
	if text.from == text.to {
		p.keep(s, base, markText)
		p.blank = true
		return
	}
	p.keep(s, base, 0, partText)
	n := 0
	for _, o := range p.tape.ops[s.start:] {
		n += int(o.n)
	}
	p.blank = n == p.level+1
}

// keep makes the part the given fields behind a marker (0 for none).
func (p *Parser) keep(s *partFields, base int, mark byte, fields ...int) {
	p.members = p.members[:base]
	var order [partCount]span
	order[0] = s.f[partNest]
	if mark != 0 {
		from := p.tape.mark()
		p.tape.addByte(mark)
		order[1] = p.tape.since(from)
	}
	for i, f := range fields {
		order[2+i] = s.f[f]
	}
	p.tape.arrange(s.start, order[:])
}

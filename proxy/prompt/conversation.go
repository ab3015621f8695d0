package prompt

// Markers. Canonical text has no control characters, so no text can forge one, and a marker ends
// the text before it.
const (
	markSetting     = 0x01
	markTail        = 0x02
	markTool        = 0x03
	markFunction    = 0x04
	markType        = 0x05
	markDescription = 0x06
	markSchema      = 0x07
	markOther       = 0x08 // JSON of unknown shape
	markMessage     = 0x0e
	markText        = 0x0f
	markRefusal     = 0x10
	markReasoning   = 0x11
	markMedia       = 0x12
	markNested      = 0x13 // the part belongs to the one before
	markCall        = 0x14
	markID          = 0x15
	markName        = 0x16
	markArguments   = 0x17
	markResult      = 0x18
	markFailed      = 0x19
	markAudio       = 0x1a
	markPrompt      = 0x1b
	markTokens      = 0x1c
	markSecond      = 0x1d // of a pair
)

// field reads a string behind a marker (0 for none). Null means absent.
func (p *Parser) field(mark byte) bool {
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		return ok
	case '"':
		if mark != 0 {
			p.tape.addByte(mark)
		}
		return p.text(true)
	}
	if mark != 0 {
		p.tape.addByte(mark)
	}
	return p.other()
}

// arguments reads JSON in a string (OpenAI) or as a value (Anthropic), whose order is kept.
func (p *Parser) arguments() bool {
	if c := p.peek(); c == 'n' || c == '"' {
		return p.field(markArguments)
	}
	p.tape.addByte(markArguments)
	p.tape.addByte(markOther)
	return p.json(false)
}

func (p *Parser) system() bool {
	from := p.tape.mark()
	p.tape.addByte(markMessage)
	p.tape.addString("system")
	at := p.tape.mark()
	p.inSystem = true
	ok := p.content()
	p.inSystem = false
	if len(p.tape.ops) == at {
		p.tape.cut(from)
	}
	return ok
}

// message orders a message's members.
func (p *Parser) message() bool {
	start := p.tape.mark()
	p.tape.addByte(markMessage)
	if p.peek() != '{' {
		return p.other()
	}
	const (
		role = iota + 1
		name
		callID
		reasoning
		reasoningContent
		content
		refusal
		audio
		calls
		call
		count
	)
	f := [count]span{p.tape.since(start)}
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
		from, at := p.tape.mark(), 0
		switch string(p.tape.bytes(key)) {
		case "role":
			at, ok = role, p.field(0)
		case "content":
			at, ok = content, p.content()
		case "name":
			at, ok = name, p.field(markName)
		case "tool_call_id":
			at, ok = callID, p.field(markID)
		case "tool_calls":
			at, ok = calls, p.list((*Parser).call)
		case "function_call":
			at, ok = call, p.call()
		case "reasoning":
			at, ok = reasoning, p.field(markReasoning)
		case "reasoning_content":
			at, ok = reasoningContent, p.field(markReasoning)
		case "refusal":
			at, ok = refusal, p.field(markRefusal)
		case "audio":
			at, ok = audio, p.field(markAudio)
		default:
			if !p.skip() {
				return false
			}
			continue
		}
		if !ok {
			return false
		}
		f[at] = p.tape.since(from)
	}
	if f[reasoning].from != f[reasoning].to {
		f[reasoningContent] = span{}
	}
	p.tape.arrange(start, f[:])
	return true
}

// call reads {id, function: {name, arguments}} or the older {name, arguments}.
func (p *Parser) call() bool {
	start := p.tape.mark()
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		return ok
	case '{':
		p.tape.addByte(markCall)
		return p.callBody(start)
	}
	p.tape.addByte(markCall)
	return p.other()
}

func (p *Parser) callBody(start int) bool {
	const (
		id = iota + 1
		name
		args
		input
		inner
		custom
		count
	)
	f := [count]span{p.tape.since(start)}
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
		from, at := p.tape.mark(), 0
		switch string(p.tape.bytes(key)) {
		case "id":
			at, ok = id, p.field(markID)
		case "name":
			at, ok = name, p.field(markName)
		case "arguments":
			at, ok = args, p.arguments()
		case "input":
			at, ok = input, p.arguments()
		case "function":
			at, ok = inner, p.callInner(from)
		case "custom":
			at, ok = custom, p.callInner(from)
		default:
			if !p.skip() {
				return false
			}
			continue
		}
		if !ok {
			return false
		}
		f[at] = p.tape.since(from)
	}
	p.tape.arrange(start, f[:])
	return true
}

func (p *Parser) callInner(start int) bool {
	if p.peek() == '{' {
		return p.callBody(start)
	}
	return p.field(0)
}

// tool reads chat's {type, function: {...}} and the flat forms of Anthropic and Responses.
func (p *Parser) tool() bool { return p.toolAfter(markTool) }

func (p *Parser) function() bool { return p.toolAfter(markFunction) }

func (p *Parser) toolAfter(mark byte) bool {
	start := p.tape.mark()
	p.tape.addByte(mark)
	if p.peek() != '{' {
		return p.other()
	}
	return p.toolBody(start)
}

// toolBody reads the object at p.pos. Engines parse tools into records, so only the order within
// schemas matters.
func (p *Parser) toolBody(start int) bool {
	const (
		kind = iota + 1
		name
		description
		parameters
		inputSchema
		inner
		count
	)
	f := [count]span{p.tape.since(start)}
	if !p.open() {
		return false
	}
	base := len(p.members)
	for first := true; ; first = false {
		key, more, ok := p.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		from, at := p.tape.mark(), 0
		switch string(p.tape.bytes(key)) {
		case "type":
			at, ok = kind, p.toolType()
		case "name":
			at, ok = name, p.field(markName)
		case "description":
			at, ok = description, p.field(markDescription)
		case "parameters":
			at, ok = parameters, p.schema()
		case "input_schema":
			at, ok = inputSchema, p.schema()
		case "function":
			at = inner
			if p.peek() == '{' {
				ok = p.toolBody(from)
			} else {
				ok = p.field(0)
			}
		case "cache_control":
			ok = p.skip()
		default:
			ok = p.extra(key)
		}
		if !ok {
			return false
		}
		if at != 0 {
			f[at] = p.tape.since(from)
		}
	}
	if !p.settle(base, true) {
		return false
	}
	p.arrangeMembers(start, base, f[:]...)
	return true
}

func (p *Parser) toolType() bool {
	from := p.tape.mark()
	p.tape.addByte(markType)
	at := p.tape.mark()
	if !p.field(0) {
		return false
	}
	if n := len(p.tape.ops); n == at || n == at+1 && string(p.tape.bytes(p.tape.ops[at])) == "function" {
		p.tape.cut(from)
	}
	return true
}

func (p *Parser) schema() bool {
	from := p.tape.mark()
	p.tape.addByte(markSchema)
	at := p.tape.mark()
	if !p.json(false) {
		return false
	}
	if p.isEmpty(at) && string(p.tape.bytes(p.tape.ops[at])) == "null" {
		p.tape.cut(from)
	}
	return true
}

// extra reads a member without a place of its own; null means absent.
func (p *Parser) extra(key op) bool {
	from := p.tape.mark()
	p.memberName(key)
	at := p.tape.mark()
	if !p.json(true) {
		return false
	}
	null := p.isEmpty(at) && string(p.tape.bytes(p.tape.ops[at])) == "null"
	p.remember(key, from)
	if null {
		p.tape.cut(from)
		p.members[len(p.members)-1].at = span{}
	}
	return true
}

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
func (p *Parser) field(mark byte) {
	c := p.peek()
	if c == 'n' {
		p.literal()
		return
	}
	if mark != 0 {
		p.tape.addByte(mark)
	}
	if c == '"' {
		p.text(true)
	} else {
		p.other()
	}
}

// arguments reads JSON in a string (OpenAI) or as a value (Anthropic), whose order is kept.
func (p *Parser) arguments() {
	if c := p.peek(); c == 'n' || c == '"' {
		p.field(markArguments)
		return
	}
	p.tape.addByte(markArguments)
	p.tape.addByte(markOther)
	p.json(false)
}

func (p *Parser) system() {
	from := p.tape.mark()
	p.tape.addByte(markMessage)
	p.tape.add([]byte("system"))
	at := p.tape.mark()
	p.inSystem = true
	p.content()
	p.inSystem = false
	if len(p.tape.ops) == at {
		p.tape.cut(from)
	}
}

var (
	messageMembers = inOrder{
		{"role", asText, 0},
		{"name", asText, markName},
		{"tool_call_id", asText, markID},
		{"reasoning", asText, markReasoning},
		{"reasoning_content", asText, markReasoning},
		{"content", asContent, 0},
		{"refusal", asText, markRefusal},
		{"audio", asText, markAudio},
		{"tool_calls", asCalls, 0},
		{"function_call", asCall, 0},
	}
	reasoning        = messageMembers.find([]byte("reasoning")).slot
	reasoningContent = messageMembers.find([]byte("reasoning_content")).slot
)

func (p *Parser) message() {
	start := p.tape.mark()
	p.tape.addByte(markMessage)
	if p.peek() != '{' {
		p.other()
		return
	}
	f := parts{p.tape.since(start)}
	p.read(messageMembers, asIgnored, &f)
	if !f[reasoning].empty() {
		f[reasoningContent] = span{}
	}
	p.tape.arrange(start, f[:])
}

var callMembers = inOrder{
	{"id", asText, markID},
	{"name", asText, markName},
	{"arguments", asArguments, 0},
	{"input", asArguments, 0},
	{"function", asCallBody, 0},
	{"custom", asCallBody, 0},
}

// call reads {id, function: {name, arguments}} or the older {name, arguments}.
func (p *Parser) call() {
	start := p.tape.mark()
	switch p.peek() {
	case 'n':
		p.literal()
	case '{':
		p.tape.addByte(markCall)
		p.callBody(start)
	default:
		p.tape.addByte(markCall)
		p.other()
	}
}

func (p *Parser) callBody(start int) {
	if p.peek() != '{' {
		p.field(0)
		return
	}
	f := parts{p.tape.since(start)}
	p.read(callMembers, asIgnored, &f)
	p.tape.arrange(start, f[:])
}

var toolMembers = inOrder{
	{"type", asToolType, 0},
	{"name", asText, markName},
	{"description", asText, markDescription},
	{"parameters", asSchema, 0},
	{"input_schema", asSchema, 0},
	{"function", asToolBody, 0},
	{"cache_control", asIgnored, 0},
}

// tool reads chat's {type, function: {...}} and the flat forms of Anthropic and Responses.
func (p *Parser) tool(mark byte) {
	start := p.tape.mark()
	p.tape.addByte(mark)
	if p.peek() != '{' {
		p.other()
		return
	}
	p.toolBody(start)
}

// toolBody reads the object at p.pos. Engines parse tools into records, so only the order within
// schemas matters.
func (p *Parser) toolBody(start int) {
	if p.peek() != '{' {
		p.field(0)
		return
	}
	f, base := parts{p.tape.since(start)}, len(p.members)
	p.read(toolMembers, asExtra, &f)
	p.settle(base, true)
	p.arrangeMembers(start, base, f[:]...)
}

// toolType leaves out the type "function".
func (p *Parser) toolType() {
	from := p.tape.mark()
	p.tape.addByte(markType)
	at := p.tape.mark()
	p.field(0)
	if n := len(p.tape.ops); n == at || n == at+1 && string(p.tape.bytes(p.tape.ops[at])) == "function" {
		p.tape.cut(from)
	}
}

func (p *Parser) schema() {
	from := p.tape.mark()
	p.tape.addByte(markSchema)
	at := p.tape.mark()
	p.json(false)
	if p.is(at, "null") {
		p.tape.cut(from)
	}
}

// extra reads a member without a place of its own; null means absent.
func (p *Parser) extra(key op) {
	from := p.tape.mark()
	p.memberName(key)
	at := p.tape.mark()
	p.json(true)
	null := p.is(at, "null")
	p.remember(key, from)
	if null {
		p.tape.cut(from)
		p.members[len(p.members)-1].at = span{}
	}
}

package prompt

// A string (OpenAI) or a value (Anthropic), whose order is kept.
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
		p.record(start, callMembers, asIgnored)
	default:
		p.tape.addByte(markCall)
		p.other()
	}
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

// Chat's {type, function: {...}}, or the flat forms of Anthropic and Responses. Engines parse tools
// into records, so only the order within schemas matters.
func (p *Parser) tool(mark byte) {
	start := p.tape.mark()
	p.tape.addByte(mark)
	if p.peek() != '{' {
		p.other()
		return
	}
	p.record(start, toolMembers, asExtra)
}

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

// In Responses input, what a chat can express renders like the chat.

func (p *Parser) items() {
	if p.peek() == '"' {
		p.lead(markMessage, "user", 0)
		p.content()
		return
	}
	for range p.list {
		p.item()
	}
}

var itemMembers = inOrder{
	{"role", asText, 0},
	{"call_id", asText, markID},
	{"name", asText, markName},
	{"arguments", asArguments, 0},
	{"content", asContent, 0},
	{"output", asContent, 0},

	{"type", asKind, 0},
	{"id", asIgnored, 0}, // assigned by the server, not rendered
	{"status", asIgnored, 0},
}

func (p *Parser) item() {
	start := p.tape.mark()
	if p.peek() != '{' {
		p.tape.addByte(markMessage)
		p.other()
		return
	}
	var f parts
	base := len(p.members)
	kind := p.read(itemMembers, asExtra, &f)
	p.settle(base, true)
	switch string(p.tape.bytes(kind)) {
	case "", "message":
		p.keep(start, base, itemMembers, &f, p.lead(markMessage, "", 0), "role", "content")
	case "function_call":
		p.keep(start, base, itemMembers, &f, p.lead(markMessage, "assistant", markCall), "call_id", "name", "arguments")
	case "function_call_output":
		p.keep(start, base, itemMembers, &f, p.lead(markMessage, "tool", 0), "call_id", "output")
	default:
		f[0] = p.lead(markMessage, "", markType)
		p.tape.add(p.tape.bytes(kind))
		p.tape.addByte(markType)
		f[0].to = len(p.tape.ops)
		p.arrangeMembers(start, base, f[:]...)
	}
}

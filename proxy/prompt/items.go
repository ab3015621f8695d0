package prompt

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

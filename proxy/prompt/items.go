package prompt

// Responses input: a string or an array of items. What a chat can express renders like the chat.

func (p *Parser) items() bool {
	if p.peek() == '"' {
		p.tape.addByte(markMessage)
		p.tape.addString("user")
		return p.content()
	}
	return p.list((*Parser).item)
}

const (
	itemMark = iota
	itemRole
	itemCallID
	itemName
	itemArguments
	itemContent
	itemOutput

	itemCount
)

func (p *Parser) item() bool {
	start := p.tape.mark()
	if p.peek() != '{' {
		p.tape.addByte(markMessage)
		return p.other()
	}
	var (
		f    [itemCount]span
		kind op
	)
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
		from, at := p.tape.mark(), itemMark
		switch string(p.tape.bytes(key)) {
		case "type":
			kind = op{}
			if p.peek() == '"' {
				kind, ok = p.word()
			} else {
				ok = p.skip()
			}
		case "role":
			at, ok = itemRole, p.field(0)
		case "call_id":
			at, ok = itemCallID, p.field(markID)
		case "name":
			at, ok = itemName, p.field(markName)
		case "arguments":
			at, ok = itemArguments, p.arguments()
		case "content":
			at, ok = itemContent, p.content()
		case "output":
			at, ok = itemOutput, p.content()
		case "id", "status":
			ok = p.skip() // assigned by the server, not rendered
		default:
			ok = p.extra(key)
		}
		if !ok {
			return false
		}
		if at != itemMark {
			f[at] = p.tape.since(from)
		}
	}
	if !p.settle(base, true) {
		return false
	}
	p.renderItem(start, base, kind, &f)
	return true
}

// renderItem orders an item by its type.
func (p *Parser) renderItem(start, base int, kind op, f *[itemCount]span) {
	lead := func(role string, mark byte) span {
		from := p.tape.mark()
		p.tape.addByte(markMessage)
		p.tape.addString(role)
		if mark != 0 {
			p.tape.addByte(mark)
		}
		return p.tape.since(from)
	}
	var order [itemCount + 1]span
	switch string(p.tape.bytes(kind)) {
	case "", "message":
		order = [itemCount + 1]span{lead("", 0), f[itemRole], f[itemContent]}
	case "function_call":
		order = [itemCount + 1]span{lead("assistant", markCall), f[itemCallID], f[itemName], f[itemArguments]}
	case "function_call_output":
		order = [itemCount + 1]span{lead("tool", 0), f[itemCallID], f[itemOutput]}
	default:
		first := lead("", markType)
		p.tape.add(p.tape.bytes(kind))
		p.tape.addByte(markType)
		first.to = len(p.tape.ops)
		order[0] = first
		copy(order[1:], f[itemRole:])
		p.arrangeMembers(start, base, order[:]...)
		return
	}
	p.members = p.members[:base]
	p.tape.arrange(start, order[:])
}

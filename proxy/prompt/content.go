package prompt

// A string equals one text part; null, an empty array and one empty text are no content.

// Claude Code puts this block before its system prompt. It changes with each request, so it is left
// out, as in vLLM (vllm-project/vllm#36829).
const billing = "x-anthropic-billing-header"

func (p *Parser) content() {
	start := p.tape.mark()
	switch p.peek() {
	case 'n':
		p.literal()
	case '"':
		if p.atEmptyString() {
			p.pos += 2
			return
		}
		p.nested()
		p.field(markText)
	case '[':
		p.contentParts(start)
	default:
		p.nested()
		p.other()
	}
}

func (p *Parser) contentParts(start int) {
	count, blank := 0, false
	for range p.array {
		from := p.tape.mark()
		empty := p.part()
		if p.inSystem && (p.kind == Messages || p.kind == CountTokens) && p.isBilling(from) {
			p.tape.cut(from)
			continue
		}
		count, blank = count+1, empty
	}
	if count == 1 && blank {
		p.tape.cut(start)
	}
}

func (p *Parser) isBilling(from int) bool {
	want := string(rune(markText)) + billing
	for _, o := range p.tape.ops[from:] {
		b := p.tape.bytes(o)
		n := min(len(b), len(want))
		if string(b[:n]) != want[:n] {
			return false
		}
		if want = want[n:]; want == "" {
			return true
		}
	}
	return false
}

func (p *Parser) atEmptyString() bool { return p.pos+1 < len(p.body) && p.body[p.pos+1] == '"' }

func (p *Parser) nested() {
	for range p.level {
		p.tape.addByte(markNested)
	}
}

var partMembers = inOrder{
	{"text", asText, markText},
	{"refusal", asText, markRefusal},
	{"thinking", asText, markReasoning},
	{"id", asText, markID},
	{"tool_use_id", asText, markID},
	{"name", asText, markName},
	{"is_error", asFailed, 0},
	{"input", asArguments, 0},
	{"content", asNested, 0},

	{"type", asKind, 0},
	{"cache_control", asIgnored, 0}, // these four are in no prompt
	{"signature", asIgnored, 0},
	{"annotations", asIgnored, 0},
	{"logprobs", asIgnored, 0},
	{"image_url", asURL, 0},
	{"audio_url", asURL, 0},
	{"video_url", asURL, 0},
}

func (p *Parser) part() (blank bool) {
	start := p.tape.mark()
	p.nested()
	switch p.peek() {
	case '"': // vLLM accepts strings as parts
		blank = p.atEmptyString()
		p.field(markText)
		return blank
	case '{':
	default:
		p.other()
		return false
	}
	f, base := parts{p.tape.since(start)}, len(p.members)
	kind := p.read(partMembers, asExtra, &f)
	p.settle(base, true)
	return p.renderPart(start, base, kind, &f)
}

// renderPart reports whether the part is an empty text.
func (p *Parser) renderPart(start, base int, kind op, f *parts) (blank bool) {
	text := f[partMembers.find([]byte("text")).slot]
	keep := func(mark byte, names ...string) { p.keep(start, base, partMembers, f, p.lead(mark, "", 0), names...) }
	switch string(p.tape.bytes(kind)) {
	case "text", "input_text", "output_text", "reasoning_text", "summary_text":
		return p.renderText(start, base, f, text)
	case "":
		if !text.empty() {
			return p.renderText(start, base, f, text)
		}
	case "refusal":
		keep(0, "refusal")
		return false
	case "thinking":
		keep(0, "thinking")
		return false
	case "tool_use":
		keep(markCall, "id", "name", "input")
		return false
	case "tool_result":
		keep(markResult, "tool_use_id", "is_error", "content")
		return false
	}
	p.media.Reset()
	for _, s := range f[1:] {
		p.feed(s)
	}
	for _, m := range p.members[base:] {
		p.feed(m.at)
	}
	p.members = p.members[:base]
	p.tape.cut(f[0].to)
	p.tape.addByte(markMedia)
	p.tape.add(p.tape.bytes(kind))
	p.tape.addByte(':')
	p.addDigest()
	return false
}

func (p *Parser) renderText(start, base int, f *parts, text span) (blank bool) {
	if text.empty() {
		p.keep(start, base, partMembers, f, p.lead(markText, "", 0))
		return true
	}
	p.keep(start, base, partMembers, f, span{}, "text")
	n := 0
	for _, o := range p.tape.ops[start:] {
		n += int(o.n)
	}
	return n == p.level+1
}

var urlMembers = inOrder{{"url", asJSON, 0}}

// url puts an object's url first.
func (p *Parser) url(key op) {
	if p.peek() != '{' {
		p.extra(key)
		return
	}
	from := p.tape.mark()
	p.memberName(key)
	p.record(p.tape.mark(), urlMembers, asExtra)
	p.remember(key, from)
}

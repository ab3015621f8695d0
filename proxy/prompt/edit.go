package prompt

import (
	"bytes"
	"slices"
)

// Edits lengthen the vector by which a body is sent; honest clients need a handful.
const maxEdits = 64

var (
	withUsage   = []byte(`{"include_usage":true}`)
	usageTrue   = []byte(`true`)
	usageOnly   = []byte(`"include_usage":true`)
	usageBefore = []byte(`"include_usage":true,`)
)

const optionMember = `"stream_options":{"include_usage":true}`

// ResponseIDLen is the length of the ids that vLLM and SGLang give responses themselves.
const ResponseIDLen = len(noResponseID)

const (
	noResponseID = "resp_00000000000000000000000000000000"
	idMember     = `"request_id":"` // of the response to this request
)

func (p *Parser) options() {
	c := &p.ctl
	c.usage, c.continuous, c.optionsGiven, c.ask = false, false, true, ask{}
	from := p.pos
	switch p.peek() {
	case 'n':
		p.literal()
		c.ask = ask{withUsage, from, p.pos}
		return
	case '{':
	default:
		p.skip() // engines refuse other types
		return
	}
	text := usageOnly
	for key := range p.object {
		text = usageBefore
		switch at := p.pos; string(p.tape.bytes(key)) {
		case "include_usage":
			c.usage = p.truth()
			c.ask = ask{usageTrue, at, p.pos}
		case "continuous_usage_stats":
			c.continuous = p.truth()
		default:
			p.skip()
		}
	}
	if c.ask.text == nil {
		c.ask = ask{text, from + 1, from + 1}
	}
}

// end notes a member that ends at p.pos. If gone, an edit removes it, with the comma before it or,
// at the front, after it.
func (p *Parser) end(r *remains, gone bool) {
	if !gone {
		r.end, r.some = p.pos, true
		return
	}
	from := r.end
	r.end = p.pos
	if !r.some && p.peek() == ',' {
		r.end = p.pos + 1
	}
	if n := len(p.edits) - 1; n >= 0 && p.edits[n].To == from {
		p.edits[n].To = r.end
		return
	}
	if len(p.edits) == maxEdits {
		p.fail(from, "too many members that steer engines")
		return
	}
	p.edits = append(p.edits, Edit{From: from, To: r.end})
}

var bootstrapFields = []byte("bootstrap_")

// Only the operator may say where to compute or fetch KV blocks.
func steers(name []byte) bool {
	return common[string(name)].how == asSteering || bytes.HasPrefix(name, bootstrapFields)
}

// vLLM passes vllm_xargs to the engine.
func (p *Parser) extraArgs() {
	r := remains{end: p.pos + 1}
	for key := range p.ifObject {
		gone := !p.opt.Control && steers(p.tape.bytes(key))
		p.skip()
		p.end(&r, gone)
	}
}

func (p *Parser) finishEdits(r *Request) {
	c := &p.ctl
	r.UsageAdded = (p.kind == Chat || p.kind == Completion) && c.stream && !c.usage && !c.continuous &&
		(!c.optionsGiven || c.ask.text != nil)
	if r.UsageAdded && c.optionsGiven {
		at, _ := slices.BinarySearchFunc(p.edits, c.ask.from, func(e Edit, from int) int { return e.From - from })
		p.edits = slices.Insert(p.edits, at, Edit{c.ask.from, c.ask.to, c.ask.text})
	}
	head := p.appendRoots(p.head[:0])
	if r.UsageAdded && !c.optionsGiven {
		head = append(head, optionMember+","...)
	}
	if p.kind == Responses && p.opt.NameResponse && !(c.named && p.opt.Control) {
		head = append(head, idMember...)
		r.ResponseID = len(head)
		head = append(head, noResponseID...)
		head = append(head, `",`...)
	}
	p.head = head
	if len(head) > 0 {
		if !p.rest.some {
			head = head[:len(head)-1]
		}
		if len(p.edits) == 0 || p.edits[0].From != p.inside {
			p.edits = slices.Insert(p.edits, 0, Edit{From: p.inside, To: p.inside})
		}
		p.edits[0].Text = head
	}
	r.Edits = p.edits
	if p.rest.some && !c.ownSession {
		r.SessionAt = p.inside
	}
}

// editModel replaces the body's model, unless the head gets one.
func (p *Parser) editModel() {
	if p.alias == nil || p.model.to == 0 {
		return
	}
	p.aliasText = append(append(append(p.aliasText[:0], '"'), p.alias...), '"')
	at, _ := slices.BinarySearchFunc(p.edits, p.model.from, func(e Edit, from int) int { return e.From - from })
	p.edits = slices.Insert(p.edits, at, Edit{p.model.from, p.model.to, p.aliasText})
}

// appendRoots appends the members that become the first of the body: a salt, and a model if the body has none.
func (p *Parser) appendRoots(dst []byte) []byte {
	if dst = p.appendSalt(dst); p.alias == nil || p.model.to > 0 {
		return dst
	}
	return append(append(append(dst, `"model":"`...), p.alias...), `",`...)
}

func (p *Parser) appendSalt(dst []byte) []byte {
	name := saltMember(p.kind)
	if name == "" || len(p.salt) == 0 {
		return dst
	}
	dst = append(dst, '"')
	dst = append(dst, name...)
	dst = append(dst, `":"`...)
	dst = append(dst, p.salt...)
	return append(dst, `",`...)
}

// saltMember returns "" if engines take no salt.
func saltMember(k Kind) string {
	switch k {
	case Chat, Completion, Responses, Messages:
		return "cache_salt"
	case Generate:
		return "extra_key"
	}
	return ""
}
